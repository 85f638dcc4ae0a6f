"""Exchange of models and data with other programs: JAX, ONNX, CTranslate2, Hugging Face, seqio and T5X.

`onnx` writes programs for browsers (extra `onnx`). `jax_programs` makes programs that JAX runs without padir.
`ctranslate2` runs autoregressive models in CTranslate2 (extra `peers`). `write_weights` and `read_weights` use the
names of Hugging Face's T5. `seqio_tasks` registers padir's sources as seqio Tasks, and reads the sets of TensorFlow
Datasets (extra `data`). `t5x` reads and writes T5X checkpoints, and its `adapter` runs padir's models under T5X.
"""

from padir.interop.huggingface import hugging_face_name, read_weights, write_weights
from padir.interop.stablehlo import jax_programs

__all__ = ["hugging_face_name", "jax_programs", "read_weights", "write_weights"]

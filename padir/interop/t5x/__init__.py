"""T5X: reads and writes T5X checkpoints without T5X; `adapter` runs padir's models under T5X.

`import_model` makes a model directory from a T5X checkpoint; `export_checkpoint` does the reverse. `take` starts a
model from the parameters of a T5 that fit.
"""

from padir.interop.t5x.checkpoint import T5XCheckpoint
from padir.interop.t5x.exchange import Report, export_checkpoint, import_model, take

__all__ = ["Report", "T5XCheckpoint", "export_checkpoint", "import_model", "take"]

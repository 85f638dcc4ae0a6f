"""The Transformer, its parameters and model directories.

`ModelConfig` holds the sizes and options. `Transformer` is the encoder-decoder with a length head. `init_params` makes
parameters under T5X's names, and `quantise` rounds them to 8 bits. `save_model` and `load_model` write and read a model
directory, which holds weights, vocabulary and `ModelCard`.
"""

from padir.models.config import ModelConfig
from padir.models.directory import ModelCard, Weights, load_model, save_model
from padir.models.encoder import Encoded
from padir.models.length import LengthOutput
from padir.models.params import count_parameters, init_params, param_axes, param_shapes, quantise
from padir.models.transformer import Transformer

__all__ = [
    "Encoded",
    "LengthOutput",
    "ModelCard",
    "ModelConfig",
    "Transformer",
    "Weights",
    "count_parameters",
    "init_params",
    "load_model",
    "param_axes",
    "param_shapes",
    "quantise",
    "save_model",
]

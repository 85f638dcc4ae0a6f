"""The sizes and choices of a model."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from padir.errors import PadirError
from padir.models.length import LENGTH_HEADS

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes and choices of a model; the defaults are the paper's (section L.2), 67M parameters at V = 32,100.

    Attributes:
      width: D. heads: H. head_dim: K. mlp: F.
      encoder_layers, decoder_layers: depths.
      mlp_activations: one for a plain block, several for a gated one; ("gelu", "linear") is T5 1.1's.
      tied: whether the output projection is the token embedding (scaled by 1/sqrt(D)).
      positional_attention: whether each decoder layer has it.
      dropout_rate: as in T5X, broadcast along positions.
      max_length: rows of the position table and classes of the length head; sources and targets have at most this many
        tokens, EOS included.
      length_head: one of `padir.models.length.LENGTH_HEADS`.
      max_fertility: largest change from one target token per source token (fertility head only).
      decontextualised: DisCo's decoder (Kasai et al., ICML 2020), in which no output depends on its own input token.
        positional_attention, through which it would, becomes False, whatever it was given as.
      rejecter: whether a head judges the tokens that the decoder is shown.
      dtype: of activations, "float32" or "bfloat16"; parameters and softmax are float32.
      causal: an autoregressive decoder: each position sees those to its left. It needs neither of two parts, whatever
        they were given as: positional_attention becomes False and length_head "oracle", so that sources have no
        [LENGTH] token and sentences end where the decoder writes EOS.
      remat: whether a gradient computes the inside of each encoder and decoder layer again instead of keeping it: about
        a third more work, much less memory. It changes nothing else. For CPUs, XLA drops the barriers that keep it from
        doing so too early to save anything; XLA_FLAGS=--xla_disable_hlo_passes=cse_barrier_expander keeps them.

    Raises:
      PadirError: a size is not positive, a name is unknown, or there is a rejecter in a decontextualised decoder.
    """

    width: int = 512
    heads: int = 8
    head_dim: int = 64
    mlp: int = 2048
    encoder_layers: int = 6
    decoder_layers: int = 6
    mlp_activations: tuple[str, ...] = ("relu",)
    tied: bool = True
    positional_attention: bool = True
    dropout_rate: float = 0.1
    max_length: int = 256
    length_head: str = "token"
    max_fertility: int = 2
    decontextualised: bool = False
    rejecter: bool = False
    dtype: str = "float32"
    causal: bool = False
    remat: bool = False

    def __post_init__(self):
        object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
        for name in ("width", "heads", "head_dim", "mlp", "encoder_layers", "decoder_layers", "max_length"):
            if getattr(self, name) < 1:
                raise PadirError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.dropout_rate < 1:
            raise PadirError(f"dropout_rate must lie in [0, 1), got {self.dropout_rate}")
        if self.dtype not in DTYPES:
            raise PadirError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        for activation in self.mlp_activations:
            if activation != "linear" and not hasattr(jax.nn, activation):
                raise PadirError(f"mlp_activations must be names from jax.nn or 'linear', got {activation!r}")
        if self.length_head not in LENGTH_HEADS:
            raise PadirError(f"length_head must be one of {', '.join(LENGTH_HEADS)}, got {self.length_head!r}")
        if self.max_fertility < 0:
            raise PadirError(f"max_fertility must be at least 0, got {self.max_fertility}")
        if self.causal and (self.decontextualised or self.rejecter):
            raise PadirError(
                "a causal model refines no draft: it is neither decontextualised nor has it a rejecter, set one of them"
            )
        if self.decontextualised and self.rejecter:
            raise PadirError(
                "a rejecter judges the token that the decoder is shown at a position, which a decontextualised decoder"
                " does not see: set rejecter=False"
            )
        if self.causal or self.decontextualised:
            object.__setattr__(self, "positional_attention", False)
        if self.causal:
            object.__setattr__(self, "length_head", "oracle")

    @property
    def length_token(self) -> bool:
        """Whether source segments begin with the [LENGTH] token."""
        return self.length_head == "token"

"""The attention of one decoder pass, collected from the probabilities that the layers sow.

`padir.models.layers.Attention` sows its probabilities at every call. Flax drops what is sown unless the caller makes
the collection "intermediates" mutable, as `attend` does, so that other callers do not pay for them.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.models.transformer import Transformer
from padir.refinement.scores import best_tokens, forbid

_NAMES = {"own": "self_attention", "positional": "positional_attention", "cross": "encoder_decoder_attention"}


@flax.struct.dataclass
class Maps:
    """Attention probabilities [query, key] of one decoder pass: J decoder layers, H heads each, R rows of targets.

    Attributes:
      own_RJHLL: the decoder's self-attention, between target positions.
      cross_RJHLS: cross-attention, from target positions to source positions.
      positional_RJHLL: positional attention, between target positions; None where the model has none.
    """

    own_RJHLL: Float[Array | np.ndarray, "R J H L L"]
    cross_RJHLS: Float[Array | np.ndarray, "R J H L S"]
    positional_RJHLL: Float[Array | np.ndarray, "R J H L L"] | None = None


def check_model(config: ModelConfig) -> None:
    """Refuses a model whose passes over a draft cannot be analysed.

    Raises:
      PadirError: the model is causal or decontextualised.
    """
    if config.causal:
        raise PadirError("an autoregressive model has no refinement to analyse: give a refinement model")
    if config.decontextualised:
        raise PadirError(
            "in a decontextualised decoder each position sees its own set of tokens, which a trace does not keep:"
            " analyse a model with an ordinary decoder"
        )


@functools.partial(jax.jit, static_argnums=0)
def attend(
    model: Transformer,
    params: Any,
    tokens_RL: Int[Array, "R L"],
    segment_RL: Int[Array, "R L"],
    cross_kv: Any,
    source_segment_BS: Int[Array, "B S"],
) -> tuple[Maps, Int[Array, "R L"]]:
    """Runs one pass over drafts; returns its attention and the best token of each position.

    Arguments and errors are those of `Transformer.decode`; rows are sentence-major, R = B * N.
    """
    output, sown = model.apply(
        {"params": params},
        tokens_RL,
        segment_RL,
        cross_kv,
        source_segment_BS,
        method="decode",
        mutable=["intermediates"],
    )
    layers = sown["intermediates"]["decoder"]
    rows, length = tokens_RL.shape

    def gather(name: str):
        each = [layers[f"layers_{j}"][name]["attn_BHLS"][0] for j in range(model.config.decoder_layers)]
        return jnp.stack([_by_row(attn, rows, length) for attn in each], axis=1)

    positional = gather(_NAMES["positional"]) if model.config.positional_attention else None
    maps = Maps(gather(_NAMES["own"]), gather(_NAMES["cross"]), positional)
    return maps, best_tokens(forbid(output.logits_BLV, model.ids.special))[0]


def _by_row(attn, rows: int, length: int):
    """Sown attention by row, [R, H, L, keys]: cross-attention folds the N hypotheses of a sentence into its queries."""
    batch, heads, _, keys = attn.shape
    attn = attn.reshape(batch, heads, rows // batch, length, keys)
    return attn.swapaxes(1, 2).reshape(rows, heads, length, keys)

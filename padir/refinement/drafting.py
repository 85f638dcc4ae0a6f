"""The draft that decoding starts from: noise at every position but EOS."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from padir.refinement.canvas import Canvas, from_tokens
from padir.refinement.protocols import Corruption
from padir.text.ids import Ids, sequence_mask

# What a row's key is folded with for its draft: no number of a refinement step, whose draws must not be the same.
_DRAFT = 2**31 - 1


def draft(
    key_B: Key[Array, " B"], length_B: Int[Array, " B"], max_length: int, corruption: Corruption, ids: Ids
) -> Canvas:
    """A fresh canvas of given lengths: noise everywhere, EOS at the last position of each row.

    Args:
      key_B: one key per row.
      length_B: target lengths in tokens, EOS included.
      max_length: L, at least every length.
      corruption: decides what the noise is; used at rate 1.
    """
    present_BL = sequence_mask(length_B, max_length)
    free_BL = sequence_mask(length_B - 1, max_length)  # EOS is placed by the length model and never rewritten
    blank_BL = jnp.where(free_BL, ids.first_regular, jnp.where(present_BL, ids.eos, ids.padding)).astype(jnp.int32)
    segment_BL = present_BL.astype(jnp.int32)
    key_B = jax.vmap(lambda key: jax.random.fold_in(key, _DRAFT))(key_B)
    tokens_BL, _ = corruption.full()(key_B, blank_BL, free_BL, segment_BL, ids=ids)
    return from_tokens(tokens_BL, tokens_BL, free_BL, segment_BL, ids)

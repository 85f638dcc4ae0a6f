"""The first draft of a translation, from which decoding starts: noise at every position but EOS."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from padir.refinement.canvas import Canvas, from_tokens
from padir.refinement.protocols import Corruption
from padir.text.ids import Ids, sequence_mask

# A row's key is folded with this number to draw the draft. No step has this number, so the steps get other noise.
_DRAFT = 2**31 - 1


def draft(
    key_B: Key[Array, " B"], length_B: Int[Array, " B"], max_length: int, corruption: Corruption, ids: Ids
) -> Canvas:
    """Makes the first canvas for given lengths: noise at every position, EOS at the last position of each row.

    Args:
      key_B: one key per row.
      length_B: target lengths in tokens, EOS included.
      max_length: L, not below any target length.
      corruption: the corruption that makes the noise; it is used at rate 1.

    >>> from padir.refinement import Mask
    >>> ids = Ids(vocab_size=16, num_sentinels=4, first_regular=3)
    >>> draft(jax.random.split(jax.random.key(0), 2), jnp.array([4, 2]), 4, Mask(), ids).tokens_BL.tolist()
    [[15, 15, 15, 1], [15, 1, 0, 0]]
    """
    present_BL = sequence_mask(length_B, max_length)
    free_BL = sequence_mask(length_B - 1, max_length)  # EOS is placed by the length model and never rewritten
    blank_BL = jnp.where(free_BL, ids.first_regular, jnp.where(present_BL, ids.eos, ids.padding)).astype(jnp.int32)
    segment_BL = present_BL.astype(jnp.int32)
    key_B = jax.vmap(lambda key: jax.random.fold_in(key, _DRAFT))(key_B)
    tokens_BL, _ = corruption.full()(key_B, blank_BL, free_BL, segment_BL, ids=ids)
    return from_tokens(tokens_BL, tokens_BL, free_BL, segment_BL, ids)

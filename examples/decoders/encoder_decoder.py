"""Refinement with an encoder-decoder that refines random tokens, as PaDIR's and DiffusionGemma's models do.

The encoder reads the sources once. Its output has a row for each source, so the decoder picks the rows that a pass asks
for (`Canvas.row_B`). Arrays are handed to jit as arguments (`Partial`), not as constants.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from padir.refinement import Canvas

Encode = Callable[[jax.Array, jax.Array], jax.Array]
Decode = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def decoder(encode: Encode, decode: Decode, source_BS: jax.Array, source_mask_BS: jax.Array) -> Partial:
    """Makes padir's decoder of two functions of JAX.

    Args:
      encode: (source_BS, source_mask_BS) -> memory_BSD.
      decode: (memory_BSD, source_mask_BS, tokens_BL, target_mask_BL) -> logits_BLV, in which every position sees every
        other one.
      source_BS, source_mask_BS: the sources' tokens, and 1 where there is one.
    """

    def call(memory_BSD, source_mask_BS, canvas: Canvas):
        if canvas.row_B is not None:  # numbers beyond the last row stand for the last row
            memory_BSD, source_mask_BS = (x.at[canvas.row_B].get(mode="clip") for x in (memory_BSD, source_mask_BS))
        return decode(memory_BSD, source_mask_BS, canvas.tokens_BL, (canvas.segment_BL > 0).astype(jnp.int32))

    return Partial(call, encode(source_BS, source_mask_BS), source_mask_BS)

"""Shapes of batches and their encoding, which refining, searching, scoring and word alignment share."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from padir.decoding.program_cache import PROGRAMS
from padir.models.transformer import Transformer
from padir.text.ids import round_up

BUCKET = 8  # the smallest row length
POSITIONS = 128  # number of positions that a decoder reads at once on a CPU


def padded_length(length: int, lengths: Sequence[int] = ()) -> int:
    """The row length for a number of tokens: the first of `lengths` with room, else one of 8, 12, 16, 24, 32, 48, 64 ..

    Each of these lengths is 2 or 3 times a power of 2, so that a corpus compiles few programs.

    >>> [padded_length(length) for length in (3, 9, 13, 17, 33, 65)]
    [8, 12, 16, 24, 48, 96]
    """
    longest = max(BUCKET, length)
    quarter = (1 << (longest - 1).bit_length()) // 4
    return next((room for room in lengths if room >= length), round_up(longest, quarter))


def rows_together(length: int, platform: str) -> int | None:
    """Number of rows of a length that the decoder processes at once on a platform, such as "cpu"; None for all.

    `POSITIONS` keep a CPU busy. In small groups, rows that are done cost nothing. GPUs and TPUs need all rows.
    """
    return max(1, POSITIONS // length) if platform == "cpu" else None


@PROGRAMS.add
@functools.partial(jax.jit, static_argnums=0)
def encode(model: Transformer, params, source_BS):
    """Computes the encoder's output of a batch of sources, and each decoder layer's keys and values of this output."""
    segment_BS = (source_BS > 0).astype(jnp.int32)
    bound = model.bind({"params": params})
    encoded = bound.encode(source_BS, segment_BS)
    return encoded, bound.cross_kv(encoded.memory_BSD)

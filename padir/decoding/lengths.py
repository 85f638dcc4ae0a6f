"""The target lengths that decoding tries for each sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from padir import checks
from padir.errors import PadirError


class Candidate(NamedTuple):
    """A draft that decoding tries for a sentence: its length in tokens, EOS included, and the number of its draw."""

    length: int
    draw: int


_MOST_DRAFTS = 4_096  # maximum number of drafts of one sentence, which are all in memory at once


@dataclasses.dataclass(frozen=True)
class LengthSearch:
    """The lengths that decoding tries for a sentence: top-k lengths × offsets × parallel draws, duplicates removed.

    Attributes:
      top_k: number of most likely lengths to try; must be 1 for a length head that gives a single number.
      offsets: numbers that are added to each of these lengths; (-1, 0, 1) tries the neighbouring lengths, too.
      draws: number of drafts of each length; a number above 1 needs a random canvas.
      adjacent: the top_k lengths are neighbours around the most likely one (`padir.models.length.top_lengths`). Without
        it, they are the most likely ones, of which some may be far from all others.

    Raises:
      PadirError: top_k or draws is below 1, offsets is empty, adjacent is no bool, or a sentence would have more than
        4,096 drafts.
    """

    top_k: int = 1
    offsets: tuple[int, ...] = (0,)
    draws: int = 1
    adjacent: bool = False

    def __post_init__(self):
        offsets = tuple(self.offsets) if isinstance(self.offsets, Collection) else (self.offsets,)
        object.__setattr__(self, "offsets", offsets)
        checks.whole_numbers(top_k=self.top_k, draws=self.draws)
        for offset in offsets:
            checks.whole_numbers(offsets=offset)
        if not isinstance(self.adjacent, bool):
            raise PadirError("adjacent", "True or False", self.adjacent)
        checks.at_least(1, top_k=self.top_k, draws=self.draws)
        if not self.offsets:
            raise PadirError("offsets must name at least one offset: (0,) tries the predicted lengths alone")
        drafts = self.top_k * len(self.offsets) * self.draws
        if drafts > _MOST_DRAFTS:
            what = f"draws ({self.draws:,}) x top_k ({self.top_k:,}) x offsets ({len(self.offsets):,})"
            raise PadirError(what, f"at most {_MOST_DRAFTS:,} drafts of a sentence", drafts, "lower one of them")


def candidate_rows(
    length_BK: Int[Array, "B K"], search: LengthSearch, max_length: int
) -> tuple[Int[Array, "B N"], Int[Array, "B N"]]:
    """Lengths and draws of every sentence's `candidates` as arrays, for use inside jit; keeps duplicates.

    >>> candidate_rows(jnp.array([[5, 6]]), LengthSearch(top_k=2, offsets=(0, 1)), max_length=6)[0].tolist()
    [[5, 6, 6, 6]]
    """
    length_BK = length_BK[:, : search.top_k]
    length_BN = jnp.concatenate([jnp.clip(length_BK + offset, 2, max_length) for offset in search.offsets], axis=1)
    length_BN = jnp.repeat(length_BN, search.draws, axis=1)
    draw_N = jnp.tile(jnp.arange(search.draws), length_BN.shape[1] // search.draws)
    return length_BN, jnp.broadcast_to(draw_N, length_BN.shape)


def candidates(lengths: Sequence[int], search: LengthSearch, max_length: int) -> list[Candidate]:
    """The drafts that decoding tries for one sentence, most likely length first, without duplicates.

    Lengths are clipped to [2, max_length], since a sentence with text has at least one token beside EOS.

    >>> candidates([5, 6], LengthSearch(top_k=2, offsets=(0, 1)), max_length=6)
    [Candidate(length=5, draw=0), Candidate(length=6, draw=0)]
    """
    tried: dict[int, None] = {}
    for offset in search.offsets:
        for length in lengths[: search.top_k]:
            tried[int(np.clip(length + offset, 2, max_length))] = None
    return [Candidate(length, draw) for length in tried for draw in range(search.draws)]

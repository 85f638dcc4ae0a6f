"""Token ids, the letters of array axes, and conversions between lengths, segments and masks.

Names of arrays in padir end in the letters of their axes; `tokens_BL` is an array [batch, target length]. The letters
are B batch (rows), S source length, L target length, V vocabulary, D model width, H heads, K head width, F MLP width,
T steps, N hypotheses, R = B*N rows of hypotheses, and G segments (sentence pairs in a row).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from padir import checks
from padir.errors import PadirError

AnyArray = TypeVar("AnyArray", Array, np.ndarray)

PADDING = 0
EOS = 1
UNK = 2
NUM_BYTES = 256  # SentencePiece's byte pieces follow UNK when byte fallback is on
_MOST_SENTINELS = 2**17  # enough for mask_range, which needs one for each position of the longest row, and 3 more


@dataclasses.dataclass(frozen=True)
class Ids:
    """The special ids of a vocabulary with T5's layout, in which the sentinels are the last ids.

    V-1 is the mask, V-2 the blank of CTC models (T5 reserves it for BOS), V-3 is the length token, and mask_range
    begins at V-4.

    Attributes:
      vocab_size: V, pieces and sentinels together; ids from V on are outside the vocabulary.
      num_sentinels: number of sentinels, which T5 calls extra ids.
      first_regular: the first regular piece; padding, EOS, unk, byte pieces and symbols come before it.
      num_embeddings: number of rows of the embedding table, at least V; rows from V on are padding for sharding. 0
        means V.
      writes_blank: decoding may write the blank, as only CTC models do.
      num_placeholders: number of sentinels, from the first one on, that stand for spans of the source. Decoding may
        write them.

    Raises:
      PadirError: the counts leave no regular piece.
    """

    vocab_size: int
    num_sentinels: int = 100
    first_regular: int = UNK + 1 + NUM_BYTES
    num_embeddings: int = 0
    writes_blank: bool = False
    num_placeholders: int = 0

    padding: ClassVar[int] = PADDING
    eos: ClassVar[int] = EOS
    unk: ClassVar[int] = UNK

    def __post_init__(self):
        if self.num_embeddings == 0:
            object.__setattr__(self, "num_embeddings", self.vocab_size)
        checks.within(3, _MOST_SENTINELS, "100 are usual", num_sentinels=self.num_sentinels)
        checks.within(0, self.num_sentinels - 3, "use more sentinels", num_placeholders=self.num_placeholders)
        special = UNK + 1 + self.num_sentinels
        checks.above(special, f"{special} ids are special", vocab_size=self.vocab_size)
        checks.at_least(UNK + 1, "padding, EOS and unk come first", first_regular=self.first_regular)
        checks.within(UNK + 1, self.end_regular - 1, "use a larger vocabulary", first_regular=self.first_regular)
        checks.at_least(self.vocab_size, num_embeddings=self.num_embeddings)

    @property
    def mask(self) -> int:
        return self.vocab_size - 1

    @property
    def blank(self) -> int:
        """The sentinel that CTC models write between tokens, which collapsing removes."""
        return self.vocab_size - 2

    @property
    def length(self) -> int:
        return self.vocab_size - 3

    @property
    def end_regular(self) -> int:
        """The first sentinel, one past the last regular piece."""
        return self.vocab_size - self.num_sentinels

    @property
    def noise(self) -> range:
        """The regular pieces, from which random canvases are drawn."""
        return range(self.first_regular, self.end_regular)

    def mask_range(self, length: int) -> range:
        """The mask ids of positions 0 .. length-1: V-4, V-5, ...

        Raises:
          PadirError: the vocabulary has fewer than length + 3 sentinels beside the placeholders.
        """
        more = 3 + self.num_placeholders
        if self.num_sentinels < length + more:
            raise PadirError(
                f"mask_range needs a sentinel for each of {length} positions and {more} more, got {self.num_sentinels}"
                " sentinels",
                remedy=f"train the vocabulary with num_sentinels={length + more} or shorten the rows",
            )
        return range(self.vocab_size - 4, self.vocab_size - 4 - length, -1)

    @functools.cached_property
    def special(self) -> tuple[int, ...]:
        """Ids that decoding never writes: padding, EOS, unk, ids from V on, and sentinels that are no placeholders.

        Byte pieces are allowed.
        """
        sentinels = range(self.end_regular + self.num_placeholders, self.num_embeddings)
        return (PADDING, EOS, UNK, *(i for i in sentinels if not (self.writes_blank and i == self.blank)))


def sequence_mask(length_B: Int[Array, " B"], max_length: int) -> Bool[Array, "B L"]:
    """True at the first `length_B` positions of each row.

    >>> sequence_mask(jnp.array([1, 3]), 3).astype(int).tolist()
    [[1, 0, 0], [1, 1, 1]]
    """
    return jnp.arange(max_length) < length_B[:, None]


def positions_in_segment(segment_BL: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Each position's index within its segment, from 0; a segment is a run of equal numbers.

    >>> positions_in_segment(jnp.array([[1, 1, 2, 2, 2, 0]])).tolist()
    [[0, 1, 0, 1, 2, 0]]
    """
    index_L = jnp.arange(segment_BL.shape[1])
    previous_BL = jnp.pad(segment_BL, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    start_BL = jnp.where(segment_BL != previous_BL, index_L, 0)
    return index_L - jax.lax.cummax(start_BL, axis=1)


def equals_left(tokens: AnyArray) -> AnyArray:
    """True at the tokens [.., L], of NumPy or JAX, that equal the token to their left.

    >>> equals_left(np.array([7, 7, 8])).tolist()
    [False, True, False]
    """
    xp = tokens.__array_namespace__()
    left = xp.concat([xp.full_like(tokens[..., :1], -1), tokens[..., :-1]], axis=-1)
    return tokens == left


def segment_lengths(segment_BL: Int[Array, "B L"], num_segments: int) -> Int[Array, "B G"]:
    """The number of positions of each of the segments 1 .. num_segments; 0 for absent segments.

    >>> segment_lengths(jnp.array([[1, 1, 2, 0]]), 3).tolist()
    [[2, 1, 0]]
    """
    return (segment_BL[:, None, :] == jnp.arange(1, num_segments + 1)[:, None]).sum(-1)


def round_up(length: int, multiple: int) -> int:
    """Rounds a length up to a multiple; with rounded lengths fewer array shapes have to be compiled.

    >>> round_up(9, 8)
    16
    """
    return -(-length // multiple) * multiple


def at_most(size: Any, limit: int) -> bool:
    """True if a size is at most a limit; False for the symbolic size of an exported program, which is unknown.

    >>> at_most(3, 4), at_most(jax.export.symbolic_shape("b")[0], 4)
    (True, False)
    """
    return not jax.export.is_symbolic_dim(size) and size <= limit


def pad_rows(rows: list[list[int]], length: int, num_rows: int | None = None) -> np.ndarray:
    """Right-pads token lists to an int32 array [num_rows or len(rows), length]."""
    out = np.full((num_rows or len(rows), length), PADDING, np.int32)
    for i, row in enumerate(rows):
        if len(row) > length:
            raise PadirError(f"a row of {len(row)} tokens does not fit into {length}", remedy="shorten it first")
        out[i, : len(row)] = row
    return out


def sorted_batches(items: Iterable[int], batch_size: int, length: Callable[[int], Any]) -> Iterator[list[int]]:
    """Sorts sentence numbers by length (the sort is stable) and cuts them into batches.

    >>> list(sorted_batches(range(3), 2, [9, 4, 4].__getitem__))
    [[1, 2], [0]]
    """
    order = sorted(items, key=length)
    for begin in range(0, len(order), batch_size):
        yield order[begin : begin + batch_size]

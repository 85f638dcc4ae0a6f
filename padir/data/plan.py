"""Shapes of batches, and plans that put sentence pairs into batches, packed or bucketed by length.

A plan depends only on the order of the pairs and on their lengths. So it can be replayed up to any batch without
reading tokens, and every process of a training run makes the same plan.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import numpy as np

from padir import checks
from padir.errors import PadirError
from padir.text.ids import round_up

MODES = ("pack", "bucket")
BUCKET_STEP = 8  # lengths are rounded up to a multiple of this number

# Rows that wait for more pairs while packing: more rows waste fewer positions and take longer to search.
_OPEN_ROWS = 64
_MOST_POSITIONS = 2**26  # maximum number of positions of a batch; its arrays alone then take about 2 GB

Shape = tuple[int, int, int]  # B, S, L
Rows = list[list[int]]  # the record numbers of each row, in segment order


@checks.settings
class Batching:
    """The options for the shape of training batches, which gin configurations set.

    Attributes:
      rows, row_length: a batch has about rows * row_length target positions; in "pack" mode it has exactly `rows` rows
        of `row_length` positions.
      source_row_length: source positions of a packed row; None takes the length that the corpus needs.
      mode: "pack" puts several pairs into a row, "bucket" batches pairs of similar length.
      max_segments: maximum number of pairs in a packed row; None takes an eighth of row_length.
      row_multiple: the number of rows in a batch is a multiple of this number and of the number of devices that share
        the rows. So in "bucket" mode the batches are the same for all numbers of devices that divide row_multiple.
      accumulation_steps: gradient accumulation: a step computes the gradient in this number of parts with equally many
        rows, one after the other, and adds up the gradients. Use it for batches that are too large for a device's
        memory. The result differs from the whole batch's only in the last bits and in the noise of dropout. In "bucket"
        mode the number of rows is also a multiple of this number, so that batches change unless it divides
        row_multiple.

    Raises:
      PadirError: a number is below 1, or there is no such mode.
    """

    rows: checks.Count = 32
    row_length: checks.Count = 128
    source_row_length: checks.Count | None = None
    mode: Annotated[str, partial(checks.one_of, MODES)] = "pack"
    max_segments: checks.Count | None = None
    row_multiple: checks.Count = 1
    accumulation_steps: checks.Count = 1

    @property
    def num_segments(self) -> int:
        """Maximum number of segments in a row, G."""
        if self.mode != "pack":
            return 1
        return self.max_segments if self.max_segments is not None else max(1, self.row_length // 8)

    def resolved(self, source_row_length: int, row_multiple: int = 1) -> Batching:
        """Fills in the source's row length and the row multiple of all processes.

        Raises:
          PadirError: `rows` is no multiple of row_multiple, or a batch would not fit into memory.
        """
        if self.rows % row_multiple:
            raise PadirError("rows", f"a multiple of row_multiple, {row_multiple}", self.rows)
        positions = self.rows * max(self.row_length, source_row_length)
        if positions > _MOST_POSITIONS:
            raise PadirError("a batch", f"of at most {_MOST_POSITIONS:,} positions", positions, "lower Batching.rows")
        return dataclasses.replace(self, source_row_length=source_row_length, row_multiple=row_multiple)

    def shapes(self) -> tuple[Shape, ...]:
        """Every batch shape (B, S, L) that can occur, shortest rows first; B * L is about the same for all shapes.

        >>> Batching(rows=4, row_length=24, source_row_length=32, mode="bucket").shapes()
        ((12, 16, 8), (6, 24, 16), (4, 32, 24))
        """
        assert self.source_row_length is not None
        if self.mode == "pack":
            return ((self.rows, self.source_row_length, self.row_length),)
        shapes = []
        for length in range(BUCKET_STEP, self.row_length, BUCKET_STEP):
            rows = self.rows * self.row_length // length // self.row_multiple * self.row_multiple
            source = round_up(math.ceil(length * self.source_row_length / self.row_length), BUCKET_STEP)
            shapes.append((rows, min(source, self.source_row_length), length))
        return (*shapes, (self.rows, self.source_row_length, self.row_length))


def plan_pack(order: np.ndarray, length_N2: np.ndarray, batching: Batching) -> Iterator[tuple[Shape, Rows]]:
    """Plans batches (shape, rows) of packed rows: each pair goes into an open row that has room for it (first fit).

    If none of the `_OPEN_ROWS` open rows has room, the oldest is closed. `order` holds record numbers, `length_N2` the
    tokens of each record's source (length token and EOS included) and target (EOS included).
    """
    (shape,), most = batching.shapes(), batching.num_segments
    rows, source_length, target_length = shape
    source_N = length_N2[:, 0].tolist()
    target_N = length_N2[:, 1].tolist()
    # Open rows in a ring: `oldest` is the next to be closed. Lists, as NumPy is slow on 64 numbers at a time.
    source_room = [source_length] * _OPEN_ROWS
    target_room = [target_length] * _OPEN_ROWS
    open_rows: Rows = [[] for _ in range(_OPEN_ROWS)]
    oldest = 0
    done: Rows = []
    for record in order.tolist():
        source = source_N[record]
        target = target_N[record]
        for slot in range(_OPEN_ROWS):
            if target_room[slot] >= target and source_room[slot] >= source and len(open_rows[slot]) < most:
                break
        else:
            slot = oldest
            oldest = (oldest + 1) % _OPEN_ROWS
            done.append(open_rows[slot])
            open_rows[slot] = []
            source_room[slot] = source_length
            target_room[slot] = target_length
            if len(done) == rows:
                yield shape, done
                done = []
        open_rows[slot].append(record)
        source_room[slot] -= source
        target_room[slot] -= target
    done += [row for row in open_rows if row]
    for start in range(0, len(done), rows):
        yield shape, done[start : start + rows]


def plan_bucket(order: np.ndarray, length_N2: np.ndarray, batching: Batching) -> Iterator[tuple[Shape, Rows]]:
    """Plans batches (shape, rows) with one pair in a row, bucketed by length.

    Each pair goes into the shortest bucket that holds it; a full bucket becomes a batch. The pairs that are left at the
    end move into longer buckets, so that at most one batch of an epoch is not full.
    """
    shapes = batching.shapes()
    longest = [np.array([bucket[i] for bucket in shapes]) for i in (1, 2)]
    bucket_N = np.maximum(*(np.searchsorted(longest[i], length_N2[:, i]) for i in (0, 1)))
    waiting: list[Rows] = [[] for _ in shapes]
    for record in order.tolist():
        bucket = int(bucket_N[record])
        waiting[bucket].append([record])
        if len(waiting[bucket]) == shapes[bucket][0]:
            yield shapes[bucket], waiting[bucket]
            waiting[bucket] = []
    left: Rows = []
    for shape, rows in zip(shapes, waiting, strict=True):
        left += rows
        while len(left) >= shape[0]:
            yield shape, left[: shape[0]]
            left = left[shape[0] :]
    if left:
        yield shapes[-1], left


PLANS = {"pack": plan_pack, "bucket": plan_bucket}

"""Batches of sentences of similar length, which need little padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def sorted_batches(items: Iterable[int], batch_size: int, length: Callable[[int], Any]) -> Iterator[list[int]]:
    """Sorts sentence numbers by length (the sort is stable) and cuts them into batches.

    Args:
      items: numbers of the sentences.
      batch_size: number of sentences in a batch; the last batch may have fewer.
      length: gives the length of each item, or a tuple of lengths.

    >>> list(sorted_batches(range(3), 2, [9, 4, 4].__getitem__))
    [[1, 2], [0]]
    """
    order = sorted(items, key=length)
    for begin in range(0, len(order), batch_size):
        yield order[begin : begin + batch_size]

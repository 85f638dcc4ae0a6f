"""Times several callables side by side, so that both times of a ratio are measured under about the same load."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from padir.errors import PadirError

T = TypeVar("T")

PERCENTILES = (50, 90, 99)
LEAST_CALLS = 30  # minimum number of calls for which high percentiles are reported


@dataclasses.dataclass(frozen=True)
class Timed:
    """Seconds of one callable's calls.

    Attributes:
      first_B: seconds of the first call with each batch, which compiles.
      seconds_RB: seconds of each later call, [repeats, batches].
    """

    first_B: np.ndarray
    seconds_RB: np.ndarray

    @property
    def total_R(self) -> np.ndarray:
        """Seconds of each repeat, all batches together."""
        return self.seconds_RB.sum(1)

    @property
    def compile_seconds(self) -> float:
        """Seconds of the first calls beyond the median of the later calls: an upper bound of the compile time."""
        return float(np.maximum(self.first_B - np.median(self.seconds_RB, axis=0), 0).sum())

    def latency(self) -> dict[str, float]:
        """Percentiles of the seconds of one call, over all repeats and batches; only the median if calls are few."""
        percentiles = PERCENTILES if self.seconds_RB.size >= LEAST_CALLS else PERCENTILES[:1]
        return {f"p{q}": float(np.percentile(self.seconds_RB, q)) for q in percentiles}


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Ratio of two callables' speeds: median and quartiles over the repeats."""

    median: float
    lower: float
    upper: float

    @staticmethod
    def of(baseline: Timed, other: Timed) -> Ratio:
        """Divides the baseline's seconds by the other's for each repeat; above 1 if `other` is faster."""
        lower, median, upper = np.percentile(baseline.total_R / other.total_R, [25, 50, 75]).tolist()
        return Ratio(median, lower, upper)


def interleave(
    callables: Mapping[str, Callable[[T], object]],
    batches: Sequence[T],
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timed]:
    """Times each callable with each batch, `repeats` times after a first call that does not count.

    All callables take a batch, in random order, before any callable takes the next batch. So no callable always comes
    first, or always after the same other callable. Callables must return when their work is done
    (`jax.block_until_ready`).

    Raises:
      PadirError: there is nothing to time.
    """
    if not callables or not batches or repeats < 1:
        raise PadirError(
            f"a benchmark needs something to time, got {len(callables)} systems, {len(batches)} batches and"
            f" {repeats} repeats"
        )
    names = list(callables)
    first = {name: np.zeros(len(batches)) for name in names}
    seconds = {name: np.zeros((repeats, len(batches))) for name in names}

    def timed(name: str, batch: T) -> float:
        began = clock()
        callables[name](batch)
        return clock() - began

    for name in names:
        for b, batch in enumerate(batches):
            first[name][b] = timed(name, batch)
    draw = np.random.RandomState(0)
    for r in range(repeats):
        for b, batch in enumerate(batches):
            for i in draw.permutation(len(names)):
                seconds[names[i]][r, b] = timed(names[i], batch)
    return {name: Timed(first[name], seconds[name]) for name in names}

"""Compiled programs of a process, kept from becoming too many.

For CPUs, XLA maps every kernel of a program into memory on its own: a decoder takes some 300 mappings, Linux gives a
process 65,530, and the compiler ends the process when they run out. There is a program for every combination of lengths
and batch sizes, so long input gets there.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHARE = 0.6  # of the mappings that a process may have: the rest is for everyone else's


@dataclasses.dataclass
class Programs:
    """The programs of some jitted functions.

    Attributes:
      functions: what `jax.jit` returned.
      mappings: says how many mappings the process has and may have; None where the system has no such limit.
      times_dropped: how often all programs were dropped. They come back from the cache on disk, where there is one.
    """

    functions: tuple[Any, ...]
    mappings: Callable[[], tuple[int, int] | None]
    times_dropped: int = 0
    _known: int = 0

    def share(self) -> float:
        """Of the mappings that the process may have, how many it has; 0 where there is no such limit."""
        found = self.mappings()
        return 0.0 if found is None else found[0] / found[1]

    def make_room(self) -> None:
        """Drops them all if mappings run short; costs nothing unless one was compiled since the last call."""
        count = sum(function._cache_size() for function in self.functions)
        if count > self._known:
            self._known = count
            if self.share() > SHARE:
                self.drop()

    def drop(self) -> None:
        """Drops them all."""
        for function in self.functions:
            function.clear_cache()
        gc.collect()
        self.times_dropped += 1
        self._known = 0


def mappings() -> tuple[int, int] | None:
    """How many memory mappings the process has, and may have; None where the system does not say."""
    try:
        with open("/proc/self/maps") as lines:
            return sum(1 for _ in lines), int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return None

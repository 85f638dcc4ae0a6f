"""Compiled programs of a process, dropped before they use up its memory mappings.

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

SHARE = 0.6  # of the mappings that a process may have; other parts of the process need some, too


@dataclasses.dataclass
class Programs:
    """The compiled programs of some jitted functions.

    Attributes:
      functions: results of `jax.jit`.
      mappings: gives the number of mappings that the process has and may have; None if the system has no such limit.
      times_dropped: number of times that all programs were dropped; a cache on disk gives them back.
    """

    functions: tuple[Any, ...]
    mappings: Callable[[], tuple[int, int] | None]
    times_dropped: int = 0
    _known: int = 0

    def share(self) -> float:
        """The share of its mappings that the process uses, 0 .. 1; 0 if there is no limit."""
        found = self.mappings()
        return 0.0 if found is None else found[0] / found[1]

    def make_room(self) -> None:
        """Drops all programs if mappings run short; costs nothing unless one was compiled since the last call."""
        count = sum(function._cache_size() for function in self.functions)
        if count > self._known:
            self._known = count
            if self.share() > SHARE:
                self.drop()

    def drop(self) -> None:
        """Drops all programs."""
        for function in self.functions:
            function.clear_cache()
        gc.collect()
        self.times_dropped += 1
        self._known = 0


def mappings() -> tuple[int, int] | None:
    """Memory mappings that the process has, and may have; None if the system does not say."""
    try:
        with open("/proc/self/maps") as lines:
            return sum(1 for _ in lines), int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return None

"""Keeps compiled programs on disk, and drops a process's programs before they use up its memory mappings.

On CPUs, XLA maps every kernel of a program into memory separately: a decoder takes about 300 mappings, Linux allows a
process 65,530, and the compiler aborts the process when mappings run out. Every combination of lengths and batch sizes
compiles a program, so a long input reaches this limit.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax

from padir.errors import PadirError

SHARE = 0.6  # share of the allowed mappings at which programs are dropped; other code needs mappings, too


def compile_cache(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Lets JAX keep compiled programs on disk for the next process; returns the folder, or None if nothing is kept.

    Every command of `padir` calls this function, and so does `Translator.load` unless JAX has a folder already.

    Args:
      folder: the folder; None for `JAX_COMPILATION_CACHE_DIR` or, if that is not set, ~/.cache/padir/jax. The empty
        string keeps nothing.
    """
    if folder is None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(home / "padir" / "jax"))
    jax.config.update("jax_compilation_cache_dir", os.fspath(folder))  # the empty string, too: it is a choice
    if not os.fspath(folder):
        return None
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:  # JAX leaves out what compiles within a second
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return Path(folder)


Jitted = TypeVar("Jitted")
_process: int | None = None  # the first process that was ready to run programs


def check_process() -> None:
    """Refuses to run programs in a forked copy of a process that runs them: it would wait for threads that it lacks."""
    global _process
    if _process not in (None, os.getpid()):
        what = "this process was forked from one in which JAX runs, and might wait for ever"
        raise PadirError(what, remedy='start processes by multiprocessing.get_context("spawn")')
    _process = os.getpid()


@dataclasses.dataclass
class ProgramCache:
    """The compiled programs of several jitted functions; JAX's cache on disk can restore programs that were dropped.

    `mappings` is the function of this name; tests replace it.
    """

    mappings: Callable[[], tuple[int, int] | None]
    functions: list[Any] = dataclasses.field(default_factory=list)
    times_dropped: int = 0
    _known: int = 0
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def add(self, function: Jitted) -> Jitted:
        """Decorates a jitted function whose programs are to be dropped with the others."""
        self.functions.append(function)
        return function

    def share(self) -> float:
        """The share of its mappings that the process uses, 0 .. 1; 0 if there is no limit."""
        found = self.mappings()
        return 0.0 if found is None else found[0] / found[1]

    def make_room(self) -> None:
        """Drops all programs if mappings run short; checks only if a program was compiled since the last call."""
        with self._lock:  # threads that write batches
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
    """Number of memory mappings that the process has, and may have; None if the system does not report them."""
    try:
        with open("/proc/self/maps") as lines:
            return sum(1 for _ in lines), int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return None


PROGRAMS = ProgramCache(mappings)
"""The programs whose number grows with the shapes of batches; `LoadedModel.on_devices` makes room for them."""

"""Lines on stderr about work that takes long: a command that is silent for minutes looks as if it had failed."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax.monitoring

SECONDS = 2.0  # work that takes longer is reported on stderr
AGAIN = 60.0  # seconds from one line about compiling to the next
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"  # JAX records this event just before XLA compiles,
_COMPILED = "/jax/core/compile/backend_compile_duration"  # and this one after it
_END = b"\0"  # no signal has this number


@contextlib.contextmanager
def told(work: str) -> Iterator[None]:
    """Prints "padir: WORK ..." on stderr if the block takes longer than `SECONDS`."""
    timer = _timer(lambda: _say(work))
    try:
        yield
    finally:
        timer.cancel()


def _timer(say: Callable[[], None]) -> threading.Timer:
    """Starts a timer that calls `say`, unless it is cancelled before."""
    timer = threading.Timer(SECONDS, say)
    timer.daemon = True
    timer.start()
    return timer


def _say(work: str) -> None:
    print(f"padir: {work} ...", file=sys.stderr, flush=True)


@functools.cache
def tell_of_compiling() -> None:
    """Prints a line, from now on, about programs that XLA compiles for longer than `SECONDS`.

    Several programs within `AGAIN` seconds share one line.
    """
    running = threading.local()  # each thread compiles its own programs
    said = [-AGAIN]

    def say() -> None:
        if time.monotonic() - said[0] >= AGAIN:
            said[0] = time.monotonic()
            _say("compiling")

    def record(event: str, duration_secs: float, **_: Any) -> None:
        if event in (_LOWERED, _COMPILED):
            if (timer := getattr(running, "timer", None)) is not None:
                timer.cancel()
            running.timer = _timer(say) if event == _LOWERED else None

    jax.monitoring.register_event_duration_secs_listener(record)


@contextlib.contextmanager
def told_of_stopping() -> Iterator[None]:
    """Prints a line on stderr if the block goes on for longer than `SECONDS` after SIGINT or SIGTERM.

    Python runs a signal's handler once XLA returns, which may take minutes. The C library writes the signal's number to
    a pipe at once, where a thread waits for it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    except ValueError:  # outside the main thread, which alone gets signals
        os.close(reader)
        os.close(writer)
        yield
        return
    watch = threading.Thread(target=_tell_of_stopping, args=[reader], daemon=True)
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        os.write(writer, _END)
        watch.join()
        os.close(reader)
        os.close(writer)


def _tell_of_stopping(reader: int) -> None:
    while not (numbers := os.read(reader, 64)).endswith(_END):
        if {signal.SIGINT, signal.SIGTERM} & set(numbers):
            if not select.select([reader], [], [], SECONDS)[0]:
                _say("stopping, once the step or program that runs has ended")

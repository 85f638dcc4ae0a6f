"""Progress of long work on stderr, because a command that is silent for minutes looks as if it had failed."""

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
import rich.console
import rich.progress

SECONDS = 2.0  # work that takes longer is reported on stderr
AGAIN = 60.0  # seconds from one line about compiling to the next
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"  # JAX records this event just before XLA compiles,
_COMPILED = "/jax/core/compile/backend_compile_duration"  # and this one after it
_END = b"\0"  # no signal has this number


def stop_signals() -> list[signal.Signals]:
    """SIGINT, SIGTERM and SIGHUP (the terminal is gone), without those that the process ignores (nohup)."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


@contextlib.contextmanager
def told(work: str) -> Iterator[None]:
    """Prints "padir: WORK ..." on stderr if the block takes longer than `SECONDS`, and then ten times less often."""
    ended = threading.Event()
    began = time.monotonic()

    def tell() -> None:
        if not ended.wait(SECONDS):
            _say(work)
        while not ended.wait(10 * SECONDS):
            _say(f"{work}, for {time.monotonic() - began:.0f} s")

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


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
    """From now on, prints a line whenever XLA compiles programs for longer than `SECONDS`.

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
    """Prints a line on stderr if the block goes on for longer than `SECONDS` after one of `stop_signals`.

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
        if set(stop_signals()) & set(numbers):
            if not select.select([reader], [], [], SECONDS)[0]:
                _say("stopping, once the step or program that runs has ended")


@contextlib.contextmanager
def progress_bar(label: str, total: int | None, unit: str, *, show: bool = True) -> Iterator[Callable[..., None]]:
    """Shows how much of some work is done.

    Args:
      label: name of the work.
      total: number of items; None if it is unknown, and then only a terminal shows the progress.
      unit: plural of an item's name.
      show: False shows nothing.

    Yields:
      advance(count, fresh=True), to be called with the number of further items that are done; fresh=False marks items
      from an earlier call, which do not count in the rate.
    """
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(
        rich.progress.TextColumn("[bold]{task.description}"),
        *([] if total is None else [rich.progress.BarColumn()]),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[rate]}"),
        rich.progress.TimeElapsedColumn() if total is None else rich.progress.TimeRemainingColumn(),
        console=console,
        disable=not (show and console.is_terminal),
    ) as bar:
        task = bar.add_task(label, total=total, rate="")
        began = told = time.monotonic()
        done = found = 0

        def advance(count: int, fresh: bool = True) -> None:
            nonlocal began, done, found, told
            done += count
            now = time.monotonic()
            if not fresh:
                began = now
                found = done
            rate = (done - found) / max(now - began, 1e-9)
            bar.update(task, completed=done, rate=f"{rate:,.1f} {unit}/s")
            if show and total and not console.is_terminal and (now - told > 60 or done == total):
                told = now
                left = f", {(total - done) / rate / 60:,.0f} min left" if rate and done < total else ""
                line = f"{label}: {done:,} of {total:,} {unit}, {rate:,.1f} a second{left}"
                console.print(line, highlight=False, soft_wrap=True)

        yield advance

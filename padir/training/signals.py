"""Graceful stops: SIGINT and SIGTERM end a training run after the current step."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import jax


class Stop:
    """A request to stop, which the training loop reads after each step.

    Attributes:
      requested: True once a signal has come.
      immediate: True if the next signal raises KeyboardInterrupt at once.
    """

    requested = immediate = False

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Lets a signal interrupt read-only work at once, unless other processes take part in the work."""
        self.immediate = jax.process_count() == 1
        try:
            if self.requested and self.immediate:
                raise KeyboardInterrupt
            yield
        finally:
            self.immediate = False


@contextlib.contextmanager
def graceful_stop() -> Iterator[Stop]:
    """Turns SIGINT and SIGTERM into a request to stop after the step, or within the validation.

    A second signal raises KeyboardInterrupt at once; `Checkpoints` still finishes a save.
    """
    stop, previous = Stop(), {}

    def request(number, frame):
        again, stop.requested = stop.requested, True
        if again or stop.immediate:
            raise KeyboardInterrupt

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # raised outside the main thread, which alone handles signals
                previous[number] = signal.signal(number, request)
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

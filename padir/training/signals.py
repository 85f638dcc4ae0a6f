"""SIGINT and SIGTERM end a training run after the current step."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import jax


class Stop:
    """Whether a signal has asked for a stop.

    Attributes:
      requested: one has; whoever can stop looks here.
      immediate: a signal is a KeyboardInterrupt at once.
    """

    requested = immediate = False

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """For work that changes nothing and may be left at any point, unless other processes wait for us in it."""
        self.immediate = jax.process_count() == 1
        try:
            if self.requested and self.immediate:
                raise KeyboardInterrupt
            yield
        finally:
            self.immediate = False


@contextlib.contextmanager
def graceful_stop() -> Iterator[Stop]:
    """SIGINT and SIGTERM ask for a stop at the end of the step, or within the validation; a second one at once, but for
    a save under way."""
    stop, previous = Stop(), {}

    def request(number, frame):
        again, stop.requested = stop.requested, True
        if again or stop.immediate:
            raise KeyboardInterrupt

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread: whoever runs us handles signals
                previous[number] = signal.signal(number, request)
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

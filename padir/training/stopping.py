"""Graceful stops: signals ask a training run to stop, and the run saves before it ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

import jax

from padir.reporting.patience import stop_signals


class StopSignal:
    """A request to stop by SIGINT, SIGTERM or SIGHUP; a second signal raises KeyboardInterrupt at once.

    Attributes:
      requested: True once a signal has come.
    """

    def __init__(self):
        self.requested = False
        self._immediate = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Turns signals into a request to stop, in place of their usual effect; `Checkpoints` still finishes a save."""
        previous = {}
        try:
            for number in stop_signals():
                with contextlib.suppress(ValueError):  # raised outside the main thread, which alone handles signals
                    previous[number] = signal.signal(number, self._request)
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Lets a signal interrupt read-only work at once, unless other processes take part in the work."""
        self._immediate = jax.process_count() == 1
        try:
            if self.requested and self._immediate:
                raise KeyboardInterrupt
            yield
        finally:
            self._immediate = False

    def _request(self, number: int, frame: FrameType | None) -> None:
        again = self.requested
        self.requested = True
        if again or self._immediate:
            raise KeyboardInterrupt

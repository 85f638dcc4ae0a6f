"""Batches of a loader on the devices, the next of which is copied there while a step runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np


@runtime_checkable
class Loader(Protocol):
    """Protocol of endless loaders of batches (`padir.data.loader.make_loader`), whose place can be saved as JSON."""

    def __next__(self) -> dict[str, np.ndarray]: ...
    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any], /) -> None: ...


class PlacedBatches:
    """Batches of a loader on the devices; the next batch can be copied there while the devices compute.

    The state counts only batches that were taken, and no batch that was only fetched. So a run that resumes from the
    state takes exactly the batches that the stopped run had not taken. An error of `fetch` is raised when the batch is
    taken, so that a finished step can still be recorded and saved. `place` puts the arrays of a batch on the devices.
    """

    def __init__(self, loader: Loader, place: Callable[[dict[str, np.ndarray]], dict[str, jax.Array]]):
        self._loader = loader
        self._place = place
        self._state: dict[str, Any] = loader.get_state()
        self._fetched: tuple[dict[str, np.ndarray], dict[str, jax.Array], dict[str, Any]] | Exception | None = None

    def __next__(self) -> tuple[dict[str, np.ndarray], dict[str, jax.Array]]:
        """The next batch, on the host and on the devices."""
        self.fetch()
        fetched = self._fetched
        self._fetched = None
        if isinstance(fetched, Exception):
            raise fetched
        assert fetched is not None
        arrays, batch, self._state = fetched
        return arrays, batch

    def fetch(self) -> None:
        """Reads the next batch and begins to copy it to the devices, unless it was fetched before."""
        if self._fetched is None:
            try:
                arrays = next(self._loader)
                self._fetched = arrays, self._place(arrays), self._loader.get_state()
            except Exception as error:  # an error of the loader, or too little memory
                self._fetched = error

    def get_state(self) -> dict[str, Any]:
        return self._state

    def set_state(self, state: dict[str, Any]) -> None:
        self._loader.set_state(state)
        self._state = state
        self._fetched = None

"""Shardings of the train state, the training step as one program on all devices, and batches put on the devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.core
import flax.struct
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from padir.distributed.sharding import DATA, Sharding, of_state, part_held, process_rows
from padir.models.params import param_axes
from padir.models.transformer import Transformer
from padir.training.batch import Batch, Sums


@flax.struct.dataclass
class TrainState:
    """Step number, parameters and optimizer state: everything that a training step changes."""

    step: Any  # an integer array; checkpoints replace the leaves by other kinds of objects
    params: Any
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class Placement:
    """Shardings of the train state, and the jitted functions that use them.

    Attributes:
      mesh: mesh of the devices, with axes [data, model].
      state: the sharding of each array of the state.
      like: shape and dtype of each array of the state.
    """

    mesh: Mesh
    state: TrainState
    like: TrainState

    @staticmethod
    def of(sharding: Sharding, mesh: Mesh, model: Transformer, initial: Callable[[], TrainState]) -> Placement:
        """Chooses shardings for the state of `initial`: parameters by axis names, optimizer state like parameters."""
        like = jax.eval_shape(initial)
        params = sharding.of_params(param_axes(model), like.params, mesh)
        everywhere = NamedSharding(mesh, PartitionSpec())
        opt_state = of_state(like.opt_state, like.params, params, mesh)
        return Placement(mesh, TrainState(step=everywhere, params=params, opt_state=opt_state), like)

    def fresh(self, initial: Callable[..., TrainState], *given: Any) -> TrainState:
        """Computes `initial(*given)` already sharded, so that no device ever holds more than its part of the state."""
        return jax.jit(initial, out_shardings=self.state)(*given)

    def step(self, step_fn: Callable[[TrainState, Batch], tuple[TrainState, Sums]]) -> Callable[..., Any]:
        """Jits a step as one program on all devices, which donates the memory of its input state."""
        everywhere = NamedSharding(self.mesh, PartitionSpec())

        # The batch is passed as a dict, as `lower` would fill a Batch with objects that are no arrays.
        def placed(state: TrainState, arrays: dict[str, Any]) -> tuple[TrainState, Sums]:
            state, sums = step_fn(state, Batch(**arrays))
            state = jax.lax.with_sharding_constraint(state, self.state)
            return state, jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, everywhere), sums)

        return jax.jit(placed, donate_argnums=0)

    def batch(self, arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Places the rows of this process on its devices, as its part of a batch over all processes."""
        by_row, (_, shares) = NamedSharding(self.mesh, PartitionSpec(DATA)), process_rows(self.mesh)
        return {
            name: jax.make_array_from_process_local_data(by_row, rows, (len(rows) * shares, *rows.shape[1:]))
            for name, rows in arrays.items()
        }

    def __str__(self) -> str:
        data, model = self.mesh.devices.shape
        part = part_held(self.state, self.like)
        return (
            f"{self.mesh.size} devices: the rows of a batch are split {data} ways, the work on each row {model} ways;"
            f" a device holds {part:.1%} of the state"
        )


class PlacedBatches:
    """Batches of a loader on the devices; the next one can be put there while the devices compute.

    The state is that of the batches taken: a batch that was only fetched does not count, so that a run that resumes
    from the state takes exactly the batches that the stopped run had not taken. An error of `fetch` is raised when the
    batch is taken, so that a step that is done can still be recorded and saved.

    Args:
      loader: an iterator over batches with `get_state` and `set_state` (`padir.data.loader.make_loader`).
      place: puts the arrays of a batch on the devices.
    """

    def __init__(self, loader: Any, place: Callable[[dict[str, np.ndarray]], dict[str, jax.Array]]):
        self._loader, self._place = loader, place
        self._state: dict[str, Any] = loader.get_state()
        self._fetched: tuple[Any, Any, dict[str, Any]] | Exception | None = None

    def __next__(self) -> tuple[dict[str, np.ndarray], dict[str, jax.Array]]:
        """The next batch, on the host and on the devices."""
        self.fetch()
        fetched, self._fetched = self._fetched, None
        if isinstance(fetched, Exception):
            raise fetched
        assert fetched is not None
        arrays, batch, self._state = fetched
        return arrays, batch

    def fetch(self) -> None:
        """Reads the next batch and begins to copy it to the devices, unless that was done."""
        if self._fetched is None:
            try:
                arrays = next(self._loader)
                self._fetched = arrays, self._place(arrays), self._loader.get_state()
            except Exception as error:  # the loader's, or too little memory
                self._fetched = error

    def get_state(self) -> dict[str, Any]:
        return self._state

    def set_state(self, state: dict[str, Any]) -> None:
        self._loader.set_state(state)
        self._state, self._fetched = state, None

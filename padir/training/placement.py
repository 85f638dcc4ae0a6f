"""Shardings of the train state and of batches, and the training step as one program on all devices."""

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

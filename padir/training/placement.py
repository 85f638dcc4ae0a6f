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

    step: Any  # an integer array, but checkpoints map the tree to other kinds of leaves
    params: Any
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class Placement:
    """Shardings of the train state, and the jitted functions that use them.

    Attributes:
      mesh: the devices, [data, model].
      state: the sharding of each array of the state.
      like: shape and dtype of each array of the state.
    """

    mesh: Mesh
    state: TrainState
    like: TrainState

    @staticmethod
    def of(sharding: Sharding, mesh: Mesh, model: Transformer, initial: Callable[[], TrainState]) -> Placement:
        """Shards the state that `initial` makes: parameters by the names of their axes, optimizer state like these."""
        like = jax.eval_shape(initial)
        params = sharding.of_params(param_axes(model), like.params, mesh)
        everywhere = NamedSharding(mesh, PartitionSpec())
        opt_state = of_state(like.opt_state, like.params, params, mesh)
        return Placement(mesh, TrainState(step=everywhere, params=params, opt_state=opt_state), like)

    def fresh(self, initial: Callable[..., TrainState], *given: Any) -> TrainState:
        """The state that `initial(*given)` makes; no device ever holds more than its part."""
        return jax.jit(initial, out_shardings=self.state)(*given)

    def step(self, step_fn: Callable[[TrainState, Batch], tuple[TrainState, Sums]]) -> Callable[..., Any]:
        """A step as one program on all devices, which reuses the memory of the state that it is given."""
        everywhere = NamedSharding(self.mesh, PartitionSpec())

        # A batch goes in as a dict: `lower` would fill a Batch with objects that are no arrays.
        def placed(state: TrainState, arrays: dict[str, Any]) -> tuple[TrainState, Sums]:
            state, sums = step_fn(state, Batch(**arrays))
            state = jax.lax.with_sharding_constraint(state, self.state)
            return state, jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, everywhere), sums)

        return jax.jit(placed, donate_argnums=0)

    def batch(self, arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """The rows of this process, placed as its part of a batch over all processes."""
        by_row, (_, shares) = NamedSharding(self.mesh, PartitionSpec(DATA)), process_rows(self.mesh)
        return {
            name: jax.make_array_from_process_local_data(by_row, rows, (len(rows) * shares, *rows.shape[1:]))
            for name, rows in arrays.items()
        }

    def __str__(self) -> str:
        data, model = self.mesh.devices.shape
        part = part_held(self.state, self.like)
        return (
            f"{self.mesh.size} devices: {data} share the rows of a batch, {model} the work on each; a device holds"
            f" {part:.1%} of the state"
        )

"""The optimizer step of a configuration as one program on all devices, with the shardings of its state and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import PyTree

from padir.distributed.sharding import DATA, of_state
from padir.models.params import init_params, param_axes
from padir.models.transformer import Transformer
from padir.text.ids import Ids
from padir.training.batch import Batch, Sums
from padir.training.config import TrainConfig
from padir.training.state import TrainState
from padir.training.step import make_step


class ShardedStep:
    """The optimizer step of a configuration, jitted for the devices of a mesh.

    Attributes:
      model: the model that is trained.
      mesh: the mesh of the devices that share the work.
      like: the state's shapes and dtypes.
      shardings: the sharding of every array of the state.
    """

    def __init__(self, config: TrainConfig, ids: Ids, devices: Sequence[Any] | None = None):
        """Makes the step; `devices` share the work (None: all devices of all processes)."""
        self.model = Transformer(config.model, ids)
        self.mesh = config.sharding.mesh(devices)
        self._seed = config.seed
        self._optimizer = config.transformation()
        self.like = jax.eval_shape(self._state)
        params = config.sharding.of_params(param_axes(self.model), self.like.params, self.mesh)
        self.shardings = of_state(self.like, self.like.params, params, self.mesh)
        self._initial = jax.jit(self._state, out_shardings=self.shardings)
        step_fn = make_step(self.model, self._optimizer, config)
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        # The batch is passed as a dict, as `lower` would fill a Batch with objects that are no arrays.
        self._step = jax.jit(
            lambda state, arrays: step_fn(state, Batch(**arrays)),
            donate_argnums=0,
            out_shardings=(self.shardings, everywhere),
        )

    def _state(self, params: PyTree = None) -> TrainState:
        params = init_params(self.model, self._seed) if params is None else params
        return TrainState(step=jnp.int32(0), params=params, opt_state=self._optimizer.init(params))

    def initial(self, params: PyTree = None) -> TrainState:
        """The state before the first step (None: with initial parameters); no device holds more than its part."""
        return self._initial(params)

    def place(self, arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Places the rows of this process on its devices, as its part of a batch over all processes."""
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, PartitionSpec(DATA)), arrays)

    def __call__(self, state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, Sums]:
        """Takes a step on a batch that `place` has put on the devices; the memory of `state` is given away."""
        with jax.set_mesh(self.mesh):
            return self._step(state, batch)

    def trace(self, state: PyTree, batch: PyTree) -> jax.stages.Traced:
        """Traces the step for arguments like these, without lowering or compiling it."""
        with jax.set_mesh(self.mesh):
            return self._step.trace(state, batch)

    def __str__(self) -> str:
        data, model = self.mesh.devices.shape
        return f"{self.mesh.size} devices: the rows of a batch are split {data} ways, the work on each row {model} ways"

"""The train state, and its distribution over the devices."""

from __future__ import annotations

from typing import Any

import flax.struct
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from padir.distributed.sharding import Sharding, of_state
from padir.models.params import param_axes
from padir.models.transformer import Transformer


@flax.struct.dataclass
class TrainState:
    """Step number, parameters and optimizer state: everything that a training step changes."""

    step: Any  # an integer array; checkpoints replace the leaves by other kinds of objects
    params: PyTree
    opt_state: PyTree


def state_shardings(like: TrainState, sharding: Sharding, mesh: Mesh | AbstractMesh, model: Transformer) -> TrainState:
    """The sharding of every array of a state: parameters by axis names, the optimizer's state like the parameters."""
    params = sharding.of_params(param_axes(model), like.params, mesh)
    return TrainState(
        step=NamedSharding(mesh, PartitionSpec()),
        params=params,
        opt_state=of_state(like.opt_state, like.params, params, mesh),
    )

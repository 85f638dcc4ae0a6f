"""The training step with every kind of sharding: `python -m support.sharded_steps FILE` writes its figures."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np
from support.many_devices import KINDS, MODEL, SETTINGS

from padir.data.plan import Batching
from padir.measuring.compilation.costs import analyse
from padir.measuring.compilation.program_list import train_program
from padir.text.ids import Ids
from padir.training.config import TrainConfig
from padir.training.sharded_step import ShardedStep

# So large that matrix products are most of the work, and parameters most of the state.
LARGER = dataclasses.replace(MODEL, width=64, head_dim=8, mlp=256)
BATCHING, IDS = Batching(rows=16, row_length=32), Ids(2_400)


def figures(kind: str, devices) -> dict:
    """The costs of a step for each device, and the arrays of the state: their bytes, and a device's part of them."""
    config = TrainConfig(**SETTINGS | {"model": LARGER, "batching": BATCHING, "sharding": KINDS[kind]})
    (found,) = analyse([train_program(config, IDS, devices, BATCHING.row_length)])
    step = ShardedStep(config, IDS, devices)
    paths = jax.tree_util.tree_leaves_with_path(step.like)
    held = {}
    for (path, leaf), sharding in zip(paths, jax.tree.leaves(step.shardings), strict=True):
        shapes = leaf.shape, sharding.shard_shape(leaf.shape)
        held[jax.tree_util.keystr(path)] = [float(np.prod(shape)) * leaf.dtype.itemsize for shape in shapes]
    return {**dataclasses.asdict(found), "held": held}


if __name__ == "__main__":
    found = {"one": figures("data", jax.devices()[:1])}
    found |= {kind: figures(kind, jax.devices()) for kind in ("data", "fsdp", "tensor", "2x4")}
    Path(sys.argv[1]).write_text(json.dumps(found))

"""A training step with every kind of sharding: `python -m support.sharded_steps FILE` writes figures."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from support.many_devices import KINDS, MODEL, SETTINGS

from padir.distributed.sharding import DATA
from padir.text.ids import Ids
from padir.training.config import TrainConfig
from padir.training.step import Programs

LENGTH = 32
BOTH = {"data", "fsdp", "tensor", "2x4"}


def figures(kind: str, devices) -> dict:
    """FLOPs a device, and what each device holds of each array of the state after a step has run."""
    config = TrainConfig(**SETTINGS | {"model": dataclasses.replace(MODEL, max_length=LENGTH), "sharding": KINDS[kind]})
    programs = Programs.of(config, Ids(400), devices)
    mesh = programs.placement.mesh
    by_row = NamedSharding(mesh, PartitionSpec(DATA))
    rows = np.tile(np.arange(3, 3 + LENGTH, dtype=np.int32), (config.batching.rows, 1))
    names = ("source_BS", "target_BL"), ("source_segment_BS", "target_segment_BL")
    arrays = {name: jax.device_put(rows, by_row) for name in names[0]}
    arrays |= {name: jax.device_put(jnp.ones_like(rows), by_row) for name in names[1]}
    with jax.set_mesh(mesh):
        state = programs.initial()
        compiled = programs.step.trace(state, arrays).lower().compile()  # pyright: ignore
        state, _ = programs.step(state, arrays)
    held = {
        jax.tree_util.keystr(path): [leaf.size, max(shard.data.size for shard in leaf.addressable_shards)]
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
    return {"flops": compiled.cost_analysis()["flops"], "held": held}


if __name__ == "__main__":
    found = {"one": figures("data", jax.devices()[:1])}
    found |= {kind: figures(kind, jax.devices()) for kind in sorted(BOTH)}
    Path(sys.argv[1]).write_text(json.dumps(found))

"""`Program`, what is known of a program before it is compiled, and the training step of a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from padir.distributed.sharding import DATA
from padir.text.ids import Ids
from padir.training.config import TrainConfig
from padir.training.programs import Programs


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, and how often it does what XLA's analysis counts once.

    XLA counts the body of a loop once. So the cost of a whole use is that of the programs in `before`, which run first,
    that of the programs in `contains`, whose work this program does before its loop, and `trips` times the rest.

    Attributes:
      name: its name in tables, with its shape.
      trace: traces the program, without lowering or compiling it.
      trips: number of times that the body of its outermost `while` loop runs.
      before, contains: names of other programs.
      vocab_size: number of rows of the embedding table.
    """

    name: str
    trace: Callable[[], jax.stages.Traced]
    trips: int = 1
    before: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()
    vocab_size: int | None = None


def train_program(config: TrainConfig, ids: Ids, devices: Sequence[Any], source_row_length: int) -> Program:
    """The training step of a configuration, with its sharding, on all of the devices.

    Batches have the shape of the longest rows.

    Args:
      source_row_length: source positions of a row if the configuration names no number.

    Raises:
      PadirError: the sizes of the model or of its batches cannot be divided among the devices.
    """
    batching = config.batching
    config.sharding.check(config.sharding.mesh(devices), config.model, batching.rows)
    rows, target = batching.rows, batching.row_length
    source = batching.source_row_length or source_row_length

    def trace() -> jax.stages.Traced:
        programs = Programs.of(config, ids, devices)
        mesh = programs.placement.mesh
        by_row = NamedSharding(mesh, PartitionSpec(DATA))
        sides = {"source_BS": source, "source_segment_BS": source, "target_BL": target, "target_segment_BL": target}
        arrays = {
            name: jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=by_row) for name, length in sides.items()
        }
        state = _placed(programs.placement.like, programs.placement.state)
        step: Any = programs.step
        with jax.set_mesh(mesh):
            return step.trace(state, arrays)

    name = f"training step, {rows} rows of {source} and {target} positions"
    return Program(name, trace, vocab_size=ids.num_embeddings)


def _placed(tree: Any, shardings: Any) -> Any:
    """The shapes of a tree, each with its own sharding."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree, shardings
    )

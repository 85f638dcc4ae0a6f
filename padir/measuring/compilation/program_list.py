"""The programs of a configuration before they are compiled: training step, refinement and search."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import PyTree

from padir.decoding import autoregressive, encoding, refine_batch
from padir.decoding.options import Decoding
from padir.decoding.search import Beam
from padir.distributed.sharding import DATA
from padir.models.params import in_model_dtype, init_params
from padir.models.transformer import Transformer
from padir.refinement.corruption import Uniform
from padir.text.ids import Ids
from padir.training.config import TrainConfig
from padir.training.sharded_step import ShardedStep


@dataclasses.dataclass(frozen=True)
class Program:
    """A program, and the number of times that it repeats what XLA's analysis counts once.

    XLA counts the body of a loop once. A whole use is the programs in `before`, which run first, and this program, with
    `trips` trips of its outermost `while` loop.

    Attributes:
      name: its name in tables, with its shape.
      trace: traces the program, without lowering or compiling it.
      trips: number of times that the body of its outermost `while` loop runs.
      before: names of other programs.
      same_as: name of an earlier program that differs in `trips` only, so that it need not be compiled again; "" if
        there is none.
    """

    name: str
    trace: Callable[[], jax.stages.Traced]
    trips: int = 1
    before: tuple[str, ...] = ()
    same_as: str = ""


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
    rows = batching.rows
    target = batching.row_length
    source = batching.source_row_length or source_row_length

    def trace() -> jax.stages.Traced:
        step = ShardedStep(config, ids, devices)
        by_row = NamedSharding(step.mesh, PartitionSpec(DATA))
        sides = {"source_BS": source, "source_segment_BS": source, "target_BL": target, "target_segment_BL": target}
        arrays = {
            name: jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=by_row) for name, length in sides.items()
        }
        return step.trace(_placed(step.like, step.shardings), arrays)

    name = f"training step, {rows} rows of {source} and {target} positions"
    return Program(name, trace)


def _placed(tree: PyTree, shardings: PyTree) -> PyTree:
    """The shapes of a tree, each with its own sharding."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree, shardings
    )


@dataclasses.dataclass(frozen=True)
class DecodeShape:
    """The shape of a batch in decoding.

    Attributes:
      tokens: tokens of every source and of every translation, EOS included.
      batch_size: number of sentences.
      hypotheses: number of drafts, or of the beam's hypotheses, of a sentence.
      steps: number of passes that refine a draft.
    """

    tokens: int = 30
    batch_size: int = 1
    hypotheses: int = 1
    steps: int = 4

    def __str__(self) -> str:
        return f"{self.batch_size} × {self.hypotheses}, {self.tokens} tokens"


def decode_programs(config: TrainConfig, ids: Ids, device: Any, shapes: Sequence[DecodeShape]) -> Iterator[Program]:
    """The encoder, then refinement or search, for batches of some shapes on one device, without duplicates.

    Refinement takes the objective's corruption and strategy. Search writes as many tokens as a source has. Parameters
    have the types in which `Translator` keeps them for decoding.
    """
    programs = _Programs(config, ids, SingleDeviceSharding(device))
    decode = programs.search if config.model.causal else programs.refinement
    seen = set()
    names = {}
    for shape in shapes:
        for program in decode(shape):
            if program.name not in seen:
                seen.add(program.name)
                first = names.setdefault(program.name.removesuffix(f", {shape.steps} passes"), program.name)
                yield dataclasses.replace(program, same_as="" if first == program.name else first)


class _Programs:
    """Programs of decoding by shape.

    Attributes:
      params: the parameters as `LoadedModel.converted` gives them.
    """

    def __init__(self, config: TrainConfig, ids: Ids, sharding: SingleDeviceSharding):
        self.config = config
        self.sharding = sharding
        self.model = Transformer(config.model, ids)
        stored = jax.eval_shape(lambda: init_params(self.model, 0))
        self.params = self.place(jax.eval_shape(functools.partial(in_model_dtype, config.model), stored))
        strategy = config.objective.decoded_with(config.model) or config.model.readout_rules.strategy
        corruption = (getattr(config.objective, "corruption", None) or Uniform()).full()
        self.decoding = Decoding(strategy=strategy, canvas=corruption)

    def place(self, tree: PyTree) -> PyTree:
        """The shapes of a tree, on the device."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.sharding), tree)

    def ints(self, *shape: int) -> Any:
        return self.place(jax.ShapeDtypeStruct(shape, np.int32))

    def refinement(self, shape: DecodeShape) -> Iterator[Program]:
        """The encoder and the refinement of drafts."""
        model = self.model
        decoding = self.decoding
        assert decoding.strategy is not None and decoding.canvas is not None
        options = refine_batch.RefineOptions(
            max_target_length=self._longest(shape), strategy=decoding.strategy, corruption=decoding.canvas
        )

        def memory(params, source_BS):
            encoded, cross_kv = encoding.encode(model, params, source_BS)
            return cross_kv, encoded.segment_BS

        def trace() -> jax.stages.Traced:
            source_BS = self._source_BS(shape)
            drafts = self.ints(shape.batch_size, shape.hypotheses)
            number = self.ints()
            cross_kv, segment_BS = self.place(jax.eval_shape(memory, self.params, source_BS))
            inputs = refine_batch.DraftInputs(cross_kv, segment_BS, source_BS, drafts, drafts, number, number)
            return refine_batch.refine_drafts.trace(model, self.params, inputs, options)

        encoder = self._encoder(shape)
        yield encoder
        yield Program(f"refinement, {shape}, {shape.steps} passes", trace, shape.steps, before=(encoder.name,))

    def search(self, shape: DecodeShape) -> Iterator[Program]:
        """Greedy search, or beam search for several hypotheses."""
        encoder = self._encoder(shape)

        def trace() -> jax.stages.Traced:
            return autoregressive.write_targets.trace(
                self.model,
                self.params,
                self._source_BS(shape),
                self.ints(shape.batch_size),
                search=Beam(shape.hypotheses),
                max_length=self._longest(shape),
                seed=self.ints(),
            )

        yield encoder
        name = "greedy search" if shape.hypotheses == 1 else "beam search"
        yield Program(f"{name}, {shape}", trace, shape.tokens)

    def _encoder(self, shape: DecodeShape) -> Program:
        source_BS = self._source_BS(shape)
        name = f"encoder, {shape.batch_size} × {source_BS.shape[1]} positions"
        return Program(name, functools.partial(encoding.encode.trace, self.model, self.params, source_BS))

    def _source_BS(self, shape: DecodeShape) -> Any:
        length = shape.tokens + self.config.model.length_token
        return self.ints(shape.batch_size, encoding.padded_length(length))

    def _longest(self, shape: DecodeShape) -> int:
        """The width of a translation's canvas, which the readout decides."""
        canvas = self.config.model.geometry.canvas_length(shape.tokens)
        return encoding.padded_length(shape.tokens if canvas is None else int(canvas))

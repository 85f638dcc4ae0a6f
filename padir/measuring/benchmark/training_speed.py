"""Times training steps: real tokens per second, and the share of the machine's speed that is used."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from padir import checks
from padir.data.loader import make_loader
from padir.data.prepared import Mixture, load_tokenizer
from padir.distributed.sharding import DATA, MODEL
from padir.models.config import ModelConfig
from padir.models.params import count_parameters
from padir.training.averaging import Averaging
from padir.training.config import Intervals, TrainConfig
from padir.training.loop import check_lengths
from padir.training.step import Programs

_MATMUL = 4096  # side of the square matrices whose product measures the machine's speed
_WARM_UP = 3  # steps that are not timed


@dataclasses.dataclass(frozen=True)
class TrainingTimes:
    """Times and sizes of some training steps.

    Attributes:
      step_seconds: seconds of each step, with the batch on the device already.
      loader_seconds: seconds of each wait for a batch and of its transfer to the device.
      tokens, positions: mean number of real target tokens and of target positions in a step.
      source_tokens, source_positions: mean number of real source tokens and of source positions in a step.
      pairs: mean number of sentence pairs in a step.
      compile_seconds: seconds of the first steps of all batch shapes, which compile.
      parameters: number of the model's parameters.
      flops: model FLOPs of a step, on average (`model_flops`).
      matmul_flops: FLOPs per second of large matrix products in the model's dtype, measured in the same run on all
        devices at once.
      temporary_bytes: bytes that XLA needs on a device for values within a step, such as activations, for the largest
        batch shape. Parameters, optimizer state and batch are not included. None if the backend does not say.
    """

    step_seconds: tuple[float, ...]
    loader_seconds: tuple[float, ...]
    tokens: float
    positions: float
    source_tokens: float
    source_positions: float
    pairs: float
    compile_seconds: float
    parameters: int
    flops: float
    matmul_flops: float
    temporary_bytes: int | None

    @property
    def metrics(self) -> dict[str, float | None]:
        """Medians, rates over the whole time, and shares, by name; None if unknown."""
        seconds = (sum(self.step_seconds) + sum(self.loader_seconds)) / len(self.step_seconds)
        step = float(np.median(self.step_seconds))
        lower, upper = np.percentile(self.step_seconds, [25, 75]).tolist()
        return {
            "parameters": float(self.parameters),
            "step_ms": 1e3 * step,
            "step_ms_lower": 1e3 * lower,
            "step_ms_upper": 1e3 * upper,
            "tokens_per_second": self.tokens / seconds,
            "positions_per_second": self.positions / seconds,
            "pairs_per_second": self.pairs / seconds,
            "padding_share": 1 - self.tokens / self.positions,
            "source_padding_share": 1 - self.source_tokens / self.source_positions,
            "loader_share": sum(self.loader_seconds) / sum(self.step_seconds),
            "compile_seconds": self.compile_seconds,
            "model_flops_per_second": self.flops / seconds,
            "share_of_matmul": self.flops / seconds / self.matmul_flops,
            "temporary_mb": None if self.temporary_bytes is None else self.temporary_bytes / 1e6,
        }


def measure(
    data: Sequence[str] | Mixture,
    config: TrainConfig = TrainConfig(),
    *,
    steps: int = 20,
    num_embeddings: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> TrainingTimes:
    """Trains for some steps, as `padir.training.train` does, and keeps nothing but the times.

    Args:
      data: prepared folders, or a mixture of prepared folders.
      config: the training run's settings; its number of steps, intervals and averaging have no effect.
      steps: number of steps that are timed, after three that are not.
      num_embeddings: rows of the embedding table, so that a model of any size can be timed on data with a smaller
        vocabulary; 0 for the number of ids in the data's vocabulary.

    Raises:
      PadirError: the data do not fit the configuration, or steps is below 1.
    """
    checks.counts(1, steps=steps)
    mixture = data if isinstance(data, Mixture) else Mixture(tuple(data))
    check_lengths(mixture, mixture.manifests("train"), config.model, config.batching)
    config = dataclasses.replace(config, num_steps=steps + _WARM_UP, intervals=Intervals(), averaging=Averaging())
    model, batching, mesh = config.model, config.batching, config.sharding.mesh()
    config.sharding.check(mesh, model, batching.rows)
    ids = load_tokenizer(mixture.folders[0]).ids
    programs = Programs.of(config, dataclasses.replace(ids, num_embeddings=num_embeddings or ids.num_embeddings))
    loader = make_loader(
        mixture,
        batching,
        row_multiple=mesh.shape[DATA] * batching.accumulation_steps,
        length_token=model.length_token,
        seed=config.seed,
    )
    timer = _StepTimer(programs, mesh, clock)
    stages = config.objective.stage_weights
    counts = []
    for _ in range(config.num_steps):
        arrays = timer.step(loader)
        source, target = arrays["source_segment_BS"], arrays["target_segment_BL"]
        (rows, source_length), target_length = source.shape, target.shape[1]
        vocabulary = programs.model.ids.num_embeddings
        flops = model_flops(model, vocabulary, rows, source_length, target_length, stages)
        pairs = int(target.max(axis=1).sum())  # segments of a row count from 1
        counts.append((int((target > 0).sum()), target.size, int((source > 0).sum()), source.size, pairs, flops))
    tokens, positions, source_tokens, source_positions, pairs, flops = np.mean(counts[_WARM_UP:], axis=0).tolist()
    return TrainingTimes(
        step_seconds=tuple(timer.seconds[_WARM_UP:]),
        loader_seconds=tuple(timer.waits[_WARM_UP:]),
        tokens=tokens,
        positions=positions,
        source_tokens=source_tokens,
        source_positions=source_positions,
        pairs=pairs,
        compile_seconds=sum(timer.first_seconds),
        parameters=count_parameters(programs.placement.like.params),
        flops=flops,
        matmul_flops=_matmul_flops(jnp.dtype(model.dtype), mesh, clock),
        temporary_bytes=max((known for known in timer.temporaries.values() if known is not None), default=None),
    )


class _StepTimer:
    """Makes training steps and notes the seconds of each, and of each wait for a batch."""

    def __init__(self, programs: Programs, mesh: Mesh, clock: Callable[[], float]):
        self.waits: list[float] = []
        self.seconds: list[float] = []
        self.first_seconds: list[float] = []  # seconds of the first step of each batch shape, which compiles
        self.temporaries: dict[tuple[int, ...], int | None] = {}  # bytes of temporaries by batch shape
        self._programs, self._mesh, self._clock = programs, mesh, clock
        self._state = programs.placement.fresh(programs.initial)

    def step(self, loader: Iterator[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Makes a step on the loader's next batch and returns the batch."""
        began = self._clock()
        arrays = next(loader)
        batch = jax.block_until_ready(self._programs.placement.batch(arrays))
        ready = self._clock()
        self.waits.append(ready - began)
        shape = arrays["target_BL"].shape
        with jax.set_mesh(self._mesh):
            if shape not in self.temporaries:  # a step more, which compiles
                self._advance(batch)
                self.first_seconds.append(self._clock() - ready)
                program: Any = self._programs.step
                self.temporaries[shape] = _temporary_bytes(program.lower(self._state, batch).compile())
                ready = self._clock()
            self._advance(batch)
        self.seconds.append(self._clock() - ready)
        return arrays

    def _advance(self, batch: Any) -> None:
        self._state, _ = jax.block_until_ready(self._programs.step(self._state, batch))


def model_flops(
    config: ModelConfig, vocabulary: int, rows: int, source: int, target: int, stages: Sequence[str]
) -> float:
    """Floating-point operations of a step's matrix products, forward and backward (twice the forward).

    A multiplication and an addition count as two. Recomputed values, softmax, norms, the optimizer and the length head
    do not count. The encoder runs once, the decoder once for each stage. The cross-attention's keys and values are
    computed once for all stages, the positional attention's queries and keys also for all rows. A stage of weight
    "none" has no backward pass.

    Args:
      rows, source, target: B, S and L of the batch, padding included.
      stages: the weight of each stage (`Objective.stage_weights`).
    """
    c, inner = config, config.heads * config.head_dim
    attention = 4 * c.width * inner  # projections of one position, multiplications
    mlp = (len(c.mlp_activations) + 1) * c.width * c.mlp
    encoder = c.encoder_layers * (source * (attention + mlp) + 2 * source * source * inner)
    memory = c.decoder_layers * source * 2 * c.width * inner  # keys and values of the memory
    own = 1 + c.positional_attention
    places = c.positional_attention * c.decoder_layers * min(target, c.max_length)
    position = places * 2 * c.width * inner  # queries and keys of positional attention
    projections = attention + c.positional_attention * 2 * c.width * inner
    layer = target * (projections + 2 * c.width * inner + mlp) + 2 * inner * target * (own * target + source)
    decoder = c.decoder_layers * layer + target * c.width * vocabulary
    passes = sum(1 if weight == "none" else 3 for weight in stages)
    return 2.0 * (3 * position + rows * (3 * (encoder + memory) + passes * decoder))


def _temporary_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Bytes of a program's temporaries at their peak; None if the backend does not say."""
    analysis = compiled.memory_analysis()
    return None if analysis is None else analysis.temp_size_in_bytes


def _matmul_flops(dtype: Any, mesh: Mesh, clock: Callable[[], float]) -> float:
    """FLOPs per second of a large matrix product on every device at once: the best of five."""
    side = _MATMUL if jax.default_backend() != "cpu" else _MATMUL // 2
    one_each = NamedSharding(mesh, PartitionSpec((DATA, MODEL)))
    a = jnp.ones((mesh.size, side, side), dtype, device=one_each)
    product = jax.jit(lambda x: x @ x)
    jax.block_until_ready(product(a))
    seconds = []
    for _ in range(5):
        began = clock()
        jax.block_until_ready(product(a))
        seconds.append(clock() - began)
    return 2.0 * mesh.size * side**3 / min(seconds)

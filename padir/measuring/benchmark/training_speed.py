"""Times training steps: real tokens per second, and the share of the machine's speed that is used."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from padir import checks
from padir.data.loader import Arrays, make_loader
from padir.data.plan import Batching
from padir.data.prepared import Mixture, load_tokenizer
from padir.distributed.sharding import DATA, MODEL
from padir.models.config import ModelConfig
from padir.models.params import count_parameters
from padir.models.transformer import Transformer
from padir.text.ids import Ids, round_up
from padir.training.averaging import Averaging
from padir.training.config import Intervals, TrainConfig
from padir.training.loop import check_lengths
from padir.training.sharded_step import ShardedStep

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
      data: prepared folders, or a mixture of prepared folders; without any, batches are `random_batches`.
      config: the training run's settings; its number of steps, intervals and averaging have no effect.
      steps: number of steps that are timed, after three that are not.
      num_embeddings: rows of the embedding table, so that a model of any size can be timed on data with a smaller
        vocabulary; 0 for the number of ids in the data's vocabulary. Without data it is the size of the vocabulary.

    Raises:
      PadirError: the data do not fit the configuration, or steps is below 1.
    """
    checks.counts(1, steps=steps)
    mixture = data if isinstance(data, Mixture) else Mixture(tuple(data)) if data else None
    if mixture is not None:
        check_lengths(mixture, mixture.manifests("train"), config.model, config.batching)
    config = dataclasses.replace(config, num_steps=steps + _WARM_UP, intervals=Intervals(), averaging=Averaging())
    config.sharding.check(config.sharding.mesh(), config.model, config.batching.rows)
    ids = Ids(num_embeddings) if mixture is None else load_tokenizer(mixture.folders[0]).ids
    step = ShardedStep(config, dataclasses.replace(ids, num_embeddings=num_embeddings or ids.num_embeddings))
    row_multiple = step.mesh.shape[DATA] * config.batching.accumulation_steps
    if mixture is None:
        loader = random_batches(config.batching, ids, row_multiple)
    else:
        loader = make_loader(
            mixture,
            config.batching,
            row_multiple=row_multiple,
            length_token=config.model.length_token,
            seed=config.seed,
        )
    timer = _StepTimer(step, clock)
    sizes = [_BatchSize.of(timer.step(loader)) for _ in range(config.num_steps)][_WARM_UP:]
    return TrainingTimes(
        step_seconds=tuple(timer.seconds[_WARM_UP:]),
        loader_seconds=tuple(timer.waits[_WARM_UP:]),
        tokens=statistics.fmean(size.tokens for size in sizes),
        positions=statistics.fmean(size.positions for size in sizes),
        source_tokens=statistics.fmean(size.source_tokens for size in sizes),
        source_positions=statistics.fmean(size.source_positions for size in sizes),
        pairs=statistics.fmean(size.pairs for size in sizes),
        compile_seconds=sum(timer.first_seconds),
        parameters=count_parameters(step.like.params),
        flops=statistics.fmean(size.flops(step.model, config.objective.stage_weights) for size in sizes),
        matmul_flops=_matmul_flops(jnp.dtype(config.model.dtype), step.mesh, clock),
        temporary_bytes=timer.most_temporary_bytes,
    )


def random_batches(batching: Batching, ids: Ids, row_multiple: int = 1) -> Iterator[Arrays]:
    """Repeats one batch without end; its rows are full of random pieces, in sentences of about 32 tokens.

    Source rows have an eighth more positions than target rows, unless the batching has a length for them.
    """
    source_length = batching.source_row_length or round_up(batching.row_length * 9 // 8, 8)
    batching = batching.resolved(source_length, row_multiple)
    sentences = min(batching.num_segments, max(1, batching.row_length // 32))
    rng = np.random.default_rng(0)
    arrays = {}
    for side, length in (("source", source_length), ("target", batching.row_length)):
        tokens_BL = rng.integers(ids.first_regular, ids.end_regular, (batching.rows, length), np.int32)
        segment_L = np.arange(length, dtype=np.int32) * sentences // length + 1
        tokens_BL[:, np.append(segment_L[1:] > segment_L[:-1], True)] = ids.eos
        axes = "BS" if side == "source" else "BL"
        arrays |= {f"{side}_{axes}": tokens_BL, f"{side}_segment_{axes}": np.tile(segment_L, (batching.rows, 1))}
    return itertools.repeat(arrays)


@dataclasses.dataclass(frozen=True)
class _BatchSize:
    """Numbers of rows, sentence pairs, real tokens and positions of a batch."""

    rows: int
    pairs: int
    tokens: int
    positions: int
    source_tokens: int
    source_positions: int

    @staticmethod
    def of(arrays: dict[str, np.ndarray]) -> _BatchSize:
        source_BS = arrays["source_segment_BS"]
        target_BL = arrays["target_segment_BL"]
        return _BatchSize(
            rows=len(target_BL),
            pairs=int(target_BL.max(axis=1).sum()),  # segments of a row count from 1
            tokens=int((target_BL > 0).sum()),
            positions=target_BL.size,
            source_tokens=int((source_BS > 0).sum()),
            source_positions=source_BS.size,
        )

    def flops(self, model: Transformer, stages: Sequence[str]) -> float:
        """Model FLOPs of a step on the batch (`model_flops`)."""
        source = self.source_positions // self.rows
        target = self.positions // self.rows
        return model_flops(model.config, model.ids.num_embeddings, self.rows, source, target, stages)


class _StepTimer:
    """Makes training steps and notes the seconds of each, and of each wait for a batch."""

    def __init__(self, step: ShardedStep, clock: Callable[[], float]):
        self.waits: list[float] = []
        self.seconds: list[float] = []
        self.first_seconds: list[float] = []  # seconds of the first step of each batch shape, which compiles
        self._temporaries: dict[tuple[int, ...], int | None] = {}  # bytes of temporaries by batch shape
        self._step = step
        self._clock = clock
        self._state = step.initial()

    @property
    def most_temporary_bytes(self) -> int | None:
        """Bytes of temporaries for the largest batch shape; None if the backend does not say."""
        return max((known for known in self._temporaries.values() if known is not None), default=None)

    def step(self, loader: Iterator[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Makes a step on the loader's next batch and returns the batch."""
        began = self._clock()
        arrays = next(loader)
        batch = jax.block_until_ready(self._step.place(arrays))
        ready = self._clock()
        self.waits.append(ready - began)
        shape = arrays["target_BL"].shape
        if shape not in self._temporaries:  # a step more, which compiles
            self._advance(batch)
            self.first_seconds.append(self._clock() - ready)
            self._temporaries[shape] = _temporary_bytes(self._step.trace(self._state, batch).lower().compile())
            ready = self._clock()
        self._advance(batch)
        self.seconds.append(self._clock() - ready)
        return arrays

    def _advance(self, batch: dict[str, jax.Array]) -> None:
        self._state, _ = jax.block_until_ready(self._step(self._state, batch))


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
    c = config
    inner = c.heads * c.head_dim
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


def _matmul_flops(dtype: np.dtype, mesh: Mesh, clock: Callable[[], float]) -> float:
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

"""Benchmark of training: real tokens per second, and the share of the machine's speed that a configuration uses."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from padir.data.loader import make_loader
from padir.data.mixture import Mixture
from padir.data.plan import Batching
from padir.data.prepared import load_tokenizer
from padir.distributed.sharding import DATA, MODEL, Sharding
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.models.params import count_parameters, init_params
from padir.models.transformer import Transformer
from padir.training.objective import Objective
from padir.training.optimizer import Adafactor, Optimizer
from padir.training.placement import Placement, TrainState
from padir.training.resume import check_lengths
from padir.training.step import make_step
from padir.training.teacher_forcing import TeacherForcing

_MATMUL = 4096  # side of the square matrices whose product measures the machine's speed


@dataclasses.dataclass(frozen=True)
class TrainingFigures:
    """Measurements of several training steps.

    Attributes:
      step_seconds: seconds of each step, with the batch already on the device.
      loader_seconds: seconds of each wait for a batch and of its transfer to the device.
      tokens, positions: real target tokens and target positions of a step, on average; source_tokens and
        source_positions likewise; pairs: sentence pairs of a step, on average.
      compile_seconds: seconds of the first step of each batch shape, which compiles.
      parameters: number of the model's parameters.
      flops: model FLOPs of a step (`model_flops`).
      matmul_flops: FLOPs per second of large matrix products of the model's dtype in the same run, one on each device,
        all at once.
      temporary_bytes: bytes that XLA allocates on a device for temporaries of a step, such as activations, in the batch
        shape that needs most; None if the backend does not report them. Parameters, optimizer state and batch need
        further memory.
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
    def figures(self) -> dict[str, float | None]:
        """Medians, rates over the whole time, and shares, by name; None for unknown figures."""
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
    *,
    model: ModelConfig = ModelConfig(),
    objective: Objective | TeacherForcing = Objective(),
    optimizer: Optimizer = Adafactor(),
    batching: Batching = Batching(),
    sharding: Sharding = Sharding(),
    steps: int = 20,
    num_embeddings: int = 0,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> TrainingFigures:
    """Trains for several steps, as `padir.training.loop.train` does, and keeps only the measurements.

    Args:
      data: prepared folders, or a mixture of prepared folders.
      model, objective, optimizer, batching, sharding, seed: as for `train`.
      steps: number of timed steps, which follow three steps that are not timed.
      num_embeddings: rows of the embedding table, so that a model of any size can be timed on data of a smaller
        vocabulary; 0 for the size of the data's vocabulary.

    Raises:
      PadirError: the data do not fit the configuration.
    """
    if steps < 1:
        raise PadirError(f"steps must be at least 1, got {steps}")
    mixture = data if isinstance(data, Mixture) else Mixture(tuple(data))
    check_lengths(mixture, mixture.manifests("train"), model, batching)
    ids = load_tokenizer(mixture.folders[0]).ids
    transformer = Transformer(model, dataclasses.replace(ids, num_embeddings=num_embeddings or ids.num_embeddings))
    mesh = sharding.mesh()
    sharding.check(mesh, model, batching.rows)
    loader = make_loader(mixture, batching, row_multiple=mesh.shape[DATA], length_token=model.length_token, seed=seed)
    transformation = optimizer.transformation(steps + 3)

    def initial() -> TrainState:
        params = init_params(transformer, seed)
        return TrainState(jnp.int32(0), params, transformation.init(params))

    placement = Placement.of(sharding, mesh, transformer, initial)
    state = placement.fresh(initial)
    step_fn = placement.step(make_step(transformer, objective, transformation, batching, seed, steps + 3))
    seconds: list[float] = []
    waits: list[float] = []
    first_seconds: list[float] = []
    counts: list[tuple[int, ...]] = []
    flops: list[float] = []
    temporaries: dict[tuple[int, ...], int | None] = {}
    for _ in range(steps + 3):
        began = clock()
        arrays = next(loader)
        batch = jax.block_until_ready(placement.batch(arrays))
        ready = clock()
        waits.append(ready - began)
        shape = arrays["target_BL"].shape
        with jax.set_mesh(mesh):
            if shape not in temporaries:  # an extra step, which compiles
                state, _ = jax.block_until_ready(step_fn(state, batch))
                first_seconds.append(clock() - ready)
                temporaries[shape] = _temporary_bytes(step_fn.lower(state, batch).compile())  # compiled already
                ready = clock()
            state, _ = jax.block_until_ready(step_fn(state, batch))
        seconds.append(clock() - ready)
        source, target = arrays["source_segment_BS"], arrays["target_segment_BL"]
        pairs = int(target.max(axis=1).sum())  # segments of a row count from 1
        counts.append((int((target > 0).sum()), target.size, int((source > 0).sum()), source.size, pairs))
        stages = ("all",) if isinstance(objective, TeacherForcing) else objective.stage_weights
        (rows, source_length), target_length = source.shape, target.shape[1]
        vocabulary = transformer.ids.num_embeddings
        flops.append(model_flops(model, vocabulary, rows, source_length, target_length, stages))
    tokens, positions, source_tokens, source_positions, pairs = np.mean(counts[3:], axis=0).tolist()
    return TrainingFigures(
        step_seconds=tuple(seconds[3:]),
        loader_seconds=tuple(waits[3:]),
        tokens=tokens,
        positions=positions,
        source_tokens=source_tokens,
        source_positions=source_positions,
        pairs=pairs,
        compile_seconds=sum(first_seconds),
        parameters=count_parameters(placement.like.params),
        flops=float(np.mean(flops[3:])),
        matmul_flops=_matmul_flops(jnp.dtype(model.dtype), mesh, clock),
        temporary_bytes=max((known for known in temporaries.values() if known is not None), default=None),
    )


def model_flops(
    config: ModelConfig, vocabulary: int, rows: int, source: int, target: int, stages: Sequence[str]
) -> float:
    """The floating-point operations of a step's matrix products, forward and backward (twice the forward).

    Multiplications and additions count separately. Recomputation to save memory does not count, nor do softmax, norms,
    the optimizer and the length head. The encoder runs once, the decoder once for each stage; the cross-attention's
    keys and values are computed once for all stages. A stage of weight "none" has no backward pass.

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
    layer = target * (own * attention + 2 * c.width * inner + mlp) + 2 * inner * target * (own * target + source)
    decoder = c.decoder_layers * layer + target * c.width * vocabulary
    passes = sum(1 if weight == "none" else 3 for weight in stages)
    return 2.0 * rows * (3 * (encoder + memory) + passes * decoder)


def _temporary_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Bytes of a program's temporaries; None if the backend does not report them."""
    analysis = compiled.memory_analysis()
    return None if analysis is None else analysis.temp_size_in_bytes


def _matmul_flops(dtype: Any, mesh: Mesh, clock: Callable[[], float]) -> float:
    """FLOPs per second of large matrix products on all devices at once, the best of five runs."""
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

"""One optimizer step, as one program on all devices, with its train state and batches; the metrics of several steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.core
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from padir.data.plan import Batching
from padir.distributed.processes import arrays_from_first, from_first
from padir.distributed.sharding import DATA, Sharding, of_state, part_held, process_rows, spread
from padir.errors import PadirError
from padir.models.params import init_params, param_axes
from padir.models.transformer import Transformer
from padir.text.ids import Ids
from padir.training.batch import Batch, Sums, mean_loss
from padir.training.config import TrainConfig
from padir.training.objective import Loss
from padir.training.optimizer import NotFinite, frozen, is_finite, without_gradient


def make_step(
    model: Transformer,
    objective: Loss,
    optimizer: optax.GradientTransformation,
    batching: Batching,
    seed: int,
    num_steps: int,
    not_finite: NotFinite = NotFinite(),
    freeze: tuple[str, ...] = (),
) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
    """Makes the function of one optimizer step of `num_steps`; the objective's `normaliser` divides its loss.

    A skipped step (see `NotFinite`) counts as a step and adds nothing to the sums. With `Batching.accumulation_steps`
    above 1 the gradients of the summed loss are added up part by part, then divided once; there is one check for finite
    numbers and one update for the whole batch. Parameters whose names begin with one of `freeze` get no gradient, which
    saves computing it; `optimizer` must leave them as they are (`padir.training.optimizer.frozen`).

    Raises:
      PadirError: there are several parts, and the objective's normaliser does not divide the length loss.
    """
    if batching.accumulation_steps > 1 and objective.normaliser != "tokens":
        what = f"Batching.accumulation_steps with the normaliser {objective.normaliser!r}"
        raise PadirError(what, "1, because the length loss is not divided", batching.accumulation_steps)
    key = jax.random.key(seed)

    def step_fn(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        def summed(params, some: Batch):
            return objective(
                jax.random.fold_in(key, state.step),
                without_gradient(params, freeze),
                some,
                model=model,
                num_segments=batching.num_segments if batching.mode == "pack" else None,
                dropout=model.config.dropout_rate > 0,
                progress=jnp.asarray(state.step, jnp.float32) / num_steps,
            )

        def mean(params):
            loss, sums = summed(params, batch)
            return mean_loss(loss, sums), sums

        if batching.accumulation_steps == 1:
            (loss, sums), grads = jax.value_and_grad(mean, has_aux=True)(state.params)
        else:
            of_part = jax.value_and_grad(summed, has_aux=True)
            (loss, sums), grads = _summed_over_parts(
                lambda part: of_part(state.params, part), batch, batching.accumulation_steps
            )
            loss, grads = mean_loss((loss, grads), sums)
        finite = is_finite(loss, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        new = not_finite.choose(finite, (params, opt_state), (state.params, state.opt_state))
        sums = not_finite.choose(finite, sums, jax.tree.map(jnp.zeros_like, sums))
        sums = sums.replace(not_finite=1.0 - finite.astype(jnp.float32))
        return TrainState(step=state.step + 1, params=new[0], opt_state=new[1]), sums

    return step_fn


def _summed_over_parts(fn: Callable[[Batch], Any], batch: Batch, accumulation_steps: int) -> Any:
    """Sum of `fn` over the parts of a batch, one after the other; each part has rows from the whole batch."""
    rows = batch.target_BL.shape[0]
    if rows % accumulation_steps:
        raise PadirError("Batching.accumulation_steps", f"a divisor of the {rows} rows of a batch", accumulation_steps)
    leaves, tree = jax.tree.flatten(batch)
    leaves = [leaf.reshape(rows // accumulation_steps, accumulation_steps, *leaf.shape[1:]) for leaf in leaves]

    made = None

    def part(number: Any) -> list[Any]:  # leaves, because annotated shapes of sums would refuse a ShapeDtypeStruct
        nonlocal made
        some = jax.tree.unflatten(tree, [jax.lax.dynamic_index_in_dim(x, number, 1, keepdims=False) for x in leaves])
        sums, made = jax.tree.flatten(fn(dataclasses.replace(some, part=number, accumulation_steps=accumulation_steps)))
        return sums

    zeros = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in jax.eval_shape(part, jnp.int32(0))]
    total = jax.lax.fori_loop(0, accumulation_steps, lambda i, total: jax.tree.map(jnp.add, total, part(i)), zeros)
    return jax.tree.unflatten(made, total)


@dataclasses.dataclass(frozen=True)
class Programs:
    """Programs of a training run, with its model and placement.

    Attributes:
      initial: function from parameters, or None to draw fresh ones, to the state before the first step.
      step: function from (state, batch that `placement` has put on the devices) to (next state, sums).
    """

    model: Transformer
    placement: Placement
    initial: Callable[..., TrainState]
    step: Callable[[TrainState, dict[str, Any]], tuple[TrainState, Sums]]

    @staticmethod
    def of(config: TrainConfig, ids: Ids, devices: Sequence[Any] | None = None) -> Programs:
        """Makes the programs of a configuration; `devices` share the work (None: all devices of all processes)."""
        model = Transformer(config.model, ids)
        optimizer = frozen(config.optimizer.transformation(config.num_steps), config.freeze)
        optimizer = config.averaging.transformation(optimizer)

        def initial(params: Any = None) -> TrainState:
            params = init_params(model, config.seed) if params is None else params
            return TrainState(step=jnp.int32(0), params=params, opt_state=optimizer.init(params))

        placement = Placement.of(config.sharding, config.sharding.mesh(devices), model, initial)
        settings = config.batching, config.seed, config.num_steps, config.not_finite, config.freeze
        step_fn = make_step(model, config.objective, optimizer, *settings)
        return Programs(model, placement, initial, placement.step(step_fn))


@jax.jit  # one program even if several devices hold parts of the parameters
def all_finite(params: Any) -> jax.Array:
    """True if no parameter is NaN or infinite."""
    return jnp.isfinite(optax.tree.norm(params))


def step_metrics(sums: Sums, seconds: float) -> dict[str, float]:
    """Computes a log line's metrics from the sums of several steps; if all steps were skipped, only "skipped".

    Args:
      seconds: duration of the steps.
    """
    skipped = {"skipped": float(sums.not_finite)} if sums.not_finite is not None and sums.not_finite > 0 else {}
    if not sums.tokens:
        return {**skipped, "tokens_per_second": 0.0}
    tokens, segments = float(sums.tokens), max(float(sums.segments), 1.0)
    stage_loss_S, stage_correct_S = np.asarray(sums.stage_loss_S), np.asarray(sums.stage_correct_S)
    row = {
        "loss": float(sums.loss) / (tokens if sums.divisor is None else max(float(sums.divisor), 1.0)),
        "length_loss": float(sums.length_loss) / segments,
        "length_accuracy": float(sums.length_correct) / segments,
    }
    per_stage = zip(stage_loss_S, np.asarray(sums.stage_weight_S), stage_correct_S, strict=True)
    for stage, (loss, weight, correct) in enumerate(per_stage, 1):
        row[f"stage_{stage}_loss"] = float(loss) / max(float(weight), 1.0)  # a stage of weight "none" has no loss
        row[f"stage_{stage}_accuracy"] = float(correct) / tokens
    if sums.rejecter_loss is not None and sums.rejecter_correct is not None and sums.rejecter_judged is not None:
        judged = max(float(sums.rejecter_judged), 1.0)
        row["rejecter_loss"] = float(sums.rejecter_loss) / judged
        row["rejecter_accuracy"] = float(sums.rejecter_correct) / judged
    if sums.unaligned is not None:
        row["unaligned"] = float(sums.unaligned)
    row["tokens_per_second"] = tokens / seconds
    return {**row, **skipped}


@flax.struct.dataclass
class TrainState:
    """Step number, parameters and optimizer state: everything that a training step changes."""

    step: Any  # an integer array; checkpoints replace the leaves by other kinds of objects
    params: Any
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class Placement:
    """Shardings of the train state on a mesh, its shapes and dtypes (`like`), and jitted functions with them."""

    mesh: Mesh
    state: TrainState
    like: TrainState

    @staticmethod
    def of(sharding: Sharding, mesh: Mesh, model: Transformer, initial: Callable[[], TrainState]) -> Placement:
        """Chooses shardings for the state of `initial`: parameters by axis names, optimizer state like parameters."""
        like = jax.eval_shape(initial)
        params = sharding.of_params(param_axes(model), like.params, mesh)
        everywhere = NamedSharding(mesh, PartitionSpec())
        opt_state = of_state(like.opt_state, like.params, params, mesh)
        return Placement(mesh, TrainState(step=everywhere, params=params, opt_state=opt_state), like)

    def fresh(self, initial: Callable[..., TrainState], *given: Any) -> TrainState:
        """Computes `initial(*given)` sharded, so that no device ever holds more than its part of the state."""
        return jax.jit(initial, out_shardings=self.state)(*given)

    def step(self, step_fn: Callable[[TrainState, Batch], tuple[TrainState, Sums]]) -> Callable[..., Any]:
        """Jits a step as one program on all devices, which donates the memory of its input state."""
        everywhere = NamedSharding(self.mesh, PartitionSpec())

        # The batch is passed as a dict, as `lower` would fill a Batch with objects that are no arrays.
        def placed(state: TrainState, arrays: dict[str, Any]) -> tuple[TrainState, Sums]:
            state, sums = step_fn(state, Batch(**arrays))
            state = jax.lax.with_sharding_constraint(state, self.state)
            return state, jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, everywhere), sums)

        return jax.jit(placed, donate_argnums=0)

    def batch(self, arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Places the rows of this process on its devices, as its part of a batch over all processes."""
        by_row, (_, shares) = NamedSharding(self.mesh, PartitionSpec(DATA)), process_rows(self.mesh)
        return {
            name: jax.make_array_from_process_local_data(by_row, rows, (len(rows) * shares, *rows.shape[1:]))
            for name, rows in arrays.items()
        }

    def __str__(self) -> str:
        data, model = self.mesh.devices.shape
        part = part_held(self.state, self.like)
        return (
            f"{self.mesh.size} devices: the rows of a batch are split {data} ways, the work on each row {model} ways;"
            f" a device holds {part:.1%} of the state"
        )


class PlacedBatches:
    """Batches of a loader on the devices; the next batch can be copied there while the devices compute.

    The state counts only batches that were taken, and no batch that was only fetched. So a run that resumes from the
    state takes exactly the batches that the stopped run had not taken. An error of `fetch` is raised when the batch is
    taken, so that a finished step can still be recorded and saved. `place` puts the arrays of a batch on the devices.
    """

    def __init__(self, loader: Any, place: Callable[[dict[str, np.ndarray]], dict[str, jax.Array]]):
        self._loader, self._place = loader, place
        self._state: dict[str, Any] = loader.get_state()
        self._fetched: tuple[Any, Any, dict[str, Any]] | Exception | None = None

    def __next__(self) -> tuple[dict[str, np.ndarray], dict[str, jax.Array]]:
        """The next batch, on the host and on the devices."""
        self.fetch()
        fetched, self._fetched = self._fetched, None
        if isinstance(fetched, Exception):
            raise fetched
        assert fetched is not None
        arrays, batch, self._state = fetched
        return arrays, batch

    def fetch(self) -> None:
        """Reads the next batch and begins to copy it to the devices, unless it was fetched before."""
        if self._fetched is None:
            try:
                arrays = next(self._loader)
                self._fetched = arrays, self._place(arrays), self._loader.get_state()
            except Exception as error:  # an error of the loader, or too little memory
                self._fetched = error

    def get_state(self) -> dict[str, Any]:
        return self._state

    def set_state(self, state: dict[str, Any]) -> None:
        self._loader.set_state(state)
        self._state, self._fetched = state, None


def read_state(read: Callable[[], tuple[Any, Any] | None], like: Any, shardings: Any) -> tuple[Any, Any]:
    """Reads arrays, of the shapes and dtypes of `like`, and a JSON value; distributes both to all processes.

    Args:
      read: function that only the first process calls; returns (arrays, JSON value), or None for (None, None).
    """
    arrays = like

    def rest() -> list[Any]:
        nonlocal arrays
        if (got := read()) is None:
            return []
        arrays, value = got
        return [value]

    told = from_first(rest)
    return (arrays_from_first(arrays, spread, shardings), told[0]) if told else (None, None)

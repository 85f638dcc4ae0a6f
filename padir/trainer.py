"""Training: the state, one jitted step, and the loop around it with evaluation, checkpoints and progress.

The loop is given what it does not know: an `evaluate_fn` that decodes the validation split.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import rich.console
import rich.progress
import tensorboardX
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from padir.checkpoint import MANIFEST, Checkpoints, ModelCard, save_model
from padir.data.loader import make_loader
from padir.data.prepared import load_manifest, load_tokenizer
from padir.errors import PadirError
from padir.loss import Batch, Objective, Sums
from padir.model import ModelConfig, Transformer, count_parameters
from padir.optimizer import Adafactor, Optimizer
from padir.strategies import Padir
from padir.teacher_forcing import TeacherForcing
from padir.tokenizer import Tokenizer

EvaluateFn = Callable[[Any, ModelCard, Tokenizer], dict[str, float]]
"""(params, card, tokenizer) -> figures of the validation split, by name."""


@flax.struct.dataclass
class TrainState:
    """Everything that a step changes."""

    step: Any  # an integer array, but checkpoints map the tree to other kinds of leaves
    params: Any
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class Batching:
    """How sentence pairs become batches.

    Attributes:
      rows, row_length: a batch has about rows * row_length target positions; in "pack" mode exactly these rows.
      source_row_length: of packed rows; None takes what the corpus needs.
      mode: "pack" puts several pairs into a row, "bucket" batches pairs of like length.
      max_segments: most pairs in a packed row; None takes an eighth of row_length.
    """

    rows: int = 32
    row_length: int = 128
    source_row_length: int | None = None
    mode: str = "pack"
    max_segments: int | None = None

    @property
    def num_segments(self) -> int:
        """G: the most segments that a row can have."""
        if self.mode != "pack":
            return 1
        return self.max_segments or max(1, self.row_length // 8)


@dataclasses.dataclass(frozen=True)
class Intervals:
    """How often something happens, in steps.

    Attributes:
      log: a line of figures. evaluate: decode the validation split (0: never). checkpoint: save.
      keep: how many checkpoints stay.
    """

    log: int = 50
    evaluate: int = 2_000
    checkpoint: int = 1_000
    keep: int = 2

    def __post_init__(self):
        if min(self.log, self.checkpoint, self.keep) < 1 or self.evaluate < 0:
            raise PadirError(f"log, checkpoint and keep must be at least 1 and evaluate at least 0, got {self}")


def make_step(
    model: Transformer,
    objective: Objective | TeacherForcing,
    optimizer: optax.GradientTransformation,
    batching: Batching,
    seed: int,
    num_steps: int,
) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
    """The function of one optimizer step of `num_steps`; the loss is the batch's mean over target tokens."""
    key = jax.random.key(seed)

    def step_fn(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
        def mean_loss(params):
            loss, sums = objective(
                jax.random.fold_in(key, state.step),
                params,
                batch,
                model=model,
                num_segments=batching.num_segments,
                packed=batching.mode == "pack",
                dropout=model.config.dropout_rate > 0,
                progress=jnp.asarray(state.step, jnp.float32) / num_steps,
            )
            return loss / jnp.maximum(sums.tokens, 1), sums

        grads, sums = jax.grad(mean_loss, has_aux=True)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(step=state.step + 1, params=params, opt_state=opt_state), sums

    return step_fn


def init_params(model: Transformer, seed: int) -> Any:
    """Fresh parameters."""
    source_BS = jnp.full((1, 1), model.ids.first_regular, jnp.int32)  # no shape of a parameter depends on the length
    segment_BS = jnp.ones((1, 1), jnp.int32)
    variables = jax.jit(model.init)(jax.random.key(seed), source_BS, segment_BS, source_BS, segment_BS)
    return variables["params"]


def figures(sums: Sums, objective: Objective | TeacherForcing, seconds: float) -> dict[str, float]:
    """A log line's figures from sums over some steps."""
    tokens, segments = float(sums.tokens), max(float(sums.segments), 1.0)
    stage_loss_S, stage_correct_S = np.asarray(sums.stage_loss_S), np.asarray(sums.stage_correct_S)
    total = float(stage_loss_S.sum()) + objective.length_weight * float(sums.length_loss)
    if sums.rejecter_loss is not None and isinstance(objective, Objective):
        total += objective.rejecter_weight * float(sums.rejecter_loss)
    row = {"loss": total / tokens, "length_loss": float(sums.length_loss) / segments}
    row["length_accuracy"] = float(sums.length_correct) / segments
    for stage, (loss, correct) in enumerate(zip(stage_loss_S, stage_correct_S, strict=True), 1):
        row[f"stage_{stage}_loss"] = float(loss) / tokens
        row[f"stage_{stage}_accuracy"] = float(correct) / tokens
    if sums.rejecter_loss is not None and sums.rejecter_correct is not None:
        free = max(tokens - segments, 1.0)  # EOS is not judged
        row["rejecter_loss"] = float(sums.rejecter_loss) / free
        row["rejecter_accuracy"] = float(sums.rejecter_correct) / free
    row["tokens_per_second"] = tokens / seconds
    return row


def train(
    data_dir: str,
    model_dir: str,
    *,
    model: ModelConfig = ModelConfig(),
    objective: Objective | TeacherForcing = Objective(),
    optimizer: Optimizer = Adafactor(),
    batching: Batching = Batching(),
    intervals: Intervals = Intervals(),
    num_steps: int = 100_000,
    seed: int = 0,
    evaluate_fn: EvaluateFn | None = None,
    describe_config: Callable[[], str] = str,
) -> dict[str, float]:
    """Trains a model on a prepared corpus and writes its model directory; goes on where an earlier call stopped.

    Args:
      data_dir: from `padir prepare`.
      model_dir: gets checkpoints/, tensorboard/, metrics.jsonl and, at the end, the model.
      num_steps: optimizer steps in all.
      seed: of initial parameters, order of the data, corruption and dropout.
      evaluate_fn: measures the validation split at the intervals and at the end.
      describe_config: gives the text of config.gin, which is printed and goes into the model directory.

    Returns:
      The last figures.

    Raises:
      PadirError: the data or the model directory do not fit the configuration.
      KeyboardInterrupt: after SIGINT or SIGTERM, when the state is saved.
    """
    if num_steps < 1:
        raise PadirError(f"num_steps must be at least 1, got {num_steps}")
    if model.causal != isinstance(objective, TeacherForcing):
        expected, got = ("TeacherForcing", "Objective") if model.causal else ("Objective", "TeacherForcing")
        raise PadirError(
            f"a model with causal = {model.causal} is trained with {expected}, got {got}: bind train.objective ="
            f" @{expected}(), or ModelConfig.causal = {not model.causal}"
        )
    manifest = load_manifest(data_dir)
    tokenizer = load_tokenizer(data_dir)
    if "train" not in manifest["splits"]:
        raise PadirError(f"{data_dir} has no training split: prepare a corpus that has one")
    for side in ("source", "target"):
        longest = manifest["splits"]["train"][f"longest_{side}"]
        if longest > model.max_length:
            raise PadirError(
                f"{data_dir} has {side}s of {longest} tokens, the model takes {model.max_length}: raise"
                f" ModelConfig.max_length, or prepare with --max_{side}_tokens {model.max_length}"
            )
    if batching.mode == "bucket" and batching.row_length > model.max_length:
        raise PadirError(
            f"rows of one sentence must not be longer than ModelConfig.max_length, {model.max_length}, got"
            f" Batching.row_length {batching.row_length}"
        )
    transformer = Transformer(model, tokenizer.ids)
    mesh = Mesh(np.array(jax.local_devices()), ("data",))
    replicated, by_row = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    loader = make_loader(
        data_dir,
        rows=batching.rows,
        row_length=batching.row_length,
        source_row_length=batching.source_row_length,
        mode=batching.mode,
        max_segments=batching.max_segments,
        row_multiple=mesh.size,
        length_token=model.length_token,
        seed=seed,
    )
    transformation = optimizer.transformation(num_steps)
    params = init_params(transformer, seed)
    state = TrainState(step=jnp.int32(0), params=params, opt_state=transformation.init(params))
    folder = Path(model_dir)
    checkpoints = Checkpoints(folder / "checkpoints", keep=intervals.keep)
    restored = checkpoints.restore_latest(state)
    if restored is not None:
        state, loader_state = restored
        loader.set_state(loader_state)
    state = jax.device_put(state, replicated)
    step_fn = jax.jit(make_step(transformer, objective, transformation, batching, seed, num_steps), donate_argnums=0)

    corruption, strategy = None, None  # of a causal model
    if isinstance(objective, Objective):
        corruption, strategy = objective.corruption, getattr(objective.between, "strategy", Padir())
    card = ModelCard(
        config=model,
        ids=tokenizer.ids,
        corruption=corruption,
        strategy=strategy,
        source_language=manifest["source"]["source_language"],
        target_language=manifest["source"]["target_language"],
        task=manifest["source"]["name"],
    )

    def evaluate(state: TrainState) -> dict[str, float]:
        if evaluate_fn is None:
            return {}
        return evaluate_fn(state.params, dataclasses.replace(card, step=int(state.step)), tokenizer)

    def check(finite: bool, what: str, steps: str) -> None:
        if not finite:
            raise PadirError(
                f"{what} not finite at {steps}: lower the learning rate or clip the gradient; the checkpoints in"
                f" {checkpoints.folder} are from before"
            )

    def save(state: TrainState) -> None:
        check(bool(jnp.isfinite(optax.tree.norm(state.params))), "the parameters are", f"step {state.step}")
        checkpoints.save(int(state.step), state, loader.get_state())

    start, latest = int(state.step), {}
    config_text = describe_config()
    with _Log(folder, num_steps, start, count_parameters(params)) as log, _graceful_stop() as stop:
        log.console.print(config_text, highlight=False, markup=False, soft_wrap=True)
        sums, since, mark = None, start, time.perf_counter()
        for step in range(start + 1, num_steps + 1):
            batch = Batch(**jax.device_put(next(loader), by_row))
            state, step_sums = step_fn(state, batch)
            sums = step_sums if sums is None else jax.tree.map(jnp.add, sums, step_sums)
            stopping = stop.requested and step < num_steps  # read once: a signal may come at any time
            if step % intervals.log == 0 or step == num_steps:
                row = figures(jax.block_until_ready(sums), objective, time.perf_counter() - mark)
                check(math.isfinite(row["loss"]), "the loss is", f"steps {since + 1} to {step}")
                row["learning_rate"] = np.asarray(optimizer.learning_rate.schedule(num_steps)(step - 1)).item()
                log.write(step, row)
                latest = row
                sums, since, mark = None, step, time.perf_counter()
            else:
                log.advance(step)
            if stopping or step % intervals.checkpoint == 0 or step == num_steps:
                save(state)
            if stopping:
                checkpoints.wait()
                raise KeyboardInterrupt(f"saved step {step} of {num_steps} in {folder}; run the same command to go on")
            if intervals.evaluate and (step % intervals.evaluate == 0 or step == num_steps):
                began = time.perf_counter()
                latest = {**latest, **log.write(step, evaluate(state))}
                mark += time.perf_counter() - began
        checkpoints.wait()
        if not latest and not (folder / MANIFEST).exists():  # stopped between the last checkpoint and the model
            latest = log.write(num_steps, evaluate(state))
    metrics = {name: value for name, value in latest.items() if name != "tokens_per_second"}
    if start < num_steps or not (folder / MANIFEST).exists():
        card = dataclasses.replace(card, step=int(state.step), metrics=metrics)
        save_model(folder, state.params, card, tokenizer, config_text)
    return latest


class _Log:
    """Figures to the terminal, to metrics.jsonl and to TensorBoard, and a progress bar where there is a terminal."""

    def __init__(self, folder: Path, num_steps: int, start: int, parameters: int):
        folder.mkdir(parents=True, exist_ok=True)
        self.console = rich.console.Console(stderr=True)
        history = folder / "metrics.jsonl"
        # What came after the checkpoint comes again.
        lines = history.read_text().splitlines(keepends=True) if history.exists() else []
        history.write_text("".join(line for line in lines if _step_of(line) <= start))
        self.file = history.open("a")
        self.tensorboard = tensorboardX.SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)
        self.began = time.time()
        self.bar = rich.progress.Progress(
            rich.progress.TextColumn("[bold]train"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            rich.progress.TextColumn("{task.fields[figures]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("train", total=num_steps, completed=start, figures="")
        self.num_steps = num_steps
        going_on = f", going on from step {start}" if start else ""
        self.console.print(f"{parameters:,} parameters, {num_steps:,} steps{going_on}", highlight=False)

    def __enter__(self):
        self.bar.start()
        return self

    def __exit__(self, *_):
        self.bar.stop()
        self.file.close()
        self.tensorboard.close()

    def advance(self, step: int) -> None:
        self.bar.update(self.task, completed=step)

    def write(self, step: int, row: dict[str, float]) -> dict[str, float]:
        if not row:
            return row
        self.file.write(json.dumps({"step": step, "time": round(time.time(), 1), **row}) + "\n")
        self.file.flush()
        for name, value in row.items():
            self.tensorboard.add_scalar(name, value, step)
        text = "  ".join(f"{name} {value:,.4g}" for name, value in row.items())
        self.bar.update(self.task, completed=step, figures=_short(row) if "loss" in row else "")
        if self.bar.disable or "loss" not in row:
            minutes = (time.time() - self.began) / 60
            line = f"{minutes:6.1f} min  step {step:,}/{self.num_steps:,}  {text}"
            self.console.print(line, highlight=False, soft_wrap=True)
        return row


def _step_of(line: str) -> float:
    """The step of a line of metrics.jsonl; infinite for one that was cut off while it was written."""
    try:
        return float(json.loads(line)["step"])
    except ValueError:
        return math.inf


def _short(row: dict[str, float]) -> str:
    accuracies = [value for name, value in row.items() if name.startswith("stage") and name.endswith("accuracy")]
    accuracy = " ".join(f"{value:.1%}" for value in accuracies)
    return f"loss {row['loss']:.3f}  accuracy {accuracy}  {row['tokens_per_second']:,.0f} tokens/s"


class _Stop:
    requested = False


@contextlib.contextmanager
def _graceful_stop() -> Iterator[_Stop]:
    """SIGINT and SIGTERM ask for a stop at the end of the step; a second one stops at once."""
    stop, previous = _Stop(), {}

    def request(number, frame):
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread: whoever runs us handles signals
                previous[number] = signal.signal(number, request)
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

"""Training: the state, one jitted step, and the loop around it with evaluation, checkpoints and progress.

The loop is given what it does not know: an `evaluate_fn` that decodes the validation split.

Several processes run it in step: each takes the same decisions, from figures that are the same in all of them or that
the first one told the others (`padir.distributed.processes`). Only the first one has the model directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.data.loader import make_loader
from padir.data.manifest import PreparedManifest
from padir.data.mixture import Mixture
from padir.data.plan import Batching
from padir.data.prepared import load_tokenizer
from padir.distributed.processes import Vote, agreed, from_first, gathered, is_first
from padir.distributed.sharding import DATA, Sharding, on_host, process_rows, settle
from padir.errors import PadirError
from padir.models.card import ModelCard, Weights
from padir.models.config import ModelConfig
from padir.models.directory import save_model
from padir.models.params import count_parameters, init_params
from padir.models.transformer import Transformer
from padir.storage.folders import folder_lock
from padir.text.tokenizer import Tokenizer
from padir.training.averaging import Averaging, best_steps, mean_of_checkpoints
from padir.training.checkpoints import Checkpoints
from padir.training.log import TrainingLog
from padir.training.nonfinite import NotFinite, Watch
from padir.training.objective import Objective
from padir.training.optimizer import Adafactor, Optimizer, frozen
from padir.training.placement import Placement, TrainState
from padir.training.resume import check_lengths, check_new, finished, read_state, warn_of_changes
from padir.training.signals import Stop, graceful_stop
from padir.training.start_from import StartFrom, fill
from padir.training.step import all_finite, figures, make_step
from padir.training.teacher_forcing import TeacherForcing

EvaluateFn = Callable[[Any, ModelCard, Tokenizer], dict[str, float]]
"""(params, card, tokenizer) -> figures of the validation split, by name; the parameters lie as they do in training, and
each of several processes calls it."""


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

    def evaluates(self, step: int, num_steps: int) -> bool:
        """Whether the validation split is decoded after a step; if ever, then after the last one, too."""
        return self.evaluate > 0 and (step % self.evaluate == 0 or step == num_steps)


def train(
    data: str | Mixture,
    model_dir: str,
    *,
    model: ModelConfig = ModelConfig(),
    objective: Objective | TeacherForcing = Objective(),
    optimizer: Optimizer = Adafactor(),
    batching: Batching = Batching(),
    intervals: Intervals = Intervals(),
    averaging: Averaging = Averaging(),
    not_finite: NotFinite = NotFinite(),
    sharding: Sharding = Sharding(),
    num_steps: int = 100_000,
    seed: int = 0,
    start_from: str | StartFrom | None = None,
    freeze: tuple[str, ...] = (),
    evaluate_fn: EvaluateFn | None = None,
    describe_config: Callable[[], str] = str,
) -> dict[str, float]:
    """Trains a model on prepared pairs and writes its model directory; goes on where an earlier call stopped.

    With another configuration than the earlier call's it goes on, too, where model and data allow it, and prints on
    stderr what differs. If all steps are done and the model is written, it says so and changes nothing.

    Args:
      data: a folder of `padir prepare` or `padir distill`, or a mixture of several.
      model_dir: gets checkpoints/, tensorboard/, metrics.jsonl and, at the end, the model.
      averaging: which weights the model directory gets.
      sharding: how the work is spread over the devices; checkpoints fit any.
      not_finite: what happens when a loss or its gradient is NaN or infinite.
      num_steps: optimizer steps in all.
      seed: of initial parameters, order of the data, corruption and dropout.
      start_from: a model whose parameters are the initial ones, as far as they fit; a string is its directory.
      freeze: parameters that training does not change, by the beginnings of their names: ("encoder", "token_embedder").
      evaluate_fn: measures the validation split at the intervals and at the end.
      describe_config: gives the text of config.gin, which is printed when a training begins and goes into its
        checkpoints and the model directory.

    Returns:
      The last figures; of a training that was finished already, those in its model card.

    Raises:
      PadirError: the data or the model directory do not fit the configuration, are damaged or cannot be written, the
        directory holds a model without the checkpoints of its training or is trained in by another process, or the loss
        is not finite.
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
    averaging.check(num_steps, intervals.evaluate, intervals.checkpoint)
    if averaging.kind == "best" and evaluate_fn is None:
        raise PadirError('Averaging.kind "best" needs a validation split: prepare one, or average the "last"')
    folder = Path(model_dir)
    keep = max(intervals.keep, averaging.count if averaging.kind == "last" else 0)
    checkpoints = Checkpoints(folder / "checkpoints", keep)
    from_first(lambda: check_new(folder, checkpoints))
    mixture = Mixture.of(data)

    def checked() -> list[PreparedManifest]:
        manifests = mixture.manifests("train", verify=True)
        check_lengths(mixture, manifests, model, batching)
        return manifests

    def content(manifests: list[PreparedManifest]) -> str:
        """What batches and vocabulary are made of, wherever they lie."""
        splits = [sorted((name, split.sha256) for name, split in each.splits.items()) for each in manifests]
        return repr([splits, [each.vocabulary for each in manifests], mixture.weights])

    manifests = agreed("the prepared data", checked, content)
    chosen = (
        model,
        objective,
        optimizer,
        batching,
        intervals,
        averaging,
        not_finite,
        sharding,
        num_steps,
        seed,
        freeze,
    )
    agreed("the configurations", lambda: chosen)
    sharding.check(sharding.mesh(), model, batching.rows)
    with contextlib.ExitStack() as stack:
        from_first(lambda: stack.enter_context(folder_lock(folder, "trained in")))  # for all processes
        return _train(
            mixture,
            manifests[0],
            checkpoints,
            model=model,
            objective=objective,
            optimizer=optimizer,
            batching=batching,
            intervals=intervals,
            averaging=averaging,
            not_finite=not_finite,
            sharding=sharding,
            num_steps=num_steps,
            seed=seed,
            start_from=StartFrom(start_from) if isinstance(start_from, str) else start_from,
            freeze=freeze,
            evaluate_fn=evaluate_fn,
            describe_config=describe_config,
        )


def _train(
    mixture: Mixture,
    manifest: PreparedManifest,
    checkpoints: Checkpoints,
    *,
    model: ModelConfig,
    objective: Objective | TeacherForcing,
    optimizer: Optimizer,
    batching: Batching,
    intervals: Intervals,
    averaging: Averaging,
    not_finite: NotFinite,
    sharding: Sharding,
    num_steps: int,
    seed: int,
    start_from: StartFrom | None,
    freeze: tuple[str, ...],
    evaluate_fn: EvaluateFn | None,
    describe_config: Callable[[], str],
) -> dict[str, float]:
    """`train` in a folder that no other process writes to, with arguments that go together."""
    folder = checkpoints.folder.parent
    tokenizer = load_tokenizer(mixture.folders[0])
    transformer = Transformer(model, tokenizer.ids)
    mesh = sharding.mesh()
    loader = make_loader(
        mixture,
        batching,
        row_multiple=mesh.shape[DATA],
        length_token=model.length_token,
        seed=seed,
        shard=process_rows(mesh),
    )
    transformation = averaging.transformation(frozen(optimizer.transformation(num_steps), freeze))

    def initial(params: Any = None) -> TrainState:
        params = init_params(transformer, seed) if params is None else params
        return TrainState(step=jnp.int32(0), params=params, opt_state=transformation.init(params))

    placement = Placement.of(sharding, mesh, transformer, initial)
    like, shardings = placement.like, placement.state
    state, loader_state = read_state(lambda: checkpoints.restore_latest(like), like, shardings)
    if state is not None:
        loader.set_state(loader_state)
    elif start_from is not None:
        read = functools.partial(start_from.load, transformer, tokenizer)
        params, taken = read_state(read, like.params, shardings.params)
        state = placement.fresh(lambda given: initial(fill(transformer, seed, given, **taken)), params)
    else:
        state = placement.fresh(initial)
    start, latest, config_text = int(settle(state).step), {}, describe_config()
    if start > num_steps:
        raise PadirError(
            f"num_steps must be at least {start}, the step of the last checkpoint in {checkpoints.folder}, got"
            f" {num_steps}: raise it (--gin.train.num_steps=N), or give another model_dir"
        )
    if is_first():
        warn_of_changes(checkpoints.config(start), config_text, start)
    if start == num_steps and (metrics := from_first(lambda: finished(folder, start))) is not None:
        return metrics
    train_step = make_step(transformer, objective, transformation, batching, seed, num_steps, not_finite)
    step_fn = placement.step(train_step)

    card = ModelCard(
        config=model,
        ids=tokenizer.ids,
        corruption=objective.corruption,
        strategy=objective.strategy,
        source_language=manifest.source.source_language,
        target_language=manifest.source.target_language,
        task=manifest.source.name,
    )

    log = TrainingLog(folder if is_first() else None, num_steps, start, count_parameters(like.params))
    watch, vote = Watch(folder, not_finite), Vote()

    def save(step: int, state: TrainState, extra: bool) -> None:
        whole = gathered(state)
        from_first(lambda: checkpoints.save(step, whole, loader.get_state(), config=config_text, extra=extra))

    with log, graceful_stop() as stop, checkpoints:
        if not start:  # a training that goes on has said it, and what differs is told above
            log.console.print(config_text, highlight=False, markup=False, soft_wrap=True)
        if mesh.size > 1:
            log.console.print(str(placement), highlight=False, soft_wrap=True)
        run = _Run(folder, card, tokenizer, averaging, checkpoints, log, evaluate_fn, stop)
        run.protect_best()
        if start and intervals.evaluates(start, num_steps) and not from_first(lambda: run.validated(start)):
            latest = run.validate(state)  # it was stopped after saving and before validating
        sums, mark = None, time.perf_counter()
        for step in range(start + 1, num_steps + 1):
            arrays = next(loader)
            with jax.set_mesh(mesh):
                state, step_sums = settle(step_fn(state, placement.batch(arrays)))
            watch.add(step, arrays, step_sums.not_finite)
            sums = step_sums if sums is None else jax.tree.map(jnp.add, sums, step_sums)
            stopping = vote(stop.requested) and step < num_steps  # read once: a signal may come at any time
            if step % intervals.log == 0 or step == num_steps:
                watch.drain()
                row = figures(jax.block_until_ready(sums), objective, time.perf_counter() - mark)
                row["learning_rate"] = np.asarray(optimizer.learning_rate.schedule(num_steps)(step - 1)).item()
                log.write(step, row)
                latest = row
                sums, mark = None, time.perf_counter()
            else:
                log.advance(step)
            regular = step % intervals.checkpoint == 0 or step == num_steps
            validating = intervals.evaluates(step, num_steps) and not stopping
            if regular or stopping or validating:
                watch.drain()
                run.check(bool(on_host(all_finite(state.params))), "the parameters are", f"step {step}")
            if regular or stopping:
                save(step, state, extra=not regular)
            if validating:
                began = time.perf_counter()
                try:
                    latest = {**latest, **run.validate(state)}
                except KeyboardInterrupt:
                    stopping = True
                    if not regular:
                        save(step, state, extra=True)
                mark += time.perf_counter() - began
            if stopping:
                from_first(checkpoints.wait)
                raise KeyboardInterrupt(f"saved step {step} of {num_steps} in {folder}; run the same command to go on")
        from_first(checkpoints.wait)
        latest = {**latest, **run.write_model(state, config_text)}
    return latest


@dataclasses.dataclass(frozen=True)
class _Run:
    """What a training measures and leaves behind, and with which weights."""

    folder: Path
    card: ModelCard
    tokenizer: Tokenizer
    averaging: Averaging
    checkpoints: Checkpoints
    log: TrainingLog
    evaluate_fn: EvaluateFn | None
    stop: Stop

    def check(self, finite: bool, what: str, steps: str) -> None:
        if not finite:
            raise PadirError(
                f"{what} not finite at {steps}: lower the learning rate or clip the gradient; the checkpoints in"
                f" {self.checkpoints.folder} are from before"
            )

    def evaluate(self, params: Any, step: int) -> dict[str, float]:
        if self.evaluate_fn is None:
            return {}
        with self.stop.at_once():  # it may take longer than the grace of whoever stops us
            return self.evaluate_fn(params, dataclasses.replace(self.card, step=step), self.tokenizer)

    def validate(self, state: TrainState) -> dict[str, float]:
        """Logs figures of the validation split."""
        step = int(state.step)
        row = self.log.write(step, self.evaluate(self.averaging.current(state.params, state.opt_state), step))
        self.protect_best()
        return row

    def validated(self, step: int) -> bool:
        return any(name.startswith("validation_") for name in self.log.figures(step))

    def protect_best(self) -> None:
        """Lets the best checkpoints stay, if they are to be averaged."""
        if self.averaging.kind == "best":
            self.checkpoints.protected = frozenset(best_steps(self.log.rows, self.averaging.count))

    def write_model(self, state: TrainState, config_text: str) -> dict[str, float]:
        """Writes the model directory; gives the figures in its card, of which the validation's are of its weights."""
        current = gathered(self.averaging.current(state.params, state.opt_state))
        return from_first(lambda: self._write_model(int(state.step), current, config_text))

    def _write_model(self, step: int, current: Any, config_text: str) -> dict[str, float]:
        kind, measured = self.averaging.kind, self.log.figures(step)
        if kind in ("last", "best"):
            params, weights = mean_of_checkpoints(self.checkpoints, kind, self.averaging.count)
            row = self.evaluate(params, step)
            self.log.write(step, {f"averaged_{name}": value for name, value in row.items()})
            measured |= row
        else:
            params = current
            weights = Weights(kind, (step,), self.averaging.decay if kind == "ema" else None)
        for of_the_run in ("tokens_per_second", "skipped"):
            measured.pop(of_the_run, None)
        card = dataclasses.replace(self.card, step=step, metrics=measured, weights=weights)
        save_model(self.folder, params, card, self.tokenizer, config_text)
        return measured

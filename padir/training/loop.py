"""Training: the state, one jitted step, and the loop around it with evaluation, checkpoints and progress.

The loop is given what it does not know: an `evaluate_fn` that decodes the validation split.

Several processes run it in step: each takes the same decisions, from figures that are the same in all of them or that
the first one told the others (`padir.distributed.processes`). Only the first one has the model directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from padir.data.loader import make_loader
from padir.data.mixture import Mixture
from padir.data.plan import Batching
from padir.data.prepared import load_tokenizer
from padir.distributed.processes import Vote, agreed, arrays_from_first, from_first, gathered, is_first
from padir.distributed.sharding import DATA, Sharding, on_host, process_rows, settle, spread
from padir.errors import PadirError
from padir.models.transformer import ModelConfig, Transformer, count_parameters
from padir.storage.files import only_writer
from padir.text.tokenizer import Tokenizer
from padir.training.averaging import Averaging, best_steps, mean_of_checkpoints
from padir.training.checkpoints import MANIFEST, Checkpoints, ModelCard, Weights, check_manifest, load_model, save_model
from padir.training.log import TrainingLog
from padir.training.nonfinite import NotFinite, Watch, is_finite
from padir.training.objective import Batch, Objective, Sums
from padir.training.optimizer import Adafactor, Optimizer
from padir.training.placement import Placement, TrainState, init_params
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


def make_step(
    model: Transformer,
    objective: Objective | TeacherForcing,
    optimizer: optax.GradientTransformation,
    batching: Batching,
    seed: int,
    num_steps: int,
    not_finite: NotFinite = NotFinite(),
) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
    """The function of one optimizer step of `num_steps`; the loss is the batch's mean over target tokens.

    A step that is skipped (see `NotFinite`) counts as one and adds nothing to the sums.
    """
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

        (loss, sums), grads = jax.value_and_grad(mean_loss, has_aux=True)(state.params)
        finite = is_finite(loss, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        new = not_finite.choose(finite, (params, opt_state), (state.params, state.opt_state))
        sums = not_finite.choose(finite, sums, jax.tree.map(jnp.zeros_like, sums))
        sums = sums.replace(not_finite=1.0 - finite.astype(jnp.float32))
        return TrainState(step=state.step + 1, params=new[0], opt_state=new[1]), sums

    return step_fn


@jax.jit  # one program, where several devices have parts
def _finite(params: Any) -> jax.Array:
    return jnp.isfinite(optax.tree.norm(params))


def initial_params(model: Transformer, model_dir: str) -> Any:
    """The weights of a model directory, for training to start from.

    Raises:
      PadirError: it is no model directory, or of another model.
    """
    params, card, _ = load_model(model_dir)
    free = {"dropout_rate": 0.0, "dtype": "float32", "remat": False}  # what no parameter depends on
    start, wanted = (dataclasses.replace(config, **free) for config in (card.config, model.config))
    if (start, card.ids) != (wanted, model.ids):
        raise PadirError(
            f"start_from must be a model of the same ModelConfig and vocabulary size, got {model_dir} with"
            f" {card.config} and {card.ids.vocab_size} ids: change ModelConfig, or import the weights anew"
        )
    return params


def figures(sums: Sums, objective: Objective | TeacherForcing, seconds: float) -> dict[str, float]:
    """A log line's figures from sums over some steps; without tokens, all of them were skipped."""
    skipped = {"skipped": float(sums.not_finite)} if sums.not_finite is not None and sums.not_finite > 0 else {}
    if not sums.tokens:
        return {**skipped, "tokens_per_second": 0.0}
    tokens, segments = float(sums.tokens), max(float(sums.segments), 1.0)
    stage_loss_S, stage_correct_S = np.asarray(sums.stage_loss_S), np.asarray(sums.stage_correct_S)
    total = float(stage_loss_S.sum()) + objective.length_weight * float(sums.length_loss)
    if sums.rejecter_loss is not None and isinstance(objective, Objective):
        total += objective.rejecter_weight * float(sums.rejecter_loss)
    row = {"loss": total / tokens, "length_loss": float(sums.length_loss) / segments}
    row["length_accuracy"] = float(sums.length_correct) / segments
    per_stage = zip(stage_loss_S, np.asarray(sums.stage_weight_S), stage_correct_S, strict=True)
    for stage, (loss, weight, correct) in enumerate(per_stage, 1):
        row[f"stage_{stage}_loss"] = float(loss) / max(float(weight), 1.0)  # a stage of weight "none" has no loss
        row[f"stage_{stage}_accuracy"] = float(correct) / tokens
    if sums.rejecter_loss is not None and sums.rejecter_correct is not None:
        free = max(tokens - segments, 1.0)  # EOS is not judged
        row["rejecter_loss"] = float(sums.rejecter_loss) / free
        row["rejecter_accuracy"] = float(sums.rejecter_correct) / free
    row["tokens_per_second"] = tokens / seconds
    return {**row, **skipped}


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
    start_from: str | None = None,
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
      start_from: a model directory of the same ModelConfig and vocabulary size, whose weights are the initial ones.
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
    from_first(lambda: _check_new(folder, checkpoints))
    mixture = Mixture.of(data)

    def checked() -> list[dict[str, Any]]:
        manifests = mixture.manifests("train", verify=True)
        check_lengths(mixture, manifests, model, batching)
        return manifests

    def content(manifests: list[dict[str, Any]]) -> str:
        """What batches and vocabulary are made of, wherever they lie."""
        splits = [sorted((name, split["sha256"]) for name, split in each["splits"].items()) for each in manifests]
        return repr([splits, [sorted(each["vocabulary"].items()) for each in manifests], mixture.weights])

    manifests = agreed("the prepared data", checked, content)
    chosen = (model, objective, optimizer, batching, intervals, averaging, not_finite, sharding, num_steps, seed)
    agreed("the configurations", lambda: chosen)
    sharding.check(sharding.mesh(), model, batching.rows)
    with contextlib.ExitStack() as stack:
        from_first(lambda: stack.enter_context(only_writer(folder, "trained in")))  # for all processes
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
            start_from=start_from,
            evaluate_fn=evaluate_fn,
            describe_config=describe_config,
        )


def _train(
    mixture: Mixture,
    manifest: dict[str, Any],
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
    start_from: str | None,
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
    transformation = averaging.transformation(optimizer.transformation(num_steps))

    def initial(params: Any = None) -> TrainState:
        params = init_params(transformer, seed) if params is None else params
        return TrainState(step=jnp.int32(0), params=params, opt_state=transformation.init(params))

    placement = Placement.of(sharding, mesh, transformer, initial)
    like, shardings = placement.like, placement.state
    state, loader_state = _read(lambda: checkpoints.restore_latest(like), like, shardings)
    if state is not None:
        loader.set_state(loader_state)
    elif start_from is not None:
        params, _ = _read(lambda: (initial_params(transformer, start_from), None), like.params, shardings.params)
        state = placement.fresh(initial, params)
    else:
        state = placement.fresh(initial)
    start, latest, config_text = int(settle(state).step), {}, describe_config()
    if start > num_steps:
        raise PadirError(
            f"num_steps must be at least {start}, the step of the last checkpoint in {checkpoints.folder}, got"
            f" {num_steps}: raise it (--gin.train.num_steps=N), or give another model_dir"
        )
    if is_first():
        _warn_of_changes(checkpoints.config(start), config_text, start)
    if start == num_steps and (finished := from_first(lambda: _finished(folder, start))) is not None:
        return finished
    train_step = make_step(transformer, objective, transformation, batching, seed, num_steps, not_finite)
    step_fn = placement.step(train_step)

    card = ModelCard(
        config=model,
        ids=tokenizer.ids,
        corruption=objective.corruption,
        strategy=objective.strategy,
        source_language=manifest["source"]["source_language"],
        target_language=manifest["source"]["target_language"],
        task=manifest["source"]["name"],
    )

    log = TrainingLog(folder if is_first() else None, num_steps, start, count_parameters(like.params))
    watch, vote = Watch(folder, not_finite), Vote()

    def save(step: int, state: TrainState, extra: bool) -> None:
        whole = gathered(state)
        from_first(lambda: checkpoints.save(step, whole, loader.get_state(), config=config_text, extra=extra))

    with log, _graceful_stop() as stop, checkpoints:
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
                run.check(bool(on_host(_finite(state.params))), "the parameters are", f"step {step}")
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


def _check_new(folder: Path, checkpoints: Checkpoints) -> None:
    if (folder / MANIFEST).exists() and not checkpoints.steps():
        raise PadirError(
            f"model_dir must be new, or hold the checkpoints of the training to go on with, got {folder} with a"
            f" {MANIFEST} and no checkpoints, which would be overwritten: give another one"
        )


def _read(read: Callable[[], tuple[Any, Any] | None], like: Any, shardings: Any) -> tuple[Any, Any]:
    """What `read` gives in the first process, in all of them: arrays, now on the devices, and something else of them.

    Args:
      read: gives None where there is nothing, which becomes two.
      like: the shapes and dtypes of the arrays.
      shardings: where they belong.
    """
    arrays: list[Any] = []

    def rest() -> list[Any]:
        got = read()
        if got is None:
            return []
        arrays.append(got[0])
        return [got[1]]

    told = from_first(rest)
    if not told:
        return None, None
    return arrays_from_first(arrays[0] if arrays else like, spread, shardings), told[0]


def _finished(folder: Path, step: int) -> dict[str, float] | None:
    """The figures in the model card, if the folder has the model of that step, which is the last, whole; says so."""
    if not (folder / MANIFEST).exists():
        return None
    try:
        check_manifest(folder)
    except PadirError as error:
        print(f"padir: writing the model again from the last checkpoint: {error}", file=sys.stderr)
        return None
    card = json.loads((folder / "model.json").read_text())
    if card["step"] != step:
        return None
    print(
        f"padir: {folder} is finished: it has all {step:,} steps, and nothing was done. To go on, raise them"
        " (--gin.train.num_steps=N); or give another model_dir to train anew, or average its checkpoints with"
        " `padir average`",
        file=sys.stderr,
    )
    return card["metrics"]


def _warn_of_changes(before: str, now: str, step: int) -> None:
    """Prints the bindings in which two operative configurations differ, but for num_steps; "" is one not known."""
    if not before or not now:
        return
    old, new = _bindings(before), _bindings(now)
    changes = [f"  was  {line}" for line in old if line not in new]
    changes += [f"  is   {line}" for line in new if line not in old]
    if changes:
        print(f"padir: warning: the configuration differs from that of the checkpoint of step {step}:", file=sys.stderr)
        print("\n".join(changes), file=sys.stderr)


def _bindings(config: str) -> list[str]:
    """The bindings of an operative configuration, a line each (gin continues long ones on indented lines)."""
    lines = re.sub(r" *\\?\n +", " ", config).splitlines()
    return [line for line in lines if line and not line.startswith(("#", "import ", "from ", "train.num_steps"))]


def check_lengths(mixture: Mixture, manifests: list[dict[str, Any]], model: ModelConfig, batching: Batching) -> None:
    """Checks that the model takes every training sentence, and every row of one.

    Raises:
      PadirError: it does not.
    """
    for folder, manifest in zip(mixture.folders, manifests, strict=True):
        for side in ("source", "target"):
            longest = manifest["splits"]["train"][f"longest_{side}"]
            if longest > model.max_length:
                raise PadirError(
                    f"{folder} has {side}s of {longest} tokens, the model takes {model.max_length}: raise"
                    f" ModelConfig.max_length, or prepare with --max_{side}_tokens {model.max_length}"
                )
    if batching.mode == "bucket" and batching.row_length > model.max_length:
        raise PadirError(
            f"rows of one sentence must not be longer than ModelConfig.max_length, {model.max_length}, got"
            f" Batching.row_length {batching.row_length}"
        )


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
    stop: _Stop

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


class _Stop:
    """Whether a signal has asked for a stop.

    Attributes:
      requested: one has; whoever can stop looks here.
      immediate: a signal is a KeyboardInterrupt at once.
    """

    requested = immediate = False

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """For work that changes nothing and may be left at any point, unless other processes wait for us in it."""
        self.immediate = jax.process_count() == 1
        try:
            if self.requested and self.immediate:
                raise KeyboardInterrupt
            yield
        finally:
            self.immediate = False


@contextlib.contextmanager
def _graceful_stop() -> Iterator[_Stop]:
    """SIGINT and SIGTERM ask for a stop at the end of the step, or within the validation; a second one at once, but for
    a save under way."""
    stop, previous = _Stop(), {}

    def request(number, frame):
        again, stop.requested = stop.requested, True
        if again or stop.immediate:
            raise KeyboardInterrupt

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):  # not the main thread: whoever runs us handles signals
                previous[number] = signal.signal(number, request)
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

"""`TrainRun`, a training run from its start, or last checkpoint, to the finished model directory; graceful stops."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from padir.data.loader import make_loader
from padir.data.prepared import CorpusInfo, Mixture, load_manifest, load_tokenizer
from padir.distributed.processes import Vote, from_first, gathered, is_first
from padir.distributed.sharding import DATA, on_host, process_rows, settle
from padir.errors import PadirError
from padir.models.directory import ModelCard, Weights, save_model
from padir.models.params import count_parameters
from padir.reporting.patience import stop_signals, told
from padir.text.tokenizer import Tokenizer
from padir.training.averaging import best_steps, mean_of_checkpoints
from padir.training.batch import Sums
from padir.training.checkpoints import Checkpoints
from padir.training.config import TrainConfig
from padir.training.log import AVERAGED, TrainingLog, finished, warn_of_changes
from padir.training.optimizer import Watch
from padir.training.start_from import StartFrom, fill
from padir.training.step import PlacedBatches, Programs, all_finite, read_state, step_metrics

EvaluateFn = Callable[[Any, ModelCard, Tokenizer], dict[str, float]]
"""Function from (params, card, tokenizer) to metrics of the validation split, by name. The parameters have the same
shardings as in training, and each of several processes calls the function."""


@jax.jit  # one program, not one for each number
def _added(total: Sums, sums: Sums) -> Sums:
    return jax.tree.map(jnp.add, total, sums)


class StopSignal:
    """A request to stop, once a signal has come; if `immediate`, the next signal raises KeyboardInterrupt at once."""

    requested = immediate = False

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Lets a signal interrupt read-only work at once, unless other processes take part in the work."""
        self.immediate = jax.process_count() == 1
        try:
            if self.requested and self.immediate:
                raise KeyboardInterrupt
            yield
        finally:
            self.immediate = False


@contextlib.contextmanager
def graceful_stop() -> Iterator[StopSignal]:
    """Turns SIGINT, SIGTERM and SIGHUP into a request to stop after the step, or within the validation.

    A second signal raises KeyboardInterrupt at once; `Checkpoints` still finishes a save.
    """
    stop, previous = StopSignal(), {}

    def request(number, frame):
        again, stop.requested = stop.requested, True
        if again or stop.immediate:
            raise KeyboardInterrupt

    try:
        for number in stop_signals():
            with contextlib.suppress(ValueError):  # raised outside the main thread, which alone handles signals
                previous[number] = signal.signal(number, request)
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class TrainRun:
    """A training run: `restore`, then `step`, `record` and `checkpoint` in turn within `running`, then `finish`.

    Several processes take the same decisions, because their metrics are equal, or the first process broadcasts them
    (`padir.distributed.processes`). Only the first process writes to the model directory, except for shared
    checkpoints. `at` is the number of optimizer steps taken, `latest` holds the last metrics.
    """

    def __init__(
        self,
        config: TrainConfig,
        mixture: Mixture,
        source: CorpusInfo,
        checkpoints: Checkpoints,
        evaluate_fn: EvaluateFn | None,
        config_text: str,
    ):
        self.config, self.checkpoints = config, checkpoints
        self.evaluate_fn, self.config_text = evaluate_fn, config_text
        self.folder = checkpoints.folder.parent
        self.tokenizer = load_tokenizer(mixture.folders[0])
        self.programs = Programs.of(config, self.tokenizer.ids)
        self.mesh = self.programs.placement.mesh
        rows = self.mesh.shape[DATA] * config.batching.accumulation_steps
        how = {"row_multiple": rows, "length_token": config.model.length_token, "seed": config.seed}
        loader = make_loader(mixture, config.batching, **how, shard=process_rows(self.mesh))
        self.batches = PlacedBatches(loader, self.programs.placement.batch)
        self.card = ModelCard(
            config=config.model,
            ids=self.tokenizer.ids,
            corruption=config.objective.corruption,
            strategy=config.objective.decoded_with(config.model),
            source_language=source.source_language,
            target_language=source.target_language,
            task=source.name,
            text_form=load_manifest(mixture.folders[0]).text_form,
        )
        self.at = 0
        self.latest: dict[str, float] = {}
        self.stop, self._vote, self._watch = StopSignal(), Vote(), Watch(self.folder, config.not_finite)
        self._sums: Sums | None = None
        self._mark = 0.0
        self._learning_rate = config.optimizer.learning_rate.schedule(config.num_steps)

    def restore(self) -> dict[str, float] | None:
        """Restores the last checkpoint, or makes the initial state; returns the metrics if the run is finished."""
        model, placement, initial = self.programs.model, self.programs.placement, self.programs.initial
        like, shardings = placement.like, placement.state
        if self.checkpoints.shared:
            state, loader_state = self.checkpoints.restore_parts(like, shardings)
        else:
            state, loader_state = read_state(lambda: self.checkpoints.restore_latest(like), like, shardings)
        if state is not None:
            self.batches.set_state(loader_state)
        elif (start := self.config.start_from) is not None:
            start = StartFrom(start) if isinstance(start, str) else start
            read = functools.partial(start.load, model, self.tokenizer)
            params, taken = read_state(read, like.params, shardings.params)
            filled = functools.partial(fill, model, self.config.seed, **taken)
            state = placement.fresh(lambda given: initial(filled(given)), params)
        else:
            state = placement.fresh(initial)
        self.state, self.at = state, int(settle(state).step)
        if self.at > self.config.num_steps:
            least = f"at least {self.at}, the step of the last checkpoint in {self.checkpoints.folder}"
            remedy = "raise num_steps (train.num_steps in gin), or give another model_dir"
            raise PadirError("num_steps", least, self.config.num_steps, remedy)
        if is_first():
            warn_of_changes(self.checkpoints.config(self.at), self.config_text, self.at)
        return from_first(lambda: finished(self.folder, self.at)) if self.at == self.config.num_steps else None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Opens the log, stops gracefully on signals, and at the end waits for the last checkpoint."""
        start, config, placement = self.at, self.config, self.programs.placement
        parameters = count_parameters(placement.like.params)
        self.log = TrainingLog(self.folder if is_first() else None, config.num_steps, start, parameters)
        with self.log, graceful_stop() as self.stop, self.checkpoints:
            if not start and (changes := config.changes()):  # a resumed run has listed its changes already
                self.log.say("settings that differ from the defaults:", *(f"  {change}" for change in changes))
            if self.mesh.size > 1:
                self.log.say(str(placement))
            self._protect_best()
            if start and config.intervals.evaluates(start, config.num_steps):
                if not from_first(lambda: any(name.startswith("validation_") for name in self.log.metrics(start))):
                    self.latest = self.validate()  # the run was stopped after saving and before validating
            self._mark = time.perf_counter()
            yield

    def step(self) -> None:
        """Takes one optimizer step on the next batch, and fetches the following batch while the devices compute."""
        arrays, batch = next(self.batches)
        with jax.set_mesh(self.mesh):
            self.state, sums = self.programs.step(self.state, batch)
        self.at += 1
        if self.at < self.config.num_steps:
            self.batches.fetch()
        settle((self.state, sums))
        self._watch.add(self.at, arrays, sums.not_finite)
        self._sums = sums if self._sums is None else _added(self._sums, sums)

    def stop_requested(self) -> bool:
        """True if any process was asked to stop and steps remain.

        Every process must call this method once per step, because several processes decide by a common vote.
        """
        return self._vote(self.stop.requested) and self.at < self.config.num_steps

    def record(self) -> None:
        """Logs the metrics since the previous line of metrics, at every interval and after the last step."""
        if self.at % self.config.intervals.log and self.at != self.config.num_steps:
            self.log.advance(self.at)
            return
        self._watch.drain()
        sums = jax.block_until_ready(self._sums)
        row = step_metrics(sums, time.perf_counter() - self._mark)
        row["learning_rate"] = np.asarray(self._learning_rate(self.at - 1)).item()
        self.latest = self.log.write(self.at, row)
        self._sums, self._mark = None, time.perf_counter()

    def checkpoint(self, stopping: bool) -> None:
        """Saves and validates at the intervals; if the run is asked to stop, it saves and raises KeyboardInterrupt."""
        intervals, num_steps = self.config.intervals, self.config.num_steps
        regular = self.at % intervals.checkpoint == 0 or self.at == num_steps
        validating = intervals.evaluates(self.at, num_steps) and not stopping
        if regular or stopping or validating:
            self._check_finite()
        if regular or stopping:
            self._save(extra=not regular)
        if validating:
            began = time.perf_counter()
            try:
                self.latest = {**self.latest, **self.validate()}
            except KeyboardInterrupt:
                stopping = True
                if not regular:
                    self._save(extra=True)
            self._mark += time.perf_counter() - began
        if stopping:
            with told(f"writing the checkpoint of step {self.at}"):
                self.checkpoints.wait()
            saved = f"saved step {self.at} of {num_steps} in {self.folder}"
            raise KeyboardInterrupt(f"{saved}; run the same command to go on")

    def validate(self) -> dict[str, float]:
        """Decodes the validation split, if there is one, and logs its metrics."""
        row = self.log.write(self.at, self._evaluate(self._current_params()))
        self._protect_best()
        return row

    def finish(self) -> dict[str, float]:
        """Writes the model directory; returns the last metrics, with validation metrics of the written weights."""
        with told(f"writing {self.folder}"):
            self.checkpoints.wait()
            current = gathered(self._current_params())
            return {**self.latest, **from_first(lambda: self._write_model(current))}

    def _check_finite(self) -> None:
        self._watch.drain()
        if not on_host(all_finite(self.state.params)):
            saved = f"the checkpoints in {self.checkpoints.folder} were saved while the parameters were still finite"
            remedy = f"lower the learning rate or clip the gradient; {saved}"
            raise PadirError(f"the parameters are not finite at step {self.at}", remedy=remedy)

    def _save(self, extra: bool) -> None:
        card = dataclasses.replace(self.card, step=self.at, weights=self._current_weights())
        files = {  # they make the model usable before the run has finished
            "config.gin": self.config_text.encode(),
            "model.json": json.dumps(card.to_json(), indent=1).encode(),
            "vocab.model": self.tokenizer.model_bytes,
        }
        self.checkpoints.save(self.at, self.state, self.batches.get_state(), files=files, extra=extra)

    def _current_weights(self) -> Weights:
        decay = self.config.averaging.decay if self.config.averaging.kind == "ema" else None
        return Weights("none" if decay is None else "ema", (self.at,), decay)

    def _current_params(self) -> Any:
        return self.config.averaging.current(self.state.params, self.state.opt_state)

    def _evaluate(self, params: Any) -> dict[str, float]:
        if self.evaluate_fn is None:
            return {}
        with self.stop.at_once():  # validation may outlast the time from SIGTERM to SIGKILL
            return self.evaluate_fn(params, dataclasses.replace(self.card, step=self.at), self.tokenizer)

    def _protect_best(self) -> None:
        """Protects the best checkpoints from removal if the run averages them."""
        if self.config.averaging.kind == "best":
            self.checkpoints.protected = frozenset(best_steps(self.log.rows, self.config.averaging.count))

    def _write_model(self, current: Any) -> dict[str, float]:
        averaging, metrics = self.config.averaging, self.log.metrics(self.at)
        if averaging.kind in ("last", "best"):
            params, weights = mean_of_checkpoints(self.checkpoints, averaging.kind, averaging.count)
            row = self._evaluate(params)
            self.log.write(self.at, {f"{AVERAGED}{name}": value for name, value in row.items()})
            metrics |= row
        else:
            params, weights = current, self._current_weights()
        for of_the_run in ("tokens_per_second", "skipped"):
            metrics.pop(of_the_run, None)
        card = dataclasses.replace(self.card, step=self.at, metrics=metrics, weights=weights)
        save_model(self.folder, params, card, self.tokenizer, self.config_text)
        return metrics

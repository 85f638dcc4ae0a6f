"""`TrainRun`, a training run from its start, or last checkpoint, to the finished model directory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jaxtyping import PyTree

from padir.data.loader import make_loader
from padir.data.prepared import CorpusInfo, Mixture, load_manifest, load_tokenizer
from padir.distributed.processes import Vote, from_first, gathered, is_first, read_by_first
from padir.distributed.sharding import DATA, on_host, process_rows, settle
from padir.errors import PadirError
from padir.models.directory import ModelCard, Weights, save_model
from padir.models.params import count_parameters
from padir.reporting.patience import told
from padir.text.tokenizer import Tokenizer
from padir.training.averaging import best_steps, mean_of_checkpoints
from padir.training.batch import Sums
from padir.training.checkpoints import Checkpoints
from padir.training.config import TrainConfig
from padir.training.log import AVERAGED, TrainingLog, finished, warn_of_changes
from padir.training.metrics import add_sums, step_metrics
from padir.training.not_finite import Watch, all_finite
from padir.training.sharded_step import ShardedStep
from padir.training.start_from import StartFrom
from padir.training.state import TrainState
from padir.training.stopping import StopSignal

EvaluateFn = Callable[[PyTree, ModelCard, Tokenizer], dict[str, float]]
"""Function from (params, card, tokenizer) to metrics of the validation split, by name. The parameters have the same
shardings as in training, and each of several processes calls the function."""


class TrainRun:
    """A training run: `step`, `record` and `checkpoint` in turn within `running`, then `finish`; or `finished`.

    Several processes take the same decisions, because their metrics are equal, or the first process broadcasts them
    (`padir.distributed.processes`). Only the first process writes to the model directory. `at` is the number of
    optimizer steps taken, `latest` holds the last metrics.
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
        """Restores the last checkpoint, or makes the initial state."""
        self.config = config
        self.checkpoints = checkpoints
        self.evaluate_fn = evaluate_fn
        self.config_text = config_text
        self.folder = checkpoints.folder.parent
        self.tokenizer = load_tokenizer(mixture.folders[0])
        self.sharded_step = ShardedStep(config, self.tokenizer.ids)
        mesh = self.sharded_step.mesh
        self.loader = make_loader(
            mixture,
            config.batching,
            row_multiple=mesh.shape[DATA] * config.batching.accumulation_steps,
            length_token=config.model.length_token,
            seed=config.seed,
            shard=process_rows(mesh),
        )
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
        self.card.to_json()  # what no checkpoint could hold is refused now
        self.state = self._first_state()
        self.at = int(settle(self.state).step)
        self.latest: dict[str, float] = {}
        parameters = count_parameters(self.sharded_step.like.params)
        self.log = TrainingLog(self.folder if is_first() else None, config.num_steps, self.at, parameters)
        self._stop = StopSignal()
        self._vote = Vote()
        self._watch = Watch(self.folder, config.not_finite)
        self._sums: Sums | None = None
        self._mark = 0.0
        self._start = self.at
        self._untimed = 0.0  # target tokens of the first step, which compiles and is not timed
        self._learning_rate = config.optimizer.learning_rate.schedule(config.num_steps)

    def _first_state(self) -> TrainState:
        """The state of the last checkpoint, to whose place the batches go on; without checkpoints the initial state."""
        like = self.sharded_step.like
        shardings = self.sharded_step.shardings
        state, loader_state = read_by_first(lambda: self.checkpoints.restore_latest(like), like, shardings)
        if state is not None:
            self.loader.set_state(loader_state)
            return state
        start = self.config.start_from
        if start is None:
            return self.sharded_step.initial()
        start = StartFrom(start) if isinstance(start, str) else start
        initial = jax.device_get(gathered(self.sharded_step.initial().params))  # no device holds more than its part
        load = functools.partial(start.load, self.sharded_step.model, self.tokenizer, initial)
        params, _ = read_by_first(lambda: (load(), None), like.params, shardings.params)
        return self.sharded_step.initial(params)

    def finished(self) -> dict[str, float] | None:
        """The metrics of a run whose steps are all done and whose model is written; None for other runs.

        Raises:
          PadirError: the last checkpoint has more steps than the configuration.
        """
        num_steps = self.config.num_steps
        if self.at > num_steps:
            least = f"at least {self.at}, the step of the last checkpoint in {self.checkpoints.folder}"
            remedy = "raise num_steps (train.num_steps in gin), or give another model_dir"
            raise PadirError("num_steps", least, num_steps, remedy)
        if is_first():
            warn_of_changes(self.checkpoints.config(self.at), self.config_text, self.at)
        return from_first(lambda: finished(self.folder, self.at)) if self.at == num_steps else None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Opens the log, stops gracefully on signals, and at the end waits for the last checkpoint."""
        start = self.at
        config = self.config
        with self.log, self._stop.listening(), self.checkpoints:
            if not start and (changes := config.changes()):  # a resumed run has listed its changes already
                self.log.say("settings that differ from the defaults:", *(f"  {change}" for change in changes))
            if self.sharded_step.mesh.size > 1:
                self.log.say(str(self.sharded_step))
            if start and config.intervals.evaluates(start, config.num_steps):
                if not from_first(lambda: any(name.startswith("validation_") for name in self.log.metrics(start))):
                    self.latest = self.validate()  # the run was stopped after saving and before validating
            self._mark = time.perf_counter()
            yield

    def step(self) -> None:
        """Takes one optimizer step on the next batch; the loader's thread reads batches while the devices compute."""
        arrays = next(self.loader)
        self.state, sums = self.sharded_step(self.state, self.sharded_step.place(arrays))
        self.at += 1
        settle((self.state, sums))
        self._watch.add(self.at, arrays, sums.not_finite)
        self._sums = sums if self._sums is None else add_sums(self._sums, sums)
        if self.at == self._start + 1 and not self._logs():
            self._untimed = float(sums.tokens)  # waits for the step
            self._mark = time.perf_counter()

    def stop_requested(self) -> bool:
        """True if any process was asked to stop and steps remain.

        Every process must call this method once per step, because several processes decide by a common vote.
        """
        return self._vote(self._stop.requested) and self.at < self.config.num_steps

    def record(self) -> None:
        """Logs the metrics since the previous line of metrics, at every interval and after the last step."""
        if not self._logs():
            self.log.advance(self.at)
            return
        self._watch.drain()
        sums = jax.block_until_ready(self._sums)
        row = step_metrics(sums, time.perf_counter() - self._mark, self._untimed)
        row["learning_rate"] = np.asarray(self._learning_rate(self.at - 1)).item()
        self.latest = self.log.write(self.at, row)
        self._sums = None
        self._untimed = 0.0
        self._mark = time.perf_counter()

    def _logs(self) -> bool:
        return self.at % self.config.intervals.log == 0 or self.at == self.config.num_steps

    def checkpoint(self, stopping: bool) -> None:
        """Saves and validates at the intervals; if the run is asked to stop, it saves and raises KeyboardInterrupt."""
        intervals = self.config.intervals
        num_steps = self.config.num_steps
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
        return self.log.write(self.at, self._evaluate(self._current_params()))

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
        averaging = self.config.averaging
        protected = best_steps(self.log.rows, averaging.count) if averaging.kind == "best" else []
        self.checkpoints.save(
            self.at, self.state, self.loader.get_state(), files=files, extra=extra, protected=frozenset(protected)
        )

    def _current_weights(self) -> Weights:
        decay = self.config.averaging.decay if self.config.averaging.kind == "ema" else None
        return Weights("none" if decay is None else "ema", (self.at,), decay)

    def _current_params(self) -> PyTree:
        return self.config.averaging.current(self.state.params, self.state.opt_state)

    def _evaluate(self, params: PyTree) -> dict[str, float]:
        if self.evaluate_fn is None:
            return {}
        with self._stop.at_once():  # validation may outlast the time from SIGTERM to SIGKILL
            return self.evaluate_fn(params, dataclasses.replace(self.card, step=self.at), self.tokenizer)

    def _write_model(self, current: PyTree) -> dict[str, float]:
        averaging = self.config.averaging
        metrics = self.log.metrics(self.at)
        if averaging.kind in ("last", "best"):
            params, weights = mean_of_checkpoints(self.checkpoints, averaging.kind, averaging.count)
            row = self._evaluate(params)
            self.log.write(self.at, {f"{AVERAGED}{name}": value for name, value in row.items()})
            metrics |= row
        else:
            params = current
            weights = self._current_weights()
        for of_the_run in ("tokens_per_second", "skipped"):
            metrics.pop(of_the_run, None)
        card = dataclasses.replace(self.card, step=self.at, metrics=metrics, weights=weights)
        save_model(self.folder, params, card, self.tokenizer, self.config_text)
        return metrics

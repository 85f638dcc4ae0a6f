"""Training: a run that is stopped and resumed is the run that was not; what goes wrong is said."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console
from support.fakes import Clock
from support.refusals import refused
from support.tiny_model import TINY
from support.training import SETTINGS, assert_same_params, train_tiny

from padir.data.plan import Batching
from padir.errors import PadirError
from padir.models import Transformer, init_params, load_model
from padir.storage.folders import LOCK
from padir.text.ids import Ids
from padir.training import Adam, Batch, Checkpoints, Cosine, Intervals, Objective, TrainConfig
from padir.training.log import TrainingLog, read_rows
from padir.training.sharded_step import ShardedStep
from padir.training.state import TrainState
from padir.training.step import make_step

TESTS = Path(__file__).parents[1]


class TestRun:
    def test_writes_a_model_directory_checkpoints_and_figures(self, straight):
        folder, latest, _ = straight
        _, card, _ = load_model(folder)
        assert card.step == 6 and card.config == TINY and card.task == "numbers_de_en"
        assert (card.source_language, card.target_language) == ("de", "en")
        assert card.metrics["validation_bleu"] == 6.0 and card.metrics["loss"] == latest["loss"]
        assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["4", "6"]
        assert (folder / "config.gin").read_text() == "train.seed = 3\n"
        assert any((folder / "tensorboard").iterdir())

    def test_logs_every_figure_at_its_interval(self, straight):
        folder, _, calls = straight
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if "loss" in row] == [2, 4, 6]
        assert [row["step"] for row in rows if "validation_bleu" in row] == calls == [3, 6]
        first = rows[0]
        # Uniform logits would cost log V a stage; fresh parameters are near that.
        assert first["stage_1_loss"] == pytest.approx(np.log(401), abs=1.0)
        assert first["loss"] > first["stage_1_loss"] + first["stage_2_loss"]  # and the length loss
        assert 0 <= first["stage_2_accuracy"] <= 1 and first["tokens_per_second"] > 0

    def test_logs_the_learning_rate_that_the_step_had(self, straight):
        rate = SETTINGS["optimizer"].learning_rate.schedule(6)
        rows = [row for row in read_rows(straight[0] / "metrics.jsonl") if "loss" in row]
        assert [row["learning_rate"] for row in rows] == pytest.approx([float(rate(step)) for step in (1, 3, 5)])

    def test_the_time_of_validation_is_no_time_of_training(self, data, tmp_path, monkeypatch):
        clock = Clock()

        def evaluate_fn(params, card, tokenizer):
            clock.now += 1e6
            return {}

        monkeypatch.setattr("padir.training.run.time", types.SimpleNamespace(perf_counter=clock))
        train_tiny(
            data, tmp_path / "model", evaluate_fn=evaluate_fn, intervals=Intervals(log=2, evaluate=1, checkpoint=6)
        )
        rows = [row for row in read_rows(tmp_path / "model" / "metrics.jsonl") if "loss" in row]
        assert len(rows) == 3 and min(row["tokens_per_second"] for row in rows) > 1

    def test_the_time_of_compiling_is_no_time_of_training(self, data, tmp_path, monkeypatch):
        def compiling(self, *arguments):
            clock.now += 1e6 if not calls else 0
            calls.append(arguments)
            return step(self, *arguments)

        clock, calls, step = Clock(), [], ShardedStep.__call__
        monkeypatch.setattr(ShardedStep, "__call__", compiling)
        monkeypatch.setattr("padir.training.run.time", types.SimpleNamespace(perf_counter=clock))
        train_tiny(data, tmp_path / "model", intervals=Intervals(log=3, evaluate=6, checkpoint=6))
        first, second = (row["tokens_per_second"] for row in read_rows(tmp_path / "model" / "metrics.jsonl"))
        assert second > 1 and first == pytest.approx(
            second * 2 / 3, 0.5
        )  # a call of the clock each; two of three steps

    def test_run_again_when_finished_it_changes_nothing(self, data, finished, logged):
        files = [path for path in finished.glob("*") if path.is_file() and path.name != LOCK]
        before = {path: path.stat().st_mtime_ns for path in files}
        assert train_tiny(data, finished) == load_model(finished)[1].metrics != {}
        assert {path: path.stat().st_mtime_ns for path in before} == before
        errors = logged()
        assert "is finished: it has all 6 steps" in errors and "raise num_steps (train.num_steps in gin)" in errors
        assert "padir average" in errors and "differs" not in errors

    def test_fewer_steps_than_were_taken_are_refused(self, data, finished):
        with refused("num_steps at least 6 checkpoint got 5"):
            train_tiny(data, finished, num_steps=5)

    @pytest.mark.parametrize("num_steps", [6, 7])
    def test_another_configuration_than_the_checkpoints_is_told(self, data, finished, logged, num_steps):
        steps = f"train.num_steps = {num_steps}\nconfig.TrainConfig.num_steps = {num_steps}\n"
        text = f"# train\n{steps}train.seed = \\\n    4\nModelConfig.width = 16\n"
        train_tiny(data, finished, num_steps=num_steps, config_text=text)
        lines = logged().splitlines()
        first = lines.index("the configuration differs from the configuration of the checkpoint of step 6:")
        assert lines[first + 1 : first + 4] == [
            "  was  train.seed = 3",
            "  is   train.seed = 4",
            "  is   ModelConfig.width = 16",
        ]
        assert "num_steps = " not in "".join(lines[: first + 4])

    def test_more_steps_go_on_from_the_last(self, data, finished):
        train_tiny(data, finished, num_steps=7)
        assert load_model(finished)[1].step == 7
        rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if "loss" in row] == [2, 4, 6, 7]

    def test_a_finished_run_with_an_earlier_steps_model_writes_its_own(self, data, finished, tmp_path):
        """It was killed between its last checkpoint and its model."""
        earlier = shutil.copytree(finished, tmp_path / "earlier", ignore=shutil.ignore_patterns("checkpoints"))
        train_tiny(data, finished, num_steps=7)
        shutil.copytree(earlier, finished, dirs_exist_ok=True)
        assert load_model(finished)[1].step == 6
        train_tiny(data, finished, num_steps=7)
        assert load_model(finished)[1].step == 7


@pytest.fixture
def heard(number):
    """A signal that this process does not ignore, as it ignores SIGHUP if it was started with nohup."""
    before = signal.signal(number, signal.default_int_handler)
    yield number
    signal.signal(number, before)


class TestResume:
    @pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 1), (signal.SIGHUP, 3)])
    def test_interrupted_and_resumed_equals_never_stopped(self, data, straight, tmp_path, monkeypatch, heard, step):
        """A signal comes while a step is made: that step, or the next, is the last."""
        folder = tmp_path / "model"
        advance = TrainingLog.advance

        def stop_now(log, at):
            advance(log, at)
            if at == step:
                signal.raise_signal(heard)

        with monkeypatch.context() as patch:
            patch.setattr(TrainingLog, "advance", stop_now)
            with refused(f"saved step {step + 1} of 6 in {folder}; run the same command", KeyboardInterrupt):
                train_tiny(data, folder, intervals=Intervals(log=100, evaluate=0, checkpoint=100))
        assert signal.getsignal(heard) == signal.default_int_handler
        assert [path.name for path in (folder / "checkpoints").iterdir()] == [str(step + 1)]
        loader = json.loads((folder / "checkpoints" / str(step + 1) / "loader.json").read_text())
        assert (loader["epoch"], loader["batch"]) == (0, step + 1)
        train_tiny(data, folder)
        assert_same_params(folder, straight[0])

    @pytest.mark.parametrize("step", [3, 6])
    def test_a_signal_does_not_wait_for_the_validation(self, data, straight, tmp_path, step):
        """Decoding a split takes longer than the grace that a SIGTERM leaves."""
        folder = tmp_path / "model"

        def validate(params, card, tokenizer):
            if card.step == step:
                signal.raise_signal(signal.SIGTERM)
                pytest.fail("it was not left at once")
            return {"validation_bleu": float(card.step)}

        with refused(f"saved step {step} of 6 in {folder}; run the same command", KeyboardInterrupt):
            train_tiny(data, folder, evaluate_fn=validate)
        assert str(step) in {path.name for path in (folder / "checkpoints").iterdir()}
        train_tiny(data, folder, evaluate_fn=lambda params, card, _: {"validation_bleu": float(card.step)})
        assert_same_params(folder, straight[0])
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if "validation_bleu" in row] == [3, 6]
        assert load_model(folder)[1].metrics["validation_bleu"] == 6.0


class TestLeavingByAnException:
    """What was being saved is saved when the exception arrives."""

    def test_of_the_validation(self, data, tmp_path):
        def wrong(params, card, tokenizer):
            raise PadirError("no such metric")

        settings = SETTINGS | {"intervals": Intervals(log=2, evaluate=4, checkpoint=4)}
        with refused("no such metric"):
            train_tiny(data, tmp_path / "model", **settings, evaluate_fn=wrong)
        assert [path.name for path in (tmp_path / "model" / "checkpoints").iterdir()] == ["4"]

    def test_of_a_second_signal_while_it_waits_for_a_save(self, data, tmp_path, monkeypatch):
        write = Checkpoints._write

        def write_slowly(self, step, *rest):
            signal.raise_signal(signal.SIGINT)  # the main thread gets them, one after the other
            time.sleep(1)
            write(self, step, *rest)

        def stop(params, card, tokenizer):
            signal.raise_signal(signal.SIGINT)
            return {}

        monkeypatch.setattr(Checkpoints, "_write", write_slowly)
        with pytest.raises(KeyboardInterrupt):
            train_tiny(data, tmp_path / "model", evaluate_fn=stop)
        assert [path.name for path in (tmp_path / "model" / "checkpoints").iterdir()] == ["3"]

    @pytest.mark.slow
    def test_the_process_ends_with_the_message_only(self, data, tmp_path):
        code = (
            "import sys; from support.training import train_tiny; from padir.training.config import Intervals\n"
            "def wrong(*_): sys.exit('stopped here')\n"
            "every = Intervals(log=9, evaluate=2, checkpoint=2)\n"
            "train_tiny(sys.argv[1], sys.argv[2], intervals=every, evaluate_fn=wrong)"
        )
        process = subprocess.run(
            [sys.executable, "-c", code, data, str(tmp_path / "model")],
            cwd=TESTS,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
        )
        assert process.returncode == 1 and process.stderr.splitlines()[-1] == "stopped here"
        assert "Traceback" not in process.stderr
        assert [path.name for path in (tmp_path / "model" / "checkpoints").iterdir()] == ["2"]


class TestWrong:
    def test_a_model_without_its_checkpoints_is_not_overwritten(self, data, finished):
        shutil.rmtree(finished / "checkpoints")
        before = {path: path.read_bytes() for path in finished.glob("*") if path.is_file()}
        with refused("model_dir must be new no checkpoints another folder"):
            train_tiny(data, finished)
        assert {path: path.read_bytes() for path in before} == before

    @pytest.mark.parametrize("log", [1, 100], ids=["seen in the loss", "seen when saving"])
    def test_a_loss_that_is_not_finite(self, data, tmp_path, log):
        settings = SETTINGS | {
            "optimizer": Adam(Cosine(peak=1e30, warmup_steps=0), clip_norm=None),
            "intervals": Intervals(log=log, evaluate=0, checkpoint=4),
            "objective": Objective(stage_weights=("all",)),
        }
        with refused("not finite lower learning rate clip"):
            train_tiny(data, tmp_path / "model", **settings)
        assert not (tmp_path / "model" / "manifest.json").exists()
        assert not list((tmp_path / "model").glob("checkpoints/*"))

    def test_sentences_longer_than_the_model_takes(self, data, tmp_path):
        with refused("sources of 13 tokens takes 12 max_source_tokens=12"):
            train_tiny(data, tmp_path / "model", model=dataclasses.replace(TINY, max_length=12))
        assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_padding_beyond_the_position_table_does_no_harm():
    """A packed row may be longer than any sentence that the model takes; the end of an epoch is mostly padding."""
    model, batching = Transformer(TINY, Ids(401)), Batching(rows=1, row_length=32)
    row = jnp.zeros((1, 32), jnp.int32)
    tokens, segments = row.at[0, :3].set(jnp.array([300, 299, 1])), row.at[0, :3].set(1)
    optimizer = Adam().transformation(10)
    params = init_params(model, seed=0)
    state = TrainState(step=jnp.int32(0), params=params, opt_state=optimizer.init(params))
    config = TrainConfig(TINY, Objective(stage_weights=("all",)), batching=batching, num_steps=10)
    step_fn = make_step(model, optimizer, config)
    state, _ = jax.jit(step_fn)(state, Batch(tokens, segments, tokens, segments))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.params))


def test_rows_of_metrics_are_never_half_written(tmp_path):
    """The rows that stay are written beside the file, which a kill would leave as it was."""
    rows = [{"step": step, "loss": 0.5} for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.link(tmp_path / "metrics.jsonl", tmp_path / "as it was")
    with TrainingLog(tmp_path, num_steps=9, start=2, parameters=1):
        pass
    assert read_rows(tmp_path / "metrics.jsonl") == rows[:2]
    assert read_rows(tmp_path / "as it was") == rows


@pytest.mark.parametrize("error", [OSError, BrokenPipeError])
def test_a_run_whose_terminal_is_gone_goes_on(tmp_path, monkeypatch, error):
    monkeypatch.setattr(sys, "stderr", mock.Mock(write=mock.Mock(side_effect=error), isatty=lambda: False))
    monkeypatch.setattr(rich.console.Console, "on_broken_pipe", sys.exit)  # it would lead pytest's output to nowhere
    with TrainingLog(tmp_path, num_steps=9, start=2, parameters=1) as log:
        log.say("It is saved.")

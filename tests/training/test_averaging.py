"""Averages of weights: values to check by hand, which checkpoints stay, and that resuming changes nothing."""

import dataclasses
import functools
import json
import shutil
import signal
import tracemalloc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose
from safetensors.numpy import load_file
from support.refusals import refused
from support.tiny_model import random_model_dir
from support.training import assert_equal, train_tiny

from padir.jobs.average import average_run
from padir.models.directory import Weights, load_model, save_model
from padir.training import Intervals, Objective
from padir.training.averaging import Averaging, mean, mean_of_checkpoints, with_moving_average
from padir.training.checkpoints import Checkpoints, load_step

SETTINGS = {
    "objective": Objective(stage_weights=("all",)),
    "intervals": Intervals(log=1, evaluate=1, checkpoint=1, max_to_keep=6),
}
BLEU = (0.0, 2.0, 9.0, 1.0, 8.0, 3.0, 0.0)  # of steps 0 to 6: 2 and 4 are the best


KERNEL = {"kernel": np.zeros((2, 3), np.float32)}


def save_three(folder, params):
    """Checkpoints of such parameters that are all 1, 2 and 6, and a line of metrics for each."""
    checkpoints = Checkpoints(folder / "checkpoints", keep=3)
    files = {name: (folder / name).read_bytes() for name in ("model.json", "vocab.model") if (folder / name).exists()}
    for step, value in ((10, 1.0), (20, 2.0), (30, 6.0)):
        filled = jax.tree.map(lambda leaf, value=value: np.full_like(leaf, value), params)
        state = {"params": filled, "opt_state": np.arange(step)}
        checkpoints.save(step, state, {}, files=files)
    checkpoints.wait()
    rows = [{"step": 10, "validation_bleu": 9.0}, {"step": 20, "validation_bleu": 3.0}, {"step": 30, "loss": 0.5}]
    rows += [{"step": 30, "validation_bleu": 5.0}, {"step": 40, "validation_bleu": 99.0}]  # without a checkpoint
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3')
    return checkpoints


class TestMovingAverage:
    def test_a_series_by_hand(self):
        """The parameter goes 0, 1, 2, 3; the average is drawn to it with 1 - 1/10, 1 - 2/11, 1 - 3/12 at first."""
        optimizer = with_moving_average(optax.sgd(1.0), decay=0.999)
        params = {"x": jnp.float32(0)}
        state = optimizer.init(params)
        expected = 0.0
        for value, decay in ((1, 1 / 10), (2, 2 / 11), (3, 3 / 12)):
            updates, state = optimizer.update({"x": jnp.float32(-1)}, state, params)
            params = optax.apply_updates(params, updates)
            expected = decay * expected + (1 - decay) * value
            assert float(params["x"]) == value
            assert float(state.average["x"]) == pytest.approx(expected, rel=1e-6)
        assert expected == pytest.approx(0.25 * (2 / 11 * 0.9 + 9 / 11 * 2) + 0.75 * 3)

    def test_the_decay_is_the_limit(self):
        optimizer = with_moving_average(optax.sgd(1.0), decay=0.05)
        state = optimizer.init({"x": jnp.float32(0)})
        _, state = optimizer.update({"x": jnp.float32(-1)}, state, {"x": jnp.float32(0)})
        assert float(state.average["x"]) == pytest.approx(0.95)

    def test_is_float32_and_no_alias_of_the_parameters(self):
        params = {"x": jnp.ones(3, jnp.bfloat16), "y": jnp.ones(3)}
        average = with_moving_average(optax.sgd(1.0), 0.9).init(params).average
        assert {leaf.dtype for leaf in jax.tree.leaves(average)} == {jnp.dtype("float32")}
        assert average["y"].unsafe_buffer_pointer() != params["y"].unsafe_buffer_pointer()


class TestMean:
    def test_is_summed_in_float64(self):
        """In float32 the ones would be lost beside 2^25."""
        values = (2.0**25, 1.0, 1.0, -(2.0**25))
        assert mean([{"x": np.float32([value])} for value in values])["x"].tolist() == [0.5]

    def test_has_the_first_types(self):
        assert mean([{"x": np.float32([1])}, {"x": np.float64([2])}])["x"].dtype == np.float32
        with refused("a mean needs at least one tree, got none"):
            mean([])

    def test_holds_one_tree_at_a_time_and_one_sum(self):
        seen = []

        def array(value):
            fresh = np.full(100_000, value, np.float32)
            seen.append(weakref.ref(fresh))
            return fresh

        def trees():
            for value in (1, 2, 6):
                assert not [reference for reference in seen if reference() is not None]
                yield [array(value) for _ in range(10)]

        tracemalloc.start()
        found = mean(trees())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert all((leaf == 3.0).all() for leaf in found) and len(seen) == 30
        assert peak < 14e6  # 4 MB a tree, 8 MB the sum, and a single array

    def test_a_damaged_checkpoint_is_not_averaged(self, tmp_path):
        checkpoints = save_three(tmp_path, KERNEL)
        (tmp_path / "checkpoints" / "20" / "loader.json").write_text("{} ")
        with refused("loader.json damaged"):
            mean_of_checkpoints(checkpoints, "last", 2)

    def test_nothing_to_average(self, tmp_path):
        with refused("no checkpoint: nothing to average"):
            mean_of_checkpoints(Checkpoints(tmp_path / "checkpoints"), "last", 1)
        checkpoints = save_three(tmp_path, KERNEL)
        (tmp_path / "metrics.jsonl").unlink()
        with refused("no checkpoint validation_bleu"):
            mean_of_checkpoints(checkpoints, "best", 1)


@pytest.mark.parametrize(
    ("averaging", "evaluate", "words"),
    [
        (Averaging("best"), 0, "multiple of Intervals.checkpoint, 10, got 0"),
        (Averaging("best"), 15, "multiple of Intervals.checkpoint, 10, got 15"),
        (Averaging("best", count=6), 20, "count is 6, 100 steps make 5"),
        (Averaging("last", count=11), 20, "count is 11, 100 steps make 10"),
    ],
)
def test_intervals_that_give_no_such_average(averaging, evaluate, words):
    with refused(words):
        averaging.check(100, evaluate, 10)


@pytest.mark.parametrize("num_steps", [100, 91])  # the last step counts though its interval is not full
def test_intervals_that_do(num_steps):
    for averaging in (Averaging(), Averaging("ema"), Averaging("last", count=10), Averaging("best", count=5)):
        averaging.check(num_steps, 20, 10)


def evaluate_fn(stop_at=None, seen=None):
    """A validation that gives `BLEU`, notes in `seen` the parameters of each step, and sends a signal at one step."""

    def evaluate(params, card, tokenizer):
        if seen is not None:
            seen[card.step] = params
        if card.step == stop_at:
            signal.raise_signal(signal.SIGINT)
        return {"validation_bleu": BLEU[card.step]}

    return evaluate


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    """A run with all of its checkpoints."""
    folder = tmp_path_factory.mktemp("plain") / "model"
    train_tiny(data, folder, **SETTINGS, evaluate_fn=evaluate_fn())
    return folder


@pytest.fixture(scope="module")
def moving(data, tmp_path_factory):
    """A run with a moving average and all of its checkpoints, and the parameters that it was validated with."""
    folder, seen = tmp_path_factory.mktemp("moving") / "model", {}
    train_tiny(data, folder, **SETTINGS, averaging=Averaging("ema", 0.5), evaluate_fn=evaluate_fn(seen=seen))
    return folder, seen


def mean_of(folder, *steps):
    saved = [Checkpoints(folder / "checkpoints").params(step) for step in steps]
    return jax.tree.map(lambda *leaves: np.mean(np.float64(leaves), axis=0).astype(np.float32), *saved)


class TestTraining:
    """The validation gives known BLEU, so that the best checkpoints are known."""

    def stopped_and_resumed(self, data, folder, **changes):
        """The signal comes while step 3 is validated, so that the step is saved, but not validated before the stop."""
        changes = SETTINGS | changes
        with refused("saved step 3 of 6", KeyboardInterrupt):
            train_tiny(data, folder, **changes, evaluate_fn=evaluate_fn(stop_at=3))
        assert 3 in Checkpoints(folder / "checkpoints").steps()
        train_tiny(data, folder, **changes, evaluate_fn=evaluate_fn())
        return load_model(folder)[:2]

    @pytest.mark.slow
    def test_resuming_continues_the_moving_average(self, data, moving, tmp_path):
        folder, seen = moving
        resumed, resumed_card = self.stopped_and_resumed(data, tmp_path / "run", averaging=Averaging("ema", 0.5))
        params, card, _ = load_model(folder)
        assert_equal(resumed, params)
        assert resumed_card == card and card.weights == Weights("ema", (6,), 0.5)
        assert_equal(seen[6], params)  # the weights that were validated last

    @pytest.mark.slow
    def test_resuming_leaves_the_best_checkpoints_as_they_were(self, data, plain, tmp_path):
        intervals = Intervals(log=1, evaluate=1, checkpoint=1, max_to_keep=1)
        changes = {"averaging": Averaging("best", count=2), "intervals": intervals}
        params, card = self.stopped_and_resumed(data, tmp_path / "run", **changes)
        assert card.weights == Weights("best", (2, 4)) and card.metrics == load_model(plain)[1].metrics
        assert_equal(params, mean_of(plain, 2, 4))

    @pytest.mark.slow
    def test_a_stop_between_two_checkpoints_adds_none_to_the_mean(self, data, plain, tmp_path):
        intervals = Intervals(log=1, evaluate=1, checkpoint=2, max_to_keep=1)
        changes = {"averaging": Averaging("last", count=3), "intervals": intervals}
        params, card = self.stopped_and_resumed(data, tmp_path / "run", **changes)
        assert card.weights == Weights("last", (2, 4, 6))
        assert_equal(params, mean_of(plain, 2, 4, 6))
        assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [2, 4, 6]
        average_run(tmp_path / "run", tmp_path / "mean", kind="last", count=3)
        assert_equal(load_model(tmp_path / "mean")[0], params)

    @pytest.mark.parametrize("kind", ["last", pytest.param("best", marks=pytest.mark.slow)])
    def test_a_kill_before_the_manifest_changes_no_metrics(self, data, tmp_path, kind):
        settings = SETTINGS | {"averaging": Averaging(kind, count=2), "evaluate_fn": evaluate_fn(), "num_steps": 2}

        def left():
            rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
            return [row | {"time": 0} for row in rows], (tmp_path / "run" / "model.json").read_text()

        train_tiny(data, tmp_path / "run", **settings)
        undisturbed = left()
        assert sum("averaged_validation_bleu" in row for row in undisturbed[0]) == 1
        for _ in range(2):
            (tmp_path / "run" / "manifest.json").unlink()
            train_tiny(data, tmp_path / "run", **settings)
            assert left() == undisturbed

    def test_an_average_is_not_the_last_weights(self, plain, tmp_path):
        params, card, _ = load_model(plain)
        assert card.weights == Weights("none", (6,)) and str(card.weights) == "of step 6"
        assert_equal(params, Checkpoints(plain / "checkpoints").params(6))
        average_run(plain, tmp_path / "last", kind="last", count=3)
        average, card, _ = load_model(tmp_path / "last")
        assert_equal(average, mean_of(plain, 4, 5, 6))
        assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(average), strict=True))
        assert card.weights == Weights("last", (4, 5, 6)) and card.step == 6 and card.metrics == {}

    @pytest.mark.slow
    def test_the_best_of_a_run_with_a_moving_average_are_its_averages(self, moving, tmp_path):
        """BLEU was measured with the moving averages."""
        folder, seen = moving
        card = average_run(folder, tmp_path / "best", kind="best", count=2)
        assert card.weights == Weights("best", (2, 4), 0.5)
        assert str(card.weights) == "mean of moving averages (decay 0.5) of the best 2 checkpoints, steps 2, 4"
        both = jax.tree.map(lambda *leaves: np.mean(np.float64(leaves), axis=0).astype(np.float32), seen[2], seen[4])
        assert_equal(load_model(tmp_path / "best")[0], both)
        raw, weights = mean_of_checkpoints(Checkpoints(folder / "checkpoints"), "last", 1, decay=0.5)
        assert_equal(raw, Checkpoints(folder / "checkpoints").params(6))
        assert weights == Weights("last", (6,))

    def test_a_checkpoint_gives_what_the_run_validates_with(self, moving):
        folder, seen = moving
        for step in (3, 6):
            params, card, _ = load_step(folder, step)
            assert_equal(params, jax.device_get(seen[step]))
            assert card.step == step and str(card.weights) == f"moving average (decay 0.5) up to step {step}"

    def test_a_run_without_a_moving_average_does_not_go_on_with_one(self, data, plain, tmp_path):
        folder = shutil.copytree(plain, tmp_path / "model")
        with refused("another model or optimizer moving average first step"):
            train_tiny(data, folder, **SETTINGS, averaging=Averaging("ema"))

    def test_the_best_without_a_validation_split(self, data, tmp_path):
        with refused('"best" validation split'):
            train_tiny(data, tmp_path / "model", **SETTINGS, averaging=Averaging("best", count=1))


class TestAverageRun:
    @pytest.fixture
    def run(self, tmp_path):
        """A model directory with the checkpoints of `save_three`."""
        folder = random_model_dir(tmp_path / "other").rename(tmp_path / "run")
        save_three(folder, load_model(folder)[0])
        return folder

    def test_writes_the_mean_and_says_so(self, run, tmp_path):
        average_run(run, tmp_path / "out", kind="best", count=2)
        params, card, _ = load_model(tmp_path / "out")
        assert all((leaf == 3.5).all() for leaf in jax.tree.leaves(params))
        assert json.loads((tmp_path / "out" / "model.json").read_text())["weights"] == {
            "kind": "best",
            "steps": [10, 30],
            "decay": None,
        }
        assert (tmp_path / "out" / "config.gin").read_text() == "train.num_steps = 7\n"
        assert str(card.weights) == "mean of the best 2 checkpoints, steps 10, 30"

    def test_bfloat16_takes_half_the_room_and_comes_back_as_float32(self, run, tmp_path):
        for dtype in ("float32", "bfloat16"):
            average_run(run, tmp_path / dtype, kind="best", count=2, dtype=dtype)
        (whole, _, _), (rounded, _, _) = (load_model(tmp_path / dtype) for dtype in ("float32", "bfloat16"))
        jax.tree.map(functools.partial(assert_allclose, rtol=2**-8), rounded, whole)
        assert {leaf.dtype for leaf in jax.tree.leaves(rounded)} == {np.dtype(np.float32)}
        stored = {dtype: load_file(tmp_path / dtype / "weights.safetensors") for dtype in ("float32", "bfloat16")}
        assert all(stored["float32"][name].nbytes == 2 * array.nbytes for name, array in stored["bfloat16"].items())

    def test_the_best_by_a_moving_average_that_is_not_there(self, run, tmp_path):
        params, card, tokenizer = load_model(run)
        save_model(run, params, dataclasses.replace(card, weights=Weights("ema", (30,), 0.9)), tokenizer, "")
        shutil.rmtree(run / "checkpoints")
        save_three(run, params)
        with refused("10 holds no moving average last"):
            average_run(run, tmp_path / "out", kind="best", count=2)

    @pytest.mark.parametrize(
        ("output", "wrong", "words"),
        [
            ("out", {"count": 4}, "3 checkpoints (10, 20, 30), got --last 4"),
            ("out", {"count": 0}, "at least 1, got 0"),
            ("out", {"dtype": "int8"}, "dtype float32, bfloat16, got 'int8'"),
            ("run", {}, "the folder to write must be new or empty"),
            ("out", {"decoding": {"length_normalisation": 1.5}}, "'length_normalisation': mean 'length_normalization'"),
        ],
    )
    def test_what_it_refuses(self, run, tmp_path, output, wrong, words):
        with refused(words):
            average_run(run, tmp_path / output, **{"kind": "last", "count": 1} | wrong)
        assert not (tmp_path / "out").exists()

    def test_a_run_that_left_no_card_is_refused(self, run, tmp_path):
        (run / "checkpoints" / "30" / "model.json").unlink()
        with refused("cannot read checkpoints/30/model.json"):
            average_run(run, tmp_path / "out", kind="last", count=1)
        assert not (tmp_path / "out").exists()

"""A loss that is not finite: the training stops with the batch, or leaves the update out and counts it."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.closeness import assert_close
from support.refusals import refused
from support.training import SETTINGS, train_tiny

from padir.data.loader import make_loader
from padir.models.directory import load_model
from padir.training import Checkpoints, Intervals, NotFinite, Objective

STEPS = SETTINGS["num_steps"]


@dataclasses.dataclass(frozen=True)
class Poisoned(Objective):
    """The loss of one stage, which is NaN at certain steps, counted from 1, or only its gradient."""

    stage_weights: tuple[str, ...] = ("all",)
    at: tuple[int, ...] = (3,)
    gradient_only: bool = False

    def __call__(self, key, params, batch, *, progress, **arguments):
        loss, sums = super().__call__(key, params, batch, progress=progress, **arguments)
        bad = jnp.isin(jnp.round(progress * STEPS) + 1, jnp.array(self.at))
        if not self.gradient_only:
            return loss * jnp.where(bad, jnp.nan, 1.0), sums.replace(tokens=sums.tokens + jnp.where(bad, jnp.nan, 0.0))
        some = jax.tree.leaves(params)[0].sum()
        return loss + 0.0 * jnp.sqrt(jnp.where(bad, 0.0, 1.0) * some**2), sums  # the square root's slope at 0


def settings(**changes):
    every_step = Intervals(log=1, evaluate=0, checkpoint=1, max_to_keep=10)
    return {**SETTINGS, "objective": Poisoned(), "intervals": every_step, **changes}


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class TestStop:
    @pytest.mark.parametrize(
        ("gradient_only", "log"), [(False, 1), pytest.param(False, 100, marks=pytest.mark.slow), (True, 100)]
    )
    def test_leaves_the_batch(self, data, tmp_path, gradient_only, log):
        folder = tmp_path / "model"
        wrong = settings(
            objective=Poisoned(gradient_only=gradient_only), intervals=Intervals(log=log, evaluate=0, checkpoint=2)
        )
        path = folder / "not_finite" / "step_3.npz"
        with refused(f"not finite step 3; {path}: 'skip'"):
            train_tiny(data, folder, **wrong)
        batches = make_loader(data, SETTINGS["batching"], seed=SETTINGS["seed"])
        expected = [next(batches) for _ in range(3)][-1]
        with np.load(path, allow_pickle=False) as saved:
            assert {*saved} == {*expected}
            for name in expected:
                assert_array_equal(saved[name], expected[name])
        assert Checkpoints(folder / "checkpoints").steps() == [2]
        assert not (folder / "manifest.json").exists()


class TestSkip:
    @pytest.mark.parametrize("gradient_only", [pytest.param(False, marks=pytest.mark.slow), True])
    def test_leaves_the_update_out_and_counts_it(self, data, tmp_path, logged, gradient_only):
        folder = tmp_path / "model"
        objective = Poisoned(at=(3, 5), gradient_only=gradient_only)
        train_tiny(data, folder, **settings(objective=objective, not_finite=NotFinite("skip")))
        lines = rows(folder)
        assert [row["step"] for row in lines] == [1, 2, 3, 4, 5, 6]
        assert [row.get("skipped", 0) for row in lines] == [0, 0, 1, 0, 1, 0]
        assert all(math.isfinite(value) for row in lines for value in row.values())
        errors = logged()
        assert "step 3: its update is left out" in errors and "step 5: its" in errors and "step 4: its" not in errors
        checkpoints = Checkpoints(folder / "checkpoints")
        weights = [_bytes(checkpoints.params(step)) for step in range(1, 7)]
        assert [a == b for a, b in zip(weights, weights[1:], strict=False)] == [False, True, False, True, False]
        assert "skipped" not in load_model(folder)[1].metrics

    @pytest.mark.slow
    def test_changes_nothing_where_all_is_finite(self, data, tmp_path):
        runs = {
            "stop": {"objective": Objective(stage_weights=("all",)), "not_finite": NotFinite("stop")},
            "skip": {"objective": Objective(stage_weights=("all",)), "not_finite": NotFinite("skip")},
            "left out": {"objective": Poisoned(at=(3,)), "not_finite": NotFinite("skip")},
        }
        for name, changes in runs.items():
            intervals = Intervals(log=3 if name == "left out" else 1, evaluate=0, checkpoint=6)
            train_tiny(data, tmp_path / name, **settings(**changes, intervals=intervals))
        stop, skip = (load_model(tmp_path / action)[0] for action in ("stop", "skip"))
        assert_close(skip, stop)
        first, second = (row["loss"] for row in rows(tmp_path / "skip")[:2])
        three = rows(tmp_path / "left out")[0]
        assert three["skipped"] == 1 and min(first, second) < three["loss"] < max(first, second)

    def test_ends_where_it_is_not_the_batches(self, data, tmp_path):
        with refused("step 5, 3 times in a row; step_5.npz"):
            train_tiny(
                data,
                tmp_path / "model",
                **settings(objective=Poisoned(at=(1, 3, 4, 5, 6)), not_finite=NotFinite("skip", most_in_a_row=3)),
            )


def _bytes(params):
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))

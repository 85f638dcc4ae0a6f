"""One optimizer step, by its loss and its update on a batch that a test can change."""

import dataclasses
import functools
import itertools
import json

import jax
import jax.numpy as jnp
import optax
import pytest
from numpy.testing import assert_allclose
from support.closeness import assert_close
from support.objectives import run
from support.refusals import refused
from support.tiny import one_layer_model, pairs, rows_of
from support.training import train_tiny

from padir.data.loader import _Batches
from padir.data.plan import Batching
from padir.errors import PadirError
from padir.refinement.corruption import Mask
from padir.training import Causal, Intervals, Objective, Sum, TrainConfig
from padir.training.batch import NORMALISERS, mean_loss
from padir.training.metrics import step_metrics
from padir.training.state import TrainState
from padir.training.step import make_step

PAIRS = [[pair] for pair in pairs([(4, 5), (6, 3), (3, 7)])]
BATCH = rows_of(PAIRS, 8, 8)
ADAM = optax.adam(1e-2)
BUCKETS = Batching(mode="bucket")


def steps_of(objective, optimizer):
    """(jitted step, state before the first step) of a model with one layer."""
    model, params = one_layer_model(dropout_rate=0.0)
    config = TrainConfig(model.config, objective, batching=BUCKETS, num_steps=10)
    step_fn = make_step(model, optimizer, config)
    return jax.jit(step_fn), TrainState(jnp.int32(0), params, optimizer.init(params))


def test_every_step_has_noise_of_its_own():
    step, state = steps_of(Objective(stage_weights=("all",)), optax.sgd(0.0))
    second, sums = step(state, BATCH)
    losses = [float(each.stage_loss_S[0]) for each in (sums, step(second, BATCH)[1], step(state, BATCH)[1])]
    assert losses[0] == losses[2] and abs(losses[0] - losses[1]) > 1e-3


SIX = rows_of([[pair] for pair in pairs([(4, 5), (6, 3), (3, 7), (2, 2), (6, 6), (5, 1)])], 8, 8)


class TestParts:
    """A batch taken part by part gives the update of the whole batch."""

    @staticmethod
    @functools.cache
    def step(objective, parts, **sizes):
        model, params = one_layer_model(dropout_rate=0.0, **sizes)
        batching = Batching(mode="bucket", accumulation_steps=parts)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), ADAM)
        config = TrainConfig(model.config, objective, batching=batching, num_steps=10)
        step_fn = jax.jit(make_step(model, optimizer, config))
        return step_fn(TrainState(jnp.int32(3), params, optimizer.init(params)), SIX)

    @pytest.mark.parametrize(
        ("objective", "sizes"),
        [
            (Objective(label_smoothing=0.1, z_loss=0.1), {}),
            (Causal(), {"causal": True}),
            pytest.param(Sum(), {"dual": True}, marks=pytest.mark.slow),
        ],
        ids=["refining", "causal", "dual"],
    )
    @pytest.mark.parametrize("parts", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 6))])
    def test_have_the_update_of_the_whole(self, objective, sizes, parts):
        (whole, sums), (state, summed) = (self.step(objective, n, **sizes) for n in (1, parts))
        assert_close(summed, sums)
        moved = 0.0
        for one, other in zip(jax.tree.leaves(whole.opt_state), jax.tree.leaves(state.opt_state), strict=True):
            assert_close(other, one, 2e-4)  # the moments are the mean gradient's
            moved = max(moved, float(jnp.abs(other).max()))
        assert moved > 1e-4

    def test_a_loss_that_is_not_finite_counts_once(self):
        _, sums = self.step(Objective(stage_weights=("all",), length_weight=float("inf")), 3)
        assert sums.not_finite == 1

    @pytest.mark.parametrize("objective", [Causal(), Objective(Mask(1.0), stage_weights=("all",))])
    def test_dropout_differs_between_the_parts(self, objective):
        same = rows_of([pairs([(4, 5)])] * 4, 8, 8)
        model, params = one_layer_model(dropout_rate=0.3, causal=isinstance(objective, Causal))

        def losses(part):
            some = dataclasses.replace(jax.tree.map(lambda x: x[:2], same), part=jnp.int32(part), accumulation_steps=2)
            return float(run(model, params, some, objective, dropout=True)[0])

        assert losses(0) != losses(1)

    @pytest.mark.parametrize(
        ("objective", "parts", "words"),
        [
            (Objective(), 4, "accumulation_steps divisor 6 rows got 4"),
            (Objective(normaliser="sentences"), 2, "accumulation_steps 'sentences' must be 1 length got 2"),
        ],
    )
    def test_that_do_not_divide_the_rows_or_the_loss_are_refused(self, objective, parts, words):
        with refused(words):
            self.step(objective, parts)


class TestNormaliser:
    """The loss of a packed row of two sentences, of 3 and 7 target tokens, on masks alone."""

    PAIRS = pairs([(4, 2), (5, 6)], length_token=False)

    def mean(self, batch, normaliser="tokens", num_segments=1, weights=("all", "all")):
        model, params = one_layer_model(dropout_rate=0.0)
        objective = Objective(Mask(1.0), stage_weights=weights, normaliser=normaliser, length_weight=0.5)
        loss, sums = run(model, params, batch, objective, num_segments)
        return float(mean_loss(loss, sums)), sums

    @pytest.mark.parametrize(
        ("normaliser", "weights"), [*zip([*NORMALISERS, 20.0], itertools.cycle(["all", "noised", "falling"]))]
    )
    def test_the_loss_trained_on_is_the_published_one_and_is_logged(self, normaliser, weights):
        """T5X's three factors divide the token losses alone; "tokens", padir's own, divides the length loss, too."""
        mean, sums = self.mean(rows_of([self.PAIRS], 16, 16), normaliser, num_segments=2, weights=(weights, "all"))
        divisor = {"tokens": 10, "weights": sums.stage_weight_S[0], "positions": 16, "sentences": 2}
        divisor = divisor.get(normaliser, normaliser)
        length = 0.5 * float(sums.length_loss) / (10 if normaliser == "tokens" else 1)
        assert mean == pytest.approx(float(sums.stage_loss_S.sum()) / float(divisor) + length, rel=1e-5)
        assert step_metrics(sums, 1.0)["loss"] == pytest.approx(mean, rel=1e-5)
        twice = jax.tree.map(lambda one: one + one, sums)  # the log's mean over two steps
        assert step_metrics(twice, 1.0)["loss"] == pytest.approx(mean, rel=1e-5)

    @pytest.mark.parametrize("weights", [("all", "all"), ("inverse", "all"), ("none", "falling", "all")])
    def test_each_sentence_counts_once_in_the_first_stage_with_a_loss(self, weights):
        """Later stages have their own weights, as published (`support.published_rules.factors`)."""
        _, sums = self.mean(rows_of([self.PAIRS], 16, 16), "sentences", num_segments=2, weights=weights)
        alone = [self.mean(rows_of([[pair]], 8, 8), weights=weights)[1] for pair in self.PAIRS]
        first = len(weights) - 2
        by_sentence = sum(float(each.stage_loss_S[first] / each.stage_weight_S[first]) for each in alone)
        assert float(sums.stage_loss_S[first]) == pytest.approx(by_sentence, rel=1e-5)
        assert float(sums.stage_loss_S[-1]) == pytest.approx(
            sum(float(each.stage_loss_S[-1]) for each in alone), rel=1e-5
        )
        assert_allclose(sums.stage_weight_S[first:], [2, 10], rtol=1e-5)
        assert sums.divisor == pytest.approx(2)


def test_a_batch_that_cannot_be_read_costs_no_step_before_it(data, tmp_path, monkeypatch):
    fill, numbers = _Batches.fill, itertools.count(1)

    def damaged(self, *args):
        if next(numbers) == 3:
            raise PadirError("the third batch is damaged")
        return fill(self, *args)

    monkeypatch.setattr(_Batches, "fill", damaged)
    with refused("the third batch is damaged"):
        train_tiny(data, tmp_path / "model", num_steps=4, intervals=Intervals(log=1, evaluate=0, checkpoint=2))
    (saved,) = (tmp_path / "model" / "checkpoints").iterdir()
    state = json.loads((saved / "loader.json").read_text())
    assert (saved.name, state["epoch"], state["batch"]) == ("2", 0, 2)

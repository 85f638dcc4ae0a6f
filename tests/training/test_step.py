"""One optimizer step, by its loss and its update on a batch that a test can change."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.tiny import one_layer_model, pairs, rows_of

from padir.data.plan import Batching
from padir.errors import PadirError
from padir.refinement.corruption import Mask
from padir.training.ctc import Ctc
from padir.training.losses import mean_loss
from padir.training.objective import Objective
from padir.training.placement import TrainState
from padir.training.step import make_step, step_metrics

PAIRS = [[pair] for pair in pairs([(4, 5), (6, 3), (3, 7)])]
BATCH = rows_of(PAIRS, 8, 8)
BUCKETS = Batching(mode="bucket")


def steps_of(objective, optimizer):
    """(jitted step, state before the first step) of a model with one layer."""
    model, params = one_layer_model(dropout_rate=0.0)
    step_fn = make_step(model, objective, optimizer, BUCKETS, seed=0, num_steps=10)
    return jax.jit(step_fn), TrainState(jnp.int32(0), params, optimizer.init(params))


def test_every_step_has_noise_of_its_own():
    step, state = steps_of(Objective(stage_weights=("all",)), optax.sgd(0.0))
    second, sums = step(state, BATCH)
    losses = [float(each.stage_loss_S[0]) for each in (sums, step(second, BATCH)[1], step(state, BATCH)[1])]
    assert losses[0] == losses[2] and abs(losses[0] - losses[1]) > 1e-3


def test_the_update_is_that_of_the_mean_over_target_tokens():
    """More padding does not change a mean over tokens."""
    step, state = steps_of(Objective(Mask(1.0), stage_weights=("all",)), optax.sgd(0.1))
    plain, wide = (jax.tree.leaves(step(state, batch)[0].params) for batch in (BATCH, rows_of(PAIRS, 8, 24)))
    moved = [float(jnp.abs(a - b).max()) for a, b in zip(plain, jax.tree.leaves(state.params), strict=True)]
    assert max(moved) > 1e-3
    for one, other in zip(plain, wide, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


class TestNormaliser:
    """The loss of a packed row of two sentences, of 3 and 7 target tokens, on masks alone."""

    PAIRS = pairs([(4, 2), (5, 6)], length_token=False)

    def mean(self, batch, normaliser="tokens", num_segments=None):
        model, params = one_layer_model(dropout_rate=0.0, length_head="oracle")
        objective = Objective(Mask(1.0), stage_weights=("all",), normaliser=normaliser)
        loss, sums = objective(jax.random.key(0), params, batch, model=model, num_segments=num_segments, dropout=False)
        return float(mean_loss(loss, sums, batch, normaliser)), sums

    def test_sentences_weigh_alike_whatever_their_length(self):
        alone = [self.mean(rows_of([[pair]], 8, 8))[0] for pair in self.PAIRS]
        packed = rows_of([self.PAIRS], 16, 16)
        mean, sums = self.mean(packed, "sentences", num_segments=2)
        assert mean == pytest.approx(np.mean(alone), rel=1e-5) and float(sums.stage_weight_S[0]) == pytest.approx(2)
        by_token, _ = self.mean(packed, num_segments=2)
        assert by_token == pytest.approx((3 * alone[0] + 7 * alone[1]) / 10, rel=1e-5)
        assert abs(by_token - mean) > 1e-3
        logged = step_metrics(sums, Objective(normaliser="sentences"), 1.0)
        assert logged["loss"] == pytest.approx(mean, rel=1e-5)

    def test_positions_count_padding_too(self):
        packed = rows_of([self.PAIRS], 16, 16)
        by_token, _ = self.mean(packed, num_segments=2)
        assert self.mean(packed, "positions", num_segments=2)[0] == pytest.approx(by_token * 10 / 16, rel=1e-5)

    def test_other_names(self):
        with pytest.raises(PadirError, match="Objective.normaliser must be one of tokens, positions, sentences"):
            Objective(normaliser="words")
        with pytest.raises(PadirError, match='Ctc.normaliser must be "tokens" or "positions"'):
            Ctc(normaliser="sentences")

"""One optimizer step, by its loss and its update on a batch that a test can change."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from support.tiny import one_layer_model, pairs, rows_of

from padir.data.plan import Batching
from padir.refinement.corruption import Mask
from padir.training.objective import Objective
from padir.training.placement import TrainState
from padir.training.step import make_step

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

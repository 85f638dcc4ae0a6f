"""Schedule and optimizers, by values that can be worked out by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.refusals import refused

from padir.training.optimizer import Adafactor, Adam, Cosine, Optimizer, frozen


def first_update(optimizer, param, grad, num_steps=100):
    """What the first step adds to a constant parameter with a constant gradient."""
    params, grads = {"w": jnp.full((4, 4), param)}, {"w": jnp.full((4, 4), grad)}
    transformation = optimizer.transformation(num_steps)
    updates, _ = transformation.update(grads, transformation.init(params), params)
    assert np.ptp(updates["w"]) == 0
    return float(updates["w"][0, 0])


class TestCosine:
    def test_rises_evenly_and_falls_as_a_cosine(self):
        rate = Cosine(peak=2.0, warmup_steps=4, final=0.1).schedule(14)
        assert [float(rate(step)) for step in range(5)] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
        assert float(rate(9)) == pytest.approx((2.0 + 0.2) / 2)  # half way down
        assert float(rate(14)) == pytest.approx(0.2)

    def test_without_warm_up_it_starts_at_the_peak(self):
        assert float(Cosine(peak=0.5, warmup_steps=0).schedule(10)(0)) == pytest.approx(0.5)

    @pytest.mark.parametrize("num_steps", [1, 2, 3])
    def test_a_training_shorter_than_the_warm_up_has_positive_rates(self, num_steps):
        rate = Cosine(peak=1.0, warmup_steps=1000).schedule(num_steps)
        rates = [float(rate(step)) for step in range(num_steps)]
        assert min(rates) > 0 and max(rates) <= 1


FLAT = Cosine(peak=0.1, warmup_steps=0, final=1.0)


class TestAdam:
    def test_the_first_step_is_the_learning_rate(self):
        assert first_update(Adam(FLAT, clip_norm=None), param=3.0, grad=7.0) == pytest.approx(-0.1)

    def test_clips_by_the_global_norm(self):
        # 16 gradients of 3 have norm 12, so they become 0.25 each; with eps 1 the step is g / (g + 1).
        assert first_update(Adam(FLAT, eps=1.0, clip_norm=1.0), param=0.0, grad=3.0) == pytest.approx(
            -0.1 * 0.25 / 1.25
        )
        assert first_update(Adam(FLAT, eps=1.0, clip_norm=None), param=0.0, grad=3.0) == pytest.approx(-0.1 * 0.75)

    def test_weight_decay_follows_the_learning_rate(self):
        update = first_update(Adam(FLAT, weight_decay=0.5, clip_norm=None), param=2.0, grad=7.0)
        assert update == pytest.approx(-0.1 - 0.1 * 0.5 * 2.0)

    def test_warm_up_reaches_the_update(self):
        schedule = Cosine(peak=0.1, warmup_steps=9)
        assert first_update(Adam(schedule, clip_norm=None), param=0.0, grad=1.0) == pytest.approx(-0.01)


class TestAdafactor:
    def test_steps_are_relative_to_the_parameter(self):
        assert first_update(Adafactor(FLAT), param=2.0, grad=7.0) == pytest.approx(-0.1 * 2.0)
        absolute = Adafactor(FLAT, multiply_by_parameter_scale=False)
        assert first_update(absolute, param=2.0, grad=7.0) == pytest.approx(-0.1)

    def test_weight_decay_does_not_follow_the_learning_rate(self):
        update = first_update(Adafactor(FLAT, weight_decay=0.25), param=2.0, grad=7.0)
        assert update == pytest.approx(-0.1 * 2.0 - 0.25 * 2.0)

    @pytest.mark.parametrize(("factored", "largest"), [(True, 128), (False, 128 * 128)])
    def test_factored_keeps_rows_and_columns_only(self, factored, largest):
        state = Adafactor(factored=factored).transformation(10).init({"w": jnp.zeros((128, 128))})
        assert max(leaf.size for leaf in jax.tree.leaves(state)) == largest

    def test_momentum_keeps_a_first_moment(self):
        state = Adafactor(momentum=0.9).transformation(10).init({"w": jnp.zeros((128, 128))})
        assert max(leaf.size for leaf in jax.tree.leaves(state)) == 128 * 128

    def test_clips_the_gradient_by_its_global_norm(self):
        """Adafactor ignores the size of all gradients, but not that of one among others."""

        def second_update(optimizer, grads):
            transformation, params = optimizer.transformation(100), {"w": jnp.full((4, 4), 2.0)}
            state = transformation.init(params)
            for grad in grads:
                updates, state = transformation.update({"w": jnp.full((4, 4), grad)}, state, params)
            return float(updates["w"][0, 0])

        free = Adafactor(FLAT, clipping_threshold=100.0)
        clipped = dataclasses.replace(free, clip_norm=1.0)
        assert second_update(free, (1.0, 50.0)) != pytest.approx(second_update(free, (1.0, 1.0)), rel=0.1)
        assert second_update(clipped, (1.0, 50.0)) == pytest.approx(second_update(free, (1.0, 1.0)))


@pytest.mark.parametrize("cls", [Adam, Adafactor])
def test_both_are_hashable_optimizers_that_refuse_a_negative_clip(cls):
    assert isinstance(cls(), Optimizer) and hash(cls()) == hash(cls())
    with refused("clip_norm above 0, -1.0 None"):
        cls(clip_norm=-1.0).transformation(10)


def test_freezing_layers_1_leaves_layers_10_free():
    params = {"layers_1": jnp.ones(2), "layers_10": jnp.ones(2)}
    optimizer = frozen(optax.sgd(1.0), ("layers_1",))
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert not updates["layers_1"].any() and (updates["layers_10"] == -1).all()

"""Pseudolikelihood: its loss and derivatives, its minimum, and how far estimates are from the truth."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from support.refusals import refused

from padir.studies.ising import learning
from padir.studies.ising.spin_models import adaptive_masks, distribution, random_masks, random_model, uniform_masks

seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def each_kind(rng, num_spins):
    return (
        uniform_masks(num_spins, 1 + num_spins // 2),
        random_masks(rng, num_spins),
        adaptive_masks(rng, num_spins, 1 + num_spins // 2),
    )


def test_the_loss_of_independent_coins_is_k_bits():
    for k in (1, 2, 3):
        which = uniform_masks(3, k)
        frequency_KS = jnp.asarray(which.law_KS / 8)
        assert float(learning.loss(jnp.zeros(6), frequency_KS, *learning.arrays(which))) == pytest.approx(
            k * math.log(2)
        )


def test_derivatives_are_those_of_jax():
    rng = np.random.default_rng(0)
    theta_D = jnp.asarray(rng.normal(size=6))
    for which in each_kind(rng, 3):
        data = (
            jnp.asarray(rng.dirichlet(np.ones(which.law_KS.size)).reshape(which.law_KS.shape)),
            *learning.arrays(which),
        )
        gradient_D, hessian_DD = learning.derivatives(theta_D, *data)
        assert_allclose(gradient_D, jax.grad(learning.loss)(theta_D, *data), atol=1e-12)
        assert_allclose(hessian_DD, jax.hessian(learning.loss)(theta_D, *data), atol=1e-12)


def test_one_spin_is_fitted_by_its_mean():
    which = uniform_masks(1, 1)
    fitted = learning.fit(jnp.array([[0.3, 0.7]]), which)
    assert float(fitted.theta_D[0]) == pytest.approx(math.atanh(0.4), abs=1e-12)
    assert bool(fitted.converged)


def test_two_spins_are_fitted_by_their_log_odds():
    frequency_S = np.array([0.1, 0.2, 0.3, 0.4])  # as many parameters as frequencies: a perfect fit
    fitted = learning.fit(jnp.asarray(frequency_S[None]), uniform_masks(2, 2))
    assert float(fitted.theta_D[2]) == pytest.approx(0.25 * math.log(0.1 * 0.4 / (0.2 * 0.3)), abs=1e-12)
    assert float(fitted.loss) == pytest.approx(-np.sum(frequency_S * np.log(frequency_S)))


@given(seeds)
@settings(deadline=None, max_examples=8)
def test_the_truth_is_found_in_all_of_its_data(seed):
    rng = np.random.default_rng(seed)
    truth = random_model(rng, 3)
    for which in each_kind(rng, 3):
        fitted = learning.fit(jnp.asarray(distribution(truth) * which.law_KS), which)
        assert bool(fitted.converged)
        assert_allclose(fitted.theta_D, truth.theta_D, atol=1e-8)


def test_data_without_a_minimum_are_told():
    frequency_S = np.array([0.5, 0.0, 0.0, 0.5])  # the spins never differ: the coupling would be infinite
    assert not bool(learning.fit(jnp.asarray(frequency_S[None]), uniform_masks(2, 2)).converged)


def test_float32_is_refused():
    with refused("float64"):
        learning.fit(jnp.full((1, 2), 0.5, jnp.float32), uniform_masks(1, 1))


def test_samples_are_the_same_for_all_masks_which_follow_their_law():
    rng, key = np.random.default_rng(0), jax.random.key(1)
    prob_S = distribution(random_model(rng, 3))
    which = adaptive_masks(rng, 3, 1)
    one_KS = learning.draw(key, jnp.asarray(prob_S), jnp.asarray(which.law_KS), 30_000)
    all_KS = learning.draw_composite(key, jnp.asarray(prob_S), jnp.asarray(which.law_KS), 30_000)
    assert_allclose(one_KS.sum(axis=0), all_KS.sum(axis=0), atol=1e-12)
    expected_KS = prob_S * which.law_KS
    assert np.all(np.abs(one_KS - expected_KS) < 5 * np.sqrt(expected_KS / 30_000))
    assert_allclose(all_KS, all_KS.sum(axis=0) * which.law_KS, atol=1e-12)


@pytest.mark.parametrize(("k", "composite"), [(1, False), (3, False), (1, True)])
def test_errors_are_those_of_theory(k, composite):
    truth = random_model(np.random.default_rng(5), 3, 0.3, 0.3)
    prob_S, which = distribution(truth), uniform_masks(3, k)
    keys = jax.random.split(jax.random.key(k), 400)
    error_MR, found_MR = learning.squared_errors(keys, prob_S, truth.theta_D, which, (4_000,), composite=composite)
    assert found_MR.all()
    asymptotic = learning.composite_covariance if composite else learning.covariance
    scaled_R = 4_000 * error_MR[0]
    deviation = scaled_R.mean() - np.trace(asymptotic(prob_S, which))
    assert abs(deviation) < 4 * scaled_R.std() / math.sqrt(400) + 0.01 * scaled_R.mean()  # and a term of order 1/n


def test_independent_coins_have_known_covariances():
    # A field is seen when its spin is hidden, k/N of the time; a coupling when one spin of the pair is, or both.
    prob_S = np.full(16, 1 / 16)
    for k in range(1, 5):
        covariance_DD = learning.covariance(prob_S, uniform_masks(4, k))
        pair = 1 - math.comb(2, k) / math.comb(4, k) if k <= 2 else 1.0
        assert_allclose(covariance_DD, np.diag([4 / k] * 4 + [1 / pair] * 6), atol=1e-12)


def test_all_of_a_sample_hidden_is_maximum_likelihood():
    prob_S = distribution(random_model(np.random.default_rng(0), 4))
    which = uniform_masks(4, 4)
    assert_allclose(learning.information(prob_S, which), learning.fisher(prob_S), atol=1e-12)
    assert_allclose(learning.composite_covariance(prob_S, which), learning.covariance(prob_S, which))

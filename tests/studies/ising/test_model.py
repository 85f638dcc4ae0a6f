"""Small Ising models against what can be worked out by hand, and masks and sums over blocks."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from support.refusals import refused

from padir.studies.ising import learning, spin_models
from padir.studies.ising.spin_models import (
    Ising,
    Masks,
    block_sum,
    distribution,
    log_weights,
    random_model,
    spins,
    statistics,
    uniform_masks,
    weighted_masks,
)

seeds = st.integers(0, 2**32 - 1)


def two(h1, h2, j):
    return Ising(np.array([[0.0, j], [j, 0.0]]), np.array([h1, h2]))


def test_one_spin():
    prob_S = distribution(Ising(np.zeros((1, 1)), np.array([0.5])))
    assert_allclose(prob_S, [1 / (1 + math.e), math.e / (1 + math.e)])


def test_two_spins():
    # States 0 to 3: (-, -), (+, -), (-, +), (+, +).
    weight_S = np.exp([-0.3 - 0.1 + 0.7, 0.3 - 0.1 - 0.7, -0.3 + 0.1 - 0.7, 0.3 + 0.1 + 0.7])
    assert_allclose(distribution(two(0.3, 0.1, 0.7)), weight_S / weight_S.sum())


def test_independent_spins_have_the_means_of_their_fields():
    field_N = np.linspace(-1, 1, 10)
    prob_S = distribution(Ising(np.zeros((10, 10)), field_N))
    assert_allclose(prob_S @ spins(np.arange(1 << 10), 10), np.tanh(field_N), atol=1e-12)


@given(seeds, st.integers(1, 6))
@settings(deadline=None, max_examples=20)
def test_chunks_change_nothing(seed, num_spins):
    drawn = random_model(np.random.default_rng(seed), num_spins)
    whole_S = distribution(drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spin_models, "_CHUNK", 8)
        assert_array_equal(distribution(drawn), whole_S)


@given(seeds, st.integers(1, 5), st.data())
@settings(deadline=None, max_examples=30)
def test_conditionals_are_those_of_the_table(seed, num_spins, data):
    drawn = random_model(np.random.default_rng(seed), num_spins, 1.0, 1.0)
    block = data.draw(st.lists(st.integers(0, num_spins - 1), unique=True))
    state = data.draw(st.integers(0, (1 << num_spins) - 1))
    prob_S = distribution(drawn)
    weights = []
    for bits in itertools.product((0, 1), repeat=len(block)):  # the last spin of the block changes fastest
        other = state
        for spin, bit in zip(reversed(block), bits, strict=True):
            other = other & ~(1 << spin) | bit << spin
        weights.append(prob_S[other])
    found_C = spin_models.conditional(drawn, block, spins(np.array([state]), num_spins)[0])
    assert_allclose(found_C, np.array(weights) / sum(weights), rtol=1e-10)


def test_a_spin_given_the_others_is_logistic():
    drawn = random_model(np.random.default_rng(0), 4)
    spin_N = np.array([1.0, -1.0, 1.0, 1.0])
    local = drawn.field_N[2] + drawn.coupling_NN[2] @ spin_N  # no coupling with itself
    assert spin_models.conditional(drawn, [2], spin_N)[1] == pytest.approx(1 / (1 + math.exp(-2 * local)))


@given(seeds, st.integers(1, 6))
@settings(deadline=None, max_examples=20)
def test_parameters_times_statistics_are_log_weights(seed, num_spins):
    drawn = random_model(np.random.default_rng(seed), num_spins)
    stat_SD = statistics(spins(np.arange(1 << num_spins), num_spins))
    assert_allclose(stat_SD @ drawn.theta_D, log_weights(drawn), atol=1e-12)


def test_the_clique_is_coupled_and_the_rest_is_free():
    drawn = spin_models.clique(4, 3, 0.5, [0.1, 0.2, 0.3], other_field=-1.0)
    assert drawn.coupling_NN.sum() == 6 * 0.5
    assert_array_equal(drawn.field_N, [0.1, 0.2, 0.3, -1.0])
    assert not drawn.coupling_NN[3].any()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: distribution(Ising(np.zeros((21, 21)), np.zeros(21))), "at most 20 spins"),
        (lambda: Ising(np.ones((2, 2)), np.zeros(2)), "zero diagonal"),
        (lambda: Ising(np.array([[0.0, 1.0], [0.0, 0.0]]), np.zeros(2)), "symmetric"),
        (lambda: Ising(np.zeros((2, 2)), np.array([0.0, np.inf])), "finite"),
        (lambda: spin_models.clique(3, 4, 1.0, 1.0), "1 to 3"),
        (lambda: spin_models.clique(3, 2, -1.0, 1.0), "above 0"),
        (lambda: spin_models.conditional(two(0.0, 0.0, 0.0), [0, 0], np.ones(2)), "distinct spins"),
        (lambda: spin_models.conditional(two(0.0, 0.0, 0.0), [0], np.ones(3)), "the 2 spins"),
        (lambda: spin_models.subsets(3, 4), "1 to 3"),
        (lambda: uniform_masks(20, 10), "184,756 blocks 2^20 states"),
        (lambda: learning.all_statistics(17), "at most 16 spins"),
        (lambda: weighted_masks(np.array([[True, False]]), np.ones(1)), "every spin"),
        (lambda: Masks(np.ones((1, 2), bool), np.full((1, 4), 0.5)), "sum to 1"),
    ],
)
def test_bad_input_is_named(make, words):
    with refused(words):
        make()


@given(seeds, st.integers(1, 5), st.data())
@settings(deadline=None, max_examples=30)
def test_block_sum_adds_what_agrees_outside(seed, num_spins, data):
    value_S = np.random.default_rng(seed).normal(size=1 << num_spins)
    block_N = np.array(data.draw(st.lists(st.booleans(), min_size=num_spins, max_size=num_spins)))
    outside = sum(1 << i for i in range(num_spins) if not block_N[i])
    for state, found in enumerate(block_sum(value_S, block_N)):
        assert found == pytest.approx(sum(v for s, v in enumerate(value_S) if s & outside == state & outside))

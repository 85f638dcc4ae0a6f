"""The samplers: matrices by hand, what they leave as it is, simulations against matrices, and cliques by counting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from support.refusals import refused

from padir.studies.ising import chains, separation, spin_models
from padir.studies.ising.separation import Clique
from padir.studies.ising.spin_models import (
    Ising,
    adaptive_masks,
    distribution,
    random_masks,
    random_model,
    spins,
    uniform_masks,
)

seeds = st.integers(0, 2**32 - 1)
few = settings(deadline=None, max_examples=20)


def close(frequency_S, prob_S, count):
    """Within five standard deviations of a frequency; what cannot be never is."""
    return np.all(np.abs(frequency_S - prob_S) <= 5 * np.sqrt(prob_S / count))


def test_one_spin_is_drawn_at_once():
    prob_S = distribution(Ising(np.zeros((1, 1)), np.array([0.5])))
    assert_allclose(chains.block_dynamics(prob_S, uniform_masks(1, 1)), [prob_S, prob_S])


def test_gibbs_of_two_spins_by_hand():
    prob_S = np.array([0.1, 0.2, 0.3, 0.4])  # (-, -), (+, -), (-, +), (+, +)
    # From (-, -): spin 0 is drawn half the time, given spin 1 = -, from states 0 and 1; else spin 1, from 0 and 2.
    expected_S = [0.5 * 0.1 / 0.3 + 0.5 * 0.1 / 0.4, 0.5 * 0.2 / 0.3, 0.5 * 0.3 / 0.4, 0.0]
    assert_allclose(chains.block_dynamics(prob_S, uniform_masks(2, 1))[0], expected_S)


def test_independent_parallel_of_two_spins_by_hand():
    plus = 1 / (1 + np.exp(-2 * (0.3 - 0.7)))  # from (-, -), fields 0.3 and coupling 0.7
    transition_SS = chains.independent_parallel(Ising(np.array([[0, 0.7], [0.7, 0]]), np.array([0.3, 0.3])))
    minus = 1 - plus
    assert_allclose(transition_SS[0], [minus * minus, plus * minus, minus * plus, plus * plus])


@given(seeds, st.integers(1, 4))
@few
def test_block_dynamics_leaves_the_model_as_it_is(seed, num_spins):
    rng = np.random.default_rng(seed)
    prob_S = distribution(random_model(rng, num_spins, 1.0))
    for which in (random_masks(rng, num_spins), adaptive_masks(rng, num_spins, 1 + num_spins // 2)):
        transition_SS = chains.block_dynamics(prob_S, which)
        assert_allclose(transition_SS.sum(axis=1), 1.0)
        assert_allclose(prob_S @ transition_SS, prob_S, atol=1e-14)


def test_independent_parallel_does_not():
    drawn = spin_models.clique(3, 3, 0.5, 0.2)
    prob_S, transition_SS = distribution(drawn), chains.independent_parallel(drawn)
    assert np.abs(prob_S @ transition_SS - prob_S).max() > 0.01
    settled_S = chains.independent_parallel_stationary(drawn)
    assert_allclose(np.linalg.matrix_power(transition_SS, 4096)[0], settled_S, atol=1e-10)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_k_gibbs_simulates_its_matrix(k):
    drawn = random_model(np.random.default_rng(k), 4, 0.7)
    transition_SS = chains.block_dynamics(distribution(drawn), uniform_masks(4, k))
    start_N, count = np.array([1.0, -1.0, -1.0, 1.0]), 20_000  # state 9
    spin_BN = chains.k_gibbs_step(
        jax.random.key(k), jnp.tile(jnp.asarray(start_N, jnp.float32), (count, 1)), *arrays(drawn), k
    )
    assert close(frequencies(spin_BN), transition_SS[9], count)


def test_independent_parallel_simulates_its_matrix():
    drawn, count = random_model(np.random.default_rng(3), 3, 0.7), 20_000
    start_BN = jnp.tile(jnp.array([1.0, -1.0, 1.0]), (count, 1))  # state 5
    spin_BN = chains.parallel_step(jax.random.key(0), start_BN, *arrays(drawn))
    assert close(frequencies(spin_BN), chains.independent_parallel(drawn)[5], count)


def arrays(drawn):
    return jnp.asarray(drawn.coupling_NN, jnp.float32), jnp.asarray(drawn.field_N, jnp.float32)


def frequencies(spin_BN):
    state_B = np.asarray((spin_BN > 0) @ (1 << np.arange(spin_BN.shape[1])))
    return np.bincount(state_B, minlength=1 << spin_BN.shape[1]) / len(state_B)


@pytest.mark.parametrize("k", [3, None])
def test_arrival_times_are_those_of_the_matrix(k):
    lumped, count = Clique(5, 3, 0.5, 0.3), 4_000
    steps_B = chains.steps_to_larger_mode(
        jax.random.key(0), spin_models.clique(5, 3, 0.5, 0.3), 3, k=k, count=count, budget=10_000
    )
    transition_TT = separation.counted_k_gibbs(lumped, k) if k else separation.counted_parallel(lumped)
    exact = chains.hitting_times(transition_TT, np.arange(4) == 3)[0]
    assert abs(steps_B.mean() - exact) < 4 * steps_B.std() / np.sqrt(count)


def test_a_budget_ends_the_wait():
    stuck = spin_models.clique(4, 4, 4.0, 0.1)
    steps_B = chains.steps_to_larger_mode(jax.random.key(0), stuck, 4, k=None, count=5, budget=7)
    assert_array_equal(steps_B, 8)


def test_who_is_there_takes_no_steps():
    start_B = jnp.array([3, 0])
    steps_B = chains.steps_to(jax.random.key(0), lambda key, x: x + 1, start_B, lambda x: x >= 3, 10)
    assert_array_equal(steps_B, [0, 3])


@given(st.integers(1, 6), st.data())
@few
def test_counting_a_clique_loses_nothing(num_spins, data):
    size, k = data.draw(st.integers(1, num_spins)), data.draw(st.integers(1, num_spins))
    coupling, field = data.draw(st.floats(0.1, 1.5)), data.draw(st.floats(0.1, 1.0))
    full = spin_models.clique(num_spins, size, coupling, field, other_field=-0.4)
    prob_S, lumped = distribution(full), Clique(num_spins, size, coupling, field)
    plus_S = (spins(np.arange(1 << num_spins), num_spins)[:, :size] > 0).sum(axis=1)
    count_ST = np.eye(size + 1)[plus_S]
    for full_SS, lumped_TT in (
        (chains.block_dynamics(prob_S, uniform_masks(num_spins, k)), separation.counted_k_gibbs(lumped, k)),
        (chains.independent_parallel(full), separation.counted_parallel(lumped)),
    ):
        assert_allclose(full_SS @ count_ST, lumped_TT[plus_S], atol=1e-10)
    assert separation.larger_mode(lumped) == pytest.approx(prob_S[plus_S == size].sum())


def test_mixing_time_is_the_first_time():
    prob_S = distribution(spin_models.clique(3, 3, 0.6, 0.2))
    transition_SS = chains.block_dynamics(prob_S, uniform_masks(3, 1))
    time = chains.mixing_time(transition_SS, prob_S)
    late, early = (
        chains.total_variation(np.linalg.matrix_power(transition_SS, t), prob_S).max() for t in (time, time - 1)
    )
    assert late <= 0.25 < early
    assert chains.mixing_time(chains.block_dynamics(prob_S, uniform_masks(3, 3)), prob_S) == 1
    assert chains.mixing_time(transition_SS, prob_S, distance=1.0) == 0  # no two distributions are further apart


def test_independent_spins_have_known_poincare_constants():
    prob_S = distribution(random_model(np.random.default_rng(0), 4, 0.0, 1.0))
    for k in range(1, 5):
        assert chains.poincare(chains.block_dynamics(prob_S, uniform_masks(4, k)), prob_S) == pytest.approx(4 / k)


def test_draws_of_everything_arrive_geometrically():
    prob_S = distribution(spin_models.clique(3, 3, 0.5, 0.2))
    transition_SS, target_S = chains.block_dynamics(prob_S, uniform_masks(3, 3)), np.arange(8) == 7
    q = prob_S[7]
    assert chains.hitting_times(transition_SS, target_S)[0] == pytest.approx(1 / q)
    assert chains.hitting_probability(transition_SS, target_S, 4)[0] == pytest.approx(1 - (1 - q) ** 4)


@given(seeds, st.integers(2, 12))
@few
def test_hitting_times_solve_their_equations(seed, states):
    rng = np.random.default_rng(seed)
    transition_SS, target_S = rng.dirichlet(np.full(states, 0.5), size=states), np.arange(states) == 0
    time_S = chains.hitting_times(transition_SS, target_S)
    assert_allclose(time_S[1:], 1 + transition_SS[1:] @ time_S, rtol=1e-10)
    assert time_S[0] == 0


def test_hitting_times_beyond_double_precision():
    rare = 1e-40  # 1 - rare is 1: (I - P) t = 1 has no solution to speak of
    transition_SS = np.array([[1.0, rare, 0.0], [0.5, 0.5, rare], [0.0, 0.0, 1.0]])
    time_S = chains.hitting_times(transition_SS, np.array([False, False, True]))
    assert_allclose(time_S, [(1 + 0.5 / rare) / rare, (1 + 0.5 / rare) / rare, 0.0])
    lumped = Clique(10, 10, 8.0, 0.05)
    assert chains.hitting_times(separation.counted_parallel(lumped), np.arange(11) == 10)[0] > 1e200


def test_what_is_out_of_reach_takes_forever():
    lost = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert_array_equal(chains.hitting_times(lost, np.arange(3) == 2), [np.inf, np.inf, 0.0])
    assert_array_equal(chains.hitting_times(lost[::-1, ::-1], np.arange(3) == 0), [0.0, np.inf, np.inf])


def test_states_of_probability_0_have_no_poincare_constant():
    prob_S = distribution(spin_models.clique(3, 3, 400.0, 0.1))
    with refused("above 0 in float64"):
        chains.poincare(chains.block_dynamics(prob_S, uniform_masks(3, 1)), prob_S)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: chains.poincare(np.roll(np.eye(3), 1, axis=1), np.full(3, 1 / 3)), "not reversible"),
        (
            lambda: chains.steps_to_larger_mode(
                jax.random.key(0), spin_models.clique(3, 2, 0.5, 0.2), 2, k=4, count=1, budget=1
            ),
            "k is 1 to 3",
        ),
        (lambda: chains.independent_parallel(Ising(np.zeros((13, 13)), np.zeros(13))), "at most 12 spins"),
        (lambda: Clique(3, 2, 0.0, 0.1), "above 0"),
    ],
)
def test_what_is_refused(call, words):
    with refused(words):
        call()

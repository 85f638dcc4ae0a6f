"""Transformers for parallel chains, training on noise, and bounds of finite samples."""

import math

import numpy as np
import pytest

from padir.studies.ising import tensorisation, transformers
from padir.studies.ising.spin_models import spins, uniform_masks
from padir.studies.ising.transformers import Network


def test_products_and_noise_by_hand():
    assert transformers.product(np.array([0.25, 1.0])) == pytest.approx([0.0, 0.0, 0.75, 0.25])
    assert transformers.plus_of(np.array([0.1, 0.2, 0.3, 0.4])) == pytest.approx([0.6, 0.7])
    assert transformers.noise(2, 0.5)[3] == pytest.approx([1 / 16, 3 / 16, 3 / 16, 9 / 16])  # from (+, +)


def test_attention_is_a_weighted_mean():
    value_NW = np.array([[1.0], [3.0]])
    assert transformers.attention(np.zeros((2, 1)), np.zeros((2, 1)), value_NW) == pytest.approx(np.full((2, 1), 2.0))
    mixed = transformers.attention(np.array([[math.log(3.0)]]), np.array([[1.0], [0.0]]), value_NW)
    assert mixed == pytest.approx(np.array([[0.75 * 1 + 0.25 * 3]]))


def test_two_spins_change_places_in_one_pass():
    swap_S = np.array([0, 2, 1, 3])
    network = Network(spins(swap_S, 2))
    assert network.greedy().tolist() == swap_S.tolist()
    into_WF, bias_F, out_F = network.weights
    assert into_WF.shape == (6, 8) and bias_F.shape == out_F.shape == (8,)  # W = 3N, F = N · 2^N


def test_drawn_positions_are_independent_given_the_state():
    row_S = Network(np.zeros((4, 2))).sampled()[0]
    assert row_S == pytest.approx(np.full(4, 0.25))


def test_training_on_pure_noise_and_on_clean_canvases():
    prob_S = np.array([0.1, 0.2, 0.3, 0.4])
    assert transformers.trained(prob_S, 1.0) == pytest.approx(np.tile([0.6, 0.7], (4, 1)))
    assert transformers.trained(prob_S, 1e-9) == pytest.approx((spins(np.arange(4), 2) + 1) / 2, abs=1e-6)
    # Given that the other spin is +: 0.2 + 0.4 and 0.3 + 0.4 are the masses to compare.
    assert transformers.conditionals(prob_S)[3] == pytest.approx([0.4 / 0.7, 0.4 / 0.6])
    assert transformers.plus_of(prob_S) == pytest.approx([0.6, 0.7])


def test_terms_of_the_finite_sample_bound():
    assert tensorisation.deviation(2.0, 25, 800, 0.05) == pytest.approx(2 * math.sqrt(math.log(1000) / 1600))
    assert tensorisation.empirical_distance(8, 200, 0.05) == pytest.approx(0.1 + math.sqrt(math.log(20) / 400))
    assert tensorisation.chebyshev_distance(8, 200, 0.05) == pytest.approx(math.sqrt(512 / 160))


def test_least_losses_are_those_of_the_empirical_law():
    which = uniform_masks(2, 1)
    share_RS = np.array([[0.25, 0.25, 0.25, 0.25], [0.5, 0.0, 0.0, 0.5]])
    assert tensorisation.least_losses(share_RS, which) == pytest.approx([math.log(2), 0.0])
    mean = float(np.sum(which.law_KS * tensorisation.losses(share_RS[0], which) * share_RS[0]))
    assert mean == pytest.approx(math.log(2))


def test_data_sets_have_masks_of_their_own_states():
    data = tensorisation.draw(np.random.default_rng(0), np.full(4, 0.25), uniform_masks(2, 1), 40, 3)
    assert data.mask_RKS.sum(axis=1) == pytest.approx(data.state_RS)
    assert np.any(data.mask_RKS[:, 0] != data.mask_RKS[:, 1])

"""Random canvases by hand and in the experiment, transformers for parallel chains, and bounds of finite samples."""

import math

import numpy as np
import pytest
from support.refusals import refused

from padir.studies.ising import decoders, experiments, random_canvases, tensorisation
from padir.studies.ising.random_canvases import Network
from padir.studies.ising.spin_models import spins, uniform_masks
from padir.studies.ising.tensorisation import divergence

ALIKE = np.array([0.499, 0.001, 0.001, 0.499])  # two spins that nearly always agree


def test_products_and_noise_by_hand():
    assert random_canvases.product(np.array([0.25, 1.0])) == pytest.approx([0.0, 0.0, 0.75, 0.25])
    assert random_canvases.plus_of(np.array([0.1, 0.2, 0.3, 0.4])) == pytest.approx([0.6, 0.7])
    assert random_canvases.noise(2, 0.5)[3] == pytest.approx([1 / 16, 3 / 16, 3 / 16, 9 / 16])  # from (+, +)


def test_a_clean_canvas_is_kept_and_a_noisy_one_is_mended():
    assert random_canvases.denoised(ALIKE, 0.0) == pytest.approx(np.eye(4))
    sure = random_canvases.posterior(ALIKE, 0.5)
    # Both spins shown +: (+, +) against (-, -) is 0.75² to 0.25², as both spins turned by noise.
    assert sure[3, 3] / sure[3, 0] == pytest.approx(9.0)
    assert sure[1, 3] == pytest.approx(sure[1, 0])  # they disagree: either may be the truth


def test_a_map_of_the_canvas_reaches_what_no_product_can():
    floor = divergence(ALIKE, random_canvases.denoising_law(ALIKE, [1.0]))
    assert floor == pytest.approx(math.log(2), abs=0.02)
    mapped_S = random_canvases.canvas_map(ALIKE, 1024)
    assert mapped_S * 1024 == pytest.approx(np.round(mapped_S * 1024))  # whole canvases
    assert mapped_S.sum() == pytest.approx(1.0)
    assert divergence(ALIKE, mapped_S) < 0.005 < floor
    oracle = decoders.Oracle(ALIKE)
    assert random_canvases.mapped_law(oracle, (1, 2), 1024) == pytest.approx(ALIKE, abs=2e-3)
    assert random_canvases.mapped_bound(oracle, (3,), 1024) == pytest.approx(-math.log(1 - 4 / 1024))


def test_more_passes_never_cost_more():
    rows = experiments.canvas_costs(experiments.CanvasSizes(num_spins=3))
    found = {(row["model"], row["decoder"], row["passes"]): row["kl"] for row in rows}
    for (name, decoder, count), kl in found.items():
        assert kl <= found.get((name, decoder, count - 1), math.inf) + 1e-12
        if count == 1 and not decoder.endswith("mapped"):
            assert kl == pytest.approx(found[name, "mask, random order", 1])
    assert found["two modes", "mask, random order", 3] == pytest.approx(0.0, abs=1e-12)
    assert found["two modes", "random canvas, mapped", 1] < found["two modes", "mask, fixed order", 1] / 5
    with refused("2 to 6 spins, got 7"):
        experiments.CanvasSizes(num_spins=7)


def test_attention_is_a_weighted_mean():
    value_NW = np.array([[1.0], [3.0]])
    assert random_canvases.attention(np.zeros((2, 1)), np.zeros((2, 1)), value_NW) == pytest.approx(
        np.full((2, 1), 2.0)
    )
    mixed = random_canvases.attention(np.array([[math.log(3.0)]]), np.array([[1.0], [0.0]]), value_NW)
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
    assert random_canvases.trained(prob_S, 1.0) == pytest.approx(np.tile([0.6, 0.7], (4, 1)))
    assert random_canvases.trained(prob_S, 1e-9) == pytest.approx((spins(np.arange(4), 2) + 1) / 2, abs=1e-6)
    # Given that the other spin is +: 0.2 + 0.4 and 0.3 + 0.4 are the masses to compare.
    assert random_canvases.conditionals(prob_S)[3] == pytest.approx([0.4 / 0.7, 0.4 / 0.6])
    assert random_canvases.plus_of(prob_S) == pytest.approx([0.6, 0.7])


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

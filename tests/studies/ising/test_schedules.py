"""Entropy curves, schedules of passes and their costs, by hand and against enumeration."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import IDS, keys, traced
from support.refusals import refused

from padir.errors import PadirError
from padir.refinement import Mask, MaskPredict, draft
from padir.refinement.strategies.schedules import SCHEDULES
from padir.studies.ising import experiments, pass_sizes, spin_models
from padir.studies.ising.decoders import Oracle
from padir.studies.ising.separation import Clique
from padir.studies.ising.spin_models import Ising, distribution


def enumerated(drawn):
    return pass_sizes.entropy_curve(Oracle(distribution(drawn)))


def test_curves_by_counting_are_those_of_enumeration():
    clique = spin_models.clique(6, 6, 0.3, 0.1)
    assert pass_sizes.clique_curve(Clique(6, 6, 0.3, 0.1)) == pytest.approx(enumerated(clique))
    neighbours_NN = 0.7 * (np.eye(6, k=1) + np.eye(6, k=-1))
    assert pass_sizes.chain_curve(6, 0.7) == pytest.approx(enumerated(Ising(neighbours_NN, np.zeros(6))))
    small = enumerated(spin_models.clique(3, 3, 0.5, 0.1))
    pair_NN = np.zeros((6, 6))
    pair_NN[:3, :3] = pair_NN[3:, 3:] = 0.5 * (1 - np.eye(3))
    assert pass_sizes.copies_curve(small, 2) == pytest.approx(enumerated(Ising(pair_NN, np.full(6, 0.1))))
    with refused("num_spins must be 3, got 4"):
        pass_sizes.clique_curve(Clique(4, 3, 0.5, 0.1))


def test_equal_spins_need_one_spin_first():
    curve = np.array([0.0, *[math.log(2)] * 8])  # eight spins that are always equal
    assert pass_sizes.total_correlation(curve) == pytest.approx(7 * math.log(2))
    assert pass_sizes.dual_total_correlation(curve) == pytest.approx(math.log(2))
    assert pass_sizes.best_schedules(curve)[1] == (pytest.approx(0.0), [1, 7])
    assert pass_sizes.cost(curve, pass_sizes.sizes_of("linear", 8, 2)) == pytest.approx(3 * math.log(2))
    assert pass_sizes.random_cost(curve, 2) == pytest.approx(
        3 * math.log(2)
    )  # the first pass draws 4 of them on average


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sizes_are_those_of_the_decoder(schedule):
    """Mask-Predict with this schedule, run on the canvas."""
    start = draft(keys(1), jnp.array([14]), 14, Mask(), IDS)
    for count in (1, 2, 5, 13):
        ran = traced(MaskPredict(schedule=schedule), start, count)
        hidden_T = (np.asarray(ran.tokens_TBL)[:, 0] == IDS.mask).sum(-1)
        drawn_T = -np.diff(hidden_T[: int(ran.passes_B[0]) + 1])
        assert pass_sizes.sizes_of(schedule, 13, count) == [size for size in drawn_T.tolist() if size]


@pytest.mark.slow
def test_doubling_beats_equal_sizes_on_a_clique_only():
    sizes = experiments.ScheduleSizes(num_spins=32)
    found = {(row["model"], row["schedule"]): row for row in experiments.schedule_costs(sizes) if row["passes"] == 8}
    assert found["one clique", "doubling"]["kl"] < 1e-3 < 1 < found["one clique", "linear"]["kl"]
    assert found["chain", "doubling"]["kl"] > found["chain", "linear"]["kl"] > found["chain", "best"]["kl"]
    assert sum(map(int, found["phrases", "best"]["sizes"].split())) == 32


def test_bounds_hold_for_the_large_models():
    doubling = pass_sizes.sizes_of("doubling", 32, 6)
    assert doubling == [1, 1, 2, 4, 8, 16]
    for curve in experiments.curves(experiments.ScheduleSizes(num_spins=32)).values():
        for passes in (1, 2, 4, 8, 16):
            linear = pass_sizes.cost(curve, pass_sizes.sizes_of("linear", 32, passes))
            assert linear <= pass_sizes.equal_bound(curve, 32 // passes) + 1e-9
        upper = pass_sizes.growing_bound(curve, doubling)
        assert pass_sizes.cost(curve, doubling) <= upper
        assert upper == pytest.approx(pass_sizes.dual_total_correlation(curve) + pass_sizes.between(curve, 1))


def test_right_tokens_do_not_make_a_right_sequence():
    one_pass = [row for row in experiments.phrase_errors(4) if row["passes"] == 1]
    assert all(row["tv_of_a_token"] < 1e-12 for row in one_pass)
    assert one_pass[-1]["low"] > 0.999
    assert all(row["low"] <= row["tv_of_a_phrase"] <= row["high"] for row in one_pass if row["phrases"] == 1)
    assert pass_sizes.sequence_bounds(0.5, 2) == (0.75, pytest.approx(math.sqrt(15 / 16)))


@pytest.mark.parametrize("sizes", [{"num_spins": 30}, {"clique": 1}, {"num_spins": 1024}])
def test_odd_sizes_are_refused(sizes):
    with pytest.raises(PadirError):
        experiments.ScheduleSizes(**sizes)

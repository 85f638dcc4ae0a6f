"""Every statement on random models, and that the checks would notice if one were false."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose
from support.refusals import refused

from padir.studies.ising import (
    chains,
    decoders,
    efficiency,
    learning,
    pass_sizes,
    separation,
    spin_models,
    statement,
    tensorisation,
    transformers,
)
from padir.studies.ising.spin_models import Masks, adaptive_masks, block_sum, distribution, random_model, uniform_masks
from padir.studies.ising.statement import Statement, check, order_margin
from padir.studies.ising.subjects import STATEMENTS, check_all, verdict


@pytest.mark.parametrize("one", STATEMENTS, ids=lambda one: one.name)
def test_statements(one):
    finding = check(one, seed=1, models=4, largest=4)
    assert finding.as_expected, finding
    if not one.true:
        assert finding.margin < -1e-5  # a counterexample, not rounding


def test_a_wrong_statement_fails():
    wrong = Statement(
        "less is more", "nowhere", "Γ_k ⪯ Γ_k+1", lambda rng, n: [-m for m in efficiency._masking_more(rng, n)]
    )
    finding = check(wrong, seed=1, models=4, largest=4)
    assert not finding.holds
    assert verdict(finding) == "FAILS"


def test_what_is_not_a_number_fails():
    broken = Statement("broken", "nowhere", "", lambda rng, n: [1.0, float("nan")])
    assert not check(broken, seed=0, models=1, largest=2).holds


REAL = {name: getattr(chains, name) for name in ("block_dynamics", "poincare", "mixing_time")}
ARRAYS, INFORMATIONS, UNIFORM = learning.arrays, efficiency._informations, uniform_masks
CONSTANT, K_GIBBS = tensorisation.constant, separation.counted_k_gibbs
DEVIATION, TOTAL = tensorisation.deviation, separation.total_correlation
CORRELATION = decoders.Oracle.correlation


def smaller_poincare(*args):
    return 0.9 * REAL["poincare"](*args)


def forgetful(prob_S, which):
    """Block dynamics that forgets, when it draws the spins, how the block was chosen."""
    everywhere = np.ones((1, len(prob_S)))
    blocks = zip(which.block_KN, which.law_KS, strict=True)
    return sum(
        law_S[:, None] * REAL["block_dynamics"](prob_S, Masks(block[None], everywhere)) for block, law_S in blocks
    )


def one_spin(prob_S, which):
    return REAL["block_dynamics"](prob_S, UNIFORM(which.num_spins, 1))


def k_steps_of_one_spin(prob_S, which):
    """A gap of exactly k times that of 1-Gibbs, and none more."""
    k = int(which.block_KN[0].sum())
    return k * one_spin(prob_S, which) - (k - 1) * np.eye(len(prob_S))


def everything(drawn):
    return REAL["block_dynamics"](distribution(drawn), UNIFORM(drawn.num_spins, drawn.num_spins))


def level(drawn):
    return np.full(1 << drawn.num_spins, 0.5**drawn.num_spins)


def alone(query_NK, key_NK, value_NW):
    """Attention of every position to itself alone."""
    return value_NW


def equal_sizes(curve):
    num_spins = len(curve) - 1
    found = [pass_sizes.sizes_of("linear", num_spins, passes) for passes in range(1, num_spins + 1)]
    return [(pass_sizes.cost(curve, sizes), sizes) for sizes in found]


WRONG = [
    ("convexity", efficiency, "_differentiated", lambda *args: -np.eye(3)),
    ("consistency", learning, "arrays", lambda which: (*ARRAYS(which)[:2], jnp.ones_like(ARRAYS(which)[2]))),
    ("information equality", efficiency, "information", learning.composite_information),
    ("masking more", spin_models, "uniform_masks", lambda num_spins, k: UNIFORM(num_spins, num_spins + 1 - k)),
    ("masking more, strictly", efficiency, "_informations", lambda rng, num_spins: [np.eye(3)] * 3),
    ("the last mask", efficiency, "_informations", lambda rng, num_spins: INFORMATIONS(rng, num_spins)[::-1]),
    ("composite between", efficiency, "composite_covariance", lambda *args: 1.1 * learning.covariance(*args)),
    ("Poincaré bound", chains, "poincare", smaller_poincare),
    ("Poincaré bound, adaptive", chains, "poincare", smaller_poincare),
    ("tensorisation, bracket", tensorisation, "upper_bound", lambda *args: 1.0),
    ("tensorisation, independent spins", tensorisation, "constant", lambda *args: 0.9 * CONSTANT(*args)),
    ("decay of KL", tensorisation, "constant", lambda *args: 1.01),
    ("population bound", tensorisation, "constant", lambda *args: 0.9 * CONSTANT(*args)),
    ("invariance", chains, "block_dynamics", forgetful),
    ("decay of χ²", chains, "poincare", smaller_poincare),
    ("mixing time", chains, "mixing_time", lambda *args: 3 * REAL["mixing_time"](*args)),
    ("mixing time", chains, "mixing_time", lambda *args: 0),
    ("k times faster", chains, "block_dynamics", one_spin),
    ("faster yet", chains, "block_dynamics", k_steps_of_one_spin),
    (
        "no product, given the block",
        spin_models,
        "conditional",
        lambda drawn, block, spin_N: level(drawn)[: 1 << len(block)],
    ),
    ("no product", chains, "block_dynamics", lambda prob_S, which: np.full((len(prob_S),) * 2, 1 / len(prob_S))),
    ("where parallel settles", chains, "independent_parallel_stationary", distribution),
    ("modes, ratio", separation, "distribution", level),
    ("modes, mass", separation, "distribution", level),
    ("k-Gibbs, one step", chains, "block_dynamics", one_spin),
    ("k-Gibbs arrives", chains, "block_dynamics", one_spin),
    ("parallel is stuck", chains, "independent_parallel", everything),
    ("separation", separation, "counted_k_gibbs", lambda clique, k: K_GIBBS(clique, 1)),
    ("separation", separation, "counted_parallel", lambda clique: K_GIBBS(clique, clique.num_spins)),
    ("parallel passes", decoders.Oracle, "correlation", lambda oracle, shown, block: CORRELATION(oracle, 0, block)),
    ("random orders", decoders, "posterior_gap", lambda *args: 0.0),
    ("random orders", decoders, "partition_sum", lambda oracle, blocks: CORRELATION(oracle, 0, blocks[0])),
    ("entropy curve", pass_sizes, "pass_cost", lambda curve, shown, size: size * curve[1] - curve[size]),
    ("best sizes", pass_sizes, "best_schedules", equal_sizes),
    ("equal sizes", pass_sizes, "equal_bound", lambda curve, largest: (largest - 1) * pass_sizes.between(curve, 1) / 2),
    ("equal sizes", pass_sizes, "phases_bound", pass_sizes.equal_bound),
    ("changing sizes", pass_sizes, "growing_bound", lambda curve, sizes: pass_sizes.between(curve, 1)),
    ("changing sizes", pass_sizes, "shrinking_bound", lambda curve, sizes: pass_sizes.between(curve, 1)),
    ("token and sequence", pass_sizes, "sequence_bound", lambda kl: kl / 2),
    ("phrases", pass_sizes, "affinity", lambda one_S, other_S: float(np.minimum(one_S, other_S).sum())),
    ("implementable, product", transformers, "attention", alone),
    ("implementable, deterministic", transformers, "attention", alone),
    ("trained updates", transformers, "trained", lambda prob_S, rate: transformers.conditionals(prob_S)),
    ("finite samples", tensorisation, "deviation", lambda *args: 0.1 * DEVIATION(*args)),
    ("finite samples", tensorisation, "empirical_distance", lambda states, samples, delta: 0.3 / samples**0.5),
    ("finite samples", tensorisation, "upper_bound", lambda *args: 0.1),
    ("orders by confidence", decoders.Oracle, "correlation_at", CORRELATION),  # the mean, not what is at these tokens
]


@pytest.mark.parametrize(("name", "module", "part", "wrong"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_checks_notice_what_is_wrong(name, module, part, wrong, monkeypatch):
    monkeypatch.setattr(module, part, wrong)
    assert not check(named(name), seed=1, models=8, largest=4).holds


def test_every_statement_can_fail():
    # "tensorisation" is the one whose check is of what another ascent finds: see the next test.
    assert {one.name for one in STATEMENTS if one.true} - {name for name, *_ in WRONG} == {"tensorisation"}


def test_another_ascent_finds_no_larger_constant():
    rng = np.random.default_rng(1)
    prob_S, which = distribution(random_model(rng, 2)), adaptive_masks(rng, 2, 1)

    def minus_ratio(tilt_S):
        other_S = np.exp(tilt_S - tilt_S.max()) * prob_S
        other_S /= other_S.sum()
        conditional = tensorisation.conditional_divergence(other_S, prob_S, which)
        return -tensorisation.divergence(other_S, prob_S) / conditional if conditional > 1e-9 else 0.0

    starts = (*rng.normal(size=(4, 4)), *(4.0 * np.eye(4)))
    most = max(-scipy.optimize.minimize(minus_ratio, start_S).fun for start_S in starts)
    assert tensorisation.constant(prob_S, which, rng) == pytest.approx(most, rel=1e-4)


def named(name):
    return next(one for one in STATEMENTS if one.name == name)


def test_orders_are_relative():
    assert order_margin(np.diag([2.0, 4.0]), np.diag([1.0, 3.0])) == pytest.approx(0.25)
    assert order_margin(np.diag([2.0, 4.0]), np.diag([1.0, 6.0])) == pytest.approx(-0.5)
    assert statement.less(0.9, 1.0) == pytest.approx(0.1)
    assert statement.less(np.array([1.0, 3.0]), 2.0) == pytest.approx(-1 / 3)
    assert statement.equal(np.array([1.0, 4.0]), np.array([1.0, 3.0])) == pytest.approx(-0.25)


def test_forgetting_the_choice_of_a_mask_is_biased():
    # Two fair coins; the first is hidden if it shows +, else the second: p(x_1 | x_2, K = {1}) is 1 at +.
    which = Masks(np.eye(2, dtype=bool), np.array([[0.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]]))
    gradient_D = efficiency.forgetful_gradient(np.full(4, 0.25), which)
    assert_allclose(gradient_D, [-0.5, 0.0, 0.0], atol=1e-15)


def test_one_gibbs_step_of_two_coins_is_no_product():
    row_S = chains.block_dynamics(np.full(4, 0.25), uniform_masks(2, 1))[0]
    assert_allclose(row_S, [0.5, 0.25, 0.25, 0.0])  # both flip never, though each does at times
    assert separation.total_correlation(row_S) > 0.05
    assert separation.total_correlation(np.full(4, 0.25)) == pytest.approx(0.0)


def test_total_correlation_by_hand():
    assert separation.total_correlation(np.array([0.5, 0.0, 0.0, 0.5])) == pytest.approx(math.log(2))


def test_divergences_follow_the_chain_rule():
    rng = np.random.default_rng(0)
    mine_S, other_S = rng.dirichlet(np.ones(8)), rng.dirichlet(np.ones(8))
    everything = uniform_masks(3, 3)
    whole = tensorisation.divergence(mine_S, other_S)
    assert tensorisation.conditional_divergence(mine_S, other_S, everything) == pytest.approx(whole)
    first = Masks(np.array([[True, False, False]]), np.ones((1, 8)))
    rest = [block_sum(d, first.block_KN[0])[::2] for d in (mine_S, other_S)]  # the laws of spins 1 and 2
    conditional = tensorisation.conditional_divergence(mine_S, other_S, first)
    assert conditional + tensorisation.divergence(*rest) == pytest.approx(whole)


def test_a_separating_clique_separates():
    clique, k = separation.separating_clique(0.1, 1_000, 1_000)
    chance = separation.separation(clique, k, 1_000)
    assert clique.size <= k < 1_000
    assert chance["k-Gibbs, 1 step"] >= chance["k-Gibbs, bound"] >= 0.9
    assert chance["parallel"] <= chance["parallel leaves"] <= chance["parallel, bound"] <= 0.1
    smaller = separation.Clique(1_000, clique.size - 1, 2.0, 0.5)
    assert 1_000 * separation.escape_bound(smaller) > 0.1 or separation.larger_mode_bound(smaller) < 0.95
    with refused("more spins"):
        separation.separating_clique(1e-6, 1_000_000, 5)


def test_unknown_statements_are_named():
    with refused("no statement 'pigs fly'"):
        check_all(seed=0, only=["pigs fly"])

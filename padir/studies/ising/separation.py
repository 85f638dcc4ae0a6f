"""Mixing of block dynamics and limits of parallel steps, on models with one clique (section 2.4, appendices E to I).

With one field h on the whole clique, k-Gibbs and independent parallel treat its spins alike, and the other spins are
independent of it. The number of +1 spins is then a Markov chain of its own: C + 1 states replace 2^N exactly, and
cliques of hundreds of spins can be solved.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from padir.errors import PadirError
from padir.studies.ising import chains, spin_models
from padir.studies.ising.spin_models import Ising, block_sum, distribution, spins
from padir.studies.ising.statement import Margins, Statement, equal, less, strictly, truth


@dataclasses.dataclass(frozen=True)
class Clique:
    """N spins, of which `size` form a clique: coupling J between every two of them and field h on each (equation 6)."""

    num_spins: int
    size: int
    coupling: float
    field: float

    def __post_init__(self):
        if not 1 <= self.size <= self.num_spins:
            raise PadirError(f"the clique must have 1 to {self.num_spins} spins, got {self.size}")
        if self.coupling <= 0 or self.field <= 0:
            raise PadirError(f"coupling and field must be above 0, got {self.coupling} and {self.field}")


def log_choose(total: int, count: np.ndarray) -> np.ndarray:
    """Logarithms of binomial coefficients."""
    return np.array([math.lgamma(total + 1) - math.lgamma(c + 1) - math.lgamma(total - c + 1) for c in count])


def _softmax(value_x: np.ndarray) -> np.ndarray:
    weight_x = np.exp(value_x - value_x.max())
    return weight_x / weight_x.sum()


def _hypergeometric(total: int, marked: int, drawn: int) -> Float[np.ndarray, " T"]:
    """Probabilities of drawing 0 to `drawn` marked items when `drawn` of `total` items are drawn."""
    result_T = np.zeros(drawn + 1)
    count = np.arange(max(0, drawn - (total - marked)), min(marked, drawn) + 1)
    log_count = log_choose(marked, count) + log_choose(total - marked, drawn - count)
    result_T[count] = np.exp(log_count - log_choose(total, np.array([drawn])))
    return result_T


def _plus(model: Clique, drawn: int, outside_sum: int) -> Float[np.ndarray, " T"]:
    """Probabilities of 0 to `drawn` +1 among clique spins drawn together, given the sum of the other clique spins."""
    plus = np.arange(drawn + 1)
    total = 2 * plus - drawn
    exponent = total * (model.field + model.coupling * outside_sum) + model.coupling * (total**2 - drawn) / 2
    return _softmax(log_choose(drawn, plus) + exponent)


def counts(model: Clique) -> Float[np.ndarray, " T"]:
    """Probabilities of 0 to C spins +1 in the clique."""
    return _plus(model, model.size, 0)


def larger_mode(model: Clique) -> float:
    """p(R_1): the probability that the whole clique is +1."""
    return float(counts(model)[-1])


def counted_k_gibbs(model: Clique, k: int) -> Float[np.ndarray, "T T"]:
    """Transition matrix of k-Gibbs (equation 3) on the number of +1 in the clique, 0 to C."""
    if not 1 <= k <= model.num_spins:
        raise PadirError(f"k is 1 to {model.num_spins}, got {k}")
    size = model.size
    transition_TT = np.zeros((size + 1, size + 1))
    for drawn, prob_drawn in enumerate(_hypergeometric(model.num_spins, size, k)):
        if prob_drawn == 0:
            continue
        for plus in range(size + 1):
            for removed, prob_removed in enumerate(_hypergeometric(size, plus, drawn)):
                if prob_removed > 0:
                    left = plus - removed
                    next_T = _plus(model, drawn, 2 * left - (size - drawn))
                    transition_TT[plus, left : left + drawn + 1] += prob_drawn * prob_removed * next_T
    return transition_TT


def counted_parallel(model: Clique) -> Float[np.ndarray, "T T"]:
    """Transition matrix of independent parallel (Definition 11) on the number of +1 in the clique, 0 to C."""

    def binomial(count: int, logit: float) -> np.ndarray:
        return _softmax(log_choose(count, np.arange(count + 1)) + np.arange(count + 1) * logit)

    size = model.size
    rows = []
    for plus in range(size + 1):
        total = 2 * plus - size
        stay = binomial(plus, 2 * (model.field + model.coupling * (total - 1)))
        turn = binomial(size - plus, 2 * (model.field + model.coupling * (total + 1)))
        rows.append(np.convolve(stay, turn))
    return np.array(rows)


def block_covers(model: Clique, k: int) -> float:
    """Probability that a uniform block of k spins holds the whole clique: binom(N-|C|, k-|C|) / binom(N, k)."""
    if k < model.size:
        return 0.0
    return float(math.comb(model.num_spins - model.size, k - model.size) / math.comb(model.num_spins, k))


def larger_mode_bound(model: Clique) -> float:
    """A lower bound of p(R_1), from a(C-a) ≥ C-1 broken pairs where a of the C spins differ from the rest."""
    size = model.size
    broken = -2 * model.coupling * (model.size - 1)
    with np.errstate(over="ignore"):
        among = np.exp(size * math.log(2) + broken) - 2 * math.exp(broken)
    return float(1.0 / (1.0 + math.exp(-2 * size * model.field) + among))


def pull(model: Clique) -> float:
    """m = Σ_C tanh(J - h): once the clique's sum is at most -2, its expected next value is at most -m."""
    return model.size * math.tanh(model.coupling - model.field)


def escape_bound(model: Clique) -> float:
    """Upper bound of independent parallel's probability of leaving clique sums of at most -2 in one step.

    Hoeffding's inequality: the next sum has C independent terms in [-1, 1] and a mean of at most -m, and must be at
    least -1 (C odd) or 0 (C even). It is 1 if m is too small for a useful bound.
    """
    excess = pull(model) - model.size % 2
    return math.exp(-(excess**2) / (2 * model.size)) if excess > 0 else 1.0


def total_correlation(prob_S: Float[np.ndarray, " S"]) -> float:
    """Total correlation in nats: KL of a distribution from the product of its margins, 0 only for products."""
    num_spins = len(prob_S).bit_length() - 1
    product_S = np.ones(len(prob_S))
    for i in range(num_spins):
        product_S *= block_sum(prob_S, np.arange(num_spins) != i)
    seen_S = prob_S > 0
    return float(np.sum(prob_S[seen_S] * np.log(prob_S[seen_S] / product_S[seen_S])))


def _invariance(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    for which in (
        spin_models.uniform_masks(num_spins, 1 + num_spins // 2),
        spin_models.random_masks(rng, num_spins),
        spin_models.adaptive_masks(rng, num_spins, 1 + num_spins // 2),
    ):
        flow_SS = prob_S[:, None] * chains.block_dynamics(prob_S, which)
        yield equal(flow_SS.sum(axis=0), prob_S)
        yield equal(flow_SS, flow_SS.T)


def _gaps(rng: np.random.Generator, num_spins: int) -> Float[np.ndarray, " N"]:
    prob_S = distribution(truth(rng, num_spins))
    return np.array(
        [
            1 / chains.poincare(chains.block_dynamics(prob_S, spin_models.uniform_masks(num_spins, k)), prob_S)
            for k in range(1, num_spins + 1)
        ]
    )


def _k_times_faster(rng: np.random.Generator, num_spins: int) -> Margins:
    gap_N = _gaps(rng, num_spins)
    yield less(gap_N[0] * np.arange(2, num_spins + 1), gap_N[1:])


def _faster_yet(rng: np.random.Generator, num_spins: int) -> Margins:
    gap_N = _gaps(rng, num_spins)
    left_N = np.cumprod(1 - num_spins * gap_N[0] / np.arange(num_spins, 0, -1))
    yield less(1 - left_N[1:], gap_N[1:])
    yield less(gap_N[0] * np.arange(2, num_spins + 1), 1 - left_N[1:])


def _chi_square(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    which = spin_models.random_masks(rng, num_spins)
    transition_SS = chains.block_dynamics(prob_S, which)
    gap = 1 / chains.poincare(transition_SS, prob_S)
    at_SS = np.eye(len(prob_S))
    start_S = 1 / prob_S - 1
    for step in range(1, 6):
        at_SS = at_SS @ transition_SS
        distance_S = np.sum((at_SS - prob_S) ** 2 / prob_S, axis=1)
        bound_S = (1 - gap) ** (2 * step) * start_S
        size_S = np.maximum(np.maximum(bound_S, distance_S), 1e-10 * start_S)  # below that, differences are rounding
        yield float(np.min((bound_S - distance_S) / size_S))


def _mixing(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    which = spin_models.random_masks(rng, num_spins)
    transition_SS = chains.block_dynamics(prob_S, which)
    relaxation = chains.poincare(transition_SS, prob_S)
    steps = chains.mixing_time(transition_SS, prob_S)
    yield less((relaxation - 1) * math.log(2), steps)
    yield less(steps, math.ceil(relaxation * math.log(4 / prob_S.min()) / 2))


def _row_is_no_product(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    for k in range(2, num_spins + 1):
        transition_SS = chains.block_dynamics(prob_S, spin_models.uniform_masks(num_spins, k))
        yield strictly(min(map(total_correlation, transition_SS)))


def _block_is_no_product(rng: np.random.Generator, num_spins: int) -> Margins:
    drawn = truth(rng, num_spins)
    spin_N = rng.choice([-1.0, 1.0], num_spins)
    for k in range(2, num_spins + 1):
        block = rng.permutation(num_spins)[:k].tolist()
        coupled = float(np.sum(drawn.coupling_NN[np.ix_(block, block)] ** 2))  # small couplings have small effects
        yield strictly(total_correlation(spin_models.conditional(drawn, block, spin_N)) / min(1.0, coupled))


def _random_scan(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    yield from (
        -total_correlation(row_S) for row_S in chains.block_dynamics(prob_S, spin_models.uniform_masks(num_spins, 1))
    )


def _parallel_settles(rng: np.random.Generator, num_spins: int) -> Margins:
    drawn = truth(rng, num_spins)
    flow_SS = chains.independent_parallel_stationary(drawn)[:, None] * chains.independent_parallel(drawn)
    yield equal(flow_SS, flow_SS.T)


def _parallel_is_right(rng: np.random.Generator, num_spins: int) -> Margins:
    drawn = truth(rng, num_spins)
    prob_S = distribution(drawn)
    yield equal(prob_S @ chains.independent_parallel(drawn), prob_S)


def _clique(rng: np.random.Generator, num_spins: int) -> tuple[Ising, int]:
    """A random clique with different fields, and its size; the other spins have a field, too."""
    size = int(rng.integers(2, num_spins + 1))
    field = rng.uniform(0.05, 0.5, size).tolist()
    return spin_models.clique(num_spins, size, rng.uniform(0.2, 1.5), field, other_field=rng.normal()), size


def _sums(num_spins: int, size: int) -> Float[np.ndarray, " S"]:
    return spins(np.arange(1 << num_spins), num_spins)[:, :size].sum(axis=1)


def _mode_ratio(rng: np.random.Generator, num_spins: int) -> Margins:
    drawn, size = _clique(rng, num_spins)
    prob_S = distribution(drawn)
    sum_S = _sums(num_spins, size)
    field = drawn.field_N[:size].sum()
    yield equal(prob_S[sum_S == -size].sum() / prob_S[sum_S == size].sum(), math.exp(-2 * field))


def _mode_mass(rng: np.random.Generator, num_spins: int) -> Margins:
    drawn, size = _clique(rng, num_spins)
    prob_S = distribution(drawn)
    sum_S = _sums(num_spins, size)
    field = drawn.field_N[:size].sum()
    between = (2**size - 2) * math.exp(-2 * drawn.coupling_NN[0, 1] * (size - 1))
    yield less(1 / (1 + math.exp(-2 * field) + between), prob_S[sum_S == size].sum())


def _k_gibbs(rng: np.random.Generator, num_spins: int) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """k-Gibbs on a random clique, for each k that can hold it: (transition matrix, clique's sum in each state, q).

    q is the probability that a block holds the whole clique, times p(R_1).
    """
    drawn, size = _clique(rng, num_spins)
    prob_S = distribution(drawn)
    sum_S = _sums(num_spins, size)
    for k in range(size, num_spins + 1):
        covers = math.comb(num_spins - size, k - size) / math.comb(num_spins, k)
        transition_SS = chains.block_dynamics(prob_S, spin_models.uniform_masks(num_spins, k))
        yield transition_SS, sum_S, float(covers * prob_S[sum_S == size].sum())


def _one_step(rng: np.random.Generator, num_spins: int) -> Margins:
    for transition_SS, sum_S, q in _k_gibbs(rng, num_spins):
        once_S = transition_SS @ (sum_S == sum_S.max()).astype(np.float64)
        yield less(q, once_S)
        yield equal(once_S[sum_S == sum_S.min()], q)  # from R_-1 it is no more than that


def _k_gibbs_arrives(rng: np.random.Generator, num_spins: int) -> Margins:
    for transition_SS, sum_S, q in _k_gibbs(rng, num_spins):
        yield less(1 - (1 - q) ** 5, chains.hitting_probability(transition_SS, sum_S == sum_S.max(), 5))


def _parallel_is_stuck(rng: np.random.Generator, num_spins: int) -> Margins:
    drawn, size = _clique(rng, num_spins)
    sum_S = _sums(drawn.num_spins, size)
    field_C = drawn.field_N[:size]
    pull = float(np.tanh(drawn.coupling_NN[0, 1] - field_C).sum())
    excess = max(pull - size % 2, 0.0)
    transition_SS = chains.independent_parallel(drawn)
    low_S = sum_S <= -2
    bound = math.exp(-(excess**2) / (2 * size))
    for steps in (1, 10):
        if steps * bound < 1:  # a larger bound says nothing
            yield less(chains.hitting_probability(transition_SS, ~low_S, steps)[low_S], steps * bound)
    # Solved by counting; this large and this strongly coupled, the bound is below 1.
    large = Clique(64, int(rng.integers(32, 65)), rng.uniform(1.0, 2.0), rng.uniform(0.05, 0.5))
    low_T = 2 * np.arange(large.size + 1) - large.size <= -2
    leaves_T = chains.hitting_probability(counted_parallel(large), ~low_T, 10)[low_T]
    yield less(leaves_T, 10 * escape_bound(large))


def separation(clique: Clique, k: int, steps: int) -> dict[str, float]:
    """Exact chances and bounds of both samplers, started in R_-1, to visit R_1: within 1 step, and within `steps`.

    "parallel leaves" is the chance to visit a clique sum above -2; "parallel, bound" is an upper bound of this chance.
    """
    target_T = np.arange(clique.size + 1) == clique.size
    high_T = 2 * np.arange(clique.size + 1) - clique.size > -2
    parallel_TT = counted_parallel(clique)
    return {
        "k-Gibbs, 1 step": float(counted_k_gibbs(clique, k)[0, -1]),
        "k-Gibbs, bound": block_covers(clique, k) * larger_mode_bound(clique),
        "parallel": float(chains.hitting_probability(parallel_TT, target_T, steps)[0]),
        "parallel leaves": float(chains.hitting_probability(parallel_TT, high_T, steps)[0]),
        "parallel, bound": min(1.0, steps * escape_bound(clique)),
    }


def separating_clique(delta: float, steps: int, num_spins: int) -> tuple[Clique, int]:
    """The smallest clique, with h = 1/2 and J = 2, and a k for which the corollary's two bounds are within delta.

    Three conditions are enough: k ≥ N (1 - delta / 2C), so that a block misses the clique with probability at most
    delta/2; p(R_1) ≥ 1 - delta/2; and steps · exp(-(m - [C odd])² / 2C) ≤ delta.
    """
    for size in range(2, num_spins + 1):
        clique = Clique(num_spins, size, 2.0, 0.5)
        arrives = larger_mode_bound(clique) >= 1 - delta / 2
        if arrives and steps * escape_bound(clique) <= delta:
            return clique, math.ceil(num_spins * (1 - delta / (2 * size)))
    raise PadirError(f"no clique of at most {num_spins} spins separates the samplers: take more spins")


def _corollary(rng: np.random.Generator, num_spins: int) -> Margins:
    delta = 10 ** rng.uniform(-3, -1)
    steps = int(10 ** rng.uniform(1, 3))
    clique, k = separating_clique(delta, steps, num_spins)
    chance = separation(clique, k, steps)
    yield less(1 - delta, chance["k-Gibbs, 1 step"])
    yield less(chance["parallel"], delta)


STATEMENTS = (
    Statement("invariance", "Definitions 6, 8", "block dynamics leaves p invariant, reversibly", _invariance, 10),
    Statement("decay of χ²", "Definition 5", "χ² falls at least as (1 - 1/C)^2t", _chi_square, 10),
    Statement("mixing time", "2.2.2", "(C - 1) log 2 ≤ t_mix(1/4) ≤ ⌈C log(4 / p_min) / 2⌉", _mixing, 10),
    Statement("k times faster", "2.4", "gap of k-Gibbs ≥ k · gap of 1-Gibbs", _k_times_faster, 10),
    Statement("faster yet", "ours", "gap_k ≥ 1 - Π_j (1 - N gap_1 / (N - j)) ≥ k gap_1", _faster_yet, 10),
    Statement(
        "no product, given the block", "2.4.1", "k ≥ 2 coupled spins are drawn together", _block_is_no_product, 10
    ),
    Statement("no product", "2.4.1", "no row of k-Gibbs is a product distribution, k ≥ 2", _row_is_no_product, 6),
    Statement("where parallel settles", "ours; footnote 13", "π ∝ exp(h·x) Π cosh(h + Jx)", _parallel_settles, 10),
    Statement("modes, ratio", "appendix E", "p(R_-1) / p(R_1) = exp(-2 Σ h)", _mode_ratio, 10),
    Statement("modes, mass", "appendix E", "1 / p(R_1) ≤ 1 + exp(-2 Σ h) + (2^C - 2) exp(-2J (C-1))", _mode_mass, 10),
    Statement("k-Gibbs, one step", "proposition in 2.4.2", "in R_1 with ≥ q; from R_-1 = q", _one_step, 10),
    Statement("k-Gibbs arrives", "proposition in 2.4.2", "in R_1 within T steps: ≥ 1 - (1-q)^T", _k_gibbs_arrives, 10),
    Statement(
        "parallel is stuck",
        "proposition in 2.4.2",
        "escape ≤ T exp(-(m - odd)²/2C)",
        _parallel_is_stuck,
        10,
        smallest=4,
    ),
    Statement(
        "separation", "corollary in 2.4.2", "k-Gibbs 1 step ≥ 1-δ, parallel T steps ≤ δ", _corollary, 300, smallest=300
    ),
    Statement("random scan", "remark in 2.4.1", "a row of 1-Gibbs is a product distribution", _random_scan, 6, False),
    Statement(
        "parallel is right", "not claimed", "independent parallel leaves p invariant", _parallel_is_right, 6, False
    ),
)

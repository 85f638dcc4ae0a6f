"""Samplers on the clique family as chains on the number of +1 spins in the clique (section 2.4.2).

With one field h on the whole clique, k-Gibbs and independent parallel treat its spins alike, and the other spins are
independent of it. The number of +1 spins is then a Markov chain of its own: C + 1 states replace 2^N exactly, and
cliques of hundreds of spins can be solved.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from jaxtyping import Float

from padir.errors import PadirError


@dataclasses.dataclass(frozen=True)
class Clique:
    """N spins, of which `size` form a clique: coupling J between every two of them and field h on each (equation 6)."""

    num_spins: int
    size: int
    coupling: float
    field: float

    def __post_init__(self):
        if not 1 <= self.size <= self.num_spins:
            raise PadirError(f"the clique has 1 to {self.num_spins} of {self.num_spins} spins, got {self.size}")
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


def k_gibbs(model: Clique, k: int) -> Float[np.ndarray, "T T"]:
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


def independent_parallel(model: Clique) -> Float[np.ndarray, "T T"]:
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
    size, broken = model.size, -2 * model.coupling * (model.size - 1)
    with np.errstate(over="ignore"):
        among = np.exp(size * math.log(2) + broken) - 2 * math.exp(broken)
    return float(1.0 / (1.0 + math.exp(-2 * size * model.field) + among))


def pull(model: Clique) -> float:
    """m = Σ_C tanh(J - h): once the clique's sum is at most -2, its expected next value is at most -m."""
    return model.size * math.tanh(model.coupling - model.field)


def escape_bound(model: Clique) -> float:
    """Upper bound of independent parallel's probability of leaving clique sums of at most -2 in one step.

    Hoeffding's inequality: the next sum has C independent terms in [-1, 1] and a mean of at most -m, and must be at
    least -1 (C odd) or 0 (C even). 1 where m is too small to say anything.
    """
    excess = pull(model) - model.size % 2
    return math.exp(-(excess**2) / (2 * model.size)) if excess > 0 else 1.0

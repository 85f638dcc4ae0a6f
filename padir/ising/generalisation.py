"""Finite samples: the loss on n sentences with m masks each bounds the distance of distributions (2.3, appendix D).

The formulas of the theorem are lost in our copy of the paper; docs/theory.md derives these. Axis letters here: P models
of a grid, R data sets.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from padir.ising import masks
from padir.ising.chains import total_variation
from padir.ising.masks import Masks, block_sum
from padir.ising.model import Ising, distribution
from padir.ising.statement import Statement, less
from padir.ising.tensorisation import upper_bound

Margins = Iterator[float]
_DATA_SETS = 200
_DELTA = 0.1  # probability with which the bound may fail


def deviation(largest: float, models: int, draws: int, delta: float) -> float:
    """Bound of the loss's deviation from its mean over masks, for all models at once: ln(1/β) √(ln(2P/δ) / 2nm)."""
    return largest * math.sqrt(math.log(2 * models / delta) / (2 * draws))


def empirical_distance(states: int, samples: int, delta: float) -> float:
    """Total variation distance of n samples from their law: at most √(S/n) / 2 + √(ln(1/δ) / 2n)."""
    return math.sqrt(states / samples) / 2 + math.sqrt(math.log(1 / delta) / (2 * samples))


def chebyshev_distance(states: int, samples: int, delta: float) -> float:
    """Bound of the same distance by Chebyshev's inequality and a union over states (Lemma 6): √(S³ / 16nδ)."""
    return math.sqrt(states**3 / (16 * samples * delta))


def losses(prob_S: Float[np.ndarray, " S"], which: Masks) -> Float[np.ndarray, "K S"]:
    """-log p(x_K | x_-K) for every block and state; the law of the masks must not depend on the state."""
    return np.stack([np.log(block_sum(prob_S, block_N) / prob_S) for block_N in which.block_KN])


def grid(num_spins: int, points: int = 5) -> Float[np.ndarray, "P S"]:
    """Models with one coupling and one field for all spins, each from -0.8 to 0.8."""
    values = np.linspace(-0.8, 0.8, points)
    pairs_NN = 1 - np.eye(num_spins)
    return np.stack(
        [distribution(Ising(j * pairs_NN, np.full(num_spins, h))) for j, h in itertools.product(values, values)]
    )


@dataclasses.dataclass(frozen=True)
class Data:
    """Data sets of n states and m masks of each.

    Attributes:
      state_RS: share of each state.
      mask_RKS: share of each pair of block and state.
    """

    state_RS: Float[np.ndarray, "R S"]
    mask_RKS: Float[np.ndarray, "R K S"]


def draw(rng: np.random.Generator, prob_S: np.ndarray, which: Masks, samples: int, each: int) -> Data:
    """Draws data sets from p, with `each` independent masks of every state."""
    count_RS = rng.multinomial(samples, prob_S / prob_S.sum(), size=_DATA_SETS)
    law_K = which.law_KS[:, 0]
    mask_RSK = rng.multinomial(count_RS * each, law_K / law_K.sum())
    return Data(count_RS / samples, np.moveaxis(mask_RSK, 2, 1) / (samples * each))


def least_losses(state_RS: Float[np.ndarray, "R S"], which: Masks) -> Float[np.ndarray, " R"]:
    """The least mean loss that any model can have on each data set: the conditional entropy of its empirical law."""
    total_R = np.zeros(len(state_RS))
    for block_N, law in zip(which.block_KN, which.law_KS[:, 0], strict=True):
        mass_RS = block_sum(state_RS, block_N)
        ratio_RS = np.where(state_RS > 0, mass_RS / np.where(state_RS > 0, state_RS, 1.0), 1.0)
        total_R += law * np.sum(state_RS * np.log(ratio_RS), axis=1)
    return total_R


def _finite_samples(rng: np.random.Generator, num_spins: int) -> Margins:
    model_PS = grid(num_spins)
    true_S = model_PS[rng.integers(len(model_PS))]
    which = masks.uniform(num_spins, int(rng.integers(1, num_spins)))
    loss_PKS = np.stack([losses(prob_S, which) for prob_S in model_PS])
    constant_P = np.array([upper_bound(prob_S, which) for prob_S in model_PS])
    distance_P = total_variation(model_PS, true_S)
    samples, each = int(rng.choice([50, 400, 3_000])), int(rng.choice([1, 4, 16]))
    data = draw(rng, true_S, which, samples, each)
    over_masks_PS = np.einsum("k,pks->ps", which.law_KS[:, 0], loss_PKS)
    found_RP = np.einsum("rks,pks->rp", data.mask_RKS, loss_PKS)
    mean_RP, least_R1 = data.state_RS @ over_masks_PS.T, least_losses(data.state_RS, which)[:, None]
    # Whatever the data: the mean loss over masks bounds the distance from the empirical law.
    apart_RP = total_variation(data.state_RS[:, None], model_PS)
    yield float(np.min(np.sqrt(constant_P * np.maximum(0.0, mean_RP - least_R1) / 2) - apart_RP)) + 1e-12
    slack = deviation(float(loss_PKS.max()), len(model_PS), samples * each, _DELTA / 2)
    stray = empirical_distance(len(true_S), samples, _DELTA / 2)
    yield less(stray, chebyshev_distance(len(true_S), samples, _DELTA / 2))
    lost_R = np.abs(found_RP - mean_RP).max(axis=1) > slack
    far_R = total_variation(data.state_RS, true_S) > stray
    bound_RP = np.sqrt(constant_P * np.maximum(0.0, found_RP - least_R1 + slack) / 2) + stray
    wrong_R = (distance_P > bound_RP).any(axis=1)
    for failed_R, share in ((lost_R, _DELTA / 2), (far_R, _DELTA / 2), (wrong_R, _DELTA)):
        yield (share - float(failed_R.mean())) / share
    yield -float(np.mean(wrong_R & ~lost_R & ~far_R))


STATEMENTS = (
    Statement(
        "finite samples",
        "theorem in 2.3, appendix D",
        "TV ≤ √(C/2 · (excess loss + ln(1/β) √(ln(4P/δ) / 2nm))) + √(S/4n) + √(ln(2/δ) / 2n)",
        _finite_samples,
        3,
        smallest=3,
    ),
)

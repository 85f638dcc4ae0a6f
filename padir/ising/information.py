"""Information matrices and asymptotic covariances of masked estimators, by enumeration of all states.

The loss of one sample is -log p_θ(x_K | x_-K, K). For an exponential family its gradient is E[t | x_-K, K] - t(x) with
t the statistics, and its Hessian Cov(t | x_-K, K), which does not depend on x_K. All of sections 2.2.1 to 2.2.3 follows
from the law of total variance on these two (docs/theory.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from padir.errors import PadirError
from padir.ising.masks import Masks, block_sum
from padir.ising.model import spins, statistics

MOST_SPINS = 16  # 65,536 states of 136 statistics are 71 MB, and some copies of them are made


def all_statistics(num_spins: int) -> Float[np.ndarray, "S D"]:
    """Sufficient statistics of every state.

    Raises:
      PadirError: too many spins.
    """
    if num_spins > MOST_SPINS:
        raise PadirError(
            f"information matrices are for at most {MOST_SPINS} spins, got {num_spins}: draw samples instead"
        )
    return statistics(spins(np.arange(1 << num_spins), num_spins))


def fisher(prob_S: Float[np.ndarray, " S"]) -> Float[np.ndarray, "D D"]:
    """Fisher information of the full likelihood: the covariance of the statistics (Definition 1)."""
    stat_SD = all_statistics(len(prob_S).bit_length() - 1)
    centred_SD = stat_SD - prob_S @ stat_SD
    return centred_SD.T @ (prob_S[:, None] * centred_SD)


def scores(
    prob_S: Float[np.ndarray, " S"], masks: Masks
) -> Iterator[tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S D"]]]:
    """For each block K: joint probabilities of state and block, and the scores t(x) - E[t | x_-K, K]."""
    stat_SD = all_statistics(masks.num_spins)
    for block_N, law_S in zip(masks.block_KN, masks.law_KS, strict=True):
        joint_S = prob_S * law_S
        mass_S = block_sum(joint_S, block_N)
        mean_DS = block_sum(joint_S * stat_SD.T, block_N) / np.where(mass_S > 0, mass_S, 1.0)
        yield joint_S, stat_SD - mean_DS.T


def information(prob_S: Float[np.ndarray, " S"], masks: Masks) -> Float[np.ndarray, "D D"]:
    """Covariance of the gradient at the truth with one mask a sample; it equals the Hessian (lemma in 2.2.1)."""
    return sum(
        (score_SD.T @ (joint_S[:, None] * score_SD) for joint_S, score_SD in scores(prob_S, masks)), np.zeros(())
    )


def covariance(prob_S: Float[np.ndarray, " S"], masks: Masks) -> Float[np.ndarray, "D D"]:
    """Γ: asymptotic covariance of the estimator with one mask a sample, times the number of samples (Lemma 1)."""
    return np.linalg.inv(information(prob_S, masks))


def composite_information(prob_S: Float[np.ndarray, " S"], masks: Masks) -> Float[np.ndarray, "D D"]:
    """Covariance of the gradient at the truth when every sample is averaged over all its masks."""
    mean_SD = sum(
        (law_S[:, None] * score_SD for law_S, (_, score_SD) in zip(masks.law_KS, scores(prob_S, masks), strict=True)),
        np.zeros(()),
    )
    return mean_SD.T @ (prob_S[:, None] * mean_SD)


def composite_covariance(prob_S: Float[np.ndarray, " S"], masks: Masks) -> Float[np.ndarray, "D D"]:
    """Asymptotic covariance of the composite likelihood over all masks: the sandwich H⁻¹ V H⁻¹, as H is not V."""
    inverse_DD = covariance(prob_S, masks)
    return inverse_DD @ composite_information(prob_S, masks) @ inverse_DD

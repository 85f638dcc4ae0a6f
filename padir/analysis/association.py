"""How well a number tells two kinds of pairs apart, or goes with another number."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from padir.errors import PadirError


@dataclasses.dataclass(frozen=True)
class Separation:
    """The area under a ROC curve, with the 2.5 % and 97.5 % points of a bootstrap over groups."""

    auc: float
    low: float
    high: float


def auc(score_P: Float[np.ndarray, " P"], label_P: Bool[np.ndarray, " P"]) -> float:
    """How often a pair with the label has a higher score than one without; equal scores count half.

    >>> auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True]))
    0.875

    Raises:
      PadirError: all pairs have the label, or none has.
    """
    from scipy.stats import rankdata

    positive = int(label_P.sum())
    negative = len(label_P) - positive
    if not positive or not negative:
        raise PadirError(f"a ROC curve needs pairs of both kinds, got {positive} with the label and {negative} without")
    ranks_P = rankdata(score_P)
    return float((ranks_P[label_P].sum() - positive * (positive + 1) / 2) / (positive * negative))


def separation(
    score_P: Float[np.ndarray, " P"],
    label_P: Bool[np.ndarray, " P"],
    group_P: Int[np.ndarray, " P"],
    *,
    seed: int = 0,
    resamples: int = 200,
) -> Separation:
    """`auc` with an interval: groups (sentences) are drawn anew, as pairs of one sentence are not independent.

    Raises:
      PadirError: all pairs have the label, or none has.
    """
    rng = np.random.default_rng(seed)
    _, group_P = np.unique(group_P, return_inverse=True)
    members = np.split(np.argsort(group_P, kind="stable"), np.cumsum(np.bincount(group_P))[:-1])
    value = auc(score_P, label_P)
    drawn = []
    for _ in range(resamples):
        chosen = np.concatenate([members[g] for g in rng.integers(len(members), size=len(members))])
        if 0 < label_P[chosen].sum() < len(chosen):
            drawn.append(auc(score_P[chosen], label_P[chosen]))
    low, high = np.percentile(drawn, [2.5, 97.5]) if drawn else (value, value)
    return Separation(value, float(low), float(high))


def roc(
    score_P: Float[np.ndarray, " P"], label_P: Bool[np.ndarray, " P"]
) -> tuple[Float[np.ndarray, " Q"], Float[np.ndarray, " Q"]]:
    """(false positive rates, true positive rates) of every threshold, from (0, 0) to (1, 1).

    >>> false_Q, true_Q = roc(np.array([3.0, 2.0, 1.0]), np.array([True, False, True]))
    >>> false_Q.tolist(), true_Q.tolist()
    ([0.0, 0.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0])
    """
    order = np.argsort(-score_P, kind="stable")
    score_P, label_P = score_P[order], label_P[order]
    ends = np.append(np.flatnonzero(np.diff(score_P)), len(score_P) - 1)  # equal scores pass a threshold together
    true_Q, false_Q = np.cumsum(label_P)[ends], np.cumsum(~label_P)[ends]
    return np.append(0, false_Q) / max(1, false_Q[-1]), np.append(0, true_Q) / max(1, true_Q[-1])


def correlations(first_P: Float[np.ndarray, " P"], second_P: Float[np.ndarray, " P"]) -> tuple[float, float]:
    """(Pearson's, Spearman's) correlation; NaN where one side does not vary."""
    from scipy.stats import pearsonr, spearmanr

    if len(first_P) < 2 or np.ptp(first_P) == 0 or np.ptp(second_P) == 0:
        return float("nan"), float("nan")
    pearson: Any = pearsonr(first_P, second_P)
    spearman: Any = spearmanr(first_P, second_P)
    return float(pearson.statistic), float(spearman.statistic)

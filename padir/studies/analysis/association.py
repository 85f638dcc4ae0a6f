"""Separation of two kinds of pairs (AUC) and rank correlation, with bootstrap intervals; calibration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from padir.errors import PadirError

RESAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A metric with the 2.5 % and 97.5 % points of a bootstrap over groups; NaN where it is undefined."""

    value: float
    low: float
    high: float

    def row(self, name: str) -> dict[str, float]:
        """The estimate as columns of a table: value, low and high."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def auc(score_P: Float[np.ndarray, " P"], label_P: Bool[np.ndarray, " P"]) -> float:
    """Area under the ROC curve: the probability that a pair with the label scores higher than a pair without.

    Equal scores count half.

    >>> auc(np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, False, True, True]))
    0.875

    Raises:
      PadirError: all pairs have the label, or none has.
    """
    positive = int(label_P.sum())
    negative = len(label_P) - positive
    if not positive or not negative:
        raise PadirError(f"a ROC curve needs pairs of both kinds, got {positive} with the label and {negative} without")
    return _auc(_level(score_P), label_P, np.ones(len(score_P)))


def separation(
    score_P: Float[np.ndarray, " P"],
    label_P: Bool[np.ndarray, " P"],
    group_P: Int[np.ndarray, " P"],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """`auc` with a bootstrap interval over groups (sentences), because pairs of one sentence are not independent.

    Raises:
      PadirError: all pairs have the label, or none has.
    """
    value = auc(score_P, label_P)
    level_P = _level(score_P)
    low, high = _interval(lambda weight_P: _auc(level_P, label_P, weight_P), group_P, seed, resamples)
    return Estimate(value, low, high)


def within(
    score_P: Float[np.ndarray, " P"],
    label_P: Bool[np.ndarray, " P"],
    group_P: Int[np.ndarray, " P"],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Estimate:
    """`auc` over comparisons within groups only; NaN where no group has pairs of both kinds.

    So differences between groups do not count, for example in sentence length, on which all attention depends.

    >>> within(np.array([1.0, 2.0, 8.0, 9.0]), np.array([True, False, False, True]), np.array([0, 0, 1, 1])).value
    0.5
    """
    _, group_P = np.unique(group_P, return_inverse=True)
    won_G = np.zeros(group_P.max() + 1)
    compared_G = np.zeros(group_P.max() + 1)
    for group in range(len(won_G)):
        mine_P = group_P == group
        positive = int(label_P[mine_P].sum())
        compared_G[group] = positive * (mine_P.sum() - positive)
        if compared_G[group]:
            won_G[group] = compared_G[group] * auc(score_P[mine_P], label_P[mine_P])
    won_G = won_G[compared_G > 0]
    compared_G = compared_G[compared_G > 0]

    def share(weight_G):
        compared = (weight_G * compared_G).sum()
        return float((weight_G * won_G).sum() / compared) if compared else float("nan")

    return Estimate(share(np.ones(len(won_G))), *_interval(share, np.arange(len(won_G)), seed, resamples))


def _interval(
    metric: Callable[[Any], float], group_P: Int[np.ndarray, " P"], seed: int, resamples: int
) -> tuple[float, float]:
    """Bootstrap interval of a metric of weighted pairs: a group that is drawn twice weighs twice; NaN for one group."""
    names, group_P = np.unique(group_P, return_inverse=True)
    if len(names) < 2:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    count = len(names)
    drawn = [metric(rng.multinomial(count, np.full(count, 1 / count))[group_P]) for _ in range(resamples)]
    drawn = [value for value in drawn if value == value]  # NaN for a sample with one kind of pairs
    if not drawn:
        return float("nan"), float("nan")
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def _level(value_P: np.ndarray) -> np.ndarray:
    """Rank of each value among the distinct values, from 0 for the lowest."""
    return np.unique(value_P, return_inverse=True)[1].reshape(-1)


def _auc(level_P: np.ndarray, label_P: np.ndarray, weight_P: np.ndarray) -> float:
    with_Q, without_Q = (np.bincount(level_P, weights=weight_P * there_P) for there_P in (label_P, ~label_P))
    below_Q = np.cumsum(without_Q) - without_Q
    both = with_Q.sum() * without_Q.sum()
    return float((with_Q * (below_Q + without_Q / 2)).sum() / both) if both else float("nan")


@dataclasses.dataclass(frozen=True)
class Reliability:
    """Predictions sorted by confidence into bins of equal width; empty bins are left out.

    Attributes:
      count_Q: number of predictions in each bin.
      confidence_Q: mean confidence of the predictions in each bin.
      accuracy_Q: share of the predictions in each bin that were right.
    """

    count_Q: Float[np.ndarray, " Q"]
    confidence_Q: Float[np.ndarray, " Q"]
    accuracy_Q: Float[np.ndarray, " Q"]

    @property
    def error(self) -> float:
        """Expected calibration error (Guo et al., ICML 2017): mean |confidence - accuracy| of the bins, by count."""
        return float((self.count_Q * np.abs(self.confidence_Q - self.accuracy_Q)).sum() / self.count_Q.sum())

    @property
    def accuracy(self) -> float:
        """Share of all predictions that were right."""
        return float((self.count_Q * self.accuracy_Q).sum() / self.count_Q.sum())

    @property
    def confidence(self) -> float:
        """Mean confidence of all predictions."""
        return float((self.count_Q * self.confidence_Q).sum() / self.count_Q.sum())


def reliability(confidence_P: Float[np.ndarray, " P"], right_P: Bool[np.ndarray, " P"], bins: int = 10) -> Reliability:
    """The reliability curve of predictions.

    >>> reliability(np.array([0.95, 0.95, 0.15]), np.array([True, False, False])).accuracy_Q.tolist()
    [0.0, 0.5]

    Raises:
      PadirError: no predictions, or fewer than 1 bin.
    """
    if not len(confidence_P) or bins < 1:
        raise PadirError(f"calibration needs predictions and bins, got {len(confidence_P)} and {bins}")
    bin_P = np.minimum((confidence_P * bins).astype(int), bins - 1)
    count = np.bincount(bin_P, minlength=bins).astype(np.float64)
    there = count > 0
    confidence = np.bincount(bin_P, weights=confidence_P, minlength=bins)[there] / count[there]
    accuracy = np.bincount(bin_P, weights=right_P, minlength=bins)[there] / count[there]
    return Reliability(count[there], confidence, accuracy)

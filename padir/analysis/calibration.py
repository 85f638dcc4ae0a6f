"""Calibration of a model's predictions: expected calibration error and reliability curves."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from padir.errors import PadirError


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

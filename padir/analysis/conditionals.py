"""Dependency between target positions according to the model, and the consistency of the model's conditionals.

For a pair of positions (i, j), with everything else on the canvas fixed:

1. Hide both positions. One pass gives the model's distributions p_i and p_j.
2. Write each of the M likeliest values v of i in turn, with j hidden. Each pass gives p_j(. | i = v).
3. Compute the mutual information of the two positions, with p_i restricted to these M values and normalised:

       I = sum over v of p_i(v) KL(p_j(. | v) || sum over u of p_i(u) p_j(. | u))

   This is the model's conditional mutual information given everything else on the canvas: it grows with the effect of
   i's value on j's distribution. It is exact if the probabilities of the M values sum to 1; `coverage_P` is
   their sum.
4. Test the cycle. Let a and a' be the two likeliest values of i, and b and b' those of j. The log odds ratio of the
   four combinations follows from p_i alone, log p_i(a|b) p_i(a'|b') / (p_i(a'|b) p_i(a|b')), and from p_j alone. If
   the conditionals belong to one joint distribution, both ratios are equal. Their difference says how far the model
   is from having a joint distribution.

A hidden position shows the token of the first canvas: a mask, or a random token where the model knows no mask. With
random tokens, average the measures over several canvases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from padir.errors import PadirError

DistributionFn = Callable[[Int[np.ndarray, "R L"], Int[np.ndarray, " R"]], Any]
"""Function from (tokens_RL, one position of each row) to the model's log-probabilities at these positions, [R, V]."""


@dataclasses.dataclass(frozen=True)
class Dependence:
    """Mutual information and cycle test of P pairs of positions.

    Attributes:
      information_P: mutual information in nats, the mean of both directions.
      coverage_P: total probability of the values that were tried, the mean of both directions.
      odds_P2: the log odds ratio from the conditionals of the first position, and from those of the second.
      least_P: the lowest probability, with both positions hidden, among the four values in the odds ratio.
    """

    information_P: Float[np.ndarray, " P"]
    coverage_P: Float[np.ndarray, " P"]
    odds_P2: Float[np.ndarray, "P 2"]
    least_P: Float[np.ndarray, " P"]

    @property
    def cycle_gap_P(self) -> Float[np.ndarray, " P"]:
        """Absolute difference of the two log odds ratios, in nats; 0 for conditionals of a joint distribution."""
        return np.abs(self.odds_P2[:, 0] - self.odds_P2[:, 1])

    def cycle(self, least: float = 0.01) -> dict[str, Any]:
        """Metrics of the cycle test, over the pairs whose four values all have at least the probability `least`.

        If the model never writes a value, odds with this value mean little. Gaps and odds are in nats. The correlation
        of the two odds is 1 for conditionals of a joint distribution.
        """
        there_P = self.least_P >= least
        odds_P2, gap_P = self.odds_P2[there_P], self.cycle_gap_P[there_P]
        varies = len(gap_P) > 1 and np.ptp(odds_P2, axis=0).all()
        correlation = float(np.corrcoef(odds_P2.T)[0, 1]) if varies else float("nan")
        nothing = not len(gap_P)
        return {
            "pairs": len(gap_P),
            "median_gap": float("nan") if nothing else float(np.median(gap_P)),
            "median_odds": float("nan") if nothing else float(np.median(np.abs(odds_P2).mean(-1))),
            "correlation": correlation,
        }


def joined_dependence(parts: Sequence[Dependence]) -> Dependence:
    """Concatenates the measurements of several sentences."""
    names = [field.name for field in dataclasses.fields(Dependence)]
    return Dependence(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def check_values(values: int) -> None:
    """Checks the number of values to try at a position.

    Raises:
      PadirError: the number is below 2.
    """
    if values < 2:
        raise PadirError(f"dependency needs at least 2 values of a position, got {values}")


def dependence(
    distribution: DistributionFn,
    tokens_L: Int[np.ndarray, " L"],
    start_L: Int[np.ndarray, " L"],
    hidden_L: Bool[np.ndarray, " L"],
    pairs_P2: Int[np.ndarray, "P 2"],
    *,
    values: int = 4,
) -> Dependence:
    """Measures the pairs of positions of one sentence.

    Args:
      distribution: the model's log-probabilities.
      tokens_L: the tokens of positions that are not hidden.
      start_L: the tokens that hidden positions show.
      hidden_L: positions that stay hidden while a pair is measured; the pair itself is hidden in any case. If all
        are True, the dependency is given only the source and the length; if all are False, also the rest of the draft.
      values: M, at least 2.

    Raises:
      PadirError: `values` is below 2, or above the number of values that a position can have.
    """
    check_values(values)
    pairs = len(pairs_P2)
    base_PL = np.where(hidden_L, start_L, tokens_L)[None].repeat(pairs, 0)
    each_P = np.arange(pairs)
    for side in (0, 1):
        base_PL[each_P, pairs_P2[:, side]] = start_L[pairs_P2[:, side]]
    # Step 1 for both positions: the rows that ask for i come before those that ask for j.
    alone_PV = np.asarray(distribution(np.concatenate([base_PL, base_PL]), pairs_P2.T.reshape(-1)))
    if values > alone_PV.shape[-1]:
        raise PadirError(f"a position has {alone_PV.shape[-1]:,} values, got values={values:,}: try fewer, such as 4")
    information, coverage, conditional, least = [], [], [], []
    tried = [np.argsort(-log_PV, axis=-1, kind="stable")[:, :values] for log_PV in np.split(alone_PV, 2)]
    for side, log_PV in enumerate(np.split(alone_PV, 2)):
        log_PM = np.take_along_axis(log_PV, tried[side], axis=-1)
        given_PML = base_PL[:, None].repeat(values, 1)
        given_PML[each_P[:, None], np.arange(values), pairs_P2[:, side, None]] = tried[side]
        asked_PM = pairs_P2[:, 1 - side, None].repeat(values, 1)
        log_PMV = np.asarray(distribution(given_PML.reshape(-1, base_PL.shape[1]), asked_PM.reshape(-1)), np.float64)
        log_PMV = log_PMV.reshape(pairs, values, -1)
        weight_PM = np.exp(log_PM.astype(np.float64))
        coverage.append(weight_PM.sum(-1))
        least.append(weight_PM[:, 1])
        information.append(_information(weight_PM / weight_PM.sum(-1, keepdims=True), log_PMV))
        conditional.append(log_PMV)
    # conditional[0] is p_j given values of i, conditional[1] p_i given values of j.
    by_second = _log_odds(conditional[0], tried[1])
    by_first = _log_odds(conditional[1], tried[0])
    return Dependence(
        np.mean(information, axis=0),
        np.mean(coverage, axis=0),
        np.stack([by_first, by_second], axis=-1),
        np.min(least, axis=0),
    )


def _information(weight_PM, log_PMV) -> Float[np.ndarray, " P"]:
    """Mutual information of the value written at one position and the token at the other."""
    prob_PMV = np.exp(log_PMV)
    mean_PV = (weight_PM[..., None] * prob_PMV).sum(1)

    def entropy(prob):
        return -(prob * np.log(np.where(prob > 0, prob, 1.0))).sum(-1)

    return np.maximum(0.0, entropy(mean_PV) - (weight_PM * entropy(prob_PMV)).sum(-1))


def _log_odds(log_PMV, asked_PM) -> Float[np.ndarray, " P"]:
    """log p(x | first) p(y | second) / (p(y | first) p(x | second)) for the two likeliest tokens x, y of a position.

    "first" and "second" are the two likeliest values of the other position.
    """
    log_P22 = np.take_along_axis(log_PMV[:, :2], asked_PM[:, None, :2].repeat(2, 1), axis=-1)
    return log_P22[:, 0, 0] + log_P22[:, 1, 1] - log_P22[:, 0, 1] - log_P22[:, 1, 0]

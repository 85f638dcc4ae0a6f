"""Dependency between target positions according to the model, and the consistency of the model's conditionals.

For a pair of positions (i, j), with everything else on the canvas fixed:

1. Hide both positions. One pass gives the model's distributions p_i and p_j.
2. Write each of the M likeliest values v of i in turn, with j hidden. Each pass gives p_j(. | i = v).
3. Compute the mutual information of the two positions, with p_i restricted to these M values and normalised:

       I = sum over v of p_i(v) KL(p_j(. | v) || sum over u of p_i(u) p_j(. | u))

   This is the model's conditional mutual information, given everything else on the canvas. It grows with the effect of
   i's value on j's distribution. It is exact if the probabilities of the M values sum to 1; `coverage_P` is their sum.
4. Test the cycle. Let a and a' be the two likeliest values of i, and b and b' those of j. The log odds ratio of the
   four combinations follows from p_i alone, log p_i(a|b) p_i(a'|b') / (p_i(a'|b) p_i(a|b')), and from p_j alone. If
   the conditionals belong to one joint distribution, both ratios are equal. Their difference says how far the model
   is from having a joint distribution.

A masked position shows the token of the first canvas: a mask, or a random token if the model knows no masks. With
random tokens, average the measures over several canvases.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from padir import checks
from padir.errors import PadirError
from padir.models.transformer import Transformer
from padir.refinement.scores import forbid
from padir.studies.analysis.study import Pass
from padir.translator import Translator

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
        odds_P2 = self.odds_P2[there_P]
        gap_P = self.cycle_gap_P[there_P]
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


def dependence(
    distribution: DistributionFn,
    tokens_L: Int[np.ndarray, " L"],
    start_L: Int[np.ndarray, " L"],
    masked_L: Bool[np.ndarray, " L"],
    pairs_P2: Int[np.ndarray, "P 2"],
    *,
    values: int = 4,
) -> Dependence:
    """Measures the pairs of positions of one sentence.

    Args:
      distribution: the model's log-probabilities.
      tokens_L: the tokens of positions that are not hidden.
      start_L: the tokens that masked positions show.
      masked_L: positions that stay masked while a pair is measured; the pair itself is always hidden. If all are True,
        the measurement depends only on the source and the length; if all are False, also on the rest of the draft.
      values: M, at least 2.

    Raises:
      PadirError: `values` is below 2, or above the number of values that a position can have.
    """
    checks.counts(2, values=values)
    pairs = len(pairs_P2)
    base_PL = np.where(masked_L, start_L, tokens_L)[None].repeat(pairs, 0)
    each_P = np.arange(pairs)
    for side in (0, 1):
        base_PL[each_P, pairs_P2[:, side]] = start_L[pairs_P2[:, side]]
    # Step 1 for both positions: the rows that ask for i come before those that ask for j.
    alone_PV = np.asarray(distribution(np.concatenate([base_PL, base_PL]), pairs_P2.T.reshape(-1)))
    if values > alone_PV.shape[-1]:
        raise PadirError(f"a position has {alone_PV.shape[-1]:,} values, got values={values:,}: try fewer, such as 4")
    information = []
    coverage = []
    conditional = []
    least = []
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


_ROWS = 64  # canvases that go through the decoder at once
_DISTRIBUTIONS = 2**25  # probabilities that are in memory at once


def sentence_dependence(
    translator: Translator,
    one: Pass,
    row: int,
    pairs_P2: Int[np.ndarray, "P 2"],
    *,
    values: int = 4,
    given_draft: bool = False,
) -> Dependence:
    """Measures the model's dependency between pairs of positions of one sentence.

    Args:
      one: the batch that holds the sentence, in its row `row`.
      pairs_P2: the pairs of positions.
      values: tokens that are tried at a position.
      given_draft: while a pair is measured, True lets the decoder see the last draft at all other positions; False
        hides these positions, too.

    Raises:
      PadirError: fewer than 2 values, or more than the vocabulary has.
    """
    start_L = one.tokens_TBL[0, row]
    tokens_L = one.tokens_TBL[-1, row]
    length = int(one.length_B[row])
    masked_L = (np.arange(len(tokens_L)) < length - 1) & (not given_draft)
    memory = jax.tree.map(lambda x: x[row : row + 1], (one.batch.cross_kv, one.batch.encoded.segment_BS))

    def distribution(tokens_RL, position_R):
        # A canvas goes through the decoder once, however many of its positions are asked for.
        canvas_CL, canvas_R = np.unique(tokens_RL, axis=0, return_inverse=True)
        canvas_R = canvas_R.reshape(-1)
        state_RD = None
        for at in range(0, len(canvas_CL), _ROWS):
            states_CLD = _states(translator.model, translator.params, _filled(canvas_CL[at:], _ROWS), length, *memory)
            states_CLD = np.asarray(states_CLD)
            if state_RD is None:
                state_RD = np.zeros((len(tokens_RL), states_CLD.shape[-1]), states_CLD.dtype)
            (there,) = np.nonzero((canvas_R >= at) & (canvas_R < at + _ROWS))
            state_RD[there] = states_CLD[canvas_R[there] - at, position_R[there]]
        assert state_RD is not None
        rows = _ROWS * _ROWS // 8
        parts = [
            _log_probs(translator.model, translator.params, _filled(state_RD[at:], rows))
            for at in range(0, len(state_RD), rows)
        ]
        return np.concatenate(jax.device_get(parts))[: len(tokens_RL)]

    # Only as many pairs are measured at once as have distributions that fit in memory: with a large vocabulary and a
    # long sentence, all pairs at once would not fit.
    most = max(1, _DISTRIBUTIONS // (values * translator.card.ids.num_embeddings))
    return joined_dependence(
        [
            dependence(distribution, tokens_L, start_L, masked_L, pairs_P2[at : at + most], values=values)
            for at in range(0, len(pairs_P2), most)
        ]
    )


def _filled(x, rows: int):
    """The first `rows` rows, padded with copies of the first row, so that one compiled program serves all."""
    x = x[:rows]
    return np.concatenate([x, x[:1].repeat(rows - len(x), 0)])


@functools.partial(jax.jit, static_argnums=0)
def _states(model: Transformer, params, tokens_CL, length, cross_kv, source_segment_BS):
    """The decoder's last states for canvases of one sentence, [C, L, D], before the projection onto the vocabulary."""
    segment_CL = jnp.broadcast_to(jnp.arange(tokens_CL.shape[1]) < length, tokens_CL.shape).astype(jnp.int32)
    return model.bind({"params": params}).draft_states(tokens_CL, segment_CL, cross_kv, source_segment_BS)


@functools.partial(jax.jit, static_argnums=0)
def _log_probs(model: Transformer, params, state_RD):
    """Log-probabilities of the tokens that may be written at positions with these states, [R, V]."""
    logits_R1V = model.bind({"params": params}).logits(state_RD[:, None])
    return jax.nn.log_softmax(forbid(logits_R1V.astype(jnp.float32), model.ids.special)[:, 0], axis=-1)

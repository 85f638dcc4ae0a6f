"""Shallow fusion (Gulcehre et al., 2015): decoding weighs in a table of bigrams and words while it chooses tokens.

The logits of one parallel pass know nothing of each other's choices, so that an argmax joins pieces that nobody ever
wrote side by side. With a table, three searches prefer sentences that read like the language: prefix beam search of
alignments, as with the features of Kasner, Libovicky and Helcl (2020); the choice of a canvas's tokens, as in the
chains of Sun et al. (2019, NART-CRF); and greedy search.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from padir import checks
from padir.decoding.bigrams import BEGIN, BigramScore
from padir.decoding.search import Extension, Search
from padir.refinement.canvas import Canvas
from padir.refinement.scores import best_logits
from padir.text.ids import EOS

_LIKELIEST = 8  # number of ids whose logits greedy search adds the table to
_OF_POSITION = 4  # number of a position's likeliest ids that a canvas may hold


@checks.settings
class Fusion:
    """Weights of a table of bigrams in decoding.

    Attributes:
      weight: number that multiplies the log-probability of each piece after the piece before it.
      bonus: nats for each piece, which make up for the table's preference of short sentences. A canvas of given length
        has as many pieces whatever they are, but for marks of placeholders, which get no bonus.
      unknown: nats off each word that neither the training text nor the source has.
      causal: the weight in greedy search, where each logit already depends on the pieces before it; there is neither
        `bonus` nor `unknown`.
      fallback: dual models write a sentence again, by greedy search, if an unknown word is left in it
        (`padir.decoding.fallback`).
    """

    weight: checks.NotNegative = 0.3
    bonus: checks.NotNegative = 2.0
    unknown: checks.NotNegative = 4.0
    causal: checks.NotNegative = 0.1
    fallback: bool = False

    def over(self, table: BigramScore, mode: str, kept_v: Any) -> FusedScore:
        """The score by a table in a mode, for the ids that may be written; None for all ids."""
        if mode == "causal":
            return FusedScore(table, self.causal, 0.0, 0.0, kept_v)
        return FusedScore(table, self.weight, self.bonus, self.unknown, kept_v)


@flax.struct.dataclass
class FusedScore:
    """The score of prefixes by a table (`padir.readout.prefix_beam.PrefixScore`); the state is the open word's hash.

    Attributes:
      weight: as `Fusion.weight`, or in greedy search as `Fusion.causal`; other values compile no new program.
      bonus, unknown: as in `Fusion`.
      kept_v: the whole-vocabulary id of each of a compact model's ids (`shortlist.compact`); None if the model has all
        ids.
      own_BW: words of each source, which count as known (`with_sources`); None for languages without spaces.
    """

    table: BigramScore
    weight: Any
    bonus: Any
    unknown: Any
    kept_v: Any = None
    own_BW: UInt32[Array, "B W"] | None = None

    def start(self, batch: int, size: int) -> UInt32[Array, "B N"]:
        return jnp.zeros((batch, size), jnp.uint32)

    def grow(self, state, last_BN, token_BK):
        previous_BN1 = jnp.where(last_BN < 0, BEGIN, self._whole(last_BN))[..., None]
        token_B1K = self._whole(token_BK)[:, None]
        log_prob_BNK = self.table.log_prob(previous_BN1, token_B1K)
        ended_BNK, open_BNK = self.table.spelling.grown(state[..., None], token_B1K)
        gained_BNK = jnp.where(token_B1K < self.table.end_regular, self.weight * log_prob_BNK + self.bonus, 0.0)
        return gained_BNK - self._unknown(ended_BNK), open_BNK

    def end(self, state, last_BN) -> Float[Array, "B N"]:
        previous_BN = jnp.where(last_BN < 0, BEGIN, self._whole(last_BN))
        log_prob_BN = self.table.log_prob(previous_BN, jnp.full_like(previous_BN, EOS))
        return self.weight * log_prob_BN - self._unknown(state[..., None])[..., 0]

    def with_sources(self, source_BS: Int[Array, "B S"]) -> FusedScore:
        """This score for a batch of sources."""
        if self.table.known is None:
            return self
        return dataclasses.replace(self, own_BW=self.table.spelling.words(source_BS))

    def of_rows(self, row_R: Int[Array, " R"]) -> FusedScore:
        """The score of `with_sources`, for rows of its sources."""
        return dataclasses.replace(self, own_BW=None if self.own_BW is None else self.own_BW.at[row_R].get(mode="clip"))

    def _whole(self, token):
        return token if self.kept_v is None else self.kept_v[token]

    def _unknown(self, word_BNK):
        if self.own_BW is None:
            return jnp.zeros(word_BNK.shape)
        return jnp.where(self.table.knows(word_BNK, self.own_BW[:, None, None]), 0.0, self.unknown)


@flax.struct.dataclass
class FusedChoice:
    """Chooses a canvas's tokens by their log-probabilities and a table's score (a `padir.refinement.scores.Chooser`).

    Viterbi's algorithm finds the best sequence of the likeliest ids of all positions. Each of its paths keeps the word
    that it has open. The log-probabilities stay the decoder's own.
    """

    fused: FusedScore
    canvas: Canvas

    def __call__(self, logits_BLV, open_BL) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
        open_BL1 = (self.canvas.editable_BL if open_BL is None else open_BL)[..., None]
        logit_BLK, token_BLK = best_logits(logits_BLV, min(_OF_POSITION, logits_BLV.shape[-1]))
        log_prob_BLK = logit_BLK - jax.nn.logsumexp(logits_BLV, axis=-1, keepdims=True)
        first_K = jnp.arange(token_BLK.shape[-1]) == 0
        token_BLK = jnp.where(open_BL1, token_BLK, self.canvas.tokens_BL[..., None])
        score_BLK = jnp.where(open_BL1, log_prob_BLK, jnp.where(first_K, 0.0, -jnp.inf))
        chosen_BL1 = self._best_path(token_BLK, score_BLK)[..., None]
        token_BL1, log_prob_BL1 = (jnp.take_along_axis(each, chosen_BL1, axis=-1) for each in (token_BLK, log_prob_BLK))
        return token_BL1[..., 0], log_prob_BL1[..., 0]

    def _best_path(self, token_BLK, score_BLK) -> Int[Array, "B L"]:
        """The number of the id that the best sequence has at each position."""
        rows, _, size = token_BLK.shape

        def forwards(paths, candidates):
            total_BK, word_BK, last_BK = paths
            token_BK, score_BK = candidates
            gained_BKK, word_BKK = self.fused.grow(word_BK, last_BK, token_BK)  # [path so far, candidate]
            total_BKK = total_BK[..., None] + gained_BKK
            before_BK = total_BKK.argmax(1)
            total_BK, word_BK = (
                jnp.take_along_axis(each, before_BK[:, None], axis=1)[:, 0] for each in (total_BKK, word_BKK)
            )
            return (total_BK + score_BK, word_BK, token_BK), before_BK

        def backwards(chosen_B, before_BK):
            return jnp.take_along_axis(before_BK, chosen_B[:, None], axis=1)[:, 0], chosen_B

        begin = jnp.zeros((rows, size)), self.fused.start(rows, size), jnp.full((rows, size), -1)
        by_position = token_BLK.swapaxes(0, 1), score_BLK.swapaxes(0, 1)
        (total_BK, *_), before_LBK = jax.lax.scan(forwards, begin, by_position)
        _, chosen_LB = jax.lax.scan(backwards, total_BK.argmax(-1), before_LBK, reverse=True)
        return chosen_LB.swapaxes(0, 1)


@flax.struct.dataclass
class FusedSearch:
    """Greedy search that adds a table's score to the likeliest logits; log-probabilities stay the model's own.

    Attributes:
      search: the search of one row that it changes.
    """

    fused: FusedScore
    search: Search = flax.struct.field(pytree_node=False)

    @property
    def size(self) -> int:
        return self.search.size

    def extend(self, key_BN, logits_BNV, log_z_BN, rows) -> Extension:
        last_B1 = jnp.take_along_axis(rows.tokens_BNL, jnp.maximum(rows.length_BN - 1, 0)[..., None], axis=2)[..., 0]
        last_B1 = jnp.where(rows.length_BN == 0, -1, last_B1)
        value_BK, token_BK = best_logits(logits_BNV[:, 0], min(_LIKELIEST, logits_BNV.shape[-1]))
        gained_B1K, _ = self.fused.grow(self.fused.start(*last_B1.shape), last_B1, token_BK)
        best_B1 = (value_BK[:, None] + gained_B1K).argmax(-1)
        is_best_BNV = jnp.arange(logits_BNV.shape[-1]) == jnp.take_along_axis(token_BK, best_B1, axis=1)[..., None]
        return self.search.extend(key_BN, jnp.where(is_best_BNV, logits_BNV, -jnp.inf), log_z_BN, rows)

    def score(self, log_prob_BN, length_BN):
        return self.search.score(log_prob_BN, length_BN)

    def over(self, rows, limit_B):
        return self.search.over(rows, limit_B)

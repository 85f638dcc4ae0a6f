"""Prefix beam search (Graves, 2012, section 7.5.3): the most likely sentences of a canvas that is an alignment.

An argmax at every position finds the most likely alignment. Many alignments are read as the same sentence: this search
adds up their probabilities, and keeps N sentences while it goes through the positions. A `PrefixScore` may weigh in
what a sentence reads like: then the sum of both decides which sentences are kept.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from padir.refinement.canvas import choose_rows
from padir.refinement.scores import best_logits

_PRIME = 16_777_619  # of the hashes of prefixes (FNV)


@runtime_checkable
class PrefixScore(Protocol):
    """Protocol of scores that a prefix gets beside its probability, for its pieces alone; higher is better.

    `start` gives the state of empty prefixes. `grow` gives the scores of K pieces after each prefix and the states of
    the longer prefixes, arrays [B, N, K]. `end` gives the score of the sentence's end.
    """

    def start(self, batch: int, size: int) -> Any: ...

    def grow(
        self, state: Any, last_BN: Int[Array, "B N"], token_BK: Int[Array, "B K"]
    ) -> tuple[Float[Array, "B N K"], Any]: ...

    def end(self, state: Any, last_BN: Int[Array, "B N"]) -> Float[Array, "B N"]: ...


@flax.struct.dataclass
class _Prefixes:
    """N prefixes of each sentence.

    Attributes:
      canvas_BNL: one of each prefix's alignments: a piece where the prefix grew, blanks elsewhere.
      blank_BN, piece_BN: log-probability of the prefix's alignments that end in a blank, and in a piece.
      last_BN, length_BN: last piece and number of pieces; the length is -1 for a row without a prefix.
      hash_BN: equal prefixes have equal hashes and lengths.
      score_BN, state: each prefix's own score (`PrefixScore`) and its state.
    """

    canvas_BNL: Int[Array, "B N L"]
    blank_BN: Float[Array, "B N"]
    piece_BN: Float[Array, "B N"]
    last_BN: Int[Array, "B N"]
    length_BN: Int[Array, "B N"]
    hash_BN: UInt32[Array, "B N"]
    score_BN: Float[Array, "B N"]
    state: Any


def prefix_beam(
    blank_BL: Float[Array, "B L"],
    token_BLK: Int[Array, "B L K"],
    score_BLK: Float[Array, "B L K"],
    editable_BL: Bool[Array, "B L"],
    size: int,
    blank: int,
    score: PrefixScore | None = None,
) -> tuple[Int[Array, "B N L"], Float[Array, "B N"]]:
    """The N best sentences found, as alignments on the canvas, best first, and their log-probabilities.

    The result is exact if K are all pieces and N all prefixes.

    Args:
      blank_BL: log-probability of the blank.
      token_BLK, score_BLK: the K best pieces of each position and their log-probabilities.
      editable_BL: positions of the alignment; others are skipped.
      size, blank: N, and the blank's id.
      score: the score that is added to log-probabilities to order the sentences; None for none.

    Returns:
      Alignments that are read as different sentences. If there are fewer than N, the other rows have log-probability
      -inf.
    """
    batch, length = blank_BL.shape
    first_N = jnp.arange(size) == 0
    start = _Prefixes(
        canvas_BNL=jnp.full((batch, size, length), blank, token_BLK.dtype),
        blank_BN=jnp.broadcast_to(jnp.where(first_N, 0.0, -jnp.inf), (batch, size)),
        piece_BN=jnp.full((batch, size), -jnp.inf),
        last_BN=jnp.full((batch, size), -1, token_BLK.dtype),
        length_BN=jnp.broadcast_to(jnp.where(first_N, 0, -1), (batch, size)),
        hash_BN=jnp.zeros((batch, size), jnp.uint32),
        score_BN=jnp.zeros((batch, size)),
        state=None if score is None else score.start(batch, size),
    )
    # Where no piece is possible, every prefix gets a blank: a step reads an open position and the blanks before it.
    open_BL = editable_BL & (score_BLK != -jnp.inf).any(-1)  # NaN is open, and so seen in the result
    closed_BL = editable_BL & ~open_BL
    count_B = open_BL.sum(-1)
    order_BL = jnp.argsort(~open_BL, axis=-1, stable=True)
    closed_blank_BL = jnp.where(closed_BL, blank_BL, 0.0)
    blanks_BL = _between(closed_blank_BL, order_BL)
    skips_BL = _between(closed_BL.astype(jnp.int32), order_BL) > 0

    def step(number, old: _Prefixes) -> _Prefixes:
        at_B = order_BL[:, number]
        blank_B, token_BK, score_BK = (each[jnp.arange(batch), at_B] for each in (blank_BL, token_BLK, score_BLK))
        new = _after_blanks(old, skips_BL[:, number], blanks_BL[:, number])
        new = _grown(new, at_B, blank_B, token_BK, score_BK, score)
        return choose_rows(number < count_B, new, old)

    last = jax.lax.fori_loop(0, count_B.max(), step, start)
    after_B = closed_blank_BL.sum(-1) - jnp.where(jnp.arange(length) < count_B[:, None], blanks_BL, 0.0).sum(-1)
    log_prob_BN = jnp.logaddexp(last.blank_BN, last.piece_BN) + after_B[:, None]
    if score is None:
        return last.canvas_BNL, log_prob_BN
    _, order_BN = best_logits(log_prob_BN + last.score_BN + score.end(last.state, last.last_BN), size)
    canvas_BNL = jnp.take_along_axis(last.canvas_BNL, order_BN[..., None], axis=1)
    return canvas_BNL, jnp.take_along_axis(log_prob_BN, order_BN, axis=1)


def _between(values_BL, order_BL):
    """The sum of the values from one position of an order to the next one."""
    return jnp.diff(jnp.take_along_axis(jnp.cumsum(values_BL, axis=-1), order_BL, axis=1), axis=-1, prepend=0)


def _after_blanks(old: _Prefixes, any_B, log_prob_B) -> _Prefixes:
    """The prefixes after sure blanks: all of their alignments end in a blank."""
    total_BN = jnp.logaddexp(old.blank_BN, old.piece_BN) + log_prob_B[:, None]
    return dataclasses.replace(
        old,
        blank_BN=jnp.where(any_B[:, None], total_BN, old.blank_BN),
        piece_BN=jnp.where(any_B[:, None], -jnp.inf, old.piece_BN),
    )


def _grown(old: _Prefixes, position_B, blank_B, token_BK, score_BK, score: PrefixScore | None) -> _Prefixes:
    """The best prefixes after one more position: unchanged by a blank or a repeat, or longer by one piece."""
    size, most = old.last_BN.shape[1], token_BK.shape[1]
    total_BN = jnp.logaddexp(old.blank_BN, old.piece_BN)
    repeats_BNK = token_BK[:, None] == old.last_BN[..., None]
    repeat_BN = jnp.where(repeats_BNK, score_BK[:, None], -jnp.inf).max(-1)
    stays_blank_BN, stays_piece_BN = total_BN + blank_B[:, None], old.piece_BN + repeat_BN
    # After a piece, the same piece grows the prefix only if a blank stands between them.
    before_BNK = jnp.where(repeats_BNK, old.blank_BN[..., None], total_BN[..., None])
    grows_BNK = before_BNK + score_BK[:, None]
    hash_BNK = old.hash_BN[..., None] * np.uint32(_PRIME) + token_BK[:, None].astype(jnp.uint32)
    length_BNK = jnp.broadcast_to(old.length_BN[..., None] + 1, grows_BNK.shape)
    # A prefix that grows into another one of the N gives it its probability.
    joins_BNKN = (hash_BNK[..., None] == old.hash_BN[:, None, None]) & (
        length_BNK[..., None] == old.length_BN[:, None, None]
    )
    given_BN = jax.nn.logsumexp(jnp.where(joins_BNKN, grows_BNK[..., None], -jnp.inf), axis=(1, 2))
    stays_piece_BN = jnp.logaddexp(stays_piece_BN, given_BN)
    grows_BNK = jnp.where(joins_BNKN.any(-1), -jnp.inf, grows_BNK)
    gained_BNK, state_BNK = jnp.zeros_like(grows_BNK), None
    if score is not None:
        gained_BNK, state_BNK = score.grow(old.state, old.last_BN, token_BK)

    def all_of(stays_BN, grows_BNK):
        return jnp.concatenate([stays_BN, grows_BNK.reshape(grows_BNK.shape[0], -1)], axis=1)

    ends_blank = all_of(stays_blank_BN, jnp.full_like(grows_BNK, -jnp.inf))
    ends_piece = all_of(stays_piece_BN, grows_BNK)
    scores = all_of(old.score_BN, old.score_BN[..., None] + gained_BNK)
    best_BN, index_BN = best_logits(jnp.logaddexp(ends_blank, ends_piece) + scores, size)
    grew_BN = index_BN >= size
    parent_BN = jnp.where(grew_BN, (index_BN - size) // most, index_BN)

    def chosen(values):
        return jnp.take_along_axis(values, index_BN, axis=1)

    piece_BNK = jnp.broadcast_to(token_BK[:, None], grows_BNK.shape)
    canvas_BNL = jnp.take_along_axis(old.canvas_BNL, parent_BN[..., None], axis=1)
    last_BN = chosen(all_of(old.last_BN, piece_BNK))
    here_BNL = grew_BN[..., None] & (jnp.arange(canvas_BNL.shape[-1]) == position_B[:, None, None])
    return _Prefixes(
        canvas_BNL=jnp.where(here_BNL, last_BN[..., None], canvas_BNL),
        blank_BN=chosen(ends_blank),
        piece_BN=chosen(ends_piece),
        last_BN=last_BN,
        length_BN=jnp.where(best_BN > -jnp.inf, chosen(all_of(old.length_BN, length_BNK)), -1),
        hash_BN=chosen(all_of(old.hash_BN, hash_BNK)),
        score_BN=chosen(scores),
        state=jax.tree.map(lambda stays, grows: chosen(all_of(stays, grows)), old.state, state_BNK),
    )

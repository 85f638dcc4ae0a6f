"""Prefix beam search (Graves, 2012, section 7.5.3): the most likely sentences of a canvas that is an alignment.

An argmax at every position finds the most likely alignment. Many alignments are read as the same sentence: this search
adds up their probabilities, and keeps N sentences while it goes through the positions.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from padir.refinement.scores import best_logits

_PRIME = np.uint32(16_777_619)  # of the FNV hash


@flax.struct.dataclass
class _Prefixes:
    """N prefixes of each sentence.

    Attributes:
      canvas_BNL: one of each prefix's alignments: a piece where the prefix grew, blanks elsewhere.
      blank_BN, piece_BN: log-probability of the prefix's alignments that end in a blank, and in a piece.
      last_BN, length_BN: last piece and number of pieces; the length is -1 for a row without a prefix.
      hash_BN: equal prefixes have equal hashes and lengths.
    """

    canvas_BNL: Int[Array, "B N L"]
    blank_BN: Float[Array, "B N"]
    piece_BN: Float[Array, "B N"]
    last_BN: Int[Array, "B N"]
    length_BN: Int[Array, "B N"]
    hash_BN: UInt32[Array, "B N"]


def prefix_beam(
    blank_BL: Float[Array, "B L"],
    token_BLK: Int[Array, "B L K"],
    score_BLK: Float[Array, "B L K"],
    editable_BL: Bool[Array, "B L"],
    size: int,
    blank: int,
) -> tuple[Int[Array, "B N L"], Float[Array, "B N"]]:
    """The N best sentences found, as alignments on the canvas, best first, and their log-probabilities.

    The result is exact if K are all pieces and N all prefixes.

    Args:
      blank_BL: log-probability of the blank.
      token_BLK, score_BLK: the K best pieces of each position and their log-probabilities.
      editable_BL: positions of the alignment; others are skipped.
      size, blank: N, and the blank's id.

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
    )

    def step(old: _Prefixes, at):
        position, blank_B, token_BK, score_BK, editable_B = at
        new = _grown(old, position, blank_B, token_BK, score_BK)
        return jax.tree.map(lambda a, b: jnp.where(editable_B.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old), None

    by_position = (jnp.moveaxis(each, 1, 0) for each in (blank_BL, token_BLK, score_BLK, editable_BL))
    last, _ = jax.lax.scan(step, start, (jnp.arange(length), *by_position))
    return last.canvas_BNL, jnp.logaddexp(last.blank_BN, last.piece_BN)


def _grown(old: _Prefixes, position, blank_B, token_BK, score_BK) -> _Prefixes:
    """The best prefixes after one more position: unchanged by a blank or a repeat, or longer by one piece."""
    size, most = old.last_BN.shape[1], token_BK.shape[1]
    total_BN = jnp.logaddexp(old.blank_BN, old.piece_BN)
    repeats_BNK = token_BK[:, None] == old.last_BN[..., None]
    repeat_BN = jnp.where(repeats_BNK, score_BK[:, None], -jnp.inf).max(-1)
    stays_blank_BN, stays_piece_BN = total_BN + blank_B[:, None], old.piece_BN + repeat_BN
    # After a piece, the same piece grows the prefix only if a blank stands between them.
    before_BNK = jnp.where(repeats_BNK, old.blank_BN[..., None], total_BN[..., None])
    grows_BNK = before_BNK + score_BK[:, None]
    hash_BNK = old.hash_BN[..., None] * _PRIME + token_BK[:, None].astype(jnp.uint32)
    length_BNK = jnp.broadcast_to(old.length_BN[..., None] + 1, grows_BNK.shape)
    # A prefix that grows into another one of the N gives it its probability.
    joins_BNKN = (hash_BNK[..., None] == old.hash_BN[:, None, None]) & (
        length_BNK[..., None] == old.length_BN[:, None, None]
    )
    given_BN = jax.nn.logsumexp(jnp.where(joins_BNKN, grows_BNK[..., None], -jnp.inf), axis=(1, 2))
    stays_piece_BN = jnp.logaddexp(stays_piece_BN, given_BN)
    grows_BNK = jnp.where(joins_BNKN.any(-1), -jnp.inf, grows_BNK)

    def all_of(stays_BN, grows_BNK):
        return jnp.concatenate([stays_BN, grows_BNK.reshape(grows_BNK.shape[0], -1)], axis=1)

    ends_blank = all_of(stays_blank_BN, jnp.full_like(grows_BNK, -jnp.inf))
    ends_piece = all_of(stays_piece_BN, grows_BNK)
    best_BN, index_BN = best_logits(jnp.logaddexp(ends_blank, ends_piece), size)
    grew_BN = index_BN >= size
    parent_BN = jnp.where(grew_BN, (index_BN - size) // most, index_BN)

    def chosen(values):
        return jnp.take_along_axis(values, index_BN, axis=1)

    piece_BNK = jnp.broadcast_to(token_BK[:, None], grows_BNK.shape)
    canvas_BNL = jnp.take_along_axis(old.canvas_BNL, parent_BN[..., None], axis=1)
    last_BN = chosen(all_of(old.last_BN, piece_BNK))
    written_BN = jnp.where(grew_BN, last_BN, canvas_BNL[..., position])
    return _Prefixes(
        canvas_BNL=canvas_BNL.at[..., position].set(written_BN),
        blank_BN=chosen(ends_blank),
        piece_BN=chosen(ends_piece),
        last_BN=last_BN,
        length_BN=jnp.where(best_BN > -jnp.inf, chosen(all_of(old.length_BN, length_BNK)), -1),
        hash_BN=chosen(all_of(old.hash_BN, hash_BNK)),
    )

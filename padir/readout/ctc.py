"""Connectionist temporal classification (CTC, Graves et al., 2006): the canvas is an alignment of the sentence.

A canvas has two positions per source token. The decoder writes pieces and blanks; merging equal neighbours and removing
blanks gives the translation. So no target length is predicted. A head of its own gives the blank's probability q, and
piece v has the probability (1 - q) softmax(v). The softmax over pieces is the same as in writing from left to right,
and positions that are probably blank need no logits.

1. The first training stage sees noise at every position. The loss of a stage sums over all alignments of the target.
2. `best_alignment` gives the most likely alignment of the target under a stage's prediction. A transition gets this
   alignment as its target: with `Glat`, the next stage sees part of it, blanks included. Gu and Kong (2021) train CTC
   with glancing in this manner, on three positions per source token.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir.errors import PadirError
from padir.readout.prefix_beam import PrefixScore, prefix_beam
from padir.readout.protocols import Geometry, Readout, StageSums
from padir.readout.tally import Logits
from padir.refinement.canvas import Canvas
from padir.refinement.corruption import noise_canvas
from padir.refinement.protocols import Corruption
from padir.refinement.scores import best_ids, best_logits, best_tokens, forbid
from padir.refinement.strategies import Padir
from padir.text.ids import EOS, PADDING, AnyArray, Ids, equals_left, segment_lengths

_PIECES = 4  # number of pieces that prefix beam search reads at each position
_CLOSED = 0.9  # it reads no pieces where the blank is more likely than this


@dataclasses.dataclass(frozen=True)
class BlankHead:
    """The head of CTC models: its logit says that a position is blank."""

    def joined(self, logits_BLV, head_BL, ids: Ids):
        """Replaces the blank's logit, so that its probability is sigmoid(head)."""
        pieces_BL = jax.nn.logsumexp(forbid(logits_BLV, (ids.blank,)), axis=-1)
        return logits_BLV.at[..., ids.blank].set(pieces_BL + head_BL)

    def best(self, project, states_BLD, head_BL, present_BL, ids: Ids):
        """The best ids and their log-probabilities, from few logits of the vocabulary (`several`)."""
        blank_BL, token_BL1, score_BL1 = self.several(project, states_BLD, head_BL, present_BL, ids, 1)
        token_BL, score_BL = token_BL1[..., 0], score_BL1[..., 0]
        return jnp.where(score_BL >= blank_BL, token_BL, ids.blank), jnp.maximum(score_BL, blank_BL)

    def prefix_beam(self, project, states_BLD, head_BL, canvas: Canvas, size: int, score: PrefixScore | None = None):
        """The `size` best sentences that `prefix_beam` finds on each canvas: canvases, best first.

        Returns:
          Tokens [B, N, L] and log-probabilities [B, N], -inf for rows that a canvas has no further sentence for.
        """
        present_BL, ids = canvas.segment_BL > 0, _ids(canvas)
        blank_BL, token_BLK, score_BLK = self.several(project, states_BLD, head_BL, present_BL, ids, _PIECES)
        tokens_BNL, log_prob_BN = prefix_beam(
            blank_BL, token_BLK, score_BLK, canvas.editable_BL, size, ids.blank, score
        )
        return jnp.where(canvas.editable_BL[:, None], tokens_BNL, canvas.tokens_BL[:, None]), log_prob_BN

    def several(self, project, states_BLD, head_BL, present_BL, ids: Ids, count: int):
        """Log-probability of the blank, and the `count` best pieces with theirs, at every position.

        Where the blank has more than `_CLOSED` of the probability, or more than half of it for a `count` of 1, pieces
        have log-probability -inf. Usually at most 1.25 positions per source token are left. Then only the logits of so
        many positions are computed. If a row has more, the logits of all positions are computed.
        """
        least = 0.0 if count == 1 else math.log(1 / _CLOSED - 1)
        blank_BL, piece_BL = jax.nn.log_sigmoid(head_BL), jax.nn.log_sigmoid(-head_BL)
        length, banned = head_BL.shape[1], (*ids.special, ids.blank)
        open_BL = jnp.where(present_BL, -head_BL, -jnp.inf)

        def among(most: int):
            _, at_BM = jax.lax.top_k(open_BL, most)
            logits_BMV = forbid(project(jnp.take_along_axis(states_BLD, at_BM[..., None], axis=1)), banned)
            if count == 1:
                token_BMK, score_BMK = (each_BM[..., None] for each_BM in best_tokens(logits_BMV))
            else:
                value_BMK, token_BMK = best_logits(logits_BMV, count)
                score_BMK = value_BMK - jax.nn.logsumexp(logits_BMV, axis=-1, keepdims=True)
            row_B1, shape = jnp.arange(at_BM.shape[0])[:, None], (*head_BL.shape, count)
            score_BLK = jnp.full_like(piece_BL, -jnp.inf, shape=shape).at[row_B1, at_BM].set(score_BMK)
            token_BLK = jnp.full_like(token_BMK, ids.blank, shape=shape).at[row_B1, at_BM].set(token_BMK)
            # Other rows of the batch decide how many positions have logits, but not what counts.
            score_BLK = jnp.where((open_BL >= least)[..., None], score_BLK + piece_BL[..., None], -jnp.inf)
            return blank_BL, token_BLK, score_BLK

        few = -(-length * 5 // 8)
        return jax.lax.cond(((open_BL >= least).sum(-1) <= few).all(), lambda: among(few), lambda: among(length))


def _ids(canvas: Canvas) -> Ids:
    """The ids of a canvas; they have T5's layout, as those of all models of padir."""
    assert isinstance(canvas.ids, Ids)
    return canvas.ids


@dataclasses.dataclass(frozen=True)
class CtcGeometry:
    """Two positions per source token; reading merges equal neighbours, then removes blanks.

    >>> import numpy as np
    >>> tokens_L, ids = np.array([7, 7, 14, 7, 8, 14, 1]), Ids(vocab_size=16, num_sentinels=4, first_regular=3)
    >>> tokens_L[CtcGeometry().collapse_mask(tokens_L, np.arange(7) < 6, ids)].tolist()
    [7, 7, 8]
    """

    is_sentence: ClassVar[bool] = False

    def ids(self, ids: Ids) -> Ids:
        return ids if ids.writes_blank else dataclasses.replace(ids, writes_blank=True)

    def canvas_length(self, source):
        return 2 * source

    def longest_source(self, max_length: int) -> int:
        return max_length // 2

    def collapse_mask(self, tokens: AnyArray, editable: AnyArray, ids: Ids) -> AnyArray:
        merged: Any = equals_left(tokens) | (tokens == ids.blank)
        return editable & ~merged


@dataclasses.dataclass(frozen=True)
class CtcLoss:
    """The loss over all alignments of the target to the canvas."""

    geometry: Geometry = CtcGeometry()

    def check(self, model: str, *, packed: bool, stage_weights: tuple[str, ...], normaliser: str | float) -> None:
        if packed:
            raise PadirError(f"{model} needs rows of one sentence pair", remedy='set Batching.mode = "bucket"')
        if wrong := set(stage_weights) - {"all", "none"}:
            raise PadirError("Objective.stage_weights", f'"all" or "none" for {model}', *wrong)
        if normaliser == "sentences":
            raise PadirError("Objective.normaliser", f'"tokens", "weights" or "positions" for {model}', normaliser)

    def first_canvas(
        self, key_B, source_segment_BS, target_BL, segment_BL, *, corruption: Corruption, ids: Ids, max_length: int
    ):
        """A canvas of noise: two positions per source token, or more where the target needs more.

        A row's canvas depends on its pair alone; the batch's shape says only how wide the arrays are.
        """
        room_B = jnp.asarray(self.geometry.canvas_length(segment_lengths(source_segment_BS, 1)[:, 0]))
        width = min(2 * target_BL.shape[1], max_length)
        if isinstance(room := self.geometry.canvas_length(source_segment_BS.shape[1]), int):
            width = max(width, room)
        length_B = jnp.minimum(jnp.maximum(room_B, positions_needed(target_BL) + 1), width)
        canvas = noise_canvas(key_B, jnp.where(room_B > 0, length_B, 0), width, corruption, ids)
        return canvas, canvas.editable_BL

    def fits(self, canvas: Canvas, target_BL: Int[Array, "B _"]) -> Bool[Array, " B"]:
        """True for targets that have an alignment to their canvas."""
        return positions_needed(target_BL) <= canvas.editable_BL.sum(-1)

    def loss(self, logits: Logits, canvas: Canvas, target_BL, weight_BL, *, label_smoothing=0.0, z_loss=0.0):
        """Sums over the rows that fit and have a weight; the target's aligned form is its best alignment.

        With label smoothing, the loss is (1 - label_smoothing) times the CTC loss, plus label_smoothing times the
        cross-entropy of a uniform distribution at each canvas position. The z-loss is a sum over canvas positions.
        The weight is the number of target tokens. A token is right if the argmax at its first aligned position is
        right. EOS is always right, because the canvas's length determines its place.
        """
        logits_BLV = logits.logits_BLV
        is_target_BL = target_BL > 0
        ids = _ids(canvas)
        label_BN = jnp.where(is_target_BL & (target_BL != ids.eos), target_BL, 0)
        own_BLC = label_logits(logits_BLV, label_BN, ids)
        aligned_BL = jax.lax.stop_gradient(best_alignment(own_BLC, canvas, label_BN))
        fits_B = self.fits(canvas, target_BL)
        counts_B = fits_B & weight_BL.any(-1)
        loss_B, z_B = alignment_loss(logits_BLV, own_BLC, canvas.editable_BL, label_BN, label_smoothing, z_loss)
        # Each token begins at its first aligned position.
        begins_BL = self.geometry.collapse_mask(aligned_BL, canvas.editable_BL, ids)
        best_BL = best_ids(logits_BLV)
        right = (begins_BL & (best_BL == aligned_BL) & fits_B[:, None]).sum()
        right += (is_target_BL.any(-1) & fits_B).sum()
        return StageSums(
            loss=jnp.where(counts_B, loss_B, 0.0).sum(),
            z_loss=jnp.where(counts_B, z_B, 0.0).sum(),
            weight=(is_target_BL & counts_B[:, None]).sum().astype(jnp.float32),
            correct=right.astype(jnp.float32),
            aligned_BL=aligned_BL,
            best_BL=best_BL,
        )


CTC = Readout(
    name="CTC",
    geometry=CtcGeometry(),
    stage_loss=CtcLoss(),
    head=BlankHead(),
    strategy=Padir(remask="none"),  # equal neighbours are no stutter here, because reading merges them
    excludes=("decontextualised", "rejecter"),
    counted_by="prefix_beam",
    # The work of prefix beam search grows with the square of the sentences that it keeps.
    limits={"num_lengths": 1, "length_min_p": 0, "prefix_beam": 64},
    off=("length_window", "drop_repeats"),
)


def alignment_loss(
    logits_BLV: Float[Array, "B L V"],
    own_BLC: Float[Array, "B L C"],
    editable_BL: Bool[Array, "B L"],
    label_BN: Int[Array, "B N"],
    label_smoothing: float,
    z_loss: float,
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """Each row's loss over all alignments, z-loss included, and its z-loss; `own_BLC` is from `label_logits`.

    Optax normalises over the columns of a row's own labels. Adding the difference of two normalisers turns this into a
    normalisation over all ids. Only the second normaliser reads all logits.
    """
    import optax  # decoding does without it

    log_z_BL = jax.nn.logsumexp(logits_BLV.astype(jnp.float32), axis=-1)
    outside_BL, no_label_BN = (~editable_BL).astype(jnp.float32), (label_BN == 0).astype(jnp.float32)
    # Equal pieces share a column: so the loss sees that two equal neighbours need a blank between them.
    column_BN = (label_BN[:, :, None] == label_BN[:, None, :]).argmax(-1) + 1
    loss_B = optax.losses.ctc_loss(own_BLC, outside_BL, column_BN, no_label_BN, blank_id=0)
    loss_B += ((log_z_BL - jax.nn.logsumexp(own_BLC, axis=-1)) * editable_BL).sum(-1)
    z_B = z_loss * (jnp.square(log_z_BL) * editable_BL).sum(-1)
    if label_smoothing:
        uniform_B = ((log_z_BL - logits_BLV.astype(jnp.float32).mean(-1)) * editable_BL).sum(-1)
        loss_B = (1.0 - label_smoothing) * loss_B + label_smoothing * uniform_B
    return loss_B + z_B, z_B


def positions_needed(target_BL: Int[Array, "B L"]) -> Int[Array, " B"]:
    """Least number of canvas positions for each target: its pieces, and a blank between equal neighbours.

    >>> positions_needed(jnp.array([[7, 7, 8, 1, 0]])).tolist()
    [4]
    """
    piece_BL = (target_BL != PADDING) & (target_BL != EOS)
    again_BL = piece_BL[:, 1:] & (target_BL[:, 1:] == target_BL[:, :-1])
    return piece_BL.sum(-1) + again_BL.sum(-1)


def label_logits(logits_BLV: Float[Array, "B L V"], label_BN: Int[Array, "B N"], ids: Ids) -> Float[Array, "B L C"]:
    """The logits of the blank and of each row's own labels, C = N + 1 columns, float32."""
    token_BC = jnp.pad(label_BN, ((0, 0), (1, 0)), constant_values=ids.blank)
    index_BLC = jnp.broadcast_to(token_BC[:, None], (*logits_BLV.shape[:2], token_BC.shape[1]))
    return jnp.take_along_axis(logits_BLV, index_BLC, axis=-1).astype(jnp.float32)


def best_alignment(own_BLC: Float[Array, "B L C"], canvas: Canvas, label_BN: Int[Array, "B N"]) -> Int[Array, "B L"]:
    """The most likely alignment of each target to its canvas (Viterbi): a piece or the blank at each editable position.

    A constant added to a position's logits does not change the result. Positions that are not free keep their tokens.
    If the target needs more positions than are editable, the row's alignment is meaningless.

    Args:
      own_BLC: `label_logits` of the canvas's positions.
      label_BN: the target's pieces, 0 after the last.
    """
    batch, states = label_BN.shape[0], 2 * label_BN.shape[1] + 1
    blank = _ids(canvas).blank
    # The states of an alignment: blank, piece 1, blank, piece 2, ..., blank.
    token_BS = jnp.full((batch, states), blank).at[:, 1::2].set(label_BN)
    two_before_BS = jnp.pad(token_BS, ((0, 0), (2, 0)), constant_values=-1)[:, :-2]
    may_skip_BS = (token_BS != blank) & (token_BS != two_before_BS)
    emit_BLS = jnp.broadcast_to(own_BLC[..., :1], (*own_BLC.shape[:2], states)).at[..., 1::2].set(own_BLC[..., 1:])
    emit_LBS = emit_BLS.swapaxes(0, 1)

    def forward(score_BS, position):
        emit_BS, editable_B = position
        one, two = (jnp.pad(score_BS, ((0, 0), (n, 0)), constant_values=-jnp.inf)[:, :states] for n in (1, 2))
        from_BS3 = jnp.stack([score_BS, one, jnp.where(may_skip_BS, two, -jnp.inf)], axis=-1)
        back_BS = jnp.where(editable_B[:, None], from_BS3.argmax(-1), 0)
        return jnp.where(editable_B[:, None], from_BS3.max(-1) + emit_BS, score_BS), back_BS

    start_BS = jnp.full((batch, states), -jnp.inf).at[:, 0].set(0.0)
    editable_LB = canvas.editable_BL.swapaxes(0, 1)
    score_BS, back_LBS = jax.lax.scan(forward, start_BS, (emit_LBS, editable_LB))
    last_B = 2 * (label_BN > 0).sum(-1)  # an alignment ends in the last blank or in the last piece
    score_B2 = jnp.take_along_axis(score_BS, jnp.stack([last_B, jnp.maximum(last_B - 1, 0)], -1), axis=-1)
    end_B = jnp.where(score_B2[:, 1] > score_B2[:, 0], jnp.maximum(last_B - 1, 0), last_B)

    def backward(state_B, back_BS):
        before_B = state_B - jnp.take_along_axis(back_BS, state_B[:, None], axis=-1)[:, 0]
        return before_B, state_B

    _, state_LB = jax.lax.scan(backward, end_B, back_LBS, reverse=True)
    aligned_BL = jnp.take_along_axis(token_BS, state_LB.swapaxes(0, 1), axis=-1)
    return jnp.where(canvas.editable_BL, aligned_BL, canvas.tokens_BL)

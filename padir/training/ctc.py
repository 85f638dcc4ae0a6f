"""Connectionist temporal classification (CTC): the loss sums over all alignments of the target to a longer canvas.

A canvas has two positions per source token. The decoder writes pieces and blanks; merging equal neighbours and removing
blanks gives the translation (`padir.decoding.text.collapsed`), so that no target length has to be predicted.

1. The first stage sees noise at every position.
2. `best_alignment` gives the most likely alignment of the target under a stage's prediction. A transition gets this
   alignment as its target: with `Glat`, the next stage sees part of it (CTC with glancing, Gu and Kong, 2021).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from padir import checks
from padir.errors import PadirError
from padir.models.length import LengthOutput
from padir.models.transformer import Transformer
from padir.refinement.canvas import Canvas
from padir.refinement.corruption import Uniform
from padir.refinement.drafting import draft
from padir.refinement.protocols import Between, Corruption, Strategy
from padir.refinement.scores import Output, best_ids, forbid
from padir.refinement.strategies import Padir
from padir.refinement.transitions import Lifted
from padir.text.ids import Ids, segment_lengths
from padir.training.batch import Batch, StageRows, Sums
from padir.training.objective import Objective


@dataclasses.dataclass(frozen=True)
class Ctc(Objective):
    """Training objective of CTC models (`ModelConfig.length_head = "ctc"`): noise, CTC loss, S stages.

    Rows hold one sentence pair each (`Batching.mode = "bucket"`). Sentence pairs whose target has no alignment to a
    canvas of `ModelConfig.max_length` positions are left out of the loss and counted in `Sums.unaligned`.

    Attributes:
      corruption: makes the noise of the first stage, which hides the whole target.
      between: makes the next stage's canvas; it gets the best alignment of the target in place of the target.
      stage_weights: "all" or "none" for each stage.
      label_smoothing: weight of a uniform distribution in the target of each canvas position; the CTC loss has weight
        1 - label_smoothing.
      z_loss: factor of logsumexp(logits)^2, summed over canvas positions.

    Raises:
      PadirError: a stage has another weight, or a number is out of its range.
    """

    corruption: Corruption = Uniform()
    between: Between = Lifted(Padir(remask="none"))
    stage_weights: tuple[str, ...] = ("all",)

    def __post_init__(self):
        super().__post_init__()
        for weight in self.stage_weights:
            checks.one_of(("all", "none"), "CTC has no target of single positions", **{"Ctc.stage_weights": weight})
        if self.normaliser == "sentences":
            raise PadirError("Ctc.normaliser", '"tokens" or "positions"', self.normaliser, "CTC sums over alignments")
        if self.visibility is not None:
            raise PadirError("Ctc.visibility", "None, as CTC models are not decontextualised", self.visibility)

    @property
    def strategy(self) -> Strategy:
        """The default decoding strategy; on a canvas with blanks equal neighbours are no stutter to take back."""
        return getattr(self.between, "strategy", Padir(remask="none"))

    def __call__(
        self,
        key: Key[Array, ""],
        params: Any,
        batch: Batch,
        *,
        model: Transformer,
        num_segments: int | None = None,
        dropout: bool = True,
        progress: Float[Array, ""] | float = 0.0,
    ) -> tuple[Float[Array, ""], Sums]:
        """Loss of a batch, summed over positions and stages, and its `Sums`, as from `Objective.__call__`.

        Raises:
          PadirError: rows are packed (`num_segments` is given), or the canvas is longer than the position table.
        """
        if num_segments is not None:
            raise PadirError("a CTC model needs rows of one sentence pair", remedy='set Batching.mode = "bucket"')
        return super().__call__(key, params, batch, model=model, num_segments=None, dropout=dropout, progress=progress)

    def first_canvas(
        self, key_B: Key[Array, " B"], batch: Batch, model: Transformer
    ) -> tuple[Canvas, Bool[Array, "B L"]]:
        """A canvas of noise: two positions per source token, or more where the target needs more.

        A row's canvas depends on its pair alone; the batch's shape says only how wide the arrays are.
        """
        source_B = segment_lengths(batch.source_segment_BS, 1)[:, 0]
        needed_B = positions_needed(batch.target_BL, batch.target_segment_BL, model.ids)
        source, target = batch.source_BS.shape[1], batch.target_BL.shape[1]
        width = max(2 * source, min(2 * target, model.config.max_length))
        length_B = jnp.where(source_B > 0, jnp.minimum(jnp.maximum(2 * source_B, needed_B + 1), width), 0)
        canvas = draft(key_B, length_B, width, self.corruption, model.ids)
        return canvas, canvas.free_BL

    def end_stage(
        self,
        model: Transformer,
        params: Any,
        progress: Any,
        is_last: bool,
        states_BLD: Float[Array, "B L D"],
        rows: StageRows,
    ) -> tuple[Any, Any]:
        """A stage's sums, and the next stage's canvas and chosen positions (None after the last stage)."""
        ids, canvas = model.ids, rows.canvas
        logits_BLV = model.bind({"params": params}).logits(states_BLD)
        label_BN = jnp.where((rows.target_BL > 0) & (rows.target_BL != ids.eos), rows.target_BL, 0)
        own_BLC = label_logits(logits_BLV, label_BN, ids)
        aligned_BL = jax.lax.stop_gradient(best_alignment(own_BLC, canvas, label_BN))
        fits_B = positions_needed(rows.target_BL, (rows.target_BL > 0).astype(jnp.int32), ids) <= canvas.free_BL.sum(-1)
        counts_B = fits_B & rows.weight_BL.any(-1)
        loss, z_loss = self._loss(logits_BLV, own_BLC, canvas.free_BL, label_BN, counts_B)
        # A token's first aligned position; equal tokens side by side have a blank between them.
        left_BL = jnp.pad(aligned_BL, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        begins_BL = canvas.free_BL & (aligned_BL != ids.blank) & (aligned_BL != left_BL)
        best_BL = best_ids(logits_BLV)
        target_BL = rows.target_BL > 0
        aligned = (target_BL & fits_B[:, None]).sum()
        right = (begins_BL & (best_BL == aligned_BL) & fits_B[:, None]).sum()
        right += (target_BL.any(-1) & fits_B).sum()  # each EOS, whose place the canvas's length says
        weight, absent = (target_BL & counts_B[:, None]).sum(), (target_BL.any(-1) & ~fits_B).sum()
        sums = (loss, z_loss, *(count.astype(jnp.float32) for count in (weight, right, absent, aligned)))
        if is_last:
            return sums, None
        output = jax.lax.stop_gradient(Output(forbid(logits_BLV, ids.special)))
        return sums, self.between(rows.key_B, canvas, output, aligned_BL, rows.chosen_BL, progress=progress)

    def _loss(
        self,
        logits_BLV: Float[Array, "B L V"],
        own_BLC: Float[Array, "B L C"],
        free_BL: Bool[Array, "B L"],
        label_BN: Int[Array, "B N"],
        counts_B: Bool[Array, " B"],
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Summed loss of the rows that count, and the z-loss in it.

        Optax normalises over a row's own columns; the difference of the two normalisers makes this the normalisation
        over all ids. Only the latter reads all logits.

        Args:
          own_BLC: the columns of each row's own labels (`label_logits`).
        """
        log_z_BL = jax.nn.logsumexp(logits_BLV.astype(jnp.float32), axis=-1)
        outside_BL, no_label_BN = (~free_BL).astype(jnp.float32), (label_BN == 0).astype(jnp.float32)
        # Equal pieces share a column, as side by side they need a blank between them.
        column_BN = (label_BN[:, :, None] == label_BN[:, None, :]).argmax(-1) + 1
        loss_B = optax.losses.ctc_loss(own_BLC, outside_BL, column_BN, no_label_BN, blank_id=0)
        loss_B += ((log_z_BL - jax.nn.logsumexp(own_BLC, axis=-1)) * free_BL).sum(-1)
        z_B = self.z_loss * (jnp.square(log_z_BL) * free_BL).sum(-1)
        if self.label_smoothing:
            uniform_B = ((log_z_BL - logits_BLV.astype(jnp.float32).mean(-1)) * free_BL).sum(-1)
            loss_B = (1.0 - self.label_smoothing) * loss_B + self.label_smoothing * uniform_B
        return jnp.where(counts_B, loss_B + z_B, 0.0).sum(), jnp.where(counts_B, z_B, 0.0).sum()

    def _total(self, parts, length, length_BG, keep_BL, canvas: Canvas, batch: Batch):
        *parts_S, unaligned_S, aligned_S = zip(*parts, strict=True)
        parts = list(zip(*parts_S, strict=True))
        loss, sums = super()._total(parts, LengthOutput(), length_BG, keep_BL, canvas, batch)
        # The mean is over the target tokens of pairs that count, so that it does not depend on pairs left out.
        return loss, dataclasses.replace(sums, unaligned=unaligned_S[0], tokens=aligned_S[0])


def positions_needed(target_BL: Int[Array, "B L"], segment_BL: Int[Array, "B L"], ids: Ids) -> Int[Array, " B"]:
    """Least number of canvas positions to which each target can be aligned: its pieces and its adjacent repetitions.

    >>> ids = Ids(vocab_size=16, num_sentinels=4, first_regular=3)
    >>> positions_needed(jnp.array([[7, 7, 8, 1, 0]]), jnp.array([[1, 1, 1, 1, 0]]), ids).tolist()
    [4]
    """
    piece_BL = (segment_BL > 0) & (target_BL != ids.eos)
    again_BL = piece_BL[:, 1:] & (target_BL[:, 1:] == target_BL[:, :-1])
    return piece_BL.sum(-1) + again_BL.sum(-1)


def label_logits(logits_BLV: Float[Array, "B L V"], label_BN: Int[Array, "B N"], ids: Ids) -> Float[Array, "B L C"]:
    """The logits of the blank and of each row's own labels, C = N + 1 columns, float32."""
    token_BC = jnp.pad(label_BN, ((0, 0), (1, 0)), constant_values=ids.blank)
    index_BLC = jnp.broadcast_to(token_BC[:, None], (*logits_BLV.shape[:2], token_BC.shape[1]))
    return jnp.take_along_axis(logits_BLV, index_BLC, axis=-1).astype(jnp.float32)


def best_alignment(own_BLC: Float[Array, "B L C"], canvas: Canvas, label_BN: Int[Array, "B N"]) -> Int[Array, "B L"]:
    """The most likely alignment of each target to its canvas (Viterbi): a piece or the blank at every free position.

    Args:
      own_BLC: `label_logits` of the canvas's positions; a constant added to a position's logits changes nothing.
      canvas: gives the free positions, to which the target is aligned; all others keep their tokens.
      label_BN: the target's pieces, 0 after the last.

    If the target needs more positions than are free, the row's alignment is meaningless.
    """
    batch, states = label_BN.shape[0], 2 * label_BN.shape[1] + 1
    blank = canvas.ids.blank
    # The states of an alignment: blank, piece 1, blank, piece 2, ..., blank.
    token_BS = jnp.full((batch, states), blank).at[:, 1::2].set(label_BN)
    two_before_BS = jnp.pad(token_BS, ((0, 0), (2, 0)), constant_values=-1)[:, :-2]
    may_skip_BS = (token_BS != blank) & (token_BS != two_before_BS)
    emit_BLS = jnp.broadcast_to(own_BLC[..., :1], (*own_BLC.shape[:2], states)).at[..., 1::2].set(own_BLC[..., 1:])
    emit_LBS = emit_BLS.swapaxes(0, 1)

    def forward(score_BS, position):
        emit_BS, free_B = position
        one, two = (jnp.pad(score_BS, ((0, 0), (n, 0)), constant_values=-jnp.inf)[:, :states] for n in (1, 2))
        from_BS3 = jnp.stack([score_BS, one, jnp.where(may_skip_BS, two, -jnp.inf)], axis=-1)
        back_BS = jnp.where(free_B[:, None], from_BS3.argmax(-1), 0)
        return jnp.where(free_B[:, None], from_BS3.max(-1) + emit_BS, score_BS), back_BS

    start_BS = jnp.full((batch, states), -jnp.inf).at[:, 0].set(0.0)
    free_LB = canvas.free_BL.swapaxes(0, 1)
    score_BS, back_LBS = jax.lax.scan(forward, start_BS, (emit_LBS, free_LB))
    last_B = 2 * (label_BN > 0).sum(-1)  # an alignment ends in the last blank or in the last piece
    score_B2 = jnp.take_along_axis(score_BS, jnp.stack([last_B, jnp.maximum(last_B - 1, 0)], -1), axis=-1)
    end_B = jnp.where(score_B2[:, 1] > score_B2[:, 0], jnp.maximum(last_B - 1, 0), last_B)

    def backward(state_B, back_BS):
        before_B = state_B - jnp.take_along_axis(back_BS, state_B[:, None], axis=-1)[:, 0]
        return before_B, state_B

    _, state_LB = jax.lax.scan(backward, end_B, back_LBS, reverse=True)
    aligned_BL = jnp.take_along_axis(token_BS, state_LB.swapaxes(0, 1), axis=-1)
    return jnp.where(canvas.free_BL, aligned_BL, canvas.tokens_BL)

"""The refinement objective: cross-entropy over S stages of corruption and refinement, plus the length loss.

1. Corrupt the target; the decoder predicts it (stage 1).
2. Fill the canvas from that prediction, without gradient, as a decoding step would; predict again (stage 2, ... S).
3. Sum the losses of the stages and of the length head (the paper's section L.1.2).

The encoder and the cross-attention's keys and values are computed once for all stages.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from padir import checks
from padir.errors import PadirError
from padir.models.encoder import Encoded
from padir.models.transformer import Transformer
from padir.refinement.canvas import Canvas, from_tokens, unbelieving, veil
from padir.refinement.corruption import RandomVisible, Uniform, noise_kinds
from padir.refinement.protocols import Between, Corruption, Strategy
from padir.refinement.scores import Output, best_ids, forbid
from padir.refinement.segments import sum_in_segment
from padir.refinement.strategies import Padir
from padir.refinement.transitions import Lifted
from padir.text.ids import positions_in_segment, segment_lengths
from padir.training.batch import Batch, StageRows, Sums, encode_sources
from padir.training.chunked_rows import by_rows
from padir.training.losses import (
    NORMALISERS,
    STAGE_WEIGHTS,
    check_loss,
    length_correct,
    length_loss,
    rejecter_loss,
    stage_weight,
    token_sums,
)


@dataclasses.dataclass(frozen=True)
class Objective:
    """Training objective of models that refine drafts: corruption × stages × weights; the defaults are the paper's.

    A call returns the loss of a batch, summed over all positions that count. A training step divides this sum by the
    number of all target tokens (`normaliser`): if few positions of a stage count, the length loss weighs more.

    Attributes:
      corruption: makes the first stage's canvas.
      between: makes the next stage's canvas from a stage's prediction.
      stage_weights: for each of the S stages, the positions that count: "all", "noised" (positions that the corruption
        or `between` chose, and EOS), "masked" (chosen positions that began as a mask, and EOS), "inverse" or "falling"
        ("noised" with weights that depend on the number of chosen positions, see `padir.training.losses.stage_weight`),
        or "none", which also stops the stage's gradient.
      visibility: for decontextualised decoders, how to choose the positions that each position sees in the first stage;
        with None, each position sees all other positions that the corruption did not choose.
      label_smoothing, z_loss: as in `padir.training.losses.cross_entropy`, for tokens and lengths.
      length_weight: factor of the length loss.
      rejecter_weight: factor of the rejecter's loss, for models that have a rejecter.
      normaliser: what a step divides the loss by: all target "tokens", "positions" (padding, too), or "sentences", for
        which each sentence's positions together have weight 1.
      positions_at_once: maximum number of target positions whose logits exist at the same time, in whole rows
        (`padir.training.chunked_rows.by_rows`), or None for all; it changes memory and speed, not the results.

    Raises:
      PadirError: there is no stage, a stage weight is unknown, the last stage has the weight "none", a stage has the
        weight "masked" but the corruption makes no masks, there are 3 or more stages with the remask "logits", or a
        number is out of its range.
    """

    corruption: Corruption = Uniform()
    between: Between = Lifted()
    stage_weights: tuple[str, ...] = ("all", "all")
    visibility: RandomVisible | None = None
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    length_weight: float = 1.0
    rejecter_weight: float = 1.0
    normaliser: str = "tokens"
    positions_at_once: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "stage_weights", tuple(self.stage_weights))
        if not self.stage_weights:
            raise PadirError("Objective.stage_weights must name at least one stage, such as ('all', 'all')")
        for weight in self.stage_weights:
            checks.one_of(STAGE_WEIGHTS, **{"Objective.stage_weights": weight})
        if self.stage_weights[-1] == "none":
            raise PadirError("the last stage trains nothing with weight 'none': name another, or leave the stage out")
        if len(self.stage_weights) > 2 and isinstance(self.between, Lifted):
            if getattr(self.between.strategy, "remask", None) == "logits":
                raise PadirError(
                    "Objective.stage_weights",
                    "at most 2 stages with remask='logits', since a transition knows one stage's logits and no sum",
                    self.stage_weights,
                    "use remask='previous'",
                )
        if "masked" in self.stage_weights and noise_kinds(self.corruption) == {"pieces"}:
            raise PadirError(
                f"Objective.stage_weights has 'masked', but {self.corruption} makes no masks, so that only EOS would"
                " count: use 'noised', or a corruption with masks"
            )
        checks.one_of(NORMALISERS, **checks.fields_of(self, "normaliser"))
        check_loss(self)

    @property
    def strategy(self) -> Strategy:
        """The default decoding strategy of a model trained with this objective."""
        return getattr(self.between, "strategy", Padir())

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
        encoded: Encoded | None = None,
    ) -> tuple[Float[Array, ""], Sums]:
        """Loss of a batch, summed over positions and stages, and the `Sums` that make up the loss.

        Args:
          key: random key of the corruption and of dropout.
          num_segments: G, maximum number of segments in a packed row; None: rows of one sentence pair (static).
          dropout: apply dropout, different in each stage (static).
          progress: the share of the training run that is done, in [0, 1).
          encoded: the encoder's output for the batch; None computes it.

        Raises:
          PadirError: the objective has a visibility, but the model's decoder is not decontextualised.
        """
        if self.visibility is not None and not model.config.decontextualised:
            raise PadirError(
                "Objective.visibility needs a decontextualised decoder", remedy="set ModelConfig.decontextualised"
            )
        key_corrupt, key_between, key_dropout = jax.random.split(key, 3)
        canvas, chosen_BL = self.first_canvas(batch.row_keys(key_corrupt), batch, model)
        segment_BL, present_BL = canvas.segment_BL, canvas.segment_BL > 0

        def bound(stage: int, params: Any) -> Transformer:
            rngs = {"dropout": jax.random.fold_in(batch.own_key(key_dropout), stage)} if dropout else {}
            return model.bind({"params": params}, rngs=rngs)

        if encoded is None:
            encoded = encode_sources(bound(0, params), batch, num_segments, dropout)
        known = params, bound(0, params).cross_kv(encoded.memory_BSD)
        # Padding gets position 0, as a row may be longer than the position table.
        position_BL = None if num_segments is None else jnp.where(present_BL, positions_in_segment(segment_BL), 0)
        parts, keep_BL = [], None
        for stage, weights in enumerate(self.stage_weights):
            stage_params, cross_kv = jax.lax.stop_gradient(known) if weights == "none" else known
            decoder = bound(stage + 1, stage_params)
            states_BLD = decoder.draft_states(
                canvas.tokens_BL,
                canvas.segment_BL,
                cross_kv,
                encoded.segment_BS,
                position_BL=position_BL,
                visible_BLL=canvas.visible_BLL,
                belief_BLD=canvas.belief_BLD,
                deterministic=not dropout,
            )
            keep_BL = decoder.keep_logits(states_BLD)
            masked_BL = canvas.start_BL >= model.ids.end_regular
            weight_BL = stage_weight(weights, present_BL, canvas.free_BL, chosen_BL, masked_BL, segment_BL)
            if self.normaliser == "sentences":
                sum_BL = sum_in_segment(weight_BL.astype(jnp.float32), segment_BL)
                weight_BL = weight_BL / jnp.maximum(sum_BL, 1)
            key_B = batch.row_keys(jax.random.fold_in(key_between, stage))
            end = functools.partial(self.end_stage, model, stage_params, progress, stage + 1 == len(self.stage_weights))
            stage_rows = StageRows(canvas, keep_BL, batch.target_BL, chosen_BL, weight_BL, key_B)
            sums, following = by_rows(end, self.positions_at_once, states_BLD, stage_rows)
            parts.append(sums)
            if following is not None:
                canvas, chosen_BL = following
        length_BG = segment_lengths(batch.target_segment_BL, num_segments or 1)
        return self._total(parts, encoded.length, length_BG, keep_BL, canvas, batch)

    def first_canvas(
        self, key_B: Key[Array, " B"], batch: Batch, model: Transformer
    ) -> tuple[Canvas, Bool[Array, "B L"]]:
        """The canvas of the first stage, and the positions that the corruption chose."""
        target_BL, segment_BL, ids = batch.target_BL, batch.target_segment_BL, model.ids
        free_BL = (segment_BL > 0) & (target_BL != ids.eos)
        noisy_BL, chosen_BL = self.corruption(key_B, target_BL, free_BL, segment_BL, ids=ids)
        # `start_BL` has the same noise as the canvas, and noise in place of the target at all other positions, so that
        # a position that is hidden again between two stages does not show its target.
        start_BL, _ = self.corruption.full()(key_B, target_BL, free_BL, segment_BL, ids=ids)
        canvas = from_tokens(noisy_BL, jnp.where(chosen_BL, noisy_BL, start_BL), free_BL, segment_BL, ids)
        if model.config.decontextualised:
            canvas = veil(canvas, chosen_BL)
            if self.visibility is not None:
                canvas = self.visibility(key_B, canvas)
        if model.config.self_conditioning:
            checks.at_least(2, "self-conditioning learns from the second stage on", stages=len(self.stage_weights))
            canvas = unbelieving(canvas, model.config.width)
        return canvas, chosen_BL

    def end_stage(
        self,
        model: Transformer,
        params: Any,
        progress: Any,
        is_last: bool,
        states_BLD: Float[Array, "B L D"],
        rows: StageRows,
    ) -> tuple[Any, Any]:
        """A stage's `token_sums`, and the next stage's canvas and chosen positions (None after the last stage).

        Takes decoder states, not logits, so that `by_rows` frees the logits of each chunk of rows once its sums are
        computed.
        """
        logits_BLV = model.bind({"params": params}).logits(states_BLD)
        present_BL = rows.canvas.segment_BL > 0
        sums = token_sums(logits_BLV, rows.target_BL, present_BL, rows.weight_BL, self.label_smoothing, self.z_loss)
        judges = model.config.rejecter_judges
        if rows.keep_BL is not None and judges == "prediction":
            right_BL = best_ids(logits_BLV) == rows.target_BL
            sums = (*sums, *rejecter_loss(rows.keep_BL, right_BL, rows.weight_BL > 0))
        if is_last:
            return sums, None
        output = jax.lax.stop_gradient(Output(forbid(logits_BLV, model.ids.special), rows.keep_BL, judges=judges))
        after, chosen_BL = self.between(
            rows.key_B, rows.canvas, output, rows.target_BL, rows.chosen_BL, progress=progress
        )
        if model.config.self_conditioning:
            belief_BLD = jax.lax.stop_gradient(model.bind({"params": params}).belief(logits_BLV))
            after = dataclasses.replace(after, belief_BLD=belief_BLD)
        return sums, (after, chosen_BL)

    def _total(self, parts, length, length_BG, keep_BL, canvas: Canvas, batch: Batch):
        """The loss and the sums of all stages; `canvas` is the input of the last stage."""
        stage_loss_S, stage_z_loss_S, stage_weight_S, stage_correct_S, *judged = map(
            jnp.stack, zip(*parts, strict=True)
        )
        keep_loss = keep_correct = keep_judged = None
        if judged:  # in every stage, its predictions
            keep_loss, keep_correct, keep_judged = (each_S.sum() for each_S in judged)
        elif keep_BL is not None:
            right_BL = canvas.tokens_BL == batch.target_BL
            keep_loss, keep_correct, keep_judged = rejecter_loss(keep_BL, right_BL, canvas.free_BL)
        sums = Sums(
            stage_loss_S=stage_loss_S,
            stage_z_loss_S=stage_z_loss_S,
            stage_weight_S=stage_weight_S,
            stage_correct_S=stage_correct_S,
            length_loss=length_loss(length, length_BG, self.label_smoothing, self.z_loss),
            length_correct=length_correct(length, length_BG),
            tokens=(batch.target_segment_BL > 0).sum().astype(jnp.float32),
            segments=(length_BG > 0).sum().astype(jnp.float32),
            rejecter_loss=keep_loss,
            rejecter_correct=keep_correct,
            rejecter_judged=keep_judged,
        )
        loss = stage_loss_S.sum() + self.length_weight * sums.length_loss
        return loss if keep_loss is None else loss + self.rejecter_weight * keep_loss, sums

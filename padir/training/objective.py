"""Training objectives: the base `Loss`, and `Objective` for models that refine drafts.

1. Corrupt the target; the decoder predicts it (stage 1).
2. Fill the canvas from that prediction, without gradient, as a decoding step would; predict again (stage 2, ... S).
3. Sum the losses of the stages and of the length head (the paper's section L.1.2).

The encoder and the cross-attention's keys and values are computed once for all stages. The model's readout
(`padir.readout`) makes the first canvas and computes the loss of a stage.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from padir import checks
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.models.encoder import Encoded
from padir.models.length import LengthOutput
from padir.models.transformer import Transformer
from padir.readout import StageSums
from padir.refinement.canvas import Canvas, restrict_visibility
from padir.refinement.corruption import RandomVisible, Uniform
from padir.refinement.protocols import Corruption, StageTransition, Strategy
from padir.refinement.segments import sum_in_segment
from padir.refinement.transitions import FromStrategy
from padir.text.ids import positions_in_segment, segment_lengths
from padir.training.batch import (
    NORMALISERS,
    STAGE_WEIGHTS,
    Batch,
    Judged,
    Sums,
    length_correct,
    length_loss,
    rejecter_loss,
    stage_weight,
)


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments of `Loss.__call__` except the random key."""

    params: PyTree
    batch: Batch
    model: Transformer
    num_segments: int | None
    dropout: bool
    progress: Float[Array, ""] | float
    encoded: Encoded | None = None

    def bound(self, key: Key[Array, ""], params: PyTree = None) -> Transformer:
        """The model, bound to the given parameters (by default the call's) and to a random key for dropout."""
        params = self.params if params is None else params
        return self.model.bind({"params": params}, rngs={"dropout": key} if self.dropout else {})

    def encode(self, bound: Transformer) -> Encoded:
        """The encoder's output: the call's `encoded` or, if it is None, computed here."""
        if self.encoded is not None:
            return self.encoded
        return bound.encode(
            self.batch.source_BS,
            self.batch.source_segment_BS,
            num_segments=self.num_segments or 1,
            deterministic=not self.dropout,
        )

    @property
    def length_BG(self) -> Int[Array, "B G"]:
        """Number of target tokens of each segment."""
        return segment_lengths(self.batch.target_segment_BL, self.num_segments or 1)


class Loss:
    """Base of training objectives, which are frozen dataclasses; a subclass has `compute`.

    Attributes:
      trains: the kind of models that the objective trains (`ModelConfig.kind`).
      corruption: makes drafts in decoding; None for models without drafts.
      stage_weights: one entry for each pass of the decoder.
      normaliser: one of `padir.training.batch.NORMALISERS`, by which a training step divides the loss.
    """

    trains = "refining"
    corruption: Corruption | None = None
    stage_weights: tuple[str, ...] = ("all",)
    normaliser = "tokens"

    def decoded_with(self, config: ModelConfig) -> Strategy | None:
        """The strategy that a trained model is decoded with by default; None for models without drafts."""
        return None

    def check(self, config: ModelConfig, packed: bool) -> None:
        """Refuses a model that the objective cannot train; `packed` says that rows hold several sentence pairs."""

    def __call__(
        self,
        key: Key[Array, ""],
        params: PyTree,
        batch: Batch,
        *,
        model: Transformer,
        num_segments: int | None = None,
        dropout: bool = True,
        progress: Float[Array, ""] | float = 0.0,
    ) -> tuple[Float[Array, ""], Sums]:
        """Loss of a batch, summed over positions and stages, and the `Sums` that make up the loss.

        Args:
          key: random key of the corruption and of dropout.
          num_segments: G, maximum number of segments in a packed row; None if each row has one sentence pair (static).
          dropout: apply dropout, different in each stage (static).
          progress: the share of the training run that is done, in [0, 1).
        """
        self.check(model.config, packed=num_segments is not None)
        return self.compute(key, Call(params, batch, model, num_segments, dropout, progress))

    def compute(self, key: Key[Array, ""], call: Call) -> tuple[Float[Array, ""], Sums]:
        raise NotImplementedError


@checks.settings
class Objective(Loss):
    """Training objective of models that refine drafts: corruption × stages × weights; the defaults are the paper's.

    A training step divides the summed loss by a number (`normaliser`): if few positions of a stage count, the length
    loss has more influence. With a readout that aligns the target to its canvas, each stage
    weight must be "all" or "none". Pairs whose target does not fit are left out of the loss and counted in
    `Sums.unaligned`.

    Attributes:
      corruption: makes the first stage's canvas.
      transition: makes the next stage's canvas from a stage's prediction.
      stage_weights: for each of the S stages, the positions that count. "all" counts every position; "noised" counts
        EOS and the positions that the corruption or `transition` chose; "masked" counts EOS and the chosen positions
        that began as a mask. "inverse" and "falling" weight the noised positions by their number
        (`padir.training.batch.stage_weight`). "none" counts no position and stops the stage's gradient.
      visibility: for decontextualised decoders, how to choose the positions that each position sees in the first stage;
        with None, each position sees all other positions that the corruption did not choose.
      label_smoothing, z_loss: as in `padir.readout.plain.cross_entropy`, for tokens and lengths.
      length_weight: factor of the length loss.
      rejecter_weight: factor of the rejecter's loss, for models that have a rejecter.
      normaliser: what a step divides the loss by. "tokens" divides the whole loss by the number of all target tokens.
        The others are T5X's, as the published implementation uses them: they do not divide the length loss. "weights"
        (NUM_REAL_TARGET_TOKENS) is the sum of the weights of the first stage that has a loss, "positions"
        (NUM_TOTAL_TARGET_TOKENS) counts padding, too, and "sentences" (AVERAGE_PER_SEQUENCE) is the number of
        sentences, whose positions have the weight 1 in sum in that first stage and their own weights in later ones. A
        number, at least 1, is the divisor itself.

    Raises:
      PadirError: there is no stage, a stage weight is unknown, the last stage has the weight "none", a stage has the
        weight "masked" but the corruption makes no masks, there are 3 or more stages with the remask "logits", or a
        number is out of its range.
    """

    corruption: Corruption = Uniform()
    transition: StageTransition = FromStrategy()
    stage_weights: tuple[str, ...] = ("all", "all")
    visibility: RandomVisible | None = None
    label_smoothing: checks.ShareBelow1 = 0.0
    z_loss: float = 0.0
    length_weight: float = 1.0
    rejecter_weight: float = 1.0
    normaliser: str | float = "tokens"

    def __post_init__(self):
        if isinstance(self.normaliser, str):
            checks.one_of(NORMALISERS, **{"Objective.normaliser": self.normaliser})
        else:
            checks.within(1, 2**31, **{"Objective.normaliser": self.normaliser})
        if not self.stage_weights:
            raise PadirError("Objective.stage_weights must name at least one stage, such as ('all', 'all')")
        for weight in self.stage_weights:
            checks.one_of(STAGE_WEIGHTS, **{"Objective.stage_weights": weight})
        if self.stage_weights[-1] == "none":
            remedy = "choose another weight, or leave the stage out"
            raise PadirError("a last stage of weight 'none' trains nothing", remedy=remedy)
        remask = getattr(getattr(self.transition, "strategy", None), "remask", None)
        if len(self.stage_weights) > 2 and remask == "logits":
            expected = "at most 2 stages with remask='logits', because a transition knows the logits of one stage only"
            raise PadirError("Objective.stage_weights", expected, self.stage_weights, "use remask='previous'")
        if "masked" in self.stage_weights and self.corruption.noise_kinds == {"pieces"}:
            why = f"{self.corruption} makes no masks, so that only EOS would count"
            remedy = "use 'noised', or a corruption with masks"
            raise PadirError(f"Objective.stage_weights has 'masked', but {why}", remedy=remedy)

    @property
    def first_with_loss(self) -> int:
        """The index of the first stage that has a loss."""
        return next(stage for stage, weights in enumerate(self.stage_weights) if weights != "none")

    def decoded_with(self, config: ModelConfig) -> Strategy:
        return getattr(self.transition, "strategy", config.readout_rules.strategy)

    def check(self, config: ModelConfig, packed: bool) -> None:
        if self.visibility is not None and not config.decontextualised:
            what = "Objective.visibility needs a decontextualised decoder"
            raise PadirError(what, remedy="set ModelConfig.decontextualised")
        config.readout_rules.stage_loss.check(
            f"a {config.readout_rules.name} model",
            packed=packed,
            stage_weights=self.stage_weights,
            normaliser=self.normaliser,
        )

    def compute(self, key: Key[Array, ""], call: Call) -> tuple[Float[Array, ""], Sums]:
        model, batch = call.model, call.batch
        config = model.config
        key_corrupt, key_between, key_dropout = jax.random.split(key, 3)
        key_dropout = batch.own_key(key_dropout)
        canvas, chosen_BL = self.first_canvas(batch.row_keys(key_corrupt), batch, model)
        fits_B = config.readout_rules.stage_loss.fits(canvas, batch.target_BL)
        segment_BL, present_BL = canvas.segment_BL, canvas.segment_BL > 0
        encoder = call.bound(jax.random.fold_in(key_dropout, 0))
        encoded = call.encode(encoder)
        # Padding gets position 0, as a row may be longer than the position table.
        packed = call.num_segments is not None
        position_BL = jnp.where(present_BL, positions_in_segment(segment_BL), 0) if packed else None
        positional = encoder.positional(segment_BL.shape[1], position_BL)
        known = call.params, encoder.cross_kv(encoded.memory_BSD), positional
        parts: list[StageSums] = []
        judged: list[Judged] = []
        keep_BL = None
        for stage, weights in enumerate(self.stage_weights):
            no_loss = weights == "none"
            params, cross_kv, positional = jax.lax.stop_gradient(known) if no_loss else known
            decoder = call.bound(jax.random.fold_in(key_dropout, stage + 1), params)
            states_BLD = decoder.draft_states(
                canvas.tokens_BL,
                canvas.segment_BL,
                cross_kv,
                encoded.segment_BS,
                positional=positional,
                visible_BLL=canvas.visible_BLL,
                deterministic=not call.dropout,
            )
            keep_BL = decoder.keep_logits(states_BLD)
            masked_BL = canvas.initial_BL >= model.ids.end_regular
            weight_BL = stage_weight(weights, present_BL, canvas.editable_BL, chosen_BL, masked_BL, segment_BL)
            if self.normaliser == "sentences" and stage == self.first_with_loss:
                sum_BL = sum_in_segment(weight_BL.astype(jnp.float32), segment_BL)
                weight_BL = weight_BL / jnp.maximum(sum_BL, 1)
            logits = model.bind({"params": params}).all_logits(states_BLD)
            part = config.readout_rules.stage_loss.loss(
                logits,
                canvas,
                batch.target_BL,
                weight_BL,
                label_smoothing=self.label_smoothing,
                z_loss=self.z_loss,
            )
            parts.append(part)
            if keep_BL is not None and config.rejecter_judges == "prediction":
                where_BL = (canvas.segment_BL > 0) & (weights != "none")
                judged.append(rejecter_loss(keep_BL, part.best_BL == part.aligned_BL, where_BL, self.label_smoothing))
            if stage + 1 < len(self.stage_weights):
                key_B = batch.row_keys(jax.random.fold_in(key_between, stage))
                output = logits.output(part.found_BL, keep_BL, config.rejecter_judges)
                canvas, chosen_BL = self.transition(
                    key_B, canvas, output, part.aligned_BL, chosen_BL, progress=call.progress
                )
        if keep_BL is not None and config.rejecter_judges == "token":
            judged.append(rejecter_loss(keep_BL, canvas.tokens_BL == batch.target_BL, canvas.editable_BL))
        return self._total(call, parts, judged, encoded.length, fits_B)

    def first_canvas(
        self, key_B: Key[Array, " B"], batch: Batch, model: Transformer
    ) -> tuple[Canvas, Bool[Array, "B _"]]:
        """The canvas of the first stage, and the positions that the corruption chose."""
        config = model.config
        canvas, chosen_BL = config.readout_rules.stage_loss.first_canvas(
            key_B,
            batch.source_segment_BS,
            batch.target_BL,
            batch.target_segment_BL,
            corruption=self.corruption,
            ids=model.ids,
            max_length=config.max_length,
        )
        if config.decontextualised:
            canvas = restrict_visibility(canvas, chosen_BL)
            if self.visibility is not None:
                canvas = self.visibility(key_B, canvas)
        return canvas, chosen_BL

    def _divisor(self, batch: Batch, weight_S: Float[Array, " S"]) -> Float[Array, ""] | None:
        """The number that `normaliser` names; None for "tokens"."""
        if self.normaliser == "tokens":
            return None
        if not isinstance(self.normaliser, str):
            return jnp.float32(self.normaliser)
        return jnp.float32(batch.target_BL.size) if self.normaliser == "positions" else weight_S[self.first_with_loss]

    def _total(
        self,
        call: Call,
        parts: list[StageSums],
        judged: list[Judged],
        length: LengthOutput,
        fits_B: Bool[Array, " B"] | None,
    ) -> tuple[Float[Array, ""], Sums]:
        """The loss, and the sums of all stages and of the rejecter's decisions."""
        batch = call.batch
        loss_S = jnp.stack([part.loss for part in parts])
        weight_S = jnp.stack([part.weight for part in parts])
        present_BL = batch.target_segment_BL > 0
        fitting_BL = present_BL if fits_B is None else present_BL & fits_B[:, None]
        length_sum = length_loss(length, call.length_BG, self.label_smoothing, self.z_loss)
        divisor = self._divisor(batch, weight_S)
        # A step divides the loss by the divisor, which cancels out in the length loss.
        loss = loss_S.sum() + self.length_weight * (length_sum if divisor is None else length_sum * divisor)
        rejecter = jax.tree.map(lambda *sums: jnp.stack(sums).sum(), *judged) if judged else None
        if rejecter is not None:
            loss += self.rejecter_weight * rejecter.loss
        return loss, Sums(
            loss=loss,
            stage_loss_S=loss_S,
            stage_z_loss_S=jnp.stack([part.z_loss for part in parts]),
            stage_weight_S=weight_S,
            stage_correct_S=jnp.stack([part.correct for part in parts]),
            length_loss=length_sum,
            length_correct=length_correct(length, call.length_BG),
            # The mean is over the tokens of pairs that fit, so that it does not depend on pairs left out.
            tokens=fitting_BL.sum().astype(jnp.float32),
            segments=(call.length_BG > 0).sum().astype(jnp.float32),
            rejecter=rejecter,
            divisor=divisor,
            unaligned=None if fits_B is None else (present_BL.any(-1) & ~fits_B).sum().astype(jnp.float32),
        )

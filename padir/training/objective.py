"""The refinement loss: cross-entropy over S stages of corruption and refinement, plus the length loss.

1. Corrupt the target; the decoder predicts it (stage 1).
2. Fill the canvas from that prediction, without gradient, as a decoding step would; predict again (stage 2, ... S).
3. Sum the stages and the length loss (the paper's section L.1.2).

The encoder and the cross-attention's keys and values are computed once for all stages.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from padir.errors import PadirError
from padir.models.length import LengthOutput
from padir.models.transformer import Transformer
from padir.refinement.canvas import Canvas, from_tokens, veil
from padir.refinement.corruption import RandomVisible, Uniform, noise_kinds
from padir.refinement.protocols import Between, Corruption, Strategy
from padir.refinement.scores import Output, forbid
from padir.refinement.strategies import Padir
from padir.refinement.transitions import Lifted
from padir.text.ids import positions_in_segment, segment_lengths
from padir.training.batch import Batch, Sums
from padir.training.chunked_rows import by_rows
from padir.training.losses import check_loss, length_loss, rejecter_loss, token_sums

STAGE_WEIGHTS = ("all", "noised", "masked", "none")


@dataclasses.dataclass(frozen=True)
class Objective:
    """What is trained: corruption × stages × weights; the defaults are the paper's.

    Attributes:
      corruption: makes the first stage's canvas.
      between: what happens between two stages.
      stage_weights: for each stage which positions count: "all", "noised" (those that the corruption chose, or what is
        between the stages, and EOS), "masked" (those of them that began as a mask, and EOS) or "none", through which no
        gradient flows; their number is the number of stages S.
      visibility: for decontextualised decoders, which positions each position sees in the first stage; None: all others
        that the corruption did not choose.
      label_smoothing, z_loss: as in `cross_entropy`, for tokens and lengths.
      length_weight: factor of the length loss.
      rejecter_weight: factor of the rejecter's loss, for models that have one.
      positions_at_once: most target positions whose logits exist at any time, in whole rows
      (`padir.training.chunked_rows.by_rows`): a
        gradient computes them again. None: those of all rows and stages. It changes memory and speed alone.

    The loss is the sum over positions that count; trainers divide it by the number of target tokens, so that a weight
    of few positions makes the rest, such as the length loss, count for more.

    Raises:
      PadirError: no stage, an unknown weight, a last stage that trains nothing, weights of masks that the corruption
        does not make, or a number out of its range.
    """

    corruption: Corruption = Uniform()
    between: Between = Lifted()
    stage_weights: tuple[str, ...] = ("all", "all")
    visibility: RandomVisible | None = None
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    length_weight: float = 1.0
    rejecter_weight: float = 1.0
    positions_at_once: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "stage_weights", tuple(self.stage_weights))
        if not self.stage_weights:
            raise PadirError("stage_weights must name at least one stage, such as ('all', 'all')")
        unknown = [weight for weight in self.stage_weights if weight not in STAGE_WEIGHTS]
        if unknown:
            raise PadirError(f"stage_weights must be among {', '.join(STAGE_WEIGHTS)}, got {unknown[0]!r}")
        if self.stage_weights[-1] == "none":
            raise PadirError("the last stage trains nothing with weight 'none': name another, or leave the stage out")
        if "masked" in self.stage_weights and noise_kinds(self.corruption) == {"pieces"}:
            raise PadirError(
                f"stage_weights name 'masked', and {self.corruption} makes no masks, so that only EOS would count: use"
                " 'noised', or a corruption of masks"
            )
        check_loss(self.label_smoothing, self.positions_at_once)

    @property
    def strategy(self) -> Strategy:
        """What a model of this objective is decoded with unless told otherwise."""
        return getattr(self.between, "strategy", Padir())

    def __call__(
        self, key, params, batch: Batch, *, model: Transformer, num_segments: int, packed: bool, dropout: bool, progress
    ) -> tuple[Float[Array, ""], Sums]:
        """`refinement_loss` with this objective; progress is the share of the training that is done, in [0, 1)."""
        return refinement_loss(
            key,
            params,
            batch,
            model=model,
            objective=self,
            num_segments=num_segments,
            packed=packed,
            dropout=dropout,
            progress=progress,
        )


def refinement_loss(
    key: Key[Array, ""],
    params: Any,
    batch: Batch,
    *,
    model: Transformer,
    objective: Objective,
    num_segments: int = 1,
    packed: bool = False,
    dropout: bool = True,
    progress: Float[Array, ""] | float = 0.0,
) -> tuple[Float[Array, ""], Sums]:
    """The summed loss of a batch over all stages, and its parts.

    Args:
      key: split into one key per row for the corruption and one per stage for dropout.
      num_segments: G, the largest number of segments in a row (static).
      packed: whether rows may hold several segments (static).
      dropout: whether to drop out, differently in each stage.
      progress: the share of the training that is done, in [0, 1).

    Raises:
      PadirError: the objective has a visibility, and the model's decoder is not decontextualised.
    """
    if objective.visibility is not None and not model.config.decontextualised:
        raise PadirError(
            "visibility is for decontextualised decoders, got another: set ModelConfig.decontextualised, or leave"
            " Objective.visibility out"
        )
    key_corrupt, key_between, key_dropout = jax.random.split(key, 3)
    key_B = jax.random.split(key_corrupt, batch.target_BL.shape[0])
    ids, segment_BL = model.ids, batch.target_segment_BL
    present_BL = segment_BL > 0
    free_BL = present_BL & (batch.target_BL != ids.eos)
    noisy_BL, chosen_BL = objective.corruption(key_B, batch.target_BL, free_BL, segment_BL, ids=ids)
    # What decoding would have started from: the same noise, and at the other positions some instead of the target, so
    # that hiding a position between the stages hides it.
    start_BL, _ = objective.corruption.full()(key_B, batch.target_BL, free_BL, segment_BL, ids=ids)
    canvas = from_tokens(noisy_BL, jnp.where(chosen_BL, noisy_BL, start_BL), free_BL, segment_BL, ids)
    if model.config.decontextualised:
        canvas = veil(canvas, chosen_BL)
        if objective.visibility is not None:
            canvas = objective.visibility(key_B, canvas)

    def stage_params(weights: str) -> Any:
        """The parameters, without a gradient where nothing counts."""
        return jax.lax.stop_gradient(params) if weights == "none" else params

    def bound(stage: int, weights: str = "all") -> Transformer:
        """The model with a stage's own dropout."""
        rngs = {"dropout": jax.random.fold_in(key_dropout, stage)} if dropout else {}
        return model.bind({"params": stage_params(weights)}, rngs=rngs)

    encoded = bound(0).encode(
        batch.source_BS, batch.source_segment_BS, num_segments=num_segments, deterministic=not dropout
    )
    cross_kv = bound(0).cross_kv(encoded.memory_BSD)
    # Padding gets position 0: a row may hold more of it than the position table has rows.
    position_BL = jnp.where(present_BL, positions_in_segment(segment_BL), 0) if packed else None
    parts = []
    keep_BL = None
    for stage, weights in enumerate(objective.stage_weights):
        decoder = bound(stage + 1, weights)
        states_BLD = decoder.draft_states(
            canvas.tokens_BL,
            canvas.segment_BL,
            jax.lax.stop_gradient(cross_kv) if weights == "none" else cross_kv,
            encoded.segment_BS,
            position_BL=position_BL,
            visible_BLL=canvas.visible_BLL,
            deterministic=not dropout,
        )
        keep_BL = decoder.keep_logits(states_BLD)
        weight_BL = stage_weight(weights, present_BL, free_BL, chosen_BL, canvas.start_BL >= ids.end_regular)
        is_last = stage + 1 == len(objective.stage_weights)
        end = functools.partial(
            end_stage, stage_params(weights), model=model, objective=objective, is_last=is_last, progress=progress
        )
        key_stage_B = jax.random.split(jax.random.fold_in(key_between, stage), batch.target_BL.shape[0])
        rows = (states_BLD, keep_BL, canvas, batch.target_BL, chosen_BL, weight_BL, key_stage_B)
        sums, following = by_rows(end, objective.positions_at_once, *rows)
        parts.append(sums)
        if not is_last:
            canvas, chosen_BL = following

    stage_loss_S, stage_z_loss_S, stage_weight_S, stage_correct_S = (
        jnp.stack(part) for part in zip(*parts, strict=True)
    )
    length_BG = segment_lengths(segment_BL, num_segments)
    len_loss = length_loss(encoded.length, length_BG, objective.label_smoothing, objective.z_loss)
    keep_loss = keep_correct = None
    if keep_BL is not None:
        right_BL = canvas.tokens_BL == batch.target_BL
        keep_loss, keep_correct = rejecter_loss(keep_BL, right_BL, free_BL)
    sums = Sums(
        stage_loss_S=stage_loss_S,
        stage_z_loss_S=stage_z_loss_S,
        stage_weight_S=stage_weight_S,
        stage_correct_S=stage_correct_S,
        length_loss=len_loss,
        length_correct=_length_correct(encoded.length, length_BG),
        tokens=present_BL.sum().astype(jnp.float32),
        segments=(length_BG > 0).sum().astype(jnp.float32),
        rejecter_loss=keep_loss,
        rejecter_correct=keep_correct,
    )
    loss = stage_loss_S.sum() + objective.length_weight * len_loss
    return loss if keep_loss is None else loss + objective.rejecter_weight * keep_loss, sums


def end_stage(
    params: Any,
    states_BLD: Float[Array, "B L D"],
    keep_BL: Float[Array, "B L"] | None,
    canvas: Canvas,
    target_BL: Int[Array, "B L"],
    chosen_BL: Bool[Array, "B L"],
    weight_BL: Bool[Array, "B L"],
    key_B: Key[Array, " B"],
    *,
    model: Transformer,
    objective: Objective,
    is_last: bool,
    progress: Any,
) -> tuple[Any, Any]:
    """What needs logits: a stage's sums (`token_sums`), and the next stage's canvas and chosen positions.

    It lets the logits of each row go, which is why it is given the decoder's last vectors.
    """
    logits_BLV = model.bind({"params": params}).logits(states_BLD)
    sums = token_sums(
        logits_BLV, target_BL, canvas.segment_BL > 0, weight_BL, objective.label_smoothing, objective.z_loss
    )
    if is_last:
        return sums, ()
    output = jax.lax.stop_gradient(Output(forbid(logits_BLV, model.ids.special), keep_BL))
    return sums, objective.between(key_B, canvas, output, target_BL, chosen_BL, progress=progress)


def stage_weight(
    weights: str,
    present_BL: Bool[Array, "B L"],
    free_BL: Bool[Array, "B L"],
    chosen_BL: Bool[Array, "B L"],
    sentinel_BL: Bool[Array, "B L"],
) -> Bool[Array, "B L"]:
    """Which positions count in a stage's loss; EOS, which is present and not free, counts in all but "none"."""
    if weights == "none":
        return jnp.zeros_like(present_BL)
    if weights == "noised":
        return chosen_BL | (present_BL & ~free_BL)
    if weights == "masked":
        return (chosen_BL & sentinel_BL) | (present_BL & ~free_BL)
    return present_BL


def _length_correct(output: LengthOutput, length_BG) -> Float[Array, ""]:
    if output.logits_BGM is not None:
        predicted_BG = output.logits_BGM.argmax(-1) + 1
    elif output.mean_BG is not None:
        predicted_BG = jnp.rint(output.mean_BG)
    else:
        return jnp.float32(0)
    return ((predicted_BG == length_BG) & (length_BG > 0)).sum().astype(jnp.float32)

"""A batch of packed rows, and the sums and losses of a training step over it."""

from __future__ import annotations

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from padir.models.length import LengthOutput
from padir.readout.plain import cross_entropy
from padir.refinement.segments import count_in_segment


@flax.struct.dataclass
class Batch:
    """Rows of one or more sentence pairs, as the loader packs them; segment ids begin at 1, and 0 marks padding.

    Attributes:
      part, accumulation_steps: row r of this part is row r * accumulation_steps + part of the batch.
    """

    source_BS: Int[Array, "B S"]
    source_segment_BS: Int[Array, "B S"]
    target_BL: Int[Array, "B L"]
    target_segment_BL: Int[Array, "B L"]
    part: Int[Array, ""] | None = None
    accumulation_steps: int = flax.struct.field(pytree_node=False, default=1)

    def row_keys(self, key: Key[Array, ""]) -> Key[Array, " B"]:
        """One key for each row, the same whether the row is in the whole batch or in a part of it."""
        rows = self.target_BL.shape[0]
        key_B = jax.random.split(key, rows * self.accumulation_steps)
        return key_B if self.part is None else key_B.reshape(rows, self.accumulation_steps)[:, self.part]

    def own_key(self, key: Key[Array, ""]) -> Key[Array, ""]:
        """A key that differs from the keys of the batch's other parts."""
        return key if self.part is None else jax.random.fold_in(key, self.part)


class Judged(NamedTuple):
    """Sums over the decisions of a rejecter: its loss, the number of right decisions, and of all.

    A rejecter that judges shown tokens decides at the editable positions of the last stage. A rejecter that judges
    predictions decides at all target tokens, in every stage with a loss.
    """

    loss: Float[Array, ""]
    correct: Float[Array, ""]
    decisions: Float[Array, ""]


@flax.struct.dataclass
class Sums:
    """Sums over a batch; S is the number of stages.

    Attributes:
      loss: the summed loss, with all weights; `mean_loss` divides it.
      stage_loss_S, stage_z_loss_S: each stage's cross-entropy (z-loss included) and its z-loss alone.
      stage_weight_S: number of positions that count in each stage's loss, or the sum of their weights.
      stage_correct_S: number of target tokens, EOS included, whose logit is the largest (ties count).
      length_loss, length_correct: loss of the length head, and number of lengths that it predicts rightly.
      tokens, segments: number of real target tokens and of sentence pairs.
      rejecter: sums over the decisions of the rejecter; None without one.
      divisor: the number that `Objective.normaliser` names; None for `tokens`.
      unaligned: number of sentence pairs that the loss leaves out, because their target does not fit on the canvas;
        None for readouts whose targets always fit.
      not_finite: number of steps whose loss or gradient was not finite; None in the sums of an objective.
    """

    loss: Float[Array, ""]
    stage_loss_S: Float[Array, " S"]
    stage_z_loss_S: Float[Array, " S"]
    stage_weight_S: Float[Array, " S"]
    stage_correct_S: Float[Array, " S"]
    length_loss: Float[Array, ""]
    length_correct: Float[Array, ""]
    tokens: Float[Array, ""]
    segments: Float[Array, ""]
    rejecter: Judged | None = None
    divisor: Float[Array, ""] | None = None
    unaligned: Float[Array, ""] | None = None
    not_finite: Float[Array, ""] | None = None


NORMALISERS = ("tokens", "weights", "positions", "sentences")
STAGE_WEIGHTS = ("all", "noised", "masked", "inverse", "falling", "none")


def mean_loss(loss: PyTree, sums: Sums) -> PyTree:
    """A batch's loss, or a tree of its gradients, divided as `Objective.normaliser` says: the loss trained on."""
    count = sums.tokens if sums.divisor is None else sums.divisor
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(count, 1), loss)


def length_loss(
    output: LengthOutput, length_BG: Int[Array, "B G"], label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Float[Array, ""]:
    """Summed cross-entropy of the length head; 0 where it predicts nothing.

    Args:
      length_BG: true lengths of the segments, 0 after a row's last segment.
    """
    present_BG = length_BG > 0
    if output.logits_BGM is None:
        return jnp.float32(0)
    return cross_entropy(output.logits_BGM, length_BG - 1, present_BG, label_smoothing, z_loss)[0]


def length_correct(output: LengthOutput, length_BG: Int[Array, "B G"]) -> Float[Array, ""]:
    """Number of segments whose true length is among the most likely lengths; 0 where the head predicts nothing.

    All lengths of a class are equally likely (`ModelConfig.length_unit`), so a right class counts as right.
    """
    if output.logits_BGM is None:
        return jnp.float32(0)
    true_BG1 = jnp.maximum(length_BG - 1, 0)[..., None]
    right_BG = jnp.take_along_axis(output.logits_BGM, true_BG1, axis=-1)[..., 0] == output.logits_BGM.max(-1)
    return (right_BG & (length_BG > 0)).sum().astype(jnp.float32)


def rejecter_loss(
    keep_logits_BL: Float[Array, "B L"],
    right_BL: Bool[Array, "B L"],
    where_BL: Bool[Array, "B L"],
    label_smoothing: float = 0.0,
) -> Judged:
    """The binary cross-entropy of the positions of `where_BL`.

    Args:
      right_BL: positions where the judged token, shown or predicted, is the target's.
      label_smoothing: as in `padir.readout.plain.cross_entropy`, for the two classes "kept" and "rejected".
    """
    against_BL = jnp.where(right_BL, -keep_logits_BL, keep_logits_BL)
    loss_BL = jax.nn.softplus(against_BL)
    if label_smoothing:
        confidence = 1.0 - label_smoothing
        entropy = -(confidence * jnp.log(confidence) + label_smoothing * jnp.log(label_smoothing))
        loss_BL = confidence * loss_BL + label_smoothing * jax.nn.softplus(-against_BL) - entropy
    correct_BL = ((keep_logits_BL > 0) == right_BL) & where_BL
    return Judged(
        loss=(loss_BL * where_BL).sum(),
        correct=correct_BL.sum().astype(jnp.float32),
        decisions=where_BL.sum().astype(jnp.float32),
    )


def stage_weight(
    weights: str,
    present_BL: Bool[Array, "B L"],
    editable_BL: Bool[Array, "B L"],
    chosen_BL: Bool[Array, "B L"],
    masked_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
) -> Bool[Array, "B L"] | Float[Array, "B L"]:
    """The positions that count in a stage's loss, or their weights; EOS counts unless the weight is "none".

    With n of the L editable positions of a segment chosen, "inverse" gives each of them the weight L / n. If n is
    uniform over 1 .. L (`Cmlm`), the expected loss equals the loss of writing the tokens one after the other in a
    random order: each order reaches n masked tokens once, and then writes one of them at random. Masked diffusion
      models have the
    same loss. They choose each position with probability t, with t uniform over (0, 1), and give chosen positions the
    weight 1 / t. Then n is uniform over 0 .. L, and the mean of 1 / t given n is (L + 1) / n. Here t is integrated out.
    "falling" is the linear weight 1 - t of RDM (Zheng et al., arXiv 2302.05737), likewise: the mean of 1 - t given n is
    (L + 1 - n) / (L + 2), and `Cmlm`, which never draws n = 0, needs L / (L + 1) times this weight.

    Args:
      masked_BL: positions that began as a mask.
    """
    if weights == "all":
        return present_BL
    if weights == "none":
        return jnp.zeros_like(present_BL)
    eos_BL = present_BL & ~editable_BL
    if weights == "noised":
        return chosen_BL | eos_BL
    if weights == "masked":
        return (chosen_BL & masked_BL) | eos_BL
    chosen = count_in_segment(chosen_BL, segment_BL).astype(jnp.float32)
    free = count_in_segment(editable_BL, segment_BL)
    inverse = weights == "inverse"
    falling_BL = (free + 1 - chosen) * free / ((free + 1) * (free + 2))
    weight_BL = free / jnp.maximum(chosen, 1) if inverse else falling_BL
    return jnp.where(chosen_BL, weight_BL, eos_BL.astype(jnp.float32))

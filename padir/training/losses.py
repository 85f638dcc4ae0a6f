"""Cross-entropy with label smoothing and z-loss, the length loss, the rejecter loss, and the positions that count."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir import checks
from padir.models.length import LengthOutput
from padir.refinement.scores import best_ids
from padir.refinement.segments import count_in_segment
from padir.training.batch import Batch, Sums

# T5X's NUM_REAL_TARGET_TOKENS, NUM_TOTAL_TARGET_TOKENS and AVERAGE_PER_SEQUENCE.
NORMALISERS = ("tokens", "positions", "sentences")
STAGE_WEIGHTS = ("all", "noised", "masked", "inverse", "falling", "none")


def cross_entropy(
    logits: Float[Array, "*B V"],
    target: Int[Array, "*B"],
    weight: Bool[Array, "*B"] | Float[Array, "*B"],
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Weighted sums of the cross-entropy (z-loss included) and of the z-loss alone.

    With label smoothing the target distribution has 1 - label_smoothing at the target and the remainder spread evenly
    over the other V - 1 ids. The entropy of this distribution is subtracted, so that a perfect prediction costs 0 (as
    in T5X). The z-loss is z_loss * logsumexp(logits)^2.

    >>> loss, _ = cross_entropy(jnp.zeros((1, 100)), jnp.array([7]), jnp.ones(1))
    >>> round(float(loss), 4)  # log 100
    4.6052
    """
    vocabulary = logits.shape[-1]
    logits = logits.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # A comparison selects the target's logit, as the gradient of a gather would be a scatter into an array of zeros.
    is_target = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == target[..., None]
    at_target = jnp.where(is_target, logits, 0.0).sum(-1)
    loss = log_z - at_target
    if label_smoothing:
        confidence, rest = 1.0 - label_smoothing, label_smoothing / (vocabulary - 1)
        elsewhere = (vocabulary - 1) * log_z - (logits.sum(-1) - at_target)
        entropy = -(confidence * jnp.log(confidence) + (vocabulary - 1) * rest * jnp.log(rest + 1e-20))
        loss = confidence * loss + rest * elsewhere - entropy
    z = z_loss * jnp.square(log_z)
    weight = weight.astype(jnp.float32)
    return ((loss + z) * weight).sum(), (z * weight).sum()


def mean_loss(loss: Any, sums: Sums, batch: Batch, normaliser: str) -> Any:
    """A batch's loss, or a tree of its gradients, divided by one of `NORMALISERS`."""
    count = {"tokens": sums.tokens, "positions": batch.target_BL.size, "sentences": sums.segments}[normaliser]
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(count, 1), loss)


def check_loss(objective: Any) -> None:
    """Checks label_smoothing and positions_at_once of an objective.

    Raises:
      PadirError: label_smoothing is not in [0, 1), or positions_at_once is below 1.
    """
    checks.below(0, 1, **checks.fields_of(objective, "label_smoothing"))
    if objective.positions_at_once is not None:
        checks.at_least(1, "None takes all at once", **checks.fields_of(objective, "positions_at_once"))


def token_sums(
    logits_BLV: Float[Array, "B L V"],
    target_BL: Int[Array, "B L"],
    present_BL: Bool[Array, "B L"],
    weight_BL: Bool[Array, "B L"] | Float[Array, "B L"],
    label_smoothing: float,
    z_loss: float,
) -> tuple[Float[Array, ""], ...]:
    """Sums of one stage: cross-entropy, z-loss, weights of the positions that count, number of right argmax tokens."""
    losses = cross_entropy(logits_BLV, target_BL, weight_BL, label_smoothing, z_loss)
    correct = ((best_ids(logits_BLV) == target_BL) & present_BL).sum()
    return *losses, weight_BL.sum().astype(jnp.float32), correct.astype(jnp.float32)


def length_loss(
    output: LengthOutput, length_BG: Int[Array, "B G"], label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Float[Array, ""]:
    """Summed loss of the length head: cross-entropy of a classifier, squared error of a number, 0 for the oracle.

    Args:
      length_BG: true lengths of the segments, 0 after a row's last segment.
    """
    present_BG = length_BG > 0
    if output.logits_BGM is not None:
        return cross_entropy(output.logits_BGM, length_BG - 1, present_BG, label_smoothing, z_loss)[0]
    if output.mean_BG is not None:
        return (jnp.square(output.mean_BG - length_BG) * present_BG).sum()
    return jnp.float32(0)


def length_correct(output: LengthOutput, length_BG: Int[Array, "B G"]) -> Float[Array, ""]:
    """Number of segments whose true length is a most likely one; 0 for the oracle.

    All lengths of a class are equally likely (`ModelConfig.length_unit`), so that a right class counts.
    """
    if (logits_BGM := output.logits_BGM) is not None:
        true_BG1 = jnp.maximum(length_BG - 1, 0)[..., None]
        right_BG = jnp.take_along_axis(logits_BGM, true_BG1, axis=-1)[..., 0] == logits_BGM.max(-1)
    elif output.mean_BG is not None:
        right_BG = jnp.rint(output.mean_BG) == length_BG
    else:
        return jnp.float32(0)
    return (right_BG & (length_BG > 0)).sum().astype(jnp.float32)


def rejecter_loss(
    keep_logits_BL: Float[Array, "B L"], right_BL: Bool[Array, "B L"], where_BL: Bool[Array, "B L"]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Sums over the positions of `where_BL`: binary cross-entropy, number of right decisions, number of decisions.

    Args:
      right_BL: positions where the judged token, shown or predicted, is the target's.
    """
    loss_BL = jax.nn.softplus(jnp.where(right_BL, -keep_logits_BL, keep_logits_BL))
    correct_BL = ((keep_logits_BL > 0) == right_BL) & where_BL
    correct, judged = (each_BL.sum().astype(jnp.float32) for each_BL in (correct_BL, where_BL))
    return (loss_BL * where_BL).sum(), correct, judged


def stage_weight(
    weights: str,
    present_BL: Bool[Array, "B L"],
    free_BL: Bool[Array, "B L"],
    chosen_BL: Bool[Array, "B L"],
    masked_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
) -> Bool[Array, "B L"] | Float[Array, "B L"]:
    """The positions that count in a stage's loss, or their weights; EOS, which is not free, counts in all but "none".

    With n of the L free positions of a segment chosen, "inverse" gives each of them the weight L / n. If n is uniform
    over 1 .. L (`Cmlm`), the expected loss is that of writing the tokens one after the other in a random order: n
    hidden ones are reached once in each order, and one of them, at random, is then written. The same loss arises if
    each position is chosen with probability t, t is uniform over (0, 1), and chosen positions weigh 1 / t, as in masked
    diffusion models: n is then uniform over 0 .. L, and the mean of 1 / t given n is (L + 1) / n. Here t is integrated
    out. "falling" gives chosen positions the weight (L + 1 - n) / L, which favours canvases with little noise.

    Args:
      masked_BL: positions that began as a mask.
    """
    if weights == "none":
        return jnp.zeros_like(present_BL)
    if weights == "noised":
        return chosen_BL | (present_BL & ~free_BL)
    if weights == "masked":
        return (chosen_BL & masked_BL) | (present_BL & ~free_BL)
    if weights in ("inverse", "falling"):
        chosen = count_in_segment(chosen_BL, segment_BL).astype(jnp.float32)
        free = count_in_segment(free_BL, segment_BL)
        weight_BL = (
            free / jnp.maximum(chosen, 1) if weights == "inverse" else (free + 1 - chosen) / jnp.maximum(free, 1)
        )
        return jnp.where(chosen_BL, weight_BL, (present_BL & ~free_BL).astype(jnp.float32))
    return present_BL

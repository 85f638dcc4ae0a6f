"""Cross-entropy with label smoothing and z-loss, the length loss and the rejecter loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir.errors import PadirError
from padir.models.length import LengthOutput
from padir.refinement.scores import best_tokens


def cross_entropy(
    logits: Float[Array, "*B V"],
    target: Int[Array, "*B"],
    weight: Bool[Array, "*B"] | Float[Array, "*B"],
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Weighted sums of the cross-entropy (z-loss included) and of the z-loss alone.

    With label smoothing the target distribution has 1 - label_smoothing at the target and the rest spread evenly over
    the other V - 1 ids, and its entropy is subtracted, so that a perfect prediction costs 0 (as in T5X). The z-loss
    is z_loss * logsumexp(logits)^2.
    """
    vocabulary = logits.shape[-1]
    logits = logits.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    # By comparison and not by gather, whose gradient would be a scatter into an array of zeros.
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


def check_loss(label_smoothing: float, positions_at_once: int | None) -> None:
    """Checks what every objective has.

    Raises:
      PadirError: one of them makes no sense.
    """
    if not 0 <= label_smoothing < 1:
        raise PadirError(f"label_smoothing must lie in [0, 1), got {label_smoothing}")
    if positions_at_once is not None and positions_at_once < 1:
        raise PadirError(f"positions_at_once must be at least 1, got {positions_at_once}: None takes all at once")


def token_sums(
    logits_BLV: Float[Array, "B L V"],
    target_BL: Int[Array, "B L"],
    present_BL: Bool[Array, "B L"],
    weight_BL: Bool[Array, "B L"],
    label_smoothing: float,
    z_loss: float,
) -> tuple[Float[Array, ""], ...]:
    """A stage's cross-entropy, z-loss, number of positions that count, and number of tokens whose argmax is right."""
    losses = cross_entropy(logits_BLV, target_BL, weight_BL, label_smoothing, z_loss)
    correct = ((best_tokens(logits_BLV)[0] == target_BL) & present_BL).sum()
    return *losses, weight_BL.sum().astype(jnp.float32), correct.astype(jnp.float32)


def length_loss(
    output: LengthOutput, length_BG: Int[Array, "B G"], label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Float[Array, ""]:
    """The summed loss of the length head: cross-entropy of a classifier, squared error of a number, 0 for the oracle.

    Args:
      length_BG: true lengths, 0 where a row has no such segment.
    """
    present_BG = length_BG > 0
    if output.logits_BGM is not None:
        return cross_entropy(output.logits_BGM, length_BG - 1, present_BG, label_smoothing, z_loss)[0]
    if output.mean_BG is not None:
        return (jnp.square(output.mean_BG - length_BG) * present_BG).sum()
    return jnp.float32(0)


def rejecter_loss(
    keep_logits_BL: Float[Array, "B L"], right_BL: Bool[Array, "B L"], free_BL: Bool[Array, "B L"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Sums over free positions: binary cross-entropy of keeping a token where it is right, and correct decisions.

    Args:
      right_BL: whether the token that the decoder was shown is the target's.
    """
    loss_BL = jax.nn.softplus(jnp.where(right_BL, -keep_logits_BL, keep_logits_BL))
    correct_BL = (keep_logits_BL > 0) == right_BL
    return (loss_BL * free_BL).sum(), (correct_BL & free_BL).sum().astype(jnp.float32)

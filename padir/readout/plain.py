"""The plain readout, in which the canvas is the sentence, and the cross-entropy of tokens."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir.readout.protocols import Readout, StageSums
from padir.readout.tally import Logits, Tally
from padir.refinement.canvas import Canvas, from_tokens
from padir.refinement.corruption import corrupted
from padir.refinement.protocols import Corruption
from padir.text.ids import AnyArray, Ids


@dataclasses.dataclass(frozen=True)
class PlainGeometry:
    """Every editable token belongs to the sentence, whose length a head predicts."""

    is_sentence: ClassVar[bool] = True

    def ids(self, ids: Ids) -> Ids:
        return dataclasses.replace(ids, writes_blank=False) if ids.writes_blank else ids

    def canvas_length(self, source: int | Array) -> None:
        return None

    def longest_source(self, max_length: int) -> int:
        return max_length

    def collapse_mask(self, tokens: AnyArray, editable: AnyArray, ids: Ids) -> AnyArray:
        return editable


@dataclasses.dataclass(frozen=True)
class TokenLoss:
    """The first canvas is the corrupted target, and the loss is the cross-entropy of its tokens."""

    def check(self, model: str, *, packed: bool, stage_weights: tuple[str, ...], normaliser: str | float) -> None:
        """Takes every objective."""

    def first_canvas(
        self, key_B, source_segment_BS, target_BL, segment_BL, *, corruption: Corruption, ids: Ids, max_length: int
    ):
        editable_BL = (segment_BL > 0) & (target_BL != ids.eos)
        noisy_BL, chosen_BL = corrupted(corruption, key_B, target_BL, editable_BL, segment_BL, ids)
        # `initial_BL` has the same noise as the canvas, and noise in place of the target at all other positions, so
        # that a position that is masked again between two stages does not show its target.
        initial_BL, _ = corrupted(corruption.full(), key_B, target_BL, editable_BL, segment_BL, ids)
        initial_BL = jnp.where(chosen_BL, noisy_BL, initial_BL)
        return from_tokens(noisy_BL, initial_BL, editable_BL, segment_BL, ids), chosen_BL

    def fits(self, canvas: Canvas, target_BL: Int[Array, "B L"]) -> None:
        return None

    def loss(self, logits: Logits, canvas: Canvas, target_BL, weight_BL, *, label_smoothing=0.0, z_loss=0.0):
        """`token_sums` of the stage: each position stands for one target token."""
        return token_sums(
            logits, target_BL, canvas.segment_BL > 0, weight_BL, label_smoothing=label_smoothing, z_loss=z_loss
        )


PLAIN = Readout(
    name="plain",
    geometry=PlainGeometry(),
    stage_loss=TokenLoss(),
    limits={"prefix_beam": 1, "blank_penalty": 0},
)


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
    return _weighted(Tally.of(logits, target), logits.shape[-1], weight, label_smoothing, z_loss)


def _weighted(tally: Tally, size: int, weight, label_smoothing: float, z_loss: float):
    """`cross_entropy` of the tally of `size` logits."""
    loss = tally.log_z - tally.at_target
    if label_smoothing:
        confidence, rest = 1.0 - label_smoothing, label_smoothing / (size - 1)
        elsewhere = (size - 1) * tally.log_z - (tally.total - tally.at_target)
        entropy = -(confidence * jnp.log(confidence) + (size - 1) * rest * jnp.log(rest + 1e-20))
        loss = confidence * loss + rest * elsewhere - entropy
    z = z_loss * jnp.square(tally.log_z)
    weight = weight.astype(jnp.float32)
    return ((loss + z) * weight).sum(), (z * weight).sum()


def token_sums(
    logits: Logits,
    target_BL: Int[Array, "B L"],
    present_BL: Bool[Array, "B L"],
    weight_BL: Bool[Array, "B L"] | Float[Array, "B L"],
    *,
    label_smoothing: float,
    z_loss: float,
) -> StageSums:
    """The sums of a stage in which each position of `present_BL` stands for one target token."""
    tally = logits.tally(target_BL)
    loss, z = _weighted(tally, logits.size, weight_BL, label_smoothing, z_loss)
    return StageSums(
        loss=loss,
        z_loss=z,
        weight=weight_BL.sum().astype(jnp.float32),
        # An argmax would be another pass over all logits: 15 % of a step's estimate for a TPU at 1 + 1 layers.
        correct=((tally.at_target == tally.most) & present_BL).sum().astype(jnp.float32),
        aligned_BL=target_BL,
        best_BL=tally.best,
        found_BL=tally.found,
    )

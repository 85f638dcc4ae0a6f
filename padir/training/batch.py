"""A batch of packed rows, and the sums that a training step adds up over it."""

from __future__ import annotations

import flax.struct
from jaxtyping import Array, Float, Int


@flax.struct.dataclass
class Batch:
    """Rows of one or more sentence pairs, as the loader packs them; segments count from 1, 0 is padding."""

    source_BS: Int[Array, "B S"]
    source_segment_BS: Int[Array, "B S"]
    target_BL: Int[Array, "B L"]
    target_segment_BL: Int[Array, "B L"]


@flax.struct.dataclass
class Sums:
    """Sums over a batch; S is the number of stages.

    Attributes:
      stage_loss_S, stage_z_loss_S: cross-entropy (z-loss included) and z-loss.
      stage_weight_S: positions that count in each stage, which the losses are sums over.
      stage_correct_S: target tokens, EOS included, whose argmax is right.
      length_loss, length_correct: of the length head.
      tokens, segments: real target tokens and sentence pairs.
      rejecter_loss, rejecter_correct: of the rejecter in the last stage, over free positions, of which there are tokens
        - segments; None where the model has none.
      not_finite: steps whose loss or gradient was not finite; None until the trainer has looked.
    """

    stage_loss_S: Float[Array, " S"]
    stage_z_loss_S: Float[Array, " S"]
    stage_weight_S: Float[Array, " S"]
    stage_correct_S: Float[Array, " S"]
    length_loss: Float[Array, ""]
    length_correct: Float[Array, ""]
    tokens: Float[Array, ""]
    segments: Float[Array, ""]
    rejecter_loss: Float[Array, ""] | None = None
    rejecter_correct: Float[Array, ""] | None = None
    not_finite: Float[Array, ""] | None = None

"""A batch of packed rows, the arrays of a training stage, and the sums that a training step computes over a batch."""

from __future__ import annotations

import flax.struct
import jax
from jaxtyping import Array, Bool, Float, Int, Key

from padir.models.encoder import Encoded
from padir.models.transformer import Transformer
from padir.refinement.canvas import Canvas


@flax.struct.dataclass
class Batch:
    """Rows of one or more sentence pairs, as the loader packs them; segment ids begin at 1, and 0 marks padding.

    Attributes:
      part, parts: row r of this part is row r * parts + part of the batch (`padir.training.step`).
    """

    source_BS: Int[Array, "B S"]
    source_segment_BS: Int[Array, "B S"]
    target_BL: Int[Array, "B L"]
    target_segment_BL: Int[Array, "B L"]
    part: Int[Array, ""] | None = None
    parts: int = flax.struct.field(pytree_node=False, default=1)

    def row_keys(self, key: Key[Array, ""]) -> Key[Array, " B"]:
        """One key for each row, the same whether the row is in the whole batch or in a part of it."""
        rows = self.target_BL.shape[0]
        key_B = jax.random.split(key, rows * self.parts)
        return key_B if self.part is None else key_B.reshape(rows, self.parts)[:, self.part]

    def own_key(self, key: Key[Array, ""]) -> Key[Array, ""]:
        """A key that other parts of the batch do not have."""
        return key if self.part is None else jax.random.fold_in(key, self.part)


@flax.struct.dataclass
class StageRows:
    """Arrays of one training stage that `Objective.end_stage` needs besides the decoder's states; axis B comes first.

    Attributes:
      canvas: the canvas that the decoder was shown.
      keep_BL: logits of the rejecter head; None if the model has none.
      target_BL: the target tokens; a CTC model's canvas has another length.
      chosen_BL: positions that the corruption, or the transition before this stage, chose.
      weight_BL: positions that count in the loss, or their weights.
      key_B: random keys of the transition to the next stage.
    """

    canvas: Canvas
    keep_BL: Float[Array, "B L"] | None
    target_BL: Int[Array, "B _"]
    chosen_BL: Bool[Array, "B L"]
    weight_BL: Bool[Array, "B L"] | Float[Array, "B L"]
    key_B: Key[Array, " B"]


@flax.struct.dataclass
class Sums:
    """Sums over a batch; S is the number of stages.

    Attributes:
      stage_loss_S, stage_z_loss_S: each stage's cross-entropy (z-loss included) and its z-loss alone.
      stage_weight_S: number of positions that count in each stage's loss, or the sum of their weights.
      stage_correct_S: number of target tokens, EOS included, whose argmax is right.
      length_loss, length_correct: loss of the length head, and number of lengths that it predicts rightly.
      tokens, segments: number of real target tokens and of sentence pairs.
      rejecter_loss, rejecter_correct, rejecter_judged: loss of the rejecter, number of its right decisions and of all
        its decisions; None without a rejecter. A rejecter that judges the tokens shown decides on the free positions of
        the last stage, one that judges predictions on the positions that count in the loss of any stage.
      unaligned: number of sentence pairs that the CTC loss leaves out; None for other objectives.
      not_finite: number of steps whose loss or gradient was not finite; None in the sums that an objective returns.
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
    rejecter_judged: Float[Array, ""] | None = None
    unaligned: Float[Array, ""] | None = None
    not_finite: Float[Array, ""] | None = None


def encode_sources(bound: Transformer, batch: Batch, num_segments: int | None, dropout: bool) -> Encoded:
    """The encoder's output for a batch's sources; the arguments are those of an objective."""
    return bound.encode(
        batch.source_BS, batch.source_segment_BS, num_segments=num_segments or 1, deterministic=not dropout
    )

"""The strategy of a learned rejecter: a head of the model says which tokens are kept."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax

from padir import checks
from padir.errors import PadirError
from padir.refinement.canvas import Canvas, end, hide, restore, write
from padir.refinement.scores import Output
from padir.refinement.segments import count_in_segment


@dataclasses.dataclass(frozen=True)
class Rejecter:
    """The learned rejecter: replaces or hides the tokens that the model's rejecter head rejects.

    The model knows what its head judges (`ModelConfig.rejecter_judges`):

    - "token": the tokens that the decoder was shown in this pass. The argmax replaces those that are rejected. The
      first step writes every position, because the draft is noise.
    - "prediction": the argmax of this pass, as in the published implementation. Every pass writes the argmax at every
      position, and every pass but the last hides the rejected positions again.

    A sentence ends when a pass changes none of its tokens, because every further pass would show the decoder the same
    tokens. With "prediction", the result is then the argmax of this pass, with no position hidden again.

    Attributes:
      threshold: smallest probability of keeping a token at which the token stays; 0 keeps all, above 1 keeps none.

    Raises:
      PadirError (at the first step): the model has no rejecter head.
    """

    threshold: float = 0.5
    needs: ClassVar[frozenset[str]] = frozenset({"rejecter"})

    def __post_init__(self):
        checks.at_least(0, "0.5 keeps the tokens that are more likely right", **checks.fields_of(self, "threshold"))

    def init(self, key_B, canvas: Canvas) -> tuple[()]:
        del key_B, canvas
        return ()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps):
        del key_B
        if output.keep_logits_BL is None:
            raise PadirError(
                "the rejecter strategy needs keep logits, which this decoder lacks: train a model with a rejecter head,"
                " or choose another strategy"
            )
        rejected_BL = jax.nn.sigmoid(output.keep_logits_BL) < self.threshold
        if output.judges == "prediction":
            written = write(canvas, canvas.free_BL, *output.best())
            after = hide(written, rejected_BL)
        else:
            written = after = write(canvas, rejected_BL | (step == 0), *output.best())
        ended_BL = count_in_segment(after.tokens_BL != canvas.tokens_BL, canvas.segment_BL) == 0
        after = restore(after, ended_BL | (step == num_steps - 1), written)
        return end(after, ended_BL), memory

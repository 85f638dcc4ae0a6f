"""Strategies that put fresh noise in place of doubtful tokens, for models that are trained on random pieces."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Bool

from padir import checks
from padir.refinement.canvas import Canvas, end, renoise, restore, write
from padir.refinement.draws import random_pieces
from padir.refinement.scores import Output
from padir.refinement.segments import count_in_segment
from padir.refinement.strategies.confidence import entropies, within_entropy
from padir.refinement.strategies.sampling import sample_tokens


@dataclasses.dataclass(frozen=True)
class Renoise:
    """Accepts the tokens of lowest entropy within a bound, and gives all other positions fresh random pieces.

    A step judges all free positions again, those accepted before, too, so that it can take back a token that the later
    tokens contradict; `EntropyBound`, which has the same bound, keeps every token. Positions whose noise is a mask are
    hidden again instead. A segment is stable, and finished, when the decoder was shown no noise and its argmax is the
    tokens that it was shown. The last step writes the argmax everywhere. The memory is ended_BL, the positions of
    finished segments. The documentation of `EntropyBoundScheduler` in the library diffusers describes this acceptance
    as that of DiffusionGemma, with tokens drawn at a falling temperature.

    Attributes:
      gamma: bound in nats on the sum of the accepted positions' entropies without the largest of them, above 0.
        With a bound near 0 every step accepts one and the same position. A model trained with label smoothing needs a
        larger bound, as does `EntropyBound`.
      temperature: temperature of the draws of the accepted tokens; 0 for the argmax.
    """

    gamma: float = 0.5
    temperature: float = 0.0

    def __post_init__(self):
        checks.above(0, **checks.fields_of(self, "gamma"))
        checks.below(0, math.inf, **checks.fields_of(self, "temperature"))

    def init(self, key_B, canvas: Canvas) -> Bool[Array, "B L"]:
        del key_B
        return jnp.zeros_like(canvas.free_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: Bool[Array, "B L"], *, step, num_steps):
        free_BL, segment_BL = canvas.free_BL, canvas.segment_BL
        best_BL, score_BL = output.best()
        unsettled_BL = free_BL & ((best_BL != canvas.tokens_BL) | (canvas.score_BL == 0))
        ended_BL = memory | (count_in_segment(unsettled_BL, segment_BL) == 0)
        accepted_BL = within_entropy(entropies(output.logits_BLV), free_BL, segment_BL, self.gamma)
        drawn = sample_tokens(key_B, output.logits_BLV, segment_BL, self.temperature)
        noisy = renoise(write(canvas, accepted_BL, *drawn), ~accepted_BL, random_pieces(key_B, segment_BL, canvas.ids))
        final = write(canvas, ~memory, best_BL, score_BL)
        after = restore(noisy, ended_BL | (step == num_steps - 1), final)
        return end(after, ended_BL), ended_BL

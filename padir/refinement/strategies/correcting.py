"""The Gibbs corrector, which draws written tokens again given the others."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from padir import checks
from padir.refinement.canvas import Canvas, renoise, restore, write
from padir.refinement.draws import KIND, PLACE, choose, position_keys, random_pieces, uniform_draws
from padir.refinement.scores import Output, token_scores
from padir.refinement.segments import share_of
from padir.refinement.strategies.sampling import sample_tokens


@dataclasses.dataclass(frozen=True)
class GibbsCorrector:
    """Gibbs sampling of a noisy canvas: draws a share of the positions again, each given all others, and noises some.

    Let r be the rate of uniform noise over n pieces, so that a clean sentence x becomes the canvas z with probability
    prod_i [(1 - r) 1{z_i = x_i} + r / n]. The model's p(x_i | z) has seen z_i. Given the other positions alone, x_i has
    a probability proportional to

        p(x_i | z) / [(1 - r) 1{z_i = x_i} + r / n],

    by Bayes' rule. A pass draws x_i from this distribution and makes z_i from it: x_i with probability 1 - r, a random
    piece with probability r. If one position is drawn at a time and p is exact at rate r, this leaves the distribution
    of noisy canvases unchanged; the more positions a pass draws, the more dependence between them is lost. The first
    canvas is noise throughout (r = 1), so the first pass draws every position from p itself. The last writes the argmax
    of p everywhere. All passes are taken. There is no memory. A mask would show which positions are noise, and a token
    that is no mask would then be certain: the strategy needs a model of random pieces.

    Attributes:
      rate: rate of the noise that the canvas is kept at, in (0, 1].
      share: share of a sentence's free positions that a pass draws again, rounded up, in (0, 1].
      temperature: temperature of the draws, at least 0.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"pieces"})
    rate: float = 0.1
    share: float = 0.3
    temperature: float = 1.0

    def __post_init__(self):
        checks.above(0, **checks.fields_of(self, "rate", "share"))
        checks.within(0, 1, **checks.fields_of(self, "rate", "share"))
        checks.below(0, math.inf, **checks.fields_of(self, "temperature"))

    def init(self, key_B, canvas: Canvas) -> tuple[()]:
        del key_B, canvas
        return ()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps):
        free_BL, segment_BL = canvas.free_BL, canvas.segment_BL
        count_BL = share_of(self.share, free_BL, segment_BL)
        drawn_BL = choose(key_B, free_BL, segment_BL, count_BL, PLACE) | (step == 0)
        others_BLV = self._without_own(output.logits_BLV, canvas, jnp.where(step == 0, 1.0, self.rate))
        token_BL, _ = sample_tokens(key_B, others_BLV, segment_BL, self.temperature)
        written = write(canvas, drawn_BL, token_BL, token_scores(output.logits_BLV, token_BL))
        noised_BL = drawn_BL & (uniform_draws(position_keys(key_B, segment_BL, KIND)) < self.rate)
        noisy = renoise(written, noised_BL, random_pieces(key_B, segment_BL, canvas.ids))
        return restore(noisy, free_BL & (step == num_steps - 1), write(canvas, free_BL, *output.best())), memory

    @staticmethod
    def _without_own(logits_BLV: Float[Array, "B L V"], canvas: Canvas, rate: Any) -> Float[Array, "B L V"]:
        """Divides each position's own token, as evidence at this rate of noise, out of the model's probabilities."""
        pieces = canvas.ids.end_regular - canvas.ids.first_regular
        own_BLV = jnp.arange(logits_BLV.shape[-1]) == canvas.tokens_BL[..., None]
        return logits_BLV - jnp.log(jnp.where(own_BLV, 1 - rate, 0.0) + rate / pieces)

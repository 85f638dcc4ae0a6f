"""Correctors: a Gibbs sampler of noisy canvases, and correcting passes between the steps of another strategy.

Both were measured beside the strategies of padir, and win in none of the cases.
"""

from __future__ import annotations

from typing import Any, ClassVar

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from padir import checks
from padir.refinement import Canvas, MaskPredict, Never, Output, Proposal, Strategy, remask, restore, write
from padir.refinement.canvas import choose_rows, renoise
from padir.refinement.loop import propose
from padir.refinement.scores import token_scores
from padir.refinement.segments import KIND, PLACE, choose, choose_share, fold_keys, random_pieces, share_of
from padir.refinement.strategies.sampling import sample_tokens

_CORRECTION = 6  # a step's key is folded with this number, so that the draws of a correction are its own


@checks.settings
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
      share: share of a sentence's editable positions that a pass draws again, rounded up, in (0, 1].
      temperature: temperature of the draws, at least 0.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"pieces"})
    stop = Never()

    rate: checks.ShareAbove0 = 0.1
    share: checks.ShareAbove0 = 0.3
    temperature: checks.NotNegative = 1.0

    def init(self, key_B, canvas: Canvas) -> tuple[()]:
        del key_B, canvas
        return ()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps) -> Proposal:
        editable_BL, segment_BL = canvas.editable_BL, canvas.segment_BL
        count_BL = share_of(self.share, editable_BL, segment_BL)
        drawn_BL = choose(key_B, editable_BL, segment_BL, count_BL, PLACE) | (step == 0)
        others_BLV = self.without_own(output.logits_BLV, canvas, jnp.where(step == 0, 1.0, self.rate))
        token_BL, _ = sample_tokens(key_B, Output(others_BLV), segment_BL, self.temperature, drawn_BL)
        written = write(canvas, drawn_BL, token_BL, token_scores(output.logits_BLV, token_BL))
        noised_BL = choose_share(key_B, drawn_BL, segment_BL, self.rate, KIND)
        noisy = renoise(written, noised_BL, random_pieces(key_B, segment_BL, canvas.ids, noised_BL))
        return Proposal(noisy, write(canvas, editable_BL, *output.best()), memory)

    @staticmethod
    def without_own(logits_BLV: Float[Array, "B L V"], canvas: Canvas, rate: Any) -> Float[Array, "B L V"]:
        """Divides each position's own token, as evidence at this rate of noise, out of the model's probabilities."""
        pieces = len(canvas.ids.noise)
        own_BLV = jnp.arange(logits_BLV.shape[-1]) == canvas.tokens_BL[..., None]
        return logits_BLV - jnp.log(jnp.where(own_BLV, 1 - rate, 0.0) + rate / pieces)


@flax.struct.dataclass
class CorrectorMemory:
    """Memory of `PredictorCorrector`.

    Attributes:
      inner: the memories of the wrapped strategy and of its stopping rule.
      ended_BL: positions of sentences that this rule has finished.
      masked_BL: written positions that are masked in order to be drawn again.
    """

    inner: PyTree
    ended_BL: Bool[Array, "B L"]
    masked_BL: Bool[Array, "B L"]


@checks.settings
class PredictorCorrector:
    """Adds correcting passes to another strategy, which hide a share of the written tokens and draw them again.

    With n corrections after each of its steps, N passes are ceil(N / (1 + n)) steps of the strategy. A correcting pass
    changes only positions that the strategy has written, and those that it has left masked stay masked. So on exact
    conditionals a pass that draws one position at temperature 1 leaves the joint distribution of the written tokens
    unchanged if it was right, and brings it nearer if not. All passes are taken: when the strategy's rule has finished
    a sentence, every further pass corrects it.

    Attributes:
      strategy: the strategy; it may not keep orders or tokens of its own, as EasyFirst and IndependentParallel do.
      corrections: n, number of correcting passes after each step, at least 1.
      share: share of a sentence's written positions that a correcting pass draws again, rounded up, in (0, 1].
      temperature: temperature of these draws, at least 0; 0 for the argmax.
    """

    strategy: Strategy = MaskPredict()
    corrections: checks.Count = 1
    share: checks.ShareAbove0 = 0.1
    temperature: checks.NotNegative = 0.0
    stop = Never()

    @property
    def needs(self) -> frozenset[str]:
        return getattr(self.strategy, "needs", frozenset())

    def init(self, key_B, canvas: Canvas) -> CorrectorMemory:
        nowhere_BL = jnp.zeros_like(canvas.editable_BL)
        inner = self.strategy.init(key_B, canvas), self.strategy.stop.init(canvas)
        return CorrectorMemory(inner, nowhere_BL, nowhere_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: CorrectorMemory, *, step, num_steps) -> Proposal:
        cycle, steps = 1 + self.corrections, jnp.int32(step)
        place = {"step": step // cycle, "num_steps": (num_steps + self.corrections) // cycle}
        stepped, inner = propose(key_B, canvas, output, self.strategy, memory.inner, **place)
        key_B = fold_keys(key_B, _CORRECTION)
        drawn = sample_tokens(key_B, output, canvas.segment_BL, self.temperature)
        corrected = write(canvas, memory.masked_BL, *drawn)
        inner_BL = ~memory.ended_BL & (steps % cycle == 0)
        after = restore(corrected, inner_BL, stepped)
        inner = choose_rows(inner_BL.any(-1), inner, memory.inner)
        written_BL = after.written_BL
        ended_BL = memory.ended_BL | (inner_BL & stepped.done_BL)
        corrects_BL = ended_BL | (steps % cycle < self.corrections)  # where the next pass corrects
        count_BL = share_of(self.share, written_BL, canvas.segment_BL)
        masked_BL = choose(key_B, written_BL, canvas.segment_BL, count_BL, PLACE) & corrects_BL
        return Proposal(remask(after, masked_BL), after, CorrectorMemory(inner, ended_BL, masked_BL))

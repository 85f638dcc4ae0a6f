"""Correctors, which draw written tokens again given the others: alone, or between the steps of another strategy."""

from __future__ import annotations

import dataclasses
import math

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from padir import checks
from padir.errors import PadirError
from padir.refinement.canvas import Canvas, choose_rows, hide, renoise, restore, write
from padir.refinement.draws import CORRECTION, KIND, PLACE, choose, position_keys, random_pieces, uniform_draws
from padir.refinement.protocols import Strategy
from padir.refinement.scores import Output, token_scores
from padir.refinement.segments import share_of
from padir.refinement.strategies.registry import parse_strategy
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
    pass draws every position, and the last writes the argmax of p everywhere. A position whose noise is a mask is
    hidden instead of noised, and a mask tells nothing about x_i. All passes are taken. There is no memory.

    Attributes:
      rate: rate of the noise that the canvas is kept at, in (0, 1].
      share: share of a sentence's free positions that a pass draws again, rounded up, in (0, 1].
      temperature: temperature of the draws, at least 0.
    """

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
        drawn_BL = _some(key_B, free_BL, segment_BL, self.share) | (step == 0)
        token_BL, _ = sample_tokens(key_B, self._without_own(output.logits_BLV, canvas), segment_BL, self.temperature)
        written = write(canvas, drawn_BL, token_BL, token_scores(output.logits_BLV, token_BL))
        noised_BL = drawn_BL & (uniform_draws(position_keys(key_B, segment_BL, KIND)) < self.rate)
        noisy = renoise(written, noised_BL, random_pieces(key_B, segment_BL, canvas.ids))
        return restore(noisy, free_BL & (step == num_steps - 1), write(canvas, free_BL, *output.best())), memory

    def _without_own(self, logits_BLV: Float[Array, "B L V"], canvas: Canvas) -> Float[Array, "B L V"]:
        """Divides the likelihood of each position's own token out of the model's probabilities."""
        pieces = canvas.ids.end_regular - canvas.ids.first_regular
        own_BLV = jnp.arange(logits_BLV.shape[-1]) == canvas.tokens_BL[..., None]
        return logits_BLV - jnp.log(jnp.where(own_BLV, 1 - self.rate, 0.0) + self.rate / pieces)


@flax.struct.dataclass
class CorrectorMemory:
    """Memory of `PredictorCorrector`.

    Attributes:
      inner: memory of the wrapped strategy.
      ended_B: rows that the wrapped strategy has finished.
      hidden_BL: written positions that are hidden in order to be drawn again.
    """

    inner: PyTree
    ended_B: Bool[Array, " B"]
    hidden_BL: Bool[Array, "B L"]


@dataclasses.dataclass(frozen=True)
class PredictorCorrector:
    """Adds correcting passes to another strategy, which hide a share of the written tokens and draw them again.

    With n corrections after each of its steps, N passes are ceil(N / (1 + n)) steps of the strategy. A correcting pass
    changes only positions that the strategy has written, and those that it has left hidden stay hidden. So on exact
    conditionals a pass that draws one position at temperature 1 leaves the joint distribution of the written tokens
    unchanged if it was right, and brings it nearer if not. Corrections go on when the strategy has finished a row: all
    passes are taken.

    Attributes:
      strategy: the strategy as text, such as "threshold:tau=0.9"; neither easy_first nor independent_parallel, which
        have orders and tokens of their own, nor predictor_corrector.
      corrections: n, number of correcting passes after each step, at least 1.
      share: share of a sentence's written positions that a correcting pass draws again, rounded up, in (0, 1].
      temperature: temperature of these draws, at least 0; 0 for the argmax.

    Raises:
      PadirError: a number is out of its range, or the text is no strategy or one that cannot be corrected.
    """

    strategy: str = "mask_predict"
    corrections: int = 1
    share: float = 0.1
    temperature: float = 0.0

    def __post_init__(self):
        checks.at_least(1, **checks.fields_of(self, "corrections"))
        checks.above(0, **checks.fields_of(self, "share"))
        checks.within(0, 1, **checks.fields_of(self, "share"))
        checks.below(0, math.inf, **checks.fields_of(self, "temperature"))
        name = self.strategy.partition(":")[0]
        if name in ("easy_first", "independent_parallel", "predictor_corrector"):
            raise PadirError("PredictorCorrector.strategy", "a strategy that can be corrected", self.strategy)
        object.__setattr__(self, "needs", getattr(self.wrapped(), "needs", frozenset()))

    def wrapped(self) -> Strategy:
        """The strategy whose steps are corrected."""
        return parse_strategy(self.strategy)

    def init(self, key_B, canvas: Canvas) -> CorrectorMemory:
        nowhere_BL = jnp.zeros_like(canvas.free_BL)
        return CorrectorMemory(self.wrapped().init(key_B, canvas), canvas.done_B, nowhere_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: CorrectorMemory, *, step, num_steps):
        cycle = 1 + self.corrections
        place, steps = {"step": step // cycle, "num_steps": (num_steps + self.corrections) // cycle}, jnp.int32(step)
        stepped = self.wrapped().step(key_B, canvas, output, memory.inner, **place)
        key_B = jax.vmap(lambda key: jax.random.fold_in(key, CORRECTION))(key_B)
        drawn = sample_tokens(key_B, output.logits_BLV, canvas.segment_BL, self.temperature)
        corrected = write(canvas, memory.hidden_BL, *drawn)
        inner_B = ~memory.ended_B & (steps % cycle == 0)
        after, inner = choose_rows(inner_B, stepped, (corrected, memory.inner))
        written_BL = canvas.free_BL & (after.score_BL < 0)
        corrects = (steps % cycle < self.corrections) & (steps < num_steps - 1)  # whether the next pass corrects
        hidden_BL = _some(key_B, written_BL, canvas.segment_BL, self.share) & corrects
        ended_B = jnp.where(inner_B, after.done_B, memory.ended_B)
        after = dataclasses.replace(hide(after, hidden_BL), done_B=canvas.done_B)
        return after, CorrectorMemory(inner, ended_B, hidden_BL)


def _some(key_B, among_BL, segment_BL, share: float) -> Bool[Array, "B L"]:
    """Chooses a random share of each segment's positions among `among_BL`, rounded up."""
    return choose(key_B, among_BL, segment_BL, share_of(share, among_BL, segment_BL), PLACE)

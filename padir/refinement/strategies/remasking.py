"""Strategies for masked canvases that hide written positions again: at random, or when others look better."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Bool

from padir import checks
from padir.refinement.canvas import Canvas, end_without, hide, write
from padir.refinement.draws import PLACE, position_keys, uniform_draws
from padir.refinement.scores import Output, token_scores
from padir.refinement.segments import count_in_segment, worst
from padir.refinement.strategies.sampling import sample_tokens
from padir.refinement.strategies.schedules import check_schedule, still_hidden


@dataclasses.dataclass(frozen=True)
class Remdm:
    """Writes hidden positions at random, and hides each written position again with a stated probability.

    After t of T passes each position is written with probability a = t / T. In the next pass, which ends with the
    probability b = (t + 1) / T, a written position is hidden with probability s = min(sigma, (1 - b) / a), and a hidden
    one is written with probability (b - (1 - s) a) / (1 - a). So it is written afterwards with probability

        a (1 - s) + (1 - a) (b - (1 - s) a) / (1 - a) = b

    whatever sigma is, and the model sees as many masks as without remasking; (1 - b) / a is the largest s for which the
    second probability is at most 1. The last pass writes all hidden positions. Without remasking a sentence ends when
    no position is hidden. The memory is hidden_BL, the positions that are not written. This is the capped schedule of
    ReMDM, as its authors' page https://remdm.github.io describes it (the paper is arXiv 2503.00307).

    Attributes:
      sigma: largest probability of hiding a written position, in [0, 1]; 0 never hides one.
      temperature: temperature of the draws, at least 0; 0 for the argmax.
    """

    sigma: float = 0.1
    temperature: float = 1.0

    def __post_init__(self):
        checks.within(0, 1, **checks.fields_of(self, "sigma"))
        checks.below(0, math.inf, **checks.fields_of(self, "temperature"))

    def init(self, key_B, canvas: Canvas) -> Bool[Array, "B L"]:
        del key_B
        return canvas.free_BL

    def step(self, key_B, canvas: Canvas, output: Output, memory: Bool[Array, "B L"], *, step, num_steps):
        last = jnp.equal(step, num_steps - 1)
        before, after = step / num_steps, (step + 1) / num_steps
        sigma = jnp.minimum(self.sigma, (1 - after) / jnp.maximum(before, 1e-9))
        shown = (after - (1 - sigma) * before) / (1 - before)
        draw_BL = uniform_draws(position_keys(key_B, canvas.segment_BL, PLACE))
        chosen_BL = memory & ((draw_BL < shown) | last)
        again_BL = canvas.free_BL & ~memory & (draw_BL < sigma) & ~last
        drawn = sample_tokens(key_B, output.logits_BLV, canvas.segment_BL, self.temperature)
        hidden_BL = (memory & ~chosen_BL) | again_BL
        after = hide(write(canvas, chosen_BL, *drawn), again_BL)
        if self.sigma == 0:
            after = end_without(after, hidden_BL)
        return after, hidden_BL


@dataclasses.dataclass(frozen=True)
class PathPlanning:
    """Lets written and hidden positions compete for a place in the canvas, by their log-probabilities in each pass.

    A pass draws a token for every hidden position. A hidden position's score is the log-probability of this token, a
    written position's is eta times the log-probability that the pass gives to its token. The positions of lowest score
    are hidden, as many as the schedule says; of all others, the hidden ones get their token and the written ones keep
    theirs. `MaskPredict` instead compares the log-probabilities of the passes that wrote the tokens, so that it keeps a
    token that was certain at first and that later tokens contradict. A sentence ends when no position is hidden. The
    memory is hidden_BL, the positions that are not written. The idea, that a planner chooses among written and hidden
    positions before the decoder's tokens are used, is that of P2 (arXiv 2502.03540, abstract, "self-planning").

    Attributes:
      eta: at least 0; 0 keeps every written token, larger numbers hide written positions more readily.
      temperature: temperature of the draws, at least 0; 0 for the argmax.
      schedule: the number of hidden positions, a name or shares (`padir.refinement.strategies.schedules.still_hidden`).
    """

    eta: float = 1.0
    temperature: float = 0.0
    schedule: str | tuple[float, ...] = "linear"

    def __post_init__(self):
        checks.below(0, math.inf, **checks.fields_of(self, "eta", "temperature"))
        check_schedule(**checks.fields_of(self, "schedule"))

    def init(self, key_B, canvas: Canvas) -> Bool[Array, "B L"]:
        del key_B
        return canvas.free_BL

    def step(self, key_B, canvas: Canvas, output: Output, memory: Bool[Array, "B L"], *, step, num_steps):
        free_BL, segment_BL = canvas.free_BL, canvas.segment_BL
        token_BL, score_BL = sample_tokens(key_B, output.logits_BLV, segment_BL, self.temperature)
        # A written token may by now have the probability 0, and 0 times -inf is no number.
        kept_BL = self.eta * jnp.maximum(token_scores(output.logits_BLV, canvas.tokens_BL), jnp.finfo(jnp.float32).min)
        count_BL = still_hidden(self.schedule, count_in_segment(free_BL, segment_BL), step + 1, num_steps)
        hidden_BL = worst(jnp.where(memory, score_BL, kept_BL), free_BL, segment_BL, count_BL)
        after = hide(write(canvas, memory & ~hidden_BL, token_BL, score_BL), hidden_BL)
        return end_without(after, hidden_BL), hidden_BL

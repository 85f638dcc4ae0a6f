"""Strategies that rewrite some tokens: repeated ones (stutter), the least confident ones, or rejected ones."""

from __future__ import annotations

import dataclasses
import math

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir import checks
from padir.errors import PadirError
from padir.refinement.canvas import Canvas, end, end_without, hide, repeats, restore, write
from padir.refinement.scores import Output, best_tokens, likely, token_scores
from padir.refinement.segments import count_in_segment, share_of, sum_in_segment, worst
from padir.refinement.strategies.sampling import sample_tokens
from padir.refinement.strategies.schedules import check_schedule, still_hidden

_REMASK = ("previous", "start", "logits")


def _no_logits(remask: str, canvas: Canvas) -> Float[Array, "B L V"] | None:
    """Zeros to which logits are added, if `remask` is "logits"; else None, which saves B·L·V numbers of memory."""
    return jnp.zeros((*canvas.tokens_BL.shape, canvas.ids.num_embeddings)) if remask == "logits" else None


def _take_back(remask: str, where_BL, written: Canvas, before: Canvas, summed_BLV) -> Canvas:
    """Takes back the tokens that a step has written at `where_BL`.

    `remask` decides what replaces these tokens, as in `Padir`: the tokens before the step, the start tokens, or the
    argmax of the summed logits.
    """
    if remask == "logits":
        return write(written, where_BL, *best_tokens(summed_BLV))
    if remask == "start":
        return hide(written, where_BL)
    return restore(written, where_BL, before)


@flax.struct.dataclass
class PadirMemory:
    """Memory of `Padir`.

    Attributes:
      ended_BL: positions of segments that are finished; the segments of a packed row may finish at different steps.
      summed_BLV: logits summed over the steps so far, or None.
      before_BL: the tokens that the previous step was given; -1 before the first step.
      cycled_BL: positions of segments that oscillated between two canvases and were ended.
    """

    ended_BL: Bool[Array, "B L"]
    summed_BLV: Float[Array, "B L V"] | None
    before_BL: Int[Array, "B L"]
    cycled_BL: Bool[Array, "B L"]

    @property
    def oscillated_B(self) -> Bool[Array, " B"]:
        """True for rows with a segment that oscillated."""
        return self.cycled_BL.any(-1)


@dataclasses.dataclass(frozen=True)
class Padir:
    """The paper's strategy (sections L.1.1 and L.2): writes the argmax everywhere, and rewrites stutter between steps.

    After every step but the last, a token that equals its left neighbour is taken back. A sentence ends when a step
    leaves its tokens unchanged, which is the paper's stop test; the result is then the argmax of this step, stutter
    included. With the remask "previous", "start" or "none", all remaining steps would give the same tokens.

    A row that comes back to its tokens of two steps before would oscillate between two canvases until the last step.
    Such a row is done, too, and keeps the one of the two canvases whose tokens have the higher log-probability.

    Attributes:
      remask: the token that a taken-back position gets: its token before the step ("previous"), its start token
        ("start"), or the argmax of the logits summed over the steps so far ("logits", which keeps B·L·V numbers between
        steps); "none" takes nothing back.
      remask_last: take stutter back after the last step, too, at positions where an earlier step has written a token.
      temperature: temperature of the draws that replace the argmax; 0 for the argmax. At other temperatures all steps
        are taken.
      top_k, top_p: tokens among which to draw, as in `padir.decoding.search.Sampling`.
      end_cycles: end rows that oscillate. This has an effect only if temperature is 0 and the remask is not "logits",
        because otherwise different tokens may follow the same tokens.

    Raises:
      PadirError: a number is out of its range, or remask_last is set with a remask that would leave noise or takes
        nothing back.
    """

    remask: str = "previous"
    remask_last: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    end_cycles: bool = True

    def __post_init__(self):
        checks.one_of((*_REMASK, "none"), **checks.fields_of(self, "remask"))
        checks.below(0, math.inf, **checks.fields_of(self, "temperature"))
        checks.at_least(0, **checks.fields_of(self, "top_k"))
        if not 0 < self.top_p <= 1:
            raise PadirError("Padir.top_p", "in (0, 1]", self.top_p)
        if self.remask_last:
            checks.one_of(("previous", "logits"), "unset remask_last", **checks.fields_of(self, "remask"))

    def init(self, key_B, canvas: Canvas) -> PadirMemory:
        del key_B
        nowhere_BL = jnp.zeros_like(canvas.free_BL)
        never_BL = jnp.full_like(canvas.tokens_BL, -1)
        return PadirMemory(nowhere_BL, _no_logits(self.remask, canvas), never_BL, nowhere_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: PadirMemory, *, step, num_steps):
        written = write(canvas, ~memory.ended_BL, *self._tokens(key_B, output, canvas))
        summed_BLV = memory.summed_BLV
        if summed_BLV is not None:
            summed_BLV = summed_BLV + output.logits_BLV
        rewritten = written
        if self.remask != "none":
            stutter_BL = repeats(written.tokens_BL, canvas) & ~memory.ended_BL
            rewritten = _take_back(self.remask, stutter_BL, written, canvas, summed_BLV)
        ended_BL = memory.ended_BL
        if self.temperature == 0:
            changed_BL = rewritten.tokens_BL != canvas.tokens_BL
            ended_BL |= count_in_segment(changed_BL, canvas.segment_BL) == 0
        final_BL = ended_BL | (step == num_steps - 1)
        if self.remask_last:
            final_BL &= canvas.score_BL == 0  # at these positions there is no earlier token to put back
        after = restore(rewritten, final_BL, written)
        cycled_BL = memory.cycled_BL
        if self.end_cycles and self.temperature == 0 and self.remask != "logits":
            other_BL = rewritten.tokens_BL != memory.before_BL
            again_BL = ~ended_BL & (count_in_segment(other_BL & canvas.free_BL, canvas.segment_BL) == 0)
            after = restore(after, again_BL & (after.score_BL == 0), written)  # no result has unwritten positions
            before_BL = jnp.where(canvas.score_BL == 0, -jnp.inf, canvas.score_BL)
            gain_BL = sum_in_segment(jnp.where(canvas.free_BL, before_BL - after.score_BL, 0), canvas.segment_BL)
            after = restore(after, again_BL & (gain_BL > 0), canvas)
            ended_BL, cycled_BL = ended_BL | again_BL, cycled_BL | (again_BL & canvas.free_BL)
        return end(after, ended_BL), PadirMemory(ended_BL, summed_BLV, canvas.tokens_BL, cycled_BL)

    def _tokens(self, key_B, output: Output, canvas: Canvas) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
        """The tokens that a step writes, and their log-probabilities."""
        if self.temperature == 0:
            return output.best()
        logits_BLV = output.logits_BLV
        among_BLV = likely(logits_BLV / self.temperature, self.top_k, self.top_p)
        token_BL, _ = sample_tokens(key_B, among_BLV, canvas.segment_BL, 1.0)
        return token_BL, token_scores(logits_BLV, token_BL)


@dataclasses.dataclass(frozen=True)
class MaskPredict:
    """Mask-Predict (Ghazvininejad et al., EMNLP 2019, section 3): rewrites fewer and fewer least confident positions.

    Each pass writes the hidden positions. After pass t of T the n = floor(L (T - t) / T) least confident of the L free
    positions of a sentence are hidden again; ties go to the leftmost position. All other positions keep the confidence
    of the pass that wrote them. A sentence ends when no position is hidden. The memory is hidden_BL, the positions that
    the next pass writes.

    Attributes:
      schedule: the number n, a name or shares (`padir.refinement.strategies.schedules.still_hidden`); the formula above
        is "linear".
    """

    schedule: str | tuple[float, ...] = "linear"

    def __post_init__(self):
        check_schedule(**checks.fields_of(self, "schedule"))

    def init(self, key_B, canvas: Canvas) -> Bool[Array, "B L"]:
        del key_B
        return canvas.free_BL

    def step(self, key_B, canvas: Canvas, output: Output, memory: Bool[Array, "B L"], *, step, num_steps):
        del key_B
        written = write(canvas, memory, *output.best())
        free_BL = canvas.free_BL
        count_BL = still_hidden(self.schedule, count_in_segment(free_BL, canvas.segment_BL), step + 1, num_steps)
        hidden_BL = worst(written.score_BL, free_BL, canvas.segment_BL, count_BL)
        return end_without(hide(written, hidden_BL), hidden_BL), hidden_BL


@flax.struct.dataclass
class ConstantMemory:
    """Memory of `Constant`.

    Attributes:
      hidden_BL: positions that the next pass writes.
      ended_BL, summed_BLV: as in `PadirMemory`.
    """

    hidden_BL: Bool[Array, "B L"]
    ended_BL: Bool[Array, "B L"]
    summed_BLV: Float[Array, "B L V"] | None


@dataclasses.dataclass(frozen=True)
class Constant:
    """Mask-Predict with a constant schedule: every step but the last takes back the same number of positions.

    Each pass writes the positions that were taken back, and then takes back the least confident positions of a
    sentence; ties go to the leftmost. A sentence ends when a step changes neither the tokens nor the positions taken
    back; the result is then the tokens that this step wrote. With the remask "start" or "previous", ending the row
    loses nothing: more steps would give the same tokens. With a schedule a sentence ends when no position is taken
    back.

    Attributes:
      share: share of a sentence's free positions that a step takes back, in [0, 1]; their number is rounded up.
      count: number of positions that a step takes back; if given, `share` is ignored.
      remask: the token that a taken-back position gets until it is written again, as in `Padir`.
      schedule: a name or shares, by which the number falls to 0 from the first step to the last, as in `MaskPredict`;
        None for the same number in all steps.
    """

    share: float = 0.2
    count: int | None = None
    remask: str = "start"
    schedule: str | tuple[float, ...] | None = None

    def __post_init__(self):
        if self.schedule is not None:
            check_schedule(**checks.fields_of(self, "schedule"))
        checks.within(0, 1, **checks.fields_of(self, "share"))
        checks.one_of(_REMASK, **checks.fields_of(self, "remask"))
        if self.count is not None:
            checks.at_least(0, **checks.fields_of(self, "count"))

    def init(self, key_B, canvas: Canvas) -> ConstantMemory:
        del key_B
        return ConstantMemory(canvas.free_BL, jnp.zeros_like(canvas.free_BL), _no_logits(self.remask, canvas))

    def step(self, key_B, canvas: Canvas, output: Output, memory: ConstantMemory, *, step, num_steps):
        del key_B
        free_BL, segment_BL = canvas.free_BL, canvas.segment_BL
        written = write(canvas, memory.hidden_BL & ~memory.ended_BL, *output.best())
        count = share_of(self.share, free_BL, segment_BL) if self.count is None else self.count
        if self.schedule is not None:
            most_BL = jnp.minimum(count, count_in_segment(free_BL, segment_BL))
            count = still_hidden(self.schedule, most_BL, step + 1, num_steps)
        hidden_BL = worst(written.score_BL, free_BL, segment_BL, count)
        summed_BLV = memory.summed_BLV
        if summed_BLV is not None:
            summed_BLV = summed_BLV + output.logits_BLV
        rewritten = _take_back(self.remask, hidden_BL, written, canvas, summed_BLV)
        changed_BL = (rewritten.tokens_BL != canvas.tokens_BL) | (hidden_BL != memory.hidden_BL)
        changed_BL |= self.schedule is not None  # fewer positions taken back may change further tokens
        restless_BL = (count_in_segment(changed_BL, segment_BL) > 0) & (count_in_segment(hidden_BL, segment_BL) > 0)
        ended_BL = memory.ended_BL | ~restless_BL
        final_BL = ended_BL | (step == num_steps - 1)
        after = end(restore(rewritten, final_BL, written), ended_BL)
        return after, ConstantMemory(hidden_BL, ended_BL, summed_BLV)

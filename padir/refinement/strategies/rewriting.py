"""Strategies that rewrite some tokens: repeated ones (stutter), the least confident ones, or rejected ones."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir import checks
from padir.errors import PadirError
from padir.refinement.canvas import Canvas, hide, repeats, restore, write
from padir.refinement.protocols import Memoryless, Proposal, Stop
from padir.refinement.scores import Output, best_tokens, likely, token_scores
from padir.refinement.segments import count_in_segment, share_of, worst
from padir.refinement.stop import Agreed, Cycle, Fixpoint, Never, NothingOpen, Steady
from padir.refinement.strategies.sampling import sample_tokens
from padir.refinement.strategies.schedules import Schedule, still_hidden

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


@checks.settings
class Padir:
    """The paper's strategy (sections L.1.1 and L.2): writes the argmax everywhere, and rewrites stutter between steps.

    After every step but the last, a token that equals its left neighbour is taken back. A sentence ends when a step
    leaves its tokens unchanged (the paper's stop test); the result is then the argmax of this step, stutter included.
    It also ends if its tokens equal the tokens of two steps before, as it would oscillate until the last step. It then
    keeps the canvas whose tokens have the higher log-probability.

    Attributes:
      remask: the token that a taken-back position gets: its token before the step ("previous"), its start token
        ("start"), or the argmax of the logits summed over the steps so far ("logits", which keeps B·L·V numbers between
        steps); "none" takes nothing back.
      remask_last: take stutter back after the last step, too, at positions where an earlier step has written a token.
        The published implementation leaves a mask or a random piece at the other positions.
      temperature: temperature of the draws that replace the argmax; 0 for the argmax. At other temperatures all steps
        are taken.
      top_k, top_p: tokens among which to draw, as in `padir.refinement.scores.likely`.
      end_cycles: end rows that oscillate. This has an effect only if temperature is 0 and the remask is not "logits",
        because otherwise different tokens may follow the same tokens.

    Raises:
      PadirError: remask_last is set with a remask that would leave noise or takes nothing back.
    """

    remask: Annotated[str, partial(checks.one_of, (*_REMASK, "none"))] = "previous"
    remask_last: bool = False
    temperature: checks.NotNegative = 0.0
    top_k: checks.CountOrZero = 0
    top_p: checks.ShareAbove0 = 1.0
    end_cycles: bool = True
    drops_repeats = True  # by default, translations leave out the repeated tokens that the last step writes

    def __post_init__(self):
        if self.remask_last:
            checks.one_of(("previous", "logits"), "unset remask_last", **{"Padir.remask": self.remask})

    @property
    def stop(self) -> Stop:
        if self.temperature > 0:
            return Never()
        return Cycle() if self.end_cycles and self.remask != "logits" else Fixpoint()

    def init(self, key_B, canvas: Canvas) -> Float[Array, "B L V"] | None:
        return _no_logits(self.remask, canvas)

    def step(self, key_B, canvas: Canvas, output: Output, memory, *, step, num_steps) -> Proposal:
        written = write(canvas, canvas.free_BL, *self._tokens(key_B, output, canvas))
        summed_BLV = None if memory is None else memory + output.logits_BLV
        rewritten = written
        if self.remask != "none":
            rewritten = _take_back(self.remask, repeats(written.tokens_BL, canvas), written, canvas, summed_BLV)
        # Where no earlier step has written a token, there is none to put back.
        last = restore(rewritten, canvas.hidden_BL, written) if self.remask_last else written
        return Proposal(rewritten, last, summed_BLV)

    def _tokens(self, key_B, output: Output, canvas: Canvas) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
        """The tokens that a step writes, and their log-probabilities."""
        if self.temperature == 0:
            return output.best()
        logits_BLV = output.logits_BLV
        among_BLV = likely(logits_BLV / self.temperature, self.top_k, self.top_p)
        token_BL, _ = sample_tokens(key_B, among_BLV, canvas.segment_BL, 1.0)
        return token_BL, token_scores(logits_BLV, token_BL)


@checks.settings
class MaskPredict(Memoryless):
    """Mask-Predict (Ghazvininejad et al., EMNLP 2019, section 3): rewrites fewer and fewer least confident positions.

    Each pass writes the hidden positions. After pass t of T the n = floor(L (T - t) / T) least confident of the L free
    positions of a sentence are hidden again; ties go to the leftmost position. All other positions keep the confidence
    of the pass that wrote them. A sentence ends when no position is hidden.

    Attributes:
      schedule: the number n, a name or shares (`padir.refinement.strategies.schedules.still_hidden`); the formula above
        is "linear".
    """

    schedule: Schedule = "linear"
    stop = NothingOpen()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps) -> Proposal:
        written = write(canvas, canvas.hidden_BL, *output.best())
        count_BL = still_hidden(self.schedule, count_in_segment(canvas.free_BL, canvas.segment_BL), step + 1, num_steps)
        hidden_BL = worst(written.score_BL, canvas.free_BL, canvas.segment_BL, count_BL)
        return Proposal(hide(written, hidden_BL), written, memory)


@checks.settings
class Constant:
    """Mask-Predict with a constant schedule: every step but the last takes back the same number of positions.

    Each pass writes the positions that were taken back, and then takes back the least confident positions of a
    sentence; ties go to the leftmost. A sentence ends when a step changes neither the tokens nor the positions taken
    back; the result is then the tokens that this step wrote. With a schedule a sentence ends when no position is taken
    back.

    The published implementation of the paper has other rules, which `rewrite_all` selects: `constant:rewrite_all=True`
    is its constant rejecter, and `constant:rewrite_all=True,share=1.0,schedule=linear` its linear one. Three of its
    faults are not repeated here: EOS is counted but never taken back, only the leftmost of equally doubtful tokens are
    taken back, and a sentence that ends early holds no taken-back token.

    Attributes:
      share: share of a sentence's free positions that a step takes back, in [0, 1]; their number is rounded up.
      count: number of positions that a step takes back; if given, `share` is ignored.
      remask: the token that a taken-back position gets until it is written again, as in `Padir`.
      schedule: a name or shares, as in `MaskPredict`: the number of positions falls to 0 from the first step to the
        last. None takes back the same number in all steps.
      rewrite_all: each pass writes all positions again, kept ones too, and judges them by its own confidence. EOS
        counts among the positions of a share, whose number is rounded down; every step but the last takes back at least
        one, unless `count` is 0. A sentence ends when a step changes no token; with a schedule, when the decoder
        predicts the tokens that it was given, and none of them is noise.
      stutter: also take back a token that equals its left neighbour, whether or not that neighbour is taken back. The
        published implementation does so after the last step, too, and can then leave a mask or a random piece.

    The memory is (the positions that the next pass writes, the logits summed over the steps so far or None).
    """

    share: checks.Share = 0.2
    count: checks.CountOrZero | None = None
    remask: Annotated[str, partial(checks.one_of, _REMASK)] = "start"
    schedule: Schedule | None = None
    rewrite_all: bool = False
    stutter: bool = False

    @property
    def stop(self) -> Stop:
        if self.rewrite_all:
            return Fixpoint() if self.schedule is None else Agreed()
        # With a schedule fewer positions are taken back later, which may change further tokens.
        return Steady() if self.schedule is None else NothingOpen()

    def init(self, key_B, canvas: Canvas) -> tuple[Bool[Array, "B L"], Float[Array, "B L V"] | None]:
        return canvas.free_BL, _no_logits(self.remask, canvas)

    def step(self, key_B, canvas: Canvas, output: Output, memory, *, step, num_steps) -> Proposal:
        (open_BL, summed_BLV), free_BL, segment_BL = memory, canvas.free_BL, canvas.segment_BL
        written = write(canvas, free_BL if self.rewrite_all else open_BL, *output.best())
        counted_BL = free_BL | (canvas.tokens_BL == canvas.ids.eos) if self.rewrite_all else free_BL
        count = (
            share_of(self.share, counted_BL, segment_BL, up=not self.rewrite_all) if self.count is None else self.count
        )
        if self.schedule is not None:
            most_BL = jnp.minimum(count, count_in_segment(counted_BL, segment_BL))
            count = still_hidden(self.schedule, most_BL, step + 1, num_steps)
        if self.rewrite_all and self.count != 0:
            count = jnp.maximum(count, 1)
        open_BL = worst(written.score_BL, free_BL, segment_BL, count)
        if self.stutter:
            open_BL |= repeats(written.tokens_BL, canvas)
        if summed_BLV is not None:
            summed_BLV = summed_BLV + output.logits_BLV
        rewritten = _take_back(self.remask, open_BL, written, canvas, summed_BLV)
        return Proposal(rewritten, written, (open_BL, summed_BLV), open_BL)


@checks.settings
class Rejecter:
    """The learned rejecter: replaces or hides the tokens that the model's rejecter head rejects.

    `ModelConfig.rejecter_judges` says what the head judges. With "token", it judges the tokens that the decoder was
    shown in this pass. The argmax replaces rejected tokens; the first step writes every position. With "prediction", it
    judges the argmax of this pass, as in the published implementation. Every pass then writes the argmax at every
    position, and every pass but the last takes back the rejected tokens.

    A sentence ends when a pass changes none of its tokens. With "prediction", the result is then the argmax of this
    pass, with no token taken back.

    Attributes:
      threshold: a token stays if its probability of being kept is at least this; 0 keeps all tokens, above 1 keeps
        none.
      remask, stutter: with "prediction", as in `Constant`.

    Raises:
      PadirError (at the first step): the model has no rejecter head.
    """

    threshold: Annotated[float, partial(checks.at_least, 0, "0.5 keeps the tokens that are more likely right")] = 0.5
    remask: Annotated[str, partial(checks.one_of, _REMASK)] = "start"
    stutter: bool = False
    needs: ClassVar[frozenset[str]] = frozenset({"rejecter"})
    stop = Fixpoint()

    def init(self, key_B, canvas: Canvas) -> Float[Array, "B L V"] | None:
        return _no_logits(self.remask, canvas)

    def step(self, key_B, canvas: Canvas, output: Output, memory, *, step, num_steps) -> Proposal:
        if output.keep_logits_BL is None:
            remedy = "train a model with a rejecter head, or choose another strategy"
            raise PadirError("the rejecter strategy needs keep logits, which this decoder lacks", remedy=remedy)
        rejected_BL = jax.nn.sigmoid(output.keep_logits_BL) < self.threshold
        if output.judges == "prediction":
            written = write(canvas, canvas.free_BL, *output.best())
            summed_BLV = None if memory is None else memory + output.logits_BLV
            if self.stutter:
                rejected_BL |= repeats(written.tokens_BL, canvas)
            rewritten = _take_back(self.remask, rejected_BL, written, canvas, summed_BLV)
            return Proposal(rewritten, written, summed_BLV)
        written = write(canvas, rejected_BL | (step == 0), *output.best())
        return Proposal(written, written, memory)

"""Strategies that rewrite some tokens: repeated ones (stutter), the least confident ones, or rejected ones."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Annotated, ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir import checks
from padir.errors import PadirError
from padir.refinement.canvas import Canvas, remask, repeats, restore, write
from padir.refinement.protocols import Memoryless, Proposal, Stop
from padir.refinement.scores import Output, best_tokens, likely, token_scores
from padir.refinement.segments import count_in_segment, share_of, worst
from padir.refinement.stop import Agreed, Cycle, Fixpoint, Never, NothingOpen, Steady, with_cycles
from padir.refinement.strategies.sampling import sample_tokens
from padir.refinement.strategies.schedules import Schedule, still_masked

_REMASK = ("previous", "start", "logits")


def _no_logits(remask: str, canvas: Canvas) -> Float[Array, "B L V"] | None:
    """Zeros to which logits are added, if `remask` is "logits"; else None, which saves B·L·V numbers of memory."""
    return jnp.zeros((*canvas.tokens_BL.shape, canvas.ids.num_embeddings)) if remask == "logits" else None


def _remasked(
    kind: str,
    where_BL: Bool[Array, "B L"],
    written: Canvas,
    before: Canvas,
    output: Output,
    summed_BLV: Float[Array, "B L V"] | None,
) -> tuple[Canvas, Float[Array, "B L V"] | None]:
    """Remasks the tokens that a step has written at `where_BL`, and adds the step's logits to `summed_BLV`.

    `kind` decides what replaces these tokens, as `Padir.remask`: the tokens before the step, the initial tokens, the
    argmax of the summed logits, or nothing.
    """
    if summed_BLV is not None:
        summed_BLV = summed_BLV + output.logits_BLV
        return write(written, where_BL, *best_tokens(summed_BLV)), summed_BLV
    if kind == "none":
        return written, None
    return remask(written, where_BL) if kind == "start" else restore(written, where_BL, before), None


@flax.struct.dataclass
class PadirMemory:
    """Memory of `Padir`.

    Attributes:
      summed_BLV: the logits summed over the steps so far; None unless the remask is "logits".
      before_BL: the tokens that the step before was given, -1 at first; None if cycles are not looked for.
    """

    summed_BLV: Float[Array, "B L V"] | None
    before_BL: Int[Array, "B L"] | None


@checks.settings
class Padir:
    """The paper's strategy (sections L.1.1 and L.2): writes the argmax everywhere, and rewrites stutter between steps.

    After every step but the last, a token that equals its left neighbour is remasked. A sentence ends when a step
    leaves its tokens unchanged (the paper's stop test); the result is then the argmax of this step, stutter included.
    It also ends if its tokens equal the tokens of two steps before, as it would oscillate until the last step. It then
    keeps the canvas whose tokens have the higher log-probability.

    Attributes:
      remask: the token that a remasked position gets: its token before the step ("previous"), its initial token
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
    def _looks_for_cycles(self) -> bool:
        return self.end_cycles and self.temperature == 0 and self.remask != "logits"

    @property
    def stop(self) -> Stop:
        if self.temperature > 0:
            return Never()
        return Cycle() if self._looks_for_cycles else Fixpoint()

    def init(self, key_B, canvas: Canvas) -> PadirMemory:
        before_BL = jnp.full_like(canvas.tokens_BL, -1) if self._looks_for_cycles else None
        return PadirMemory(_no_logits(self.remask, canvas), before_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: PadirMemory, *, step, num_steps) -> Proposal:
        written = write(canvas, canvas.editable_BL, *self._tokens(key_B, output, canvas))
        stutter_BL = repeats(written.tokens_BL, canvas)
        rewritten, summed_BLV = _remasked(self.remask, stutter_BL, written, canvas, output, memory.summed_BLV)
        # Where no earlier step has written a token, there is none to put back.
        last = restore(rewritten, canvas.masked_BL, written) if self.remask_last else written
        if memory.before_BL is None:
            return Proposal(rewritten, last, PadirMemory(summed_BLV, None))
        proposal = Proposal(rewritten, last, PadirMemory(summed_BLV, canvas.tokens_BL))
        return with_cycles(canvas, proposal, memory.before_BL, step, num_steps)

    def _tokens(self, key_B, output: Output, canvas: Canvas) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
        """The tokens that a step writes, and their log-probabilities."""
        if self.temperature == 0:
            return output.best()
        logits_BLV = output.logits_BLV
        among_BLV = likely(logits_BLV / self.temperature, self.top_k, self.top_p)
        token_BL, _ = sample_tokens(key_B, Output(among_BLV), canvas.segment_BL, 1.0, canvas.editable_BL)
        return token_BL, token_scores(logits_BLV, token_BL)


@checks.settings
class MaskPredict(Memoryless):
    """Mask-Predict (Ghazvininejad et al., EMNLP 2019, section 3): rewrites fewer and fewer least confident positions.

    Each pass writes the masked positions. After pass t of T the n = floor(L (T - t) / T) least confident of the L
    editable positions of a sentence are masked again; ties go to the leftmost position. All other positions keep the
    confidence of the pass that wrote them. A sentence ends when no position is masked.

    Attributes:
      schedule: the number n, a name or shares (`padir.refinement.strategies.schedules.still_masked`); the formula above
        is "linear".
    """

    schedule: Schedule = "linear"
    stop = NothingOpen()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps) -> Proposal:
        written = write(canvas, canvas.masked_BL, *output.best(canvas.masked_BL))
        count_BL = still_masked(
            self.schedule, count_in_segment(canvas.editable_BL, canvas.segment_BL), step + 1, num_steps
        )
        masked_BL = worst(written.score_BL, canvas.editable_BL, canvas.segment_BL, count_BL)
        return Proposal(remask(written, masked_BL), written, memory)


@flax.struct.dataclass
class Open:
    """Memory of `Constant`: the positions that the next pass writes, and the logits summed so far, or None."""

    open_BL: Bool[Array, "B L"]
    summed_BLV: Float[Array, "B L V"] | None


@checks.settings
class Constant:
    """Mask-Predict with a constant schedule: every step but the last remasks the same number of positions.

    Each pass writes the positions that were remasked, and then remasks the least confident positions of a
    sentence; ties go to the leftmost. A sentence ends when a step changes neither the tokens nor the positions taken
    back; the result is then the tokens that this step wrote. With a schedule a sentence ends when no position is taken
    back.

    Attributes:
      share: share of a sentence's editable positions that a step remasks, in [0, 1]; their number is rounded up.
      count: number of positions that a step remasks; if given, `share` is ignored.
      remask: the token that a remasked position gets until it is written again, as in `Padir`.
      schedule: a name or shares, as in `MaskPredict`: the number of positions falls to 0 from the first step to the
        last. None remasks the same number in all steps.
      stutter: also remask a token that equals its left neighbour, whether or not that neighbour is remasked.
    """

    share: checks.Share = 0.2
    count: checks.CountOrZero | None = None
    remask: Annotated[str, partial(checks.one_of, _REMASK)] = "start"
    schedule: Schedule | None = None
    stutter: bool = False

    @property
    def stop(self) -> Stop:
        # With a schedule fewer positions are remasked later, which may change further tokens.
        return Steady() if self.schedule is None else NothingOpen()

    def init(self, key_B, canvas: Canvas) -> Open:
        return Open(canvas.editable_BL, _no_logits(self.remask, canvas))

    def step(self, key_B, canvas: Canvas, output: Output, memory: Open, *, step, num_steps) -> Proposal:
        written = write(canvas, memory.open_BL, *output.best(memory.open_BL))
        share_BL = share_of(self.share, canvas.editable_BL, canvas.segment_BL)
        count = self._scheduled(share_BL, canvas.editable_BL, canvas, step, num_steps)
        return self._proposal(canvas, output, written, count, memory)

    def _scheduled(self, share_BL, counted_BL, canvas: Canvas, step, num_steps) -> int | Int[Array, "B L"]:
        """The number of positions that a step remasks among `counted_BL`, of which `share_BL` is the share."""
        count = share_BL if self.count is None else self.count
        if self.schedule is None:
            return count
        most_BL = jnp.minimum(count, count_in_segment(counted_BL, canvas.segment_BL))
        return still_masked(self.schedule, most_BL, step + 1, num_steps)

    def _proposal(self, canvas: Canvas, output: Output, written: Canvas, count, memory: Open) -> Proposal:
        """Remasks the `count` least confident positions."""
        open_BL = worst(written.score_BL, canvas.editable_BL, canvas.segment_BL, count)
        if self.stutter:
            open_BL |= repeats(written.tokens_BL, canvas)
        rewritten, summed_BLV = _remasked(self.remask, open_BL, written, canvas, output, memory.summed_BLV)
        return Proposal(rewritten, written, Open(open_BL, summed_BLV), open_BL)


@dataclasses.dataclass(frozen=True)
class RewriteAll(Constant):
    """The published implementation's constant rejecter, and with share=1.0 and schedule="linear" its linear one.

    This is `Constant`, except that each pass writes all positions again, kept ones too, and judges them by its own
    confidence. EOS counts among the positions of a share, whose number is rounded down; every step but the last takes
    back at least one, unless `count` is 0. A sentence ends when a step changes no token; with a schedule, when the
    decoder predicts the tokens that it was given, and none of them is noise.

    Three faults of the published implementation are not repeated here: EOS is counted but never remasked, only the
    leftmost of equally doubtful tokens are remasked, and a sentence that ends early holds no remasked token. Its
    `stutter` also acts after the last step, and can then leave a mask or a random piece.
    """

    @property
    def stop(self) -> Stop:
        return Fixpoint() if self.schedule is None else Agreed()

    def step(self, key_B, canvas: Canvas, output: Output, memory: Open, *, step, num_steps) -> Proposal:
        written = write(canvas, canvas.editable_BL, *output.best())
        counted_BL = canvas.editable_BL | (canvas.tokens_BL == canvas.ids.eos)
        share_BL = share_of(self.share, counted_BL, canvas.segment_BL, up=False)
        count = self._scheduled(share_BL, counted_BL, canvas, step, num_steps)
        if self.count != 0:
            count = jnp.maximum(count, 1)
        return self._proposal(canvas, output, written, count, memory)


_Threshold = Annotated[float, partial(checks.at_least, 0, "0.5 keeps the tokens that are more likely right")]


@checks.settings
class Rejecter(Memoryless):
    """The learned rejecter: the argmax replaces the shown tokens that the model's rejecter head rejects.

    The head judges the tokens that the decoder was shown in this pass (`ModelConfig.rejecter_judges` = "token"). The
    first step writes every position. A sentence ends when a pass changes none of its tokens.

    Attributes:
      threshold: a token stays if its probability of being kept is at least this; 0 keeps all tokens, above 1 keeps
        none.

    Raises:
      PadirError (at the first step): the model has no such head.
    """

    threshold: _Threshold = 0.5
    needs: ClassVar[frozenset[str]] = frozenset({"rejecter"})
    head_judges: ClassVar[str] = "token"
    stop = Fixpoint()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps) -> Proposal:
        open_BL = canvas.editable_BL & (_rejected(output, self.head_judges, self.threshold) | (step == 0))
        written = write(canvas, open_BL, *output.best(open_BL))
        return Proposal(written, written, memory)


@checks.settings
class PredictionRejecter:
    """The published learned rejecter: remasks the predictions that the model's rejecter head rejects.

    The head judges the argmax of this pass (`ModelConfig.rejecter_judges` = "prediction"). Every pass writes the argmax
    at every position, and every pass but the last remasks the rejected tokens. A sentence ends when a pass changes
    none of its tokens; the result is then the argmax of this pass, with no token remasked.

    Attributes:
      threshold: as in `Rejecter`.
      remask, stutter: as in `Constant`.

    Raises:
      PadirError (at the first step): the model has no such head.
    """

    threshold: _Threshold = 0.5
    remask: Annotated[str, partial(checks.one_of, _REMASK)] = "start"
    stutter: bool = False
    needs: ClassVar[frozenset[str]] = frozenset({"rejecter"})
    head_judges: ClassVar[str] = "prediction"
    stop = Fixpoint()

    def init(self, key_B, canvas: Canvas) -> Float[Array, "B L V"] | None:
        return _no_logits(self.remask, canvas)

    def step(self, key_B, canvas: Canvas, output: Output, memory, *, step, num_steps) -> Proposal:
        rejected_BL = _rejected(output, self.head_judges, self.threshold)
        written = write(canvas, canvas.editable_BL, *output.best())
        if self.stutter:
            rejected_BL |= repeats(written.tokens_BL, canvas)
        rewritten, summed_BLV = _remasked(self.remask, rejected_BL, written, canvas, output, memory)
        return Proposal(rewritten, written, summed_BLV)


def _rejected(output: Output, judges: str, threshold: float) -> Bool[Array, "B L"]:
    """The positions whose tokens the rejecter head rejects."""
    if output.keep_logits_BL is None or output.judges != judges:
        remedy = "train a model with such a rejecter head, or choose another strategy"
        raise PadirError(f'the strategy needs keep logits of a head that judges "{judges}"', remedy=remedy)
    return jax.nn.sigmoid(output.keep_logits_BL) < threshold

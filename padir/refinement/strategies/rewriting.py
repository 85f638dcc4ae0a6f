"""Strategies that take back what is worst and write it again: stutter, the least confident, what a rejecter rejects."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from padir.errors import PadirError
from padir.refinement.canvas import Canvas, hide, repeats, restore, write
from padir.refinement.scores import Output, best_tokens
from padir.refinement.segments import count_in_segment, share_of, worst

_REMASK = ("previous", "start", "logits")


def _check_remask(remask: str) -> None:
    if remask not in _REMASK:
        raise PadirError(f"remask must be one of {', '.join(_REMASK)}, got {remask!r}")


def _no_logits(remask: str, canvas: Canvas) -> Float[Array, "B L V"] | None:
    """What logits are summed up in: zeros if that is what positions are rewritten from, else None."""
    return jnp.zeros((*canvas.tokens_BL.shape, canvas.ids.num_embeddings)) if remask == "logits" else None


def _take_back(remask: str, where_BL, written: Canvas, before: Canvas, summed_BLV) -> Canvas:
    """Puts back the token from before the step, or the start token, or the argmax of the summed logits."""
    if remask == "logits":
        return write(written, where_BL, *best_tokens(summed_BLV))
    if remask == "start":
        return hide(written, where_BL)
    return restore(written, where_BL, before)


@flax.struct.dataclass
class PadirMemory:
    """ended_BL: positions of segments that are finished, which need not end together in a packed row.

    summed_BLV: logits summed over the steps so far, or None.
    """

    ended_BL: Bool[Array, "B L"]
    summed_BLV: Float[Array, "B L V"] | None


@dataclasses.dataclass(frozen=True)
class Padir:
    """The paper's strategy (sections L.1.1 and L.2): take the argmax everywhere, rewrite stutter between steps.

    After every step but the last, a token that equals its left neighbour is taken back. A row is done when a step
    leaves the canvas as it was, which is the paper's stop test; the last argmax then stands, so that with "previous"
    and "start" halting gives what the remaining steps would have given.

    Attributes:
      remask: what a taken-back position gets: the "previous" token, the "start" token of the canvas, or the argmax of
        the "logits" summed over the steps so far (this keeps B·L·V numbers between steps).
    """

    remask: str = "previous"

    def __post_init__(self):
        _check_remask(self.remask)

    def init(self, key_B, canvas: Canvas) -> PadirMemory:
        del key_B
        return PadirMemory(jnp.zeros_like(canvas.free_BL), _no_logits(self.remask, canvas))

    def step(self, key_B, canvas: Canvas, output: Output, memory: PadirMemory, *, step, num_steps):
        del key_B
        token_BL, score_BL = output.best()
        argmax = write(canvas, ~memory.ended_BL, token_BL, score_BL)
        stutter_BL = repeats(argmax.tokens_BL, canvas) & ~memory.ended_BL
        summed_BLV = memory.summed_BLV
        if summed_BLV is not None:
            summed_BLV = summed_BLV + output.logits_BLV
        rewritten = _take_back(self.remask, stutter_BL, argmax, canvas, summed_BLV)
        changed_BL = rewritten.tokens_BL != canvas.tokens_BL
        ended_BL = memory.ended_BL | (count_in_segment(changed_BL, canvas.segment_BL) == 0)
        final_BL = ended_BL | (step == num_steps - 1)
        after = restore(rewritten, final_BL, argmax)
        done_B = canvas.done_B | ended_BL.all(-1)
        return dataclasses.replace(after, done_B=done_B), PadirMemory(ended_BL=ended_BL, summed_BLV=summed_BLV)


@dataclasses.dataclass(frozen=True)
class MaskPredict:
    """Mask-Predict (Ghazvininejad et al., EMNLP 2019, section 3): linear schedule over the least confident positions.

    Each pass writes the hidden positions; after pass t of T the n = floor(L (T - t) / T) least confident of the L free
    positions of a sentence are hidden again, ties going to the leftmost. Positions that stay keep the confidence of the
    pass that wrote them. A row is done when nothing is hidden. Its memory is hidden_BL, what the next pass writes.
    """

    def init(self, key_B, canvas: Canvas) -> Bool[Array, "B L"]:
        del key_B
        return canvas.free_BL

    def step(self, key_B, canvas: Canvas, output: Output, memory: Bool[Array, "B L"], *, step, num_steps):
        del key_B
        written = write(canvas, memory, *output.best())
        free_BL = canvas.free_BL
        count_BL = count_in_segment(free_BL, canvas.segment_BL) * (num_steps - step - 1) // num_steps
        hidden_BL = worst(written.score_BL, free_BL, canvas.segment_BL, count_BL)
        done_B = canvas.done_B | ~hidden_BL.any(-1)
        return dataclasses.replace(hide(written, hidden_BL), done_B=done_B), hidden_BL


@flax.struct.dataclass
class ConstantMemory:
    """hidden_BL: positions that the next pass is to write. ended_BL, summed_BLV: as in `PadirMemory`."""

    hidden_BL: Bool[Array, "B L"]
    ended_BL: Bool[Array, "B L"]
    summed_BLV: Float[Array, "B L V"] | None


@dataclasses.dataclass(frozen=True)
class Constant:
    """Mask-Predict with a constant schedule: after every step but the last, as many positions are taken back.

    Each pass writes the positions that were taken back; then the least confident of a sentence are, ties going to the
    leftmost. A row is done when a step changes neither the canvas nor what is taken back; what was written then stands,
    so that with "start" and "previous" halting gives what the remaining steps would have given.

    Attributes:
      share: of a sentence's free positions that is taken back, rounded up.
      count: how many positions are, in place of a share.
      remask: what a taken-back position gets until it is written again, as in `Padir`.
    """

    share: float = 0.2
    count: int | None = None
    remask: str = "start"

    def __post_init__(self):
        if not 0 <= self.share <= 1:
            raise PadirError(f"share must lie in [0, 1] (of the positions taken back), got {self.share}")
        if self.count is not None and self.count < 0:
            raise PadirError(f"count must be at least 0 positions, got {self.count}")
        _check_remask(self.remask)

    def init(self, key_B, canvas: Canvas) -> ConstantMemory:
        del key_B
        return ConstantMemory(canvas.free_BL, jnp.zeros_like(canvas.free_BL), _no_logits(self.remask, canvas))

    def step(self, key_B, canvas: Canvas, output: Output, memory: ConstantMemory, *, step, num_steps):
        del key_B
        free_BL, segment_BL = canvas.free_BL, canvas.segment_BL
        written = write(canvas, memory.hidden_BL & ~memory.ended_BL, *output.best())
        count = share_of(self.share, free_BL, segment_BL) if self.count is None else self.count
        hidden_BL = worst(written.score_BL, free_BL, segment_BL, count)
        summed_BLV = memory.summed_BLV
        if summed_BLV is not None:
            summed_BLV = summed_BLV + output.logits_BLV
        rewritten = _take_back(self.remask, hidden_BL, written, canvas, summed_BLV)
        changed_BL = (rewritten.tokens_BL != canvas.tokens_BL) | (hidden_BL != memory.hidden_BL)
        restless_BL = (count_in_segment(changed_BL, segment_BL) > 0) & (count_in_segment(hidden_BL, segment_BL) > 0)
        ended_BL = memory.ended_BL | ~restless_BL
        final_BL = ended_BL | (step == num_steps - 1)
        done_B = canvas.done_B | ended_BL.all(-1)
        after = dataclasses.replace(restore(rewritten, final_BL, written), done_B=done_B)
        return after, ConstantMemory(hidden_BL, ended_BL, summed_BLV)


@dataclasses.dataclass(frozen=True)
class Rejecter:
    """The learned rejecter decides what is rewritten: tokens that it would not keep get the argmax.

    keep_logits_BL of a pass judge the tokens that the decoder was given. The first step writes everything: what stands
    there is noise. A row is done when a pass changes nothing.

    Attributes:
      threshold: a token stays where the probability to keep it is at least this; 0 keeps all, above 1 keeps none.

    Raises:
      PadirError (at the first step): the model has no rejecter head.
    """

    threshold: float = 0.5
    needs: ClassVar[frozenset[str]] = frozenset({"rejecter"})

    def __post_init__(self):
        if not self.threshold >= 0:
            raise PadirError(f"threshold must be at least 0, got {self.threshold}: 0.5 keeps what is more likely right")

    def init(self, key_B, canvas: Canvas) -> tuple[()]:
        del key_B, canvas
        return ()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps):
        del key_B, num_steps
        if output.keep_logits_BL is None:
            raise PadirError(
                "the rejecter strategy needs keep logits, got a decoder that gives none: train a model with a rejecter"
                " head, or choose another strategy"
            )
        rejected_BL = (jax.nn.sigmoid(output.keep_logits_BL) < self.threshold) | (step == 0)
        written = write(canvas, rejected_BL, *output.best())
        unchanged_B = (written.tokens_BL == canvas.tokens_BL).all(-1)
        return dataclasses.replace(written, done_B=canvas.done_B | unchanged_B), memory

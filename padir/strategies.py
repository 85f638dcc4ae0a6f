"""How a canvas is refined, one frozen dataclass a strategy; the loop that runs them is in `refine.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from padir.canvas import (
    Canvas,
    Output,
    Strategy,
    best_tokens,
    count_in_segment,
    hide,
    repeats,
    restore,
    worst,
    write,
)
from padir.errors import PadirError

_REMASK = ("previous", "start", "logits")


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
        if self.remask not in _REMASK:
            raise PadirError(f"remask must be one of {', '.join(_REMASK)}, got {self.remask!r}")

    def init(self, key_B, canvas: Canvas) -> PadirMemory:
        del key_B
        shape = canvas.tokens_BL.shape
        summed_BLV = jnp.zeros((*shape, canvas.ids.num_embeddings)) if self.remask == "logits" else None
        return PadirMemory(ended_BL=jnp.zeros(shape, bool), summed_BLV=summed_BLV)

    def step(self, key_B, canvas: Canvas, output: Output, memory: PadirMemory, *, step, num_steps):
        del key_B
        token_BL, score_BL = best_tokens(output.logits_BLV)
        argmax = write(canvas, ~memory.ended_BL, token_BL, score_BL)
        stutter_BL = repeats(argmax.tokens_BL, canvas) & ~memory.ended_BL
        summed_BLV = memory.summed_BLV
        if summed_BLV is not None:
            summed_BLV = summed_BLV + output.logits_BLV
            rewritten = write(argmax, stutter_BL, *best_tokens(summed_BLV))
        elif self.remask == "start":
            rewritten = hide(argmax, stutter_BL)
        else:
            rewritten = restore(argmax, stutter_BL, canvas)
        changed_BL = rewritten.tokens_BL != canvas.tokens_BL
        ended_BL = memory.ended_BL | (count_in_segment(changed_BL, canvas.segment_BL) == 0)
        final_BL = ended_BL | (step == num_steps - 1)
        after = restore(rewritten, final_BL, argmax)
        done_B = canvas.done_B | ended_BL.all(-1)
        return dataclasses.replace(after, done_B=done_B), PadirMemory(ended_BL=ended_BL, summed_BLV=summed_BLV)


@flax.struct.dataclass
class MaskPredictMemory:
    """hidden_BL: positions that the next pass is to write."""

    hidden_BL: Bool[Array, "B L"]


@dataclasses.dataclass(frozen=True)
class MaskPredict:
    """Mask-Predict (Ghazvininejad et al., EMNLP 2019, section 3): linear schedule over the least confident positions.

    Each pass writes the hidden positions; after pass t of T the n = floor(L (T - t) / T) least confident of the L free
    positions of a sentence are hidden again, ties going to the leftmost. Positions that stay keep the confidence of the
    pass that wrote them. A row is done when nothing is hidden.
    """

    def init(self, key_B, canvas: Canvas) -> MaskPredictMemory:
        del key_B
        return MaskPredictMemory(hidden_BL=canvas.free_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: MaskPredictMemory, *, step, num_steps):
        del key_B
        written = write(canvas, memory.hidden_BL, *best_tokens(output.logits_BLV))
        free_BL = canvas.free_BL
        count_BL = count_in_segment(free_BL, canvas.segment_BL) * (num_steps - step - 1) // num_steps
        hidden_BL = worst(written.score_BL, free_BL, canvas.segment_BL, count_BL)
        done_B = canvas.done_B | ~hidden_BL.any(-1)
        return dataclasses.replace(hide(written, hidden_BL), done_B=done_B), MaskPredictMemory(hidden_BL=hidden_BL)


STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "padir": Padir,
    "mask_predict": MaskPredict,
}


def get_strategy(name: str, **hyperparameters) -> Strategy:
    """The strategy of a name.

    Raises:
      PadirError: no strategy has that name; the message lists those that there are.
    """
    if name not in STRATEGIES:
        raise PadirError(f"no strategy is called {name!r}: choose one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name](**hyperparameters)


@dataclasses.dataclass(frozen=True)
class Lifted:
    """A strategy as what happens between two training stages: its first of two steps (a `Between`)."""

    strategy: Strategy = Padir()

    def __call__(
        self,
        key_B: Key[Array, " B"],
        canvas: Canvas,
        output: Output,
        target_BL: Int[Array, "B L"],
        chosen_BL: Bool[Array, "B L"],
        *,
        progress: Any,
    ) -> tuple[Canvas, Bool[Array, "B L"]]:
        del target_BL, progress
        memory = self.strategy.init(key_B, canvas)
        return self.strategy.step(key_B, canvas, output, memory, step=0, num_steps=2)[0], chosen_BL

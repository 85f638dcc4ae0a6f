"""Rules that say when a sentence is finished (the protocol `Stop`); a strategy names its rule in the attribute `stop`.

NothingOpen   no position is open: nothing is left to write
Fixpoint      a pass changes no token
Cycle         as Fixpoint, or a pass leads back to the tokens of two passes before
Steady        a pass changes neither the tokens nor the open positions, or no position is open
Agreed        the decoder's argmax agrees with every token that it was shown
Repetition    the result of stopping has stayed the same for a number of passes
Never         all passes are taken
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from padir.refinement.canvas import Canvas, restore, write
from padir.refinement.protocols import Proposal
from padir.refinement.scores import Output
from padir.refinement.segments import count_in_segment, sum_in_segment


def finished_without(open_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]) -> Bool[Array, "B L"]:
    """Marks all positions of the sentences that have no position in `open_BL`."""
    return count_in_segment(open_BL, segment_BL) == 0


def settle(canvas: Canvas, finished_BL: Bool[Array, "B L"], final: Canvas) -> Canvas:
    """Marks sentences as done and puts them into their final state."""
    after = restore(canvas, finished_BL, final)
    return dataclasses.replace(after, done_BL=canvas.done_BL | finished_BL)


@dataclasses.dataclass(frozen=True)
class Never:
    """Ends no sentence: all passes are taken."""

    def init(self, canvas: Canvas) -> tuple[()]:
        return ()

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: Any, *, is_last: Any):
        return proposal.next, memory


@dataclasses.dataclass(frozen=True)
class NothingOpen(Never):
    """Ends a sentence when no position is open, because nothing is left to write."""

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: Any, *, is_last: Any):
        finished_BL = finished_without(proposal.still_open(), before.segment_BL)
        return settle(proposal.next, finished_BL, proposal.last), memory


@dataclasses.dataclass(frozen=True)
class Fixpoint(Never):
    """Ends a sentence when a pass changes none of its tokens, because further passes would give the same tokens."""

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: Any, *, is_last: Any):
        changed_BL = proposal.next.tokens_BL != before.tokens_BL
        return settle(proposal.next, finished_without(changed_BL, before.segment_BL), proposal.last), memory


@flax.struct.dataclass
class Cycled:
    """Memory of `Cycle`: tokens that the pass before was given (-1 at first), and the positions of ended cycles."""

    before_BL: Int[Array, "B L"]
    cycled_BL: Bool[Array, "B L"]


@dataclasses.dataclass(frozen=True)
class Cycle:
    """Ends a sentence at a fixpoint, and when a pass leads back to its tokens of two passes before.

    Such a sentence would oscillate between two canvases until the last pass. It keeps the canvas whose tokens have the
    higher log-probability.
    """

    def init(self, canvas: Canvas) -> Cycled:
        return Cycled(jnp.full_like(canvas.tokens_BL, -1), jnp.zeros_like(canvas.free_BL))

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: Cycled, *, is_last: Any):
        after, _ = Fixpoint().step(before, output, proposal, (), is_last=is_last)
        other_BL = (proposal.next.tokens_BL != memory.before_BL) & before.free_BL
        again_BL = ~(after.done_BL | before.done_BL) & finished_without(other_BL, before.segment_BL)
        now = restore(proposal.next, proposal.next.hidden_BL | is_last, proposal.last)  # no hidden position stays
        before_BL = jnp.where(before.score_BL == 0, -jnp.inf, before.score_BL)
        gain_BL = sum_in_segment(jnp.where(before.free_BL, before_BL - now.score_BL, 0), before.segment_BL)
        after = settle(after, again_BL, restore(now, gain_BL > 0, before))
        return after, Cycled(before.tokens_BL, memory.cycled_BL | (again_BL & before.free_BL))


@dataclasses.dataclass(frozen=True)
class Steady:
    """Ends a sentence when a pass changes neither its tokens nor its open positions, or when no position is open.

    The memory is the open positions of the pass before.
    """

    def init(self, canvas: Canvas) -> Bool[Array, "B L"]:
        return canvas.free_BL

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: Bool[Array, "B L"], *, is_last: Any):
        open_BL, segment_BL = proposal.still_open(), before.segment_BL
        changed_BL = (proposal.next.tokens_BL != before.tokens_BL) | (open_BL != memory)
        finished_BL = finished_without(changed_BL, segment_BL) | finished_without(open_BL, segment_BL)
        return settle(proposal.next, finished_BL, proposal.last), open_BL


@dataclasses.dataclass(frozen=True)
class Agreed(Never):
    """Ends a sentence when the decoder's argmax agrees with every token that it was shown; the argmax is the result.

    Attributes:
      of_written: end a sentence only if the decoder was shown no noise, because noise may agree by chance.
    """

    of_written: bool = True

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: Any, *, is_last: Any):
        token_BL, score_BL = output.best()
        other_BL = before.free_BL & (token_BL != before.tokens_BL)
        if self.of_written:
            other_BL |= before.hidden_BL
        final = write(before, before.free_BL, token_BL, score_BL)
        return settle(proposal.next, finished_without(other_BL, before.segment_BL), final), memory


@dataclasses.dataclass(frozen=True)
class Repetition:
    """Ends a sentence when `Proposal.last` has had the same tokens for a number of passes after the first.

    The memory is these tokens (-1 at first), and the number of passes that have not changed them.

    Attributes:
      sweep: an ordinary decoder must repeat the tokens as many times as the sentence has free positions, because each
        pass concerns one position. If False, or with a decontextualised decoder, one repetition is enough.
    """

    sweep: bool = False

    def init(self, canvas: Canvas) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
        return jnp.full_like(canvas.tokens_BL, -1), jnp.zeros_like(canvas.tokens_BL)

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: Any, *, is_last: Any):
        tokens_BL, segment_BL = proposal.last.tokens_BL, before.segment_BL
        same_BL = finished_without(tokens_BL != memory[0], segment_BL)
        count_BL = jnp.where(same_BL, memory[1] + 1, 0)
        times: Any = 1
        if self.sweep and before.visible_BLL is None:
            times = jnp.maximum(count_in_segment(before.free_BL, segment_BL), 1)
        return settle(proposal.next, count_BL >= times, proposal.last), (tokens_BL, count_BL)

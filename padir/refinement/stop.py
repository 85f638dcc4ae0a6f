"""Rules that say when a sentence is finished (the protocol `Stop`); a strategy names its rule in the attribute `stop`.

NothingOpen   no position is open: nothing is left to write
Fixpoint      a pass changes no token
Cycle         as Fixpoint, or the strategy says that the sentence oscillates
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
from jaxtyping import Array, Bool, Int, PyTree

from padir.refinement.canvas import Canvas, restore
from padir.refinement.protocols import Number, Proposal
from padir.refinement.scores import Output
from padir.refinement.segments import count_in_segment, sum_in_segment


def finished_without(open_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]) -> Bool[Array, "B L"]:
    """Marks all positions of the sentences that have no position in `open_BL`."""
    return count_in_segment(open_BL, segment_BL) == 0


class Stateless:
    """Base of rules without memory."""

    def init(self, canvas: Canvas) -> tuple[()]:
        return ()


@dataclasses.dataclass(frozen=True)
class Never(Stateless):
    """Ends no sentence: all passes are taken."""

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: PyTree):
        return jnp.zeros_like(before.editable_BL), memory


@dataclasses.dataclass(frozen=True)
class NothingOpen(Stateless):
    """Ends a sentence when no position is open, because nothing is left to write."""

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: PyTree):
        return finished_without(proposal.still_open(), before.segment_BL), memory


@dataclasses.dataclass(frozen=True)
class Fixpoint(Stateless):
    """Ends a sentence when a pass changes none of its tokens, because further passes would give the same tokens."""

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: PyTree):
        changed_BL = proposal.next.tokens_BL != before.tokens_BL
        return finished_without(changed_BL, before.segment_BL), memory


def with_cycles(
    canvas: Canvas, proposal: Proposal, before_BL: Int[Array, "B L"], step: Number, num_steps: Number
) -> Proposal:
    """The proposal of a strategy that looks for cycles: sentences that come back to `before_BL` oscillate.

    They would change between two canvases until the last pass. `Proposal.last` gets the canvas of higher
    log-probability, of equal ones the next.

    Args:
      canvas, before_BL: the canvas that this pass was given, and the tokens that the pass before was given.
    """
    other_BL = (proposal.next.tokens_BL != before_BL) & canvas.editable_BL
    cycled_BL = finished_without(other_BL, canvas.segment_BL)
    unfinished_BL = proposal.next.masked_BL | jnp.equal(step, num_steps - 1)
    now = restore(proposal.next, unfinished_BL, proposal.last)
    score_BL = jnp.where(canvas.written_BL, canvas.score_BL, -jnp.inf)
    gain_BL = sum_in_segment(jnp.where(canvas.editable_BL, score_BL - now.score_BL, 0), canvas.segment_BL)
    better = restore(now, gain_BL > 0, canvas)
    return dataclasses.replace(proposal, last=restore(proposal.last, cycled_BL, better), cycled_BL=cycled_BL)


@flax.struct.dataclass
class Cycled:
    """Memory of `Cycle`: the positions of the sentences that ended because they oscillated."""

    cycled_BL: Bool[Array, "B L"]


@dataclasses.dataclass(frozen=True)
class Cycle:
    """Ends a sentence at a fixpoint, and when it oscillates, which the strategy says (`Proposal.cycled_BL`)."""

    def init(self, canvas: Canvas) -> Cycled:
        return Cycled(jnp.zeros_like(canvas.editable_BL))

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: Cycled):
        fixed_BL, _ = Fixpoint().step(before, output, proposal, ())
        if proposal.cycled_BL is None:
            return fixed_BL, memory
        ended_BL = proposal.cycled_BL & ~(fixed_BL | before.done_BL)
        return fixed_BL | proposal.cycled_BL, Cycled(memory.cycled_BL | (ended_BL & before.editable_BL))


@dataclasses.dataclass(frozen=True)
class Steady:
    """Ends a sentence when a pass changes neither its tokens nor its open positions, or when no position is open.

    The memory is the open positions of the pass before.
    """

    def init(self, canvas: Canvas) -> Bool[Array, "B L"]:
        return canvas.editable_BL

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: Bool[Array, "B L"]):
        open_BL, segment_BL = proposal.still_open(), before.segment_BL
        changed_BL = (proposal.next.tokens_BL != before.tokens_BL) | (open_BL != memory)
        finished_BL = finished_without(changed_BL, segment_BL) | finished_without(open_BL, segment_BL)
        return finished_BL, open_BL


@dataclasses.dataclass(frozen=True)
class Agreed(Stateless):
    """Ends a sentence when the decoder's argmax agrees with every token that it was shown.

    Attributes:
      of_written: end a sentence only if the decoder was shown no noise, because noise may agree by chance.
    """

    of_written: bool = True

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: PyTree):
        other_BL = before.editable_BL & (output.best()[0] != before.tokens_BL)
        if self.of_written:
            other_BL |= before.masked_BL
        return finished_without(other_BL, before.segment_BL), memory


@dataclasses.dataclass(frozen=True)
class Repetition:
    """Ends a sentence when `Proposal.last` has had the same tokens for a number of passes after the first.

    The memory is these tokens (-1 at first), and the number of passes that have not changed them.

    Attributes:
      sweep: an ordinary decoder must repeat the tokens as many times as the sentence has editable positions, because
        each pass concerns one position. If False, or with a decontextualised decoder, one repetition is enough.
    """

    sweep: bool = False

    def init(self, canvas: Canvas) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
        return jnp.full_like(canvas.tokens_BL, -1), jnp.zeros_like(canvas.tokens_BL)

    def step(self, before: Canvas, output: Output, proposal: Proposal, memory: PyTree):
        tokens_BL, segment_BL = proposal.last.tokens_BL, before.segment_BL
        same_BL = finished_without(tokens_BL != memory[0], segment_BL)
        count_BL = jnp.where(same_BL, memory[1] + 1, 0)
        times: Any = 1
        if self.sweep and before.visible_BLL is None:
            times = jnp.maximum(count_in_segment(before.editable_BL, segment_BL), 1)
        return count_BL >= times, (tokens_BL, count_BL)

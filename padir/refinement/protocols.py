"""The protocols of the classes that act on a canvas: `Corruption`, `Strategy`, `Stop` and `StageTransition`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import flax.struct
import jax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from padir.refinement.canvas import Canvas
from padir.refinement.ids import CanvasIds
from padir.refinement.scores import Output
from padir.refinement.segments import Keys

Number = int | Int[Array, ""]
"""A number of steps, which a compiled program may leave open."""

Decoder = Callable[[Canvas], "jax.Array | Output"]
"""A decoder as `refine` calls it: a canvas -> logits_BLV or `Output`.

It reads `tokens_BL`, `segment_BL` and, if they are not None, `visible_BLL` and `row_B`.
"""


@runtime_checkable
class Corruption(Protocol):
    """A frozen dataclass that replaces the tokens at some editable positions by noise; its fields are hyperparameters.

    A call returns (noisy_BL, chosen_BL): chosen positions are editable and hold noise; all others keep their tokens.
    Random draws use one key per row and are made per segment and position in the segment, so that the noise depends
    neither on L nor on the packing.
    """

    @property
    def deterministic(self) -> bool:
        """True if the corruption that `full` returns makes the same canvas for every key.

        Drafts of one sentence with different keys are then equal.
        """
        ...

    @property
    def noise_kinds(self) -> frozenset[str]:
        """The kinds of noise that the corruption writes: "pieces", "mask" or "mask_range"."""
        ...

    def full(self) -> Corruption:
        """Returns the same corruption at rate 1, which makes the first draft in decoding."""
        ...

    def __call__(
        self,
        key_B: Key[Array, " B"],
        tokens_BL: Int[Array, "B L"],
        editable_BL: Bool[Array, "B L"],
        segment_BL: Int[Array, "B L"],
        *,
        ids: CanvasIds,
    ) -> tuple[Int[Array, "B L"], Bool[Array, "B L"]]: ...


@flax.struct.dataclass
class Proposal:
    """The result of a strategy's step.

    Attributes:
      next: the canvas that the next pass is given.
      last: the canvas that results if this pass is the sentence's last; each editable position holds a written token.
      memory: the strategy's memory for its next step.
      open_BL: the positions that the next pass writes; None for the masked positions of `next`.
      cycled_BL: the positions of sentences that oscillate between two canvases, if the strategy looks for them; `last`
        then holds the better canvas.
    """

    next: Canvas
    last: Canvas
    memory: PyTree
    open_BL: Bool[Array, "B L"] | None = None
    cycled_BL: Bool[Array, "B L"] | None = None

    def still_open(self) -> Bool[Array, "B L"]:
        """The positions that the next pass writes."""
        return self.next.masked_BL if self.open_BL is None else self.open_BL


@runtime_checkable
class Stop(Protocol):
    """A frozen dataclass that says which sentences a pass has finished (`padir.refinement.stop` lists the classes).

    `init` returns the rule's memory, a pytree whose leaves all begin with axis B. `step` gets the canvas that the pass
    was given, the decoder's output and the strategy's proposal. It returns True at all positions of the sentences that
    are finished, and its memory. `refine` puts these sentences into the state of `Proposal.last`. The memory of a rule
    that ends cycles has `cycled_BL`, the positions of the sentences that it has finished for this reason.
    """

    def init(self, canvas: Canvas) -> PyTree: ...

    def step(
        self, before: Canvas, output: Output, proposal: Proposal, memory: PyTree
    ) -> tuple[Bool[Array, "B L"], PyTree]: ...


@runtime_checkable
class Strategy(Protocol):
    """A frozen dataclass that proposes the next canvas; its fields are hyperparameters.

    `init` returns the strategy's memory, a pytree whose leaves all begin with axis B (`()` for most strategies). `step`
    gets the index of the step, from 0, and logits in which forbidden ids are -inf. Its keys are for the functions of
    `padir.refinement.segments`, since an analysis may hand over `Draws` in place of keys. A strategy never changes
    padding or EOS. It does not end sentences: its attribute `stop` names the rule that does, and `refine` takes
    `Proposal.last` for finished sentences and after the last pass. A strategy that only some models can run has a class
    attribute `needs` (see `padir.refinement.strategies.check_strategy`). Two more attributes are optional:
    `drops_repeats`, True if translations leave out repeated tokens by default, and `head_judges`, what a rejecter head
    must judge ("token" or "prediction").
    """

    @property
    def stop(self) -> Stop: ...

    def init(self, key_B: Keys, canvas: Canvas) -> PyTree: ...

    def step(
        self,
        key_B: Keys,
        canvas: Canvas,
        output: Output,
        memory: PyTree,
        *,
        step: Number,
        num_steps: Number,
    ) -> Proposal: ...


class Memoryless:
    """Base of strategies without memory."""

    def init(self, key_B: Keys, canvas: Canvas) -> tuple[()]:
        return ()


@runtime_checkable
class StageTransition(Protocol):
    """A transition: a frozen dataclass that makes the next training stage's canvas; its fields are hyperparameters.

    A call gets the canvas that the stage saw, the decoder's output, the target, and the positions that the corruption
    or the previous transition chose. The output has no gradient, and its forbidden ids are at -inf. `progress` is the
    share of the training run that is done, in [0, 1). A call returns the canvas and the chosen positions of the next
    stage. Chosen positions are editable; the stage weights "noised" and "masked" count these positions in the loss.
    Each row of the result must depend only on the same row of the arguments, because a call may get only some rows of a
    batch. A transition that imitates a decoding strategy has this strategy in an attribute `strategy`, and the model is
    decoded with it by default. If a transition depends on `progress`, its attribute `follows_progress` is True.
    """

    def __call__(
        self,
        key_B: Key[Array, " B"],
        canvas: Canvas,
        output: Output,
        target_BL: Int[Array, "B L"],
        chosen_BL: Bool[Array, "B L"],
        *,
        progress: Float[Array, ""] | float,
    ) -> tuple[Canvas, Bool[Array, "B L"]]: ...

"""The protocols of the classes that act on a canvas: `Corruption`, `Strategy` and `Between`."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Int, Key, PyTree

from padir.refinement.canvas import Canvas
from padir.refinement.scores import Output
from padir.text.ids import Ids


@runtime_checkable
class Corruption(Protocol):
    """A frozen dataclass that puts noise in place of the tokens at some free positions; its fields are hyperparameters.

    A call returns (noisy_BL, chosen_BL): chosen positions are free and hold noise; all others keep their tokens. Random
    draws use one key per row and are made per segment and position in the segment, so that the noise depends neither on
    L nor on the packing.
    """

    @property
    def deterministic(self) -> bool:
        """True if the corruption that `full` returns makes the same canvas for every key.

        Drafts of one sentence with different keys are then equal.
        """
        ...

    def full(self) -> Corruption:
        """Returns the same corruption at rate 1, which makes the first draft in decoding."""
        ...

    def __call__(
        self,
        key_B: Key[Array, " B"],
        tokens_BL: Int[Array, "B L"],
        free_BL: Bool[Array, "B L"],
        segment_BL: Int[Array, "B L"],
        *,
        ids: Ids,
    ) -> tuple[Int[Array, "B L"], Bool[Array, "B L"]]: ...


@runtime_checkable
class Strategy(Protocol):
    """A frozen dataclass that makes one step of refinement; its fields are hyperparameters.

    `init` returns the strategy's memory, a pytree whose leaves all begin with axis B (`()` for most strategies). `step`
    gets the index of the step, from 0, and logits in which forbidden ids are -inf. A strategy never changes padding or
    EOS. By the last step, or when it ends a sentence (`padir.refinement.end`), it must have written each of the
    sentence's free positions; `refine` does not change them afterwards. A strategy that only some models can run has a
    class attribute `needs` (see `padir.refinement.strategies.check_strategy`).
    """

    def init(self, key_B: Key[Array, " B"], canvas: Canvas) -> PyTree: ...

    def step(
        self, key_B: Key[Array, " B"], canvas: Canvas, output: Output, memory: PyTree, *, step: Any, num_steps: Any
    ) -> tuple[Canvas, PyTree]: ...


@runtime_checkable
class Between(Protocol):
    """A transition: a frozen dataclass that makes the next training stage's canvas; its fields are hyperparameters.

    A call gets the canvas that the stage saw; the decoder's output in this stage, without gradient and with forbidden
    ids at -inf; the target; the positions chosen by the corruption or by the previous transition; and `progress`, the
    share of the training run that is done, in [0, 1). A call returns the canvas and the chosen positions of the next
    stage. Chosen positions are free; the stage weights "noised" and "masked" count these positions in the loss.
    Each row of the result must depend on that row alone, because a call may get only some rows of a batch. A transition
    that imitates a decoding strategy has this strategy in an attribute `strategy`, and the model is decoded with it by
    default.
    """

    def __call__(
        self,
        key_B: Key[Array, " B"],
        canvas: Canvas,
        output: Output,
        target_BL: Int[Array, "B L"],
        chosen_BL: Bool[Array, "B L"],
        *,
        progress: Any,
    ) -> tuple[Canvas, Bool[Array, "B L"]]: ...

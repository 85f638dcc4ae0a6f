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
    draws use one key per row and are made per segment and position in the segment, so that they change neither with L
    nor with the packing.
    """

    @property
    def deterministic(self) -> bool:
        """True if `full` gives the same canvas for every key, so that parallel draws would be equal."""
        ...

    def full(self) -> Corruption:
        """The same corruption at rate 1, which makes the draft that decoding starts from."""
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
    gets the number of its step, from 0, and logits in which forbidden ids are -inf. It never changes padding or EOS.
    By the last step, or when it sets done_B for a row, it must have written every free position of the row. A strategy
    that only some models can run has a class attribute `needs` (see `padir.refinement.strategies.check_strategy`).
    """

    def init(self, key_B: Key[Array, " B"], canvas: Canvas) -> PyTree: ...

    def step(
        self, key_B: Key[Array, " B"], canvas: Canvas, output: Output, memory: PyTree, *, step: Any, num_steps: Any
    ) -> tuple[Canvas, PyTree]: ...


@runtime_checkable
class Between(Protocol):
    """A frozen dataclass that makes the canvas of the next training stage; its fields are hyperparameters.

    A call gets the canvas that the stage saw; the stage's output, without gradient and with forbidden ids at -inf; the
    target; the chosen positions (at first those that the corruption chose); and `progress`, the share of the training
    run that is done, in [0, 1). It returns the next stage's canvas and chosen positions. Chosen positions are free;
    the stage weights "noised" and "masked" count them in the loss. Each row of the result must depend on that row
    alone, because a call may get only some rows of a batch. An attribute `strategy` names the decoding strategy that
    the transition imitates; the model is then decoded with it by default.
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

"""The protocols of what acts on a canvas: `Corruption`, `Strategy` and `Between`."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Bool, Int, Key, PyTree

from padir.refinement.canvas import Canvas
from padir.refinement.scores import Output
from padir.text.ids import Ids


@runtime_checkable
class Corruption(Protocol):
    """A frozen dataclass that hides what stands at some free positions, with its hyperparameters as fields.

    Returns (noisy_BL, chosen_BL): chosen positions are free and hold the noise; all others are as they were. Draws use
    one key per row, are made per segment and position within it, and so do not change with L or with the packing.
    """

    @property
    def deterministic(self) -> bool:
        """True if `full` gives the same canvas for every key, so that parallel draws would be equal."""
        ...

    def full(self) -> Corruption:
        """The same corruption at rate 1: what decoding starts from."""
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
    """A frozen dataclass that makes one step of refinement, with its hyperparameters as fields.

    `init` gives the strategy's memory, a pytree whose leaves all begin with axis B (`()` for most). `step` is told
    which of `num_steps` steps it makes (from 0) and sees logits in which forbidden ids are -inf. It leaves padding and
    EOS as they are, and no start token where a position was never written when it sets done_B or at the last step.
    A strategy that not every model can run says so in a class attribute `needs` (see `strategies.check_strategy`).
    """

    def init(self, key_B: Key[Array, " B"], canvas: Canvas) -> PyTree: ...

    def step(
        self, key_B: Key[Array, " B"], canvas: Canvas, output: Output, memory: PyTree, *, step: Any, num_steps: Any
    ) -> tuple[Canvas, PyTree]: ...


@runtime_checkable
class Between(Protocol):
    """A frozen dataclass: what training puts between two stages.

    It is given the canvas that the stage saw, its output without gradient and with forbidden ids at -inf, the target,
    the positions that count as chosen (at first those that the corruption chose) and progress, the share of the
    training that is done, in [0, 1). It returns the next stage's canvas and chosen positions, which are free; the
    weights "noised" and "masked" follow them. Where it imitates a decoding strategy it may name that as `strategy`: the
    model is then decoded so unless told otherwise. What it makes of a row depends on that row alone, since it may be
    given a part of a batch's rows.
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

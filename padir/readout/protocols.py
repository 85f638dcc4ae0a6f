"""A `Readout` and its parts: the geometry of a canvas, the loss of a training stage, and a head of the decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import flax.struct
from jaxtyping import Array, Bool, Float, Int, Key

from padir import checks
from padir.options import OPTIONS
from padir.readout.prefix_beam import PrefixScore
from padir.readout.tally import Found, Logits
from padir.refinement.canvas import Canvas
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies import Padir
from padir.text.ids import AnyArray, Ids


@runtime_checkable
class Geometry(Protocol):
    """A frozen dataclass that says how long a canvas is, what fits, and which of its tokens are the sentence.

    Attributes:
      is_sentence: each position stands for one token of the sentence, so that a text can be laid on a canvas.
    """

    is_sentence: ClassVar[bool]

    def ids(self, ids: Ids) -> Ids:
        """The vocabulary's ids with the sentinels that decoding may write."""
        ...

    def canvas_length(self, source: int | Array) -> int | Array | None:
        """Lengths of the canvases, EOS included, for numbers of source tokens; None if a head predicts them."""
        ...

    def longest_source(self, max_length: int) -> int:
        """Largest number of source tokens, EOS included, whose canvas has at most `max_length` positions."""
        ...

    def collapse_mask(self, tokens: AnyArray, editable: AnyArray, ids: Ids) -> AnyArray:
        """True at the positions whose tokens belong to the sentence; takes arrays [.., L] of NumPy or JAX."""
        ...


@flax.struct.dataclass
class StageSums:
    """A training stage's loss, and what follows from its logits.

    Attributes:
      loss, z_loss, weight: sums over the positions that count: loss (z-loss included), z-loss, weight.
      correct: number of right target tokens, EOS included.
      aligned_BL: the target aligned to the canvas, with a token at each editable position, without gradient.
      best_BL: the argmax of each position.
      found_BL: `Tally.found` of the stage's logits; None if it was not looked for.
    """

    loss: Float[Array, ""]
    z_loss: Float[Array, ""]
    weight: Float[Array, ""]
    correct: Float[Array, ""]
    aligned_BL: Int[Array, "B L"]
    best_BL: Int[Array, "B L"]
    found_BL: Found | None = None


@runtime_checkable
class StageLoss(Protocol):
    """A frozen dataclass that makes the first training stage's canvas, and the loss of each stage."""

    def check(self, model: str, *, packed: bool, stage_weights: tuple[str, ...], normaliser: str | float) -> None:
        """Refuses options of `Objective` that do not go with this loss; `model` is the noun in messages."""
        ...

    def first_canvas(
        self,
        key_B: Key[Array, " B"],
        source_segment_BS: Int[Array, "B S"],
        target_BL: Int[Array, "B L"],
        segment_BL: Int[Array, "B L"],
        *,
        corruption: Corruption,
        ids: Ids,
        max_length: int,
    ) -> tuple[Canvas, Bool[Array, "B _"]]:
        """The first training stage's canvas, and the positions that the corruption chose.

        Args:
          max_length: `ModelConfig.max_length`, the most positions that the decoder takes.
        """
        ...

    def fits(self, canvas: Canvas, target_BL: Int[Array, "B _"]) -> Bool[Array, " B"] | None:
        """True for rows whose canvas has room for the target; other rows have no loss. None: all have room."""
        ...

    def loss(
        self,
        logits: Logits,
        canvas: Canvas,
        target_BL: Int[Array, "B _"],
        weight_BL: Bool[Array, "B L"] | Float[Array, "B L"],
        *,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> StageSums:
        """The loss of a training stage.

        Args:
          weight_BL: canvas positions that count in the loss, or their weights.
          label_smoothing, z_loss: as in `padir.readout.plain.cross_entropy`.
        """
        ...


Project = Callable[[Float[Array, "B L D"]], Float[Array, "B L V"]]
"""Computes the logits of all ids of the vocabulary from decoder states."""


@runtime_checkable
class PositionHead(Protocol):
    """A decoder head with one more logit for each position, `head_BL`, which decides on some of the ids."""

    def joined(self, logits_BLV: Float[Array, "B L V"], head_BL: Float[Array, "B L"], ids: Ids) -> Array:
        """The logits of all ids."""
        ...

    def best(
        self,
        project: Project,
        states_BLD: Float[Array, "B L D"],
        head_BL: Float[Array, "B L"],
        present_BL: Bool[Array, "B L"],
        ids: Ids,
    ) -> Found:
        """The best ids and their log-probabilities, from few logits of the vocabulary."""
        ...

    def prefix_beam(
        self,
        project: Project,
        states_BLD: Float[Array, "B L D"],
        head_BL: Float[Array, "B L"],
        canvas: Canvas,
        size: int,
        score: PrefixScore | None = None,
    ) -> tuple[Int[Array, "B N L"], Float[Array, "B N"]]:
        """The `size` best sentences of each canvas, as canvases, best first, and their log-probabilities.

        The log-probability is -inf in rows for which a canvas has no further sentence. `score` is added to it to order
        the sentences.
        """
        ...


def _options(**values: Iterable[str]) -> None:
    """Refuses names that are no options of `Decoding`."""
    for name, given in values.items():
        for each in given:
            checks.one_of(OPTIONS, **{name: each})


@checks.settings
class Readout:
    """The way in which a model's canvas becomes a sentence.

    Attributes:
      name: the name that messages use.
      geometry, stage_loss: the canvas, and the loss of a training stage.
      head: the decoder's head for single positions, if it has one.
      strategy: the strategy that models are decoded with by default, if their objective names none.
      excludes: options of `ModelConfig` that must be unset.
      counted_by: the option of `Decoding` that says how many hypotheses a draft has.
      limits: the largest values of options of `Decoding` that this readout limits.
      off: options of `Decoding` that must be False.

    Raises:
      PadirError: a part lacks a member of its protocol, or an option has no such name.
    """

    name: str
    geometry: Geometry
    stage_loss: StageLoss
    head: PositionHead | None = None
    strategy: Strategy = Padir()
    excludes: tuple[str, ...] = ()
    counted_by: Annotated[str, partial(checks.one_of, OPTIONS)] = "num_lengths"
    limits: Annotated[Mapping[str, int], _options] = dataclasses.field(default_factory=dict)
    off: Annotated[tuple[str, ...], _options] = ()

    def __post_init__(self):
        name = f"{type(self.geometry).__name__}.collapse_mask"
        checks.takes(name, self.geometry.collapse_mask, "tokens, editable, ids")

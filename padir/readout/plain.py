"""The protocol `Readout`, the plain readout, in which the canvas is the sentence, and the cross-entropy of tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from padir.readout.vocabulary import Tally, Vocabulary
from padir.refinement.canvas import Canvas, from_tokens
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies import Padir
from padir.text.ids import Ids


@dataclasses.dataclass(frozen=True)
class Plain:
    """The readout of models with a length head: every free token belongs to the sentence."""

    name: ClassVar[str] = "plain"
    sized_by_target: ClassVar[bool] = True
    several: ClassVar[str] = "num_lengths"
    limits: ClassVar[Mapping[str, Any]] = {"prefix_beam": 1, "blank_penalty": 0}
    merges_repeats: ClassVar[bool] = False
    position_head: ClassVar[None] = None
    excludes: ClassVar[tuple[str, ...]] = ()
    strategy: ClassVar[Strategy] = Padir()

    def ids(self, ids: Ids) -> Ids:
        return dataclasses.replace(ids, writes_blank=False) if ids.writes_blank else ids

    def room(self, source: Any) -> None:
        return None

    def longest_source(self, max_length: int) -> int:
        return max_length

    def kept(self, tokens: Any, free: Any, ids: Ids) -> Any:
        return free

    def first_canvas(
        self, key_B, source_segment_BS, target_BL, segment_BL, *, corruption: Corruption, ids: Ids, max_length: int
    ):
        """The corrupted target, and the positions that the corruption chose."""
        free_BL = (segment_BL > 0) & (target_BL != ids.eos)
        noisy_BL, chosen_BL = corruption(key_B, target_BL, free_BL, segment_BL, ids=ids)
        # `start_BL` has the same noise as the canvas, and noise in place of the target at all other positions, so that
        # a position that is hidden again between two stages does not show its target.
        start_BL, _ = corruption.full()(key_B, target_BL, free_BL, segment_BL, ids=ids)
        return from_tokens(noisy_BL, jnp.where(chosen_BL, noisy_BL, start_BL), free_BL, segment_BL, ids), chosen_BL

    def fits(self, canvas: Canvas, target_BL: Int[Array, "B L"]) -> Bool[Array, " B"]:
        """True: a canvas of the target's length has room for it."""
        return jnp.ones(target_BL.shape[0], bool)

    def loss(self, vocabulary: Vocabulary, canvas: Canvas, target_BL, weight_BL, *, label_smoothing=0.0, z_loss=0.0):
        """`token_sums` of the stage, and the target itself, because each position stands for one target token."""
        sums = token_sums(vocabulary, target_BL, canvas.segment_BL > 0, weight_BL, label_smoothing, z_loss)
        return sums, target_BL


def cross_entropy(
    logits: Float[Array, "*B V"],
    target: Int[Array, "*B"],
    weight: Bool[Array, "*B"] | Float[Array, "*B"],
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Weighted sums of the cross-entropy (z-loss included) and of the z-loss alone.

    With label smoothing the target distribution has 1 - label_smoothing at the target and the remainder spread evenly
    over the other V - 1 ids. The entropy of this distribution is subtracted, so that a perfect prediction costs 0 (as
    in T5X). The z-loss is z_loss * logsumexp(logits)^2.

    >>> loss, _ = cross_entropy(jnp.zeros((1, 100)), jnp.array([7]), jnp.ones(1))
    >>> round(float(loss), 4)  # log 100
    4.6052
    """
    return _weighted(Tally.of(logits, target), logits.shape[-1], weight, label_smoothing, z_loss)


def _weighted(tally: Tally, size: int, weight, label_smoothing: float, z_loss: float):
    """`cross_entropy` of the tally of `size` logits."""
    loss = tally.log_z - tally.at_target
    if label_smoothing:
        confidence, rest = 1.0 - label_smoothing, label_smoothing / (size - 1)
        elsewhere = (size - 1) * tally.log_z - (tally.total - tally.at_target)
        entropy = -(confidence * jnp.log(confidence) + (size - 1) * rest * jnp.log(rest + 1e-20))
        loss = confidence * loss + rest * elsewhere - entropy
    z = z_loss * jnp.square(tally.log_z)
    weight = weight.astype(jnp.float32)
    return ((loss + z) * weight).sum(), (z * weight).sum()


def token_sums(
    vocabulary: Vocabulary,
    target_BL: Int[Array, "B L"],
    present_BL: Bool[Array, "B L"],
    weight_BL: Bool[Array, "B L"] | Float[Array, "B L"],
    label_smoothing: float,
    z_loss: float,
) -> tuple[Float[Array, ""], ...]:
    """Sums of one stage: cross-entropy, z-loss, weights of the positions that count, number of right argmax tokens."""
    tally = vocabulary.tally(target_BL)
    losses = _weighted(tally, vocabulary.size, weight_BL, label_smoothing, z_loss)
    correct = ((tally.best == target_BL) & present_BL).sum()
    return *losses, weight_BL.sum().astype(jnp.float32), correct.astype(jnp.float32)


@runtime_checkable
class Readout(Protocol):
    """A frozen dataclass that says how large a canvas is and how its tokens are read into a sentence.

    Attributes:
      name: the name that messages use.
      sized_by_target: the canvas has one position for each token of the sentence. Only then does a reference determine
        the canvas's length, and does each position stand for one target token.
      several: the option of `Decoding` that says how many hypotheses a draft has.
      limits: the largest values of options of `Decoding` that the canvas leaves a choice.
      merges_repeats: reading merges equal neighbours, so that `Decoding.drop_repeats` has nothing to do.
      position_head: a decoder head with one logit for each position, which decides on some of the ids, or None. Its
        `joined` gives the logits of all ids, and its `best` the best ids, from few logits of the vocabulary.
      excludes: options of `ModelConfig` that must be unset.
      strategy: the strategy that models are decoded with by default, if their objective names none.
    """

    name: ClassVar[str]
    sized_by_target: ClassVar[bool]
    several: ClassVar[str]
    limits: ClassVar[Mapping[str, Any]]
    merges_repeats: ClassVar[bool]
    position_head: ClassVar[Any]
    excludes: ClassVar[tuple[str, ...]]
    strategy: ClassVar[Strategy]

    def ids(self, ids: Ids) -> Ids:
        """The vocabulary's ids with the sentinels that decoding may write."""
        ...

    def room(self, source: Any) -> Any:
        """Sizes of the canvases, EOS included, for numbers of source tokens; None if the length head predicts them."""
        ...

    def longest_source(self, max_length: int) -> int:
        """Largest number of source tokens, EOS included, whose canvas has at most `max_length` positions."""
        ...

    def kept(self, tokens: Any, free: Any, ids: Ids) -> Any:
        """True at the positions whose tokens belong to the sentence; takes arrays [.., L] of NumPy or JAX."""
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
    ) -> tuple[Canvas, Any]:
        """The first training stage's canvas, and the positions that the corruption chose.

        Args:
          max_length: `ModelConfig.max_length`, the most positions that the decoder takes.
        """
        ...

    def fits(self, canvas: Canvas, target_BL: Int[Array, "B _"]) -> Bool[Array, " B"]:
        """True for rows whose canvas has room for the target; other rows have no loss."""
        ...

    def loss(
        self,
        vocabulary: Vocabulary,
        canvas: Canvas,
        target_BL: Int[Array, "B _"],
        weight_BL: Any,
        *,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> tuple[tuple[Float[Array, ""], ...], Int[Array, "B L"]]:
        """The loss of a training stage, and the target aligned to the canvas, with a token at each free position.

        Args:
          vocabulary: the logits of the stage.
          weight_BL: canvas positions that count in the loss, or their weights.
          label_smoothing, z_loss: as in `padir.readout.plain.cross_entropy`.

        Returns:
          The sums: loss (z-loss included), z-loss, summed weight, and number of right target tokens, EOS included; and
          the aligned target, without gradient.
        """
        ...

"""Corruptions, which replace target tokens by noise for the decoder to predict; each is a frozen dataclass.

The field `rate` is the share of editable positions that are replaced, 1 minus the paper's unmasking rate (section L.2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int, Key

from padir import checks
from padir.errors import PadirError
from padir.refinement.canvas import Canvas, from_tokens
from padir.refinement.ids import CanvasIds
from padir.refinement.protocols import Corruption
from padir.refinement.segments import (
    KIND,
    SHARE,
    VISIBLE,
    check_array,
    check_keys,
    choose_share,
    choose_some,
    position_keys,
    random_pieces,
    segment_keys,
    uniform_draws,
)
from padir.text.ids import positions_in_segment, sequence_mask


@checks.settings
class Uniform:
    """The paper's corruption: each editable position keeps its token or becomes a random regular piece (section L.2).

    Attributes:
      rate: probability that a position is replaced, 1 - unmasking rate, in [0, 1].
    """

    rate: checks.Share = 0.7
    deterministic = False
    noise_kinds = frozenset({"pieces"})

    def full(self) -> Uniform:
        return Uniform(rate=1.0)

    def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids: CanvasIds):
        chosen_BL = choose_share(key_B, editable_BL, segment_BL, self.rate)
        return jnp.where(chosen_BL, random_pieces(key_B, segment_BL, ids), tokens_BL), chosen_BL


@checks.settings
class Mask:
    """Each editable position keeps its token or becomes the mask id.

    Attributes:
      rate: probability that a position is masked, in [0, 1].
    """

    rate: checks.Share = 0.7
    deterministic = True
    noise_kinds = frozenset({"mask"})

    def full(self) -> Mask:
        return Mask(rate=1.0)

    def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids: CanvasIds):
        chosen_BL = choose_share(key_B, editable_BL, segment_BL, self.rate)
        return jnp.where(chosen_BL, ids.mask, tokens_BL), chosen_BL


@checks.settings
class MaskRange:
    """Each editable position keeps its token or becomes the mask id of its own position, V-4 for the first position.

    Attributes:
      rate: probability that a position is masked, in [0, 1].

    Raises (when called):
      PadirError: the vocabulary has fewer than L + 3 sentinels for rows of L positions.
    """

    rate: checks.Share = 0.7
    deterministic = True
    noise_kinds = frozenset({"mask_range"})

    def full(self) -> MaskRange:
        return MaskRange(rate=1.0)

    def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids: CanvasIds):
        mask_L = jnp.array(np.array(ids.mask_range(tokens_BL.shape[1]), np.int32))
        chosen_BL = choose_share(key_B, editable_BL, segment_BL, self.rate)
        return jnp.where(chosen_BL, mask_L[positions_in_segment(segment_BL)], tokens_BL), chosen_BL


@checks.settings
class Mixed:
    """Each editable position keeps its token, becomes a random piece or becomes the mask id, with the given shares.

    Attributes:
      correct: share of positions that keep their token.
      random: share of positions that become a random regular piece.
      mask: share of positions that become the mask id.
    """

    correct: float = 0.3
    random: float = 0.35
    mask: float = 0.35

    def __post_init__(self):
        shares = (self.correct, self.random, self.mask)
        if min(shares) < 0 or not abs(sum(shares) - 1) <= 1e-6:
            raise PadirError("Mixed.correct, random and mask", "shares that add up to 1", shares)
        if self.random + self.mask == 0:
            raise PadirError("Mixed with correct=1 changes no token: raise random or mask")

    @property
    def deterministic(self) -> bool:
        return self.random == 0

    @property
    def noise_kinds(self) -> frozenset[str]:
        shares = {"pieces": self.random, "mask": self.mask}
        return frozenset(kind for kind, share in shares.items() if share > 0)

    def full(self) -> Mixed:
        noise = self.random + self.mask
        return Mixed(correct=0.0, random=self.random / noise, mask=self.mask / noise)

    def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids: CanvasIds):
        noise = self.random + self.mask
        chosen_BL = choose_share(key_B, editable_BL, segment_BL, 1.0 if self.correct == 0 else noise)
        random_BL = uniform_draws(position_keys(key_B, segment_BL, KIND)) < self.random / noise
        noise_BL = jnp.where(random_BL, random_pieces(key_B, segment_BL, ids), ids.mask)
        return jnp.where(chosen_BL, noise_BL, tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class Cmlm:
    """Masks a random number of positions, uniform over 1 .. L in a segment of L editable positions.

    Conditional masked language models are trained with this corruption (Ghazvininejad et al., EMNLP 2019, section 2.2).
    """

    deterministic = True
    noise_kinds = frozenset({"mask"})

    def full(self) -> Mask:
        return Mask(rate=1.0)

    def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids: CanvasIds):
        chosen_BL = choose_some(key_B, editable_BL, segment_BL)
        return jnp.where(chosen_BL, ids.mask, tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class UniformRate:
    """SUNDAE's corruption: `Uniform` at a rate that each segment draws from U(0, 1) (Savinov et al., ICLR 2022)."""

    deterministic = False
    noise_kinds = frozenset({"pieces"})

    def full(self) -> Uniform:
        return Uniform(rate=1.0)

    def __call__(self, key_B, tokens_BL, editable_BL, segment_BL, *, ids: CanvasIds):
        rate_BL = uniform_draws(segment_keys(key_B, segment_BL, SHARE))
        chosen_BL = choose_share(key_B, editable_BL, segment_BL, rate_BL)
        return jnp.where(chosen_BL, random_pieces(key_B, segment_BL, ids), tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class RandomVisible:
    """DisCo's training inputs: each position sees a random part of its segment (Kasai et al., ICML 2020, section 3).

    A decontextualised decoder is trained with random visibility instead of noise. A position sees n other editable
    positions of its segment; n is uniform over 0 .. all of them, and every set of n positions is equally likely. Every
    other position sees EOS, because the length model places EOS before decoding.
    """

    def __call__(self, key_B: Key[Array, " B"], canvas: Canvas) -> Canvas:
        """Narrows the visibility of a canvas from `padir.refinement.canvas.restrict_visibility`."""
        assert canvas.visible_BLL is not None
        query_BL = position_keys(key_B, canvas.segment_BL, VISIBLE)
        pairs = jax.vmap(jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None)))
        draw_BLL = jax.vmap(uniform_draws)(pairs(query_BL, positions_in_segment(canvas.segment_BL)))
        # The number of n draws from U(0, 1) that lie below one further draw is uniform over 0 .. n.
        seen_BLL = draw_BLL < uniform_draws(query_BL)[:, :, None]
        visible_BLL = canvas.visible_BLL & (seen_BLL | ~canvas.editable_BL[:, None, :])
        return dataclasses.replace(canvas, visible_BLL=visible_BLL)


CORRUPTIONS: dict[str, Callable[..., Corruption]] = {
    "uniform": Uniform,
    "mask": Mask,
    "mask_range": MaskRange,
    "mixed": Mixed,
    "cmlm": Cmlm,
    "sundae": UniformRate,
}


def corrupted(
    corruption: Corruption,
    key_B: Key[Array, " B"],
    tokens_BL: Int[Array, "B L"],
    editable_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    ids: CanvasIds,
) -> tuple[Int[Array, "B L"], Bool[Array, "B L"]]:
    """The noisy tokens and the chosen positions that a corruption makes, which may be somebody else's.

    Raises:
      PadirError: it is no corruption, or gives anything but ids and bools of the tokens' shape.
    """
    name = type(corruption).__name__
    checks.instance("corruption", corruption, Corruption, "write it as Uniform()")
    checks.takes(f"{name}.__call__", corruption, "key_B, tokens_BL, editable_BL, segment_BL, *, ids")
    made = corruption(key_B, tokens_BL, editable_BL, segment_BL, ids=ids)
    noisy_BL, chosen_BL = checks.pair(name, "noisy_BL, chosen_BL", made)
    check_array(f"noisy_BL of {name}", noisy_BL, tokens_BL.shape, jnp.integer)
    check_array(f"chosen_BL of {name}", chosen_BL, tokens_BL.shape, jnp.bool_)
    return noisy_BL, chosen_BL


# A row's key is folded with this number to draw the draft. No step has this number, so the steps get other noise.
_DRAFT = 2**31 - 1


def draft(
    key_B: Key[Array, " B"], length_B: Int[Array, " B"], max_length: int, corruption: Corruption, ids: CanvasIds
) -> Canvas:
    """Makes the first canvas for given lengths: noise at every position, EOS at the last position of each row.

    Ids without an EOS (`DecoderIds.eos=None`) have noise at the last position, too.

    Args:
      key_B: one key per row.
      length_B: target lengths in tokens, EOS included, 1 .. max_length (L).
      corruption: the corruption that makes the noise; it is used at rate 1.

    Raises:
      PadirError: a key or length is of the wrong kind, a length is out of range (unless it is traced), or the
        corruption is none.

    >>> from padir.text.ids import Ids
    >>> ids = Ids(vocab_size=16, num_sentinels=4, first_regular=3)
    >>> draft(jax.random.split(jax.random.key(0), 2), jnp.array([4, 2]), 4, Mask(), ids).tokens_BL.tolist()
    [[15, 15, 15, 1], [15, 1, 0, 0]]
    """
    checks.instance("corruption", corruption, Corruption, "write it as Uniform()")
    length_B = jnp.asarray(length_B)
    if length_B.ndim != 1 or not jnp.issubdtype(length_B.dtype, jnp.integer):
        raise PadirError("length_B", "whole numbers, one for each row", f"{list(length_B.shape)} {length_B.dtype}")
    check_keys(key_B, length_B.shape[0])
    if not isinstance(length_B, Tracer) and length_B.size > 0:
        for length in (length_B.min(), length_B.max()):
            checks.within(1, max_length, "change it, or max_length", length_B=int(length))
    return noise_canvas(key_B, length_B, max_length, corruption, ids)


def noise_canvas(
    key_B: Key[Array, " B"], length_B: Int[Array, " B"], max_length: int, corruption: Corruption, ids: CanvasIds
) -> Canvas:
    """Makes the canvas of `draft` without checks of its arguments; a row of length 0 is empty."""
    present_BL = sequence_mask(length_B, max_length)
    editable_BL, blank_BL = present_BL, jnp.full(present_BL.shape, ids.padding, jnp.int32)
    if ids.eos is not None:  # EOS is placed by the length model and never rewritten
        editable_BL = sequence_mask(length_B - 1, max_length)
        blank_BL = jnp.where(present_BL & ~editable_BL, ids.eos, blank_BL)
    segment_BL = present_BL.astype(jnp.int32)
    key_B = jax.vmap(lambda key: jax.random.fold_in(key, _DRAFT))(key_B)
    noisy_BL, _ = corrupted(corruption.full(), key_B, blank_BL, editable_BL, segment_BL, ids)
    tokens_BL = jnp.where(editable_BL, noisy_BL, blank_BL)
    return from_tokens(tokens_BL, tokens_BL, editable_BL, segment_BL, ids)

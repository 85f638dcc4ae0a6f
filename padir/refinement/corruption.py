"""Corruptions, which replace target tokens by noise for the decoder to predict; each is a frozen dataclass.

The field `rate` is the share of free positions that are replaced, 1 minus the paper's unmasking rate (section L.2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from padir import checks
from padir.errors import PadirError
from padir.refinement.canvas import Canvas
from padir.refinement.draws import (
    KIND,
    SHARE,
    VISIBLE,
    choose_share,
    choose_some,
    position_keys,
    random_pieces,
    segment_keys,
    uniform_draws,
)
from padir.refinement.protocols import Corruption
from padir.text.ids import Ids, positions_in_segment


@dataclasses.dataclass(frozen=True)
class Uniform:
    """The paper's corruption: each free position keeps its token or becomes a random regular piece (section L.2).

    Attributes:
      rate: probability that a position is replaced, 1 - unmasking rate, in [0, 1].
    """

    rate: float = 0.7
    deterministic = False

    def __post_init__(self):
        checks.within(0, 1, **checks.fields_of(self, "rate"))

    def full(self) -> Uniform:
        return Uniform(rate=1.0)

    def __call__(self, key_B, tokens_BL, free_BL, segment_BL, *, ids: Ids):
        chosen_BL = choose_share(key_B, free_BL, segment_BL, self.rate)
        return jnp.where(chosen_BL, random_pieces(key_B, segment_BL, ids), tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class Mask:
    """Each free position keeps its token or becomes the mask id.

    Attributes:
      rate: probability that a position is masked, in [0, 1].
    """

    rate: float = 0.7
    deterministic = True

    def __post_init__(self):
        checks.within(0, 1, **checks.fields_of(self, "rate"))

    def full(self) -> Mask:
        return Mask(rate=1.0)

    def __call__(self, key_B, tokens_BL, free_BL, segment_BL, *, ids: Ids):
        chosen_BL = choose_share(key_B, free_BL, segment_BL, self.rate)
        return jnp.where(chosen_BL, ids.mask, tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class MaskRange:
    """Each free position keeps its token or becomes the mask id of its own position, V-4 for the first position.

    Attributes:
      rate: probability that a position is masked, in [0, 1].

    Raises (when called):
      PadirError: the vocabulary has fewer than L + 3 sentinels for rows of L positions.
    """

    rate: float = 0.7
    deterministic = True

    def __post_init__(self):
        checks.within(0, 1, **checks.fields_of(self, "rate"))

    def full(self) -> MaskRange:
        return MaskRange(rate=1.0)

    def __call__(self, key_B, tokens_BL, free_BL, segment_BL, *, ids: Ids):
        mask_L = jnp.array(np.array(ids.mask_range(tokens_BL.shape[1]), np.int32))
        chosen_BL = choose_share(key_B, free_BL, segment_BL, self.rate)
        return jnp.where(chosen_BL, mask_L[positions_in_segment(segment_BL)], tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Each free position keeps its token, becomes a random piece or becomes the mask id, with the given shares.

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
            raise PadirError("Mixed with correct=1 corrupts nothing: give random or mask a share")

    @property
    def deterministic(self) -> bool:
        return self.random == 0

    def full(self) -> Mixed:
        noise = self.random + self.mask
        return Mixed(correct=0.0, random=self.random / noise, mask=self.mask / noise)

    def __call__(self, key_B, tokens_BL, free_BL, segment_BL, *, ids: Ids):
        noise = self.random + self.mask
        chosen_BL = choose_share(key_B, free_BL, segment_BL, 1.0 if self.correct == 0 else noise)
        random_BL = uniform_draws(position_keys(key_B, segment_BL, KIND)) < self.random / noise
        noise_BL = jnp.where(random_BL, random_pieces(key_B, segment_BL, ids), ids.mask)
        return jnp.where(chosen_BL, noise_BL, tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class Cmlm:
    """Masks a random number of positions, uniform over 1 .. L in a segment of L free positions.

    Conditional masked language models are trained with this corruption (Ghazvininejad et al., EMNLP 2019, section 2.2).
    """

    deterministic = True

    def full(self) -> Mask:
        return Mask(rate=1.0)

    def __call__(self, key_B, tokens_BL, free_BL, segment_BL, *, ids: Ids):
        chosen_BL = choose_some(key_B, free_BL, segment_BL)
        return jnp.where(chosen_BL, ids.mask, tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class UniformRate:
    """SUNDAE's corruption: `Uniform` at a rate that each segment draws from U(0, 1) (Savinov et al., ICLR 2022)."""

    deterministic = False

    def full(self) -> Uniform:
        return Uniform(rate=1.0)

    def __call__(self, key_B, tokens_BL, free_BL, segment_BL, *, ids: Ids):
        rate_BL = uniform_draws(segment_keys(key_B, segment_BL, SHARE))
        chosen_BL = choose_share(key_B, free_BL, segment_BL, rate_BL)
        return jnp.where(chosen_BL, random_pieces(key_B, segment_BL, ids), tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class RandomVisible:
    """DisCo's training inputs: each position sees a random part of its segment (Kasai et al., ICML 2020, section 3).

    A decontextualised decoder is trained with random visibility instead of noise. A position sees n other free
    positions of its segment; n is uniform over 0 .. all of them, and every set of n positions is equally likely. Every
    other position sees EOS, because the length model places EOS before decoding.
    """

    def __call__(self, key_B: Key[Array, " B"], canvas: Canvas) -> Canvas:
        """Narrows the visibility of a canvas from `padir.refinement.canvas.veil`."""
        assert canvas.visible_BLL is not None
        query_BL = position_keys(key_B, canvas.segment_BL, VISIBLE)
        pairs = jax.vmap(jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None)))
        draw_BLL = jax.vmap(uniform_draws)(pairs(query_BL, positions_in_segment(canvas.segment_BL)))
        # The number of n draws from U(0, 1) that lie below one further draw is uniform over 0 .. n.
        seen_BLL = draw_BLL < uniform_draws(query_BL)[:, :, None]
        visible_BLL = canvas.visible_BLL & (seen_BLL | ~canvas.free_BL[:, None, :])
        return dataclasses.replace(canvas, visible_BLL=visible_BLL)


CORRUPTIONS: dict[str, Callable[..., Corruption]] = {
    "uniform": Uniform,
    "mask": Mask,
    "mask_range": MaskRange,
    "mixed": Mixed,
    "cmlm": Cmlm,
    "sundae": UniformRate,
}


def noise_kinds(corruption: Corruption) -> frozenset[str] | None:
    """Kinds of noise that a corruption writes: "pieces", "mask" or "mask_range"; None for an unknown class.

    >>> sorted(noise_kinds(Mixed()))
    ['mask', 'pieces']
    """
    if isinstance(corruption, Mixed):
        shares = {"pieces": corruption.random, "mask": corruption.mask}
        return frozenset(kind for kind, share in shares.items() if share > 0)
    kinds = {Uniform: "pieces", UniformRate: "pieces", Mask: "mask", Cmlm: "mask", MaskRange: "mask_range"}
    kind = kinds.get(type(corruption))
    return frozenset({kind}) if kind else None

"""What stands at the positions that a decoder is to predict: one frozen dataclass a scheme.

`rate` is the share of free positions that are replaced, 1 minus the paper's unmasking rate (section L.2). Every draw is
made from (row key, segment number, position in the segment), so that corrupting and then packing equals packing and
then corrupting, and a longer row draws the same values at its first positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from padir.errors import PadirError
from padir.refinement.canvas import Canvas
from padir.refinement.protocols import Corruption
from padir.refinement.segments import count_in_segment, worst
from padir.text.ids import Ids, positions_in_segment

# What a key of a row is folded with, so that the draws of one corruption are independent of each other.
_CHOICE, _NOISE, _KIND, _SHARE, _VISIBLE = range(5)


def segment_keys(key_B: Key[Array, " B"], segment_BL: Int[Array, "B L"], stream: int) -> Key[Array, "B L"]:
    """One key for each segment, given at each of its positions."""
    fold = jax.vmap(lambda key, segment_L: jax.vmap(lambda s: jax.random.fold_in(key, s))(segment_L))
    return fold(jax.vmap(lambda key: jax.random.fold_in(key, stream))(key_B), segment_BL)


def position_keys(key_B: Key[Array, " B"], segment_BL: Int[Array, "B L"], stream: int) -> Key[Array, "B L"]:
    """One key for each position of each segment."""
    fold = jax.vmap(jax.vmap(jax.random.fold_in))
    return fold(segment_keys(key_B, segment_BL, stream), positions_in_segment(segment_BL))


def uniform_draws(key_BL: Key[Array, "B L"]) -> Float[Array, "B L"]:
    """A number from [0, 1) for each key."""
    return jax.vmap(jax.vmap(jax.random.uniform))(key_BL)


def _random_pieces(key_B, segment_BL, ids: Ids) -> Int[Array, "B L"]:
    key_BL = position_keys(key_B, segment_BL, _NOISE)
    draw = jax.vmap(jax.vmap(lambda key: jax.random.randint(key, (), ids.first_regular, ids.end_regular)))
    return draw(key_BL)


def _chosen(key_B, free_BL, segment_BL, rate) -> Bool[Array, "B L"]:
    return free_BL & (uniform_draws(position_keys(key_B, segment_BL, _CHOICE)) < rate)


def choose(
    key_B: Key[Array, " B"],
    among_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    count_BL: Int[Array, "B L"],
) -> Bool[Array, "B L"]:
    """`count_BL` random positions of each segment among `among_BL`, every set of that size equally likely.

    `count_BL` holds the segment's count at every position of the segment.
    """
    return worst(uniform_draws(position_keys(key_B, segment_BL, _CHOICE)), among_BL, segment_BL, count_BL)


def choose_some(
    key_B: Key[Array, " B"], among_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]
) -> Bool[Array, "B L"]:
    """Random positions of each segment: their number is uniform over 1, 2, ... all of `among_BL`."""
    share_BL = uniform_draws(segment_keys(key_B, segment_BL, _SHARE))
    most_BL = count_in_segment(among_BL, segment_BL)
    # A share next to 1 times a large count may round up to the count itself.
    count_BL = jnp.minimum(1 + (share_BL * most_BL).astype(jnp.int32), most_BL)
    return choose(key_B, among_BL, segment_BL, count_BL)


def _check_rate(rate: float) -> None:
    if not 0.0 <= rate <= 1.0:
        raise PadirError(f"rate must lie in [0, 1] (the share of positions replaced), got {rate}")


@dataclasses.dataclass(frozen=True)
class Uniform:
    """The paper's corruption: each free position keeps its token or becomes a random regular piece (section L.2).

    Attributes:
      rate: probability that a position is replaced, 1 - unmasking rate.
    """

    rate: float = 0.7
    deterministic = False

    def __post_init__(self):
        _check_rate(self.rate)

    def full(self) -> Uniform:
        return Uniform(rate=1.0)

    def __call__(self, key_B, tokens_BL, free_BL, segment_BL, *, ids: Ids):
        chosen_BL = _chosen(key_B, free_BL, segment_BL, self.rate)
        return jnp.where(chosen_BL, _random_pieces(key_B, segment_BL, ids), tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class Mask:
    """Each free position keeps its token or becomes the mask id.

    Attributes:
      rate: probability that a position is masked.
    """

    rate: float = 0.7
    deterministic = True

    def __post_init__(self):
        _check_rate(self.rate)

    def full(self) -> Mask:
        return Mask(rate=1.0)

    def __call__(self, key_B, tokens_BL, free_BL, segment_BL, *, ids: Ids):
        chosen_BL = _chosen(key_B, free_BL, segment_BL, self.rate)
        return jnp.where(chosen_BL, ids.mask, tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class MaskRange:
    """Each free position keeps its token or becomes the mask id of its own position, V-4 for the first one.

    Attributes:
      rate: probability that a position is masked.

    Raises (when called):
      PadirError: fewer than L + 3 sentinels for rows of L positions.
    """

    rate: float = 0.7
    deterministic = True

    def __post_init__(self):
        _check_rate(self.rate)

    def full(self) -> MaskRange:
        return MaskRange(rate=1.0)

    def __call__(self, key_B, tokens_BL, free_BL, segment_BL, *, ids: Ids):
        mask_L = jnp.array(np.array(ids.mask_range(tokens_BL.shape[1]), np.int32))
        chosen_BL = _chosen(key_B, free_BL, segment_BL, self.rate)
        return jnp.where(chosen_BL, mask_L[positions_in_segment(segment_BL)], tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Each free position is correct, random or masked, with the given shares.

    Attributes:
      correct: share of positions that keep their token.
      random: share that become a random regular piece.
      mask: share that become the mask id.
    """

    correct: float = 0.3
    random: float = 0.35
    mask: float = 0.35

    def __post_init__(self):
        shares = (self.correct, self.random, self.mask)
        if min(shares) < 0 or not abs(sum(shares) - 1) <= 1e-6:
            raise PadirError(f"correct, random and mask must be shares that add up to 1, got {shares}")
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
        chosen_BL = _chosen(key_B, free_BL, segment_BL, 1.0 if self.correct == 0 else noise)
        random_BL = uniform_draws(position_keys(key_B, segment_BL, _KIND)) < self.random / noise
        noise_BL = jnp.where(random_BL, _random_pieces(key_B, segment_BL, ids), ids.mask)
        return jnp.where(chosen_BL, noise_BL, tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class Cmlm:
    """A random number of masks, uniform over 1 .. L in a segment of L free positions.

    Of conditional masked language models (Ghazvininejad et al., EMNLP 2019, section 2.2).
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
        rate_BL = uniform_draws(segment_keys(key_B, segment_BL, _SHARE))
        chosen_BL = _chosen(key_B, free_BL, segment_BL, rate_BL)
        return jnp.where(chosen_BL, _random_pieces(key_B, segment_BL, ids), tokens_BL), chosen_BL


@dataclasses.dataclass(frozen=True)
class RandomVisible:
    """What a decontextualised decoder sees instead of noise: for each position a random set of the others.

    The number of free positions of the segment that a position sees is uniform over 0, 1, ... all others, and every set
    of that size is equally likely. EOS is always seen: the length model has placed it. Of DisCo's training (Kasai et
    al., ICML 2020, section 3).
    """

    def __call__(self, key_B: Key[Array, " B"], canvas: Canvas) -> Canvas:
        """Narrows what is visible of a canvas that `padir.refinement.canvas.veil` has made."""
        assert canvas.visible_BLL is not None
        query_BL = position_keys(key_B, canvas.segment_BL, _VISIBLE)
        pairs = jax.vmap(jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None)))
        draw_BLL = jax.vmap(uniform_draws)(pairs(query_BL, positions_in_segment(canvas.segment_BL)))
        # How many of n draws from U(0, 1) lie below one more such draw is uniform over 0 .. n.
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


def get_corruption(name: str, **hyperparameters) -> Corruption:
    """The corruption of a name.

    Raises:
      PadirError: no corruption has that name; the message lists those that there are.
    """
    if name not in CORRUPTIONS:
        raise PadirError(f"no corruption is called {name!r}: choose one of {', '.join(CORRUPTIONS)}")
    return CORRUPTIONS[name](**hyperparameters)


def noise_kinds(corruption: Corruption) -> frozenset[str] | None:
    """What a corruption puts in the place of tokens, of "pieces", "mask" and "mask_range"; None: it is not padir's.

    >>> sorted(noise_kinds(Mixed()))
    ['mask', 'pieces']
    """
    if isinstance(corruption, Mixed):
        shares = {"pieces": corruption.random, "mask": corruption.mask}
        return frozenset(kind for kind, share in shares.items() if share > 0)
    kinds = {Uniform: "pieces", UniformRate: "pieces", Mask: "mask", Cmlm: "mask", MaskRange: "mask_range"}
    kind = kinds.get(type(corruption))
    return frozenset({kind}) if kind else None

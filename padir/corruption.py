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

from padir.canvas import Corruption
from padir.errors import PadirError
from padir.tokens import Ids, positions_in_segment

# What a key of a row is folded with, so that the draws of one corruption are independent of each other.
_CHOICE, _NOISE, _KIND = range(3)


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


def _chosen(key_B, free_BL, segment_BL, rate: float) -> Bool[Array, "B L"]:
    return free_BL & (uniform_draws(position_keys(key_B, segment_BL, _CHOICE)) < rate)


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
        if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
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


CORRUPTIONS: dict[str, Callable[..., Corruption]] = {
    "uniform": Uniform,
    "mask": Mask,
    "mask_range": MaskRange,
    "mixed": Mixed,
}


def get_corruption(name: str, **hyperparameters) -> Corruption:
    """The corruption of a name.

    Raises:
      PadirError: no corruption has that name; the message lists those that there are.
    """
    if name not in CORRUPTIONS:
        raise PadirError(f"no corruption is called {name!r}: choose one of {', '.join(CORRUPTIONS)}")
    return CORRUPTIONS[name](**hyperparameters)


def knows_mask(corruption: Corruption) -> bool:
    """Whether a model that was trained with this corruption has seen masks.

    >>> knows_mask(Mixed()), knows_mask(Uniform())
    (True, False)
    """
    return corruption.deterministic or getattr(corruption, "mask", 0.0) > 0  # what is always the same is a mask

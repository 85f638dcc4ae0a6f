"""Random draws for each position of each segment, independent of batch, padding and packing.

In decoding, `sentence_keys` makes a row's key from the sentence. Every draw is made from (row key, segment number,
position in the segment). A row therefore draws the same values in any batch, and a longer row draws the same values at
its first positions. Corrupting sentence pairs and then packing them gives the same rows as packing them and then
corrupting them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from padir.refinement.segments import count_in_segment, worst
from padir.text.ids import Ids, positions_in_segment

# A row key is folded with one of these numbers, so that the draws of one corruption, or of one step, are independent of
# each other. PLACE is for the positions that a step chooses, CORRECTION for all draws of the corrector of a strategy.
CHOICE, NOISE, KIND, SHARE, VISIBLE, PLACE, CORRECTION = range(7)


def sentence_keys(source_BS: Int[Array, "B S"], seed: int | Int[Array, ""]) -> Key[Array, " B"]:
    """One key for each sentence, made from its ids in their order and from the seed; padding (id 0) does not count.

    Each id draws 32 bits from a key for its position, and the sum of these bits is folded into the seed's key. Unsigned
    sums wrap around and are exact, so that no key depends on the batch, on its width or on the devices that share it.
    About one of 2**32 pairs of different sentences has the same key, which does no harm: keys need to differ only so
    that the drafts of different sentences look independent.
    """
    key = jax.random.key(seed)
    key_S = jax.vmap(lambda position: jax.random.fold_in(key, position))(jnp.arange(source_BS.shape[1]))
    bits = jax.vmap(lambda key, piece: jax.random.bits(jax.random.fold_in(key, piece)))
    bits_BS = jax.vmap(bits, in_axes=(None, 0))(key_S, source_BS)
    sum_B = jnp.where(source_BS > 0, bits_BS, 0).sum(-1, dtype=jnp.uint32)
    return jax.vmap(lambda total: jax.random.fold_in(key, total))(sum_B)


def segment_keys(key_B: Key[Array, " B"], segment_BL: Int[Array, "B L"], stream: int) -> Key[Array, "B L"]:
    """One key for each segment, repeated at each position of the segment; another `stream` gives independent keys."""
    fold = jax.vmap(lambda key, segment_L: jax.vmap(lambda s: jax.random.fold_in(key, s))(segment_L))
    return fold(jax.vmap(lambda key: jax.random.fold_in(key, stream))(key_B), segment_BL)


def position_keys(key_B: Key[Array, " B"], segment_BL: Int[Array, "B L"], stream: int) -> Key[Array, "B L"]:
    """One key for each position of each segment; another `stream` gives independent keys."""
    fold = jax.vmap(jax.vmap(jax.random.fold_in))
    return fold(segment_keys(key_B, segment_BL, stream), positions_in_segment(segment_BL))


def uniform_draws(key_BL: Key[Array, "B L"]) -> Float[Array, "B L"]:
    """One number from [0, 1) for each key."""
    return jax.vmap(jax.vmap(jax.random.uniform))(key_BL)


def random_pieces(key_B: Key[Array, " B"], segment_BL: Int[Array, "B L"], ids: Ids) -> Int[Array, "B L"]:
    """One regular piece for each position, all equally likely."""
    key_BL = position_keys(key_B, segment_BL, NOISE)
    draw = jax.vmap(jax.vmap(lambda key: jax.random.randint(key, (), ids.first_regular, ids.end_regular)))
    return draw(key_BL)


def choose_share(
    key_B: Key[Array, " B"],
    among_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    rate: float | Float[Array, "B L"],
) -> Bool[Array, "B L"]:
    """Chooses random positions among `among_BL`, each independently with probability `rate`."""
    return among_BL & (uniform_draws(position_keys(key_B, segment_BL, CHOICE)) < rate)


def choose(
    key_B: Key[Array, " B"],
    among_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    count_BL: int | Int[Array, "B L"],
    stream: int = CHOICE,
) -> Bool[Array, "B L"]:
    """Chooses `count_BL` positions of each segment among `among_BL`; every set of that size is equally likely.

    `count_BL` holds the segment's count at every position of the segment, or is the count of every segment.
    """
    return worst(uniform_draws(position_keys(key_B, segment_BL, stream)), among_BL, segment_BL, count_BL)


def choose_some(
    key_B: Key[Array, " B"], among_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]
) -> Bool[Array, "B L"]:
    """Chooses n random positions of each segment among `among_BL`; n is uniform over 1 .. all of them."""
    share_BL = uniform_draws(segment_keys(key_B, segment_BL, SHARE))
    most_BL = count_in_segment(among_BL, segment_BL)
    # The product of a share near 1 and a large count may round up to the count itself.
    count_BL = jnp.minimum(1 + (share_BL * most_BL).astype(jnp.int32), most_BL)
    return choose(key_B, among_BL, segment_BL, count_BL)

"""Ranks, counts and random draws of positions within each segment (sentence pair) of a row.

In decoding, `sentence_keys` makes a row's key from the sentence. Every draw is made from (row key, segment number,
position in the segment). A row therefore draws the same values in any batch, and a longer row draws the same values at
its first positions. Packing commutes with corruption: both orders give the same rows.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from padir.errors import PadirError
from padir.refinement.ids import CanvasIds
from padir.text.ids import positions_in_segment


@runtime_checkable
class Draws(Protocol):
    """Makes the random choices of a step itself. An analysis hands it to a strategy in place of keys, one for all rows.

    So it can try every choice and know its probability (`padir.studies.analysis.law`). A strategy that draws by the
    functions of this module and by `sample_tokens` alone can be analysed in this way.
    """

    def tokens(
        self, logits_BLV: Float[Array, "B L V"], temperature: float | Float[Array, ""], open_BL: Bool[Array, "B L"]
    ) -> Int[Array, "B L"]:
        """A token for each position of `open_BL`, drawn from the logits divided by the temperature."""
        ...

    def subset(self, among_BL: Bool[Array, "B L"], count_BL: int | Int[Array, "B L"]) -> Bool[Array, "B L"]:
        """`count_BL` positions of `among_BL`, every set of that size equally likely."""
        ...

    def share(self, among_BL: Bool[Array, "B L"], rate: float | Float[Array, "B L"]) -> Bool[Array, "B L"]:
        """Each position of `among_BL` with probability `rate`."""
        ...

    def pieces(self, where_BL: Bool[Array, "B L"], ids: CanvasIds) -> Int[Array, "B L"]:
        """One of `ids.noise` for each position of `where_BL`, all equally likely."""
        ...


Keys: TypeAlias = Key[Array, " B"] | Draws
"""One key for each row, or what decides draws in place of keys."""


def same_segment(segment_BL: Int[Array, "B L"]) -> Bool[Array, "B L L"]:
    """True for [query, key] positions of one sentence pair; padding is a segment of its own."""
    return segment_BL[:, :, None] == segment_BL[:, None, :]


def other_positions(segment_BL: Int[Array, "B L"]) -> Bool[Array, "B L L"]:
    """True for [query, key] positions of one sentence pair, except for a position and itself."""
    return same_segment(segment_BL) & ~jnp.eye(segment_BL.shape[1], dtype=bool)


def precedes(
    score_BL: Float[Array, "B L"], among_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]
) -> Bool[Array, "B L L"]:
    """True for [query, key] if the key is one of `among_BL`, in the query's segment, and has a lower score.

    If two scores are equal, the position further left counts as lower.
    """
    index_L = jnp.arange(score_BL.shape[1])
    lower_BLL = (score_BL[:, None, :] < score_BL[:, :, None]) | (
        (score_BL[:, None, :] == score_BL[:, :, None]) & (index_L[None, :] < index_L[:, None])
    )
    return lower_BLL & same_segment(segment_BL) & among_BL[:, None, :]


def worst(
    score_BL: Float[Array, "B L"],
    among_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    count_BL: Int[Array, "B L"] | int,
) -> Bool[Array, "B L"]:
    """Marks the `count_BL` lowest-scored positions of each segment among `among_BL`; ties go to the leftmost position.

    `count_BL` is one number, or holds the segment's count at every position of the segment.

    >>> worst(jnp.array([[0.5, 0.1, 0.3]]), jnp.ones((1, 3), bool), jnp.ones((1, 3), int), 2).tolist()
    [[False, True, True]]
    """
    return among_BL & (precedes(score_BL, among_BL, segment_BL).sum(-1) < count_BL)


def count_in_segment(where_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Number of True positions in each segment, repeated at every position of the segment."""
    return (same_segment(segment_BL) & where_BL[:, None, :]).sum(-1)


def sum_in_segment(value_BL: Float[Array, "B L"], segment_BL: Int[Array, "B L"]) -> Float[Array, "B L"]:
    """Sum of the values of each segment, repeated at every position of the segment."""
    return jnp.where(same_segment(segment_BL), value_BL[:, None, :], 0.0).sum(-1)


def share_of(
    share: float, where_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"], *, up: bool = True
) -> Int[Array, "B L"]:
    """`share` times the number of True positions of each segment, rounded up or down, repeated at every position.

    >>> share_of(0.5, jnp.ones((1, 3), bool), jnp.ones((1, 3), int)).tolist()
    [[2, 2, 2]]
    >>> share_of(0.3, jnp.ones((1, 50), bool), jnp.ones((1, 50), int))[0, 0].item()
    15
    """
    exact_BL = share * count_in_segment(where_BL, segment_BL)
    # float32 gives a little more than 15 for 0.3 of 50, and a little less than 53 for 0.53 of 100.
    return (jnp.ceil(exact_BL - 1e-4) if up else jnp.floor(exact_BL + 1e-4)).astype(jnp.int32)


# A row key is folded with one of these numbers, so that the draws of one corruption, or of one step, are independent of
# each other. PLACE is for the positions that a step chooses, TOKEN for the tokens that it samples.
CHOICE, NOISE, KIND, SHARE, VISIBLE, PLACE, TOKEN = range(7)


def sentence_keys(source_BS: Int[Array, "B S"], seed: int | Int[Array, ""]) -> Key[Array, " B"]:
    """One key for each sentence, made from its ids, their order and the seed; padding (id 0) does not count.

    Each id draws 32 bits from a key for its position, and the sum of these bits is folded into the seed's key. Unsigned
    sums wrap around and are exact, so no key depends on the batch, on its width or on the devices that share it. About
    one of 2**32 pairs of different sentences has the same key. This does no harm, because keys need to differ only so
    that the drafts of different sentences look independent.
    """
    key = jax.random.key(seed)
    key_S = jax.vmap(lambda position: jax.random.fold_in(key, position))(jnp.arange(source_BS.shape[1]))
    bits = jax.vmap(lambda key, piece: jax.random.bits(jax.random.fold_in(key, piece)))
    bits_BS = jax.vmap(bits, in_axes=(None, 0))(key_S, source_BS)
    sum_B = jnp.where(source_BS > 0, bits_BS, 0).sum(-1, dtype=jnp.uint32)
    return jax.vmap(lambda total: jax.random.fold_in(key, total))(sum_B)


def check_keys(key_B: Key[Array, " B"], rows: Any) -> None:
    """Refuses anything but one key of `jax.random.key` for each row."""
    shape, dtype = getattr(key_B, "shape", ()), getattr(key_B, "dtype", type(key_B))
    if not jnp.issubdtype(dtype, jax.dtypes.prng_key) or shape != (rows,):
        got, remedy = f"shape {shape} of {dtype}", f"write jax.random.split(jax.random.key(0), {rows})"
        raise PadirError(f"expected key_B to have one key for each of the {rows} rows, got {got}", remedy=remedy)


def check_array(name: str, array: Any, shape: tuple[Any, ...], kind: Any = jnp.generic) -> None:
    """Refuses anything but an array of this shape whose numbers are of this kind, such as `jnp.integer`."""
    got = getattr(array, "shape", None), getattr(array, "dtype", type(array))
    if got[0] != shape or not jnp.issubdtype(got[1], kind):
        of = "" if kind is jnp.generic else f" of {kind.__name__} numbers"
        raise PadirError(name, f"an array of shape {list(shape)}{of}", f"{list(got[0] or ())} {got[1]}")


def fold_keys(key_B: Keys, number: int | Int[Array, ""]) -> Keys:
    """Other keys for each number; `Draws` need none."""
    return key_B if isinstance(key_B, Draws) else jax.vmap(lambda key: jax.random.fold_in(key, number))(key_B)


def segment_keys(key_B: Keys, segment_BL: Int[Array, "B L"], stream: int) -> Key[Array, "B L"]:
    """One key for each segment, repeated at each position of the segment; another `stream` gives independent keys."""
    if isinstance(key_B, Draws):
        what = "a strategy that takes keys of positions or segments cannot be enumerated"
        raise PadirError(what, remedy="draw by choose, choose_share, random_pieces and sample_tokens alone")
    fold = jax.vmap(lambda key, segment_L: jax.vmap(lambda s: jax.random.fold_in(key, s))(segment_L))
    return fold(jax.vmap(lambda key: jax.random.fold_in(key, stream))(key_B), segment_BL)


def position_keys(key_B: Keys, segment_BL: Int[Array, "B L"], stream: int) -> Key[Array, "B L"]:
    """One key for each position of each segment; another `stream` gives independent keys."""
    fold = jax.vmap(jax.vmap(jax.random.fold_in))
    return fold(segment_keys(key_B, segment_BL, stream), positions_in_segment(segment_BL))


def uniform_draws(key_BL: Key[Array, "B L"]) -> Float[Array, "B L"]:
    """One number from [0, 1) for each key."""
    return jax.vmap(jax.vmap(jax.random.uniform))(key_BL)


def random_pieces(
    key_B: Keys, segment_BL: Int[Array, "B L"], ids: CanvasIds, where_BL: Bool[Array, "B L"] | None = None
) -> Int[Array, "B L"]:
    """One of `ids.noise` for each position, all equally likely; `where_BL` are those that matter, None for all."""
    noise = ids.noise
    if not noise:
        raise PadirError("these ids name none to draw at random", remedy="set DecoderIds.random_ids")
    if isinstance(key_B, Draws):
        return key_B.pieces(segment_BL > 0 if where_BL is None else where_BL, ids)
    first, end = (noise.start, noise.stop) if isinstance(noise, range) else (0, len(noise))
    draw_BL = jax.vmap(jax.vmap(lambda key: jax.random.randint(key, (), first, end)))
    drawn_BL = draw_BL(position_keys(key_B, segment_BL, NOISE))
    return drawn_BL if isinstance(noise, range) else jnp.array(noise)[drawn_BL]


def is_noise(tokens_BL: Int[Array, "B L"], ids: CanvasIds) -> Bool[Array, "B L"]:
    """True at tokens that `random_pieces` may draw."""
    noise = ids.noise
    if isinstance(noise, range):
        return (tokens_BL >= noise.start) & (tokens_BL < noise.stop)
    return jnp.isin(tokens_BL, jnp.array(noise))


def choose_share(
    key_B: Keys,
    among_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    rate: float | Float[Array, "B L"],
    stream: int = CHOICE,
) -> Bool[Array, "B L"]:
    """Chooses each position of `among_BL` independently with probability `rate`."""
    if isinstance(key_B, Draws):
        return key_B.share(among_BL, rate)
    return among_BL & (uniform_draws(position_keys(key_B, segment_BL, stream)) < rate)


def choose(
    key_B: Keys,
    among_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    count_BL: int | Int[Array, "B L"],
    stream: int = CHOICE,
) -> Bool[Array, "B L"]:
    """Chooses `count_BL` positions of each segment among `among_BL`; every set of that size is equally likely.

    `count_BL` holds the segment's count at every position of the segment, or is the count of every segment.
    """
    if isinstance(key_B, Draws):
        return key_B.subset(among_BL, count_BL)
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

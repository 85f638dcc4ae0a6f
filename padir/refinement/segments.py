"""Ranks and counts of positions within each segment (sentence pair) of a row."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def same_segment(segment_BL: Int[Array, "B L"]) -> Bool[Array, "B L L"]:
    """True for [query, key] positions of one sentence pair; padding is a segment of its own."""
    return segment_BL[:, :, None] == segment_BL[:, None, :]


def precedes(
    score_BL: Float[Array, "B L"], among_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]
) -> Bool[Array, "B L L"]:
    """True for [query, key] if the key is one of `among_BL`, in the query's segment, and has a lower score.

    Of two equal scores the one further left counts as lower.
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


def share_of(share: float, where_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """`share` times the number of True positions of each segment, rounded up, repeated at every position.

    >>> share_of(0.5, jnp.ones((1, 3), bool), jnp.ones((1, 3), int)).tolist()
    [[2, 2, 2]]
    """
    exact_BL = share * count_in_segment(where_BL, segment_BL)
    return jnp.ceil(exact_BL - 1e-4).astype(jnp.int32)  # 0.3 of 10 is 3, though float32 rounds 0.3 up

"""Candidates and targets as arrays, for programs that are jitted from the sources to the targets."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from padir.decoding.planned_drafts import SHORTEST
from padir.text.ids import EOS, PADDING, equals_left


def draft_rows(
    length_BK: Int[Array, "B K"], num_drafts: int, max_length: int
) -> tuple[Int[Array, "B N"], Int[Array, "B N"]]:
    """Lengths and draft numbers of every sentence's `planned_drafts` as arrays, for use inside jit; keeps duplicates.

    >>> draft_rows(jnp.array([[5, 1]]), num_drafts=2, max_length=4)[0].tolist()
    [[4, 4, 2, 2]]
    """
    length_BN = jnp.repeat(jnp.clip(length_BK, SHORTEST, max_length), num_drafts, axis=1)
    draw_N = jnp.tile(jnp.arange(num_drafts), length_BK.shape[1])
    return length_BN, jnp.broadcast_to(draw_N, length_BN.shape)


def packed_without_repeats(
    tokens_BL: Int[Array, "B L"], editable_BL: Bool[Array, "B L"], copied_V: Bool[Array, " V"]
) -> Int[Array, "B L"]:
    """Applies `without_repeats` to every row inside jit; moves kept tokens to the left and adds EOS if there is room.

    `copied_V` is True for ids that may repeat.
    """
    kept_BL = editable_BL & (~equals_left(tokens_BL) | copied_V[tokens_BL])
    order_BL = jnp.argsort(~kept_BL, axis=1, stable=True)
    index_L, count_B1 = jnp.arange(tokens_BL.shape[1]), kept_BL.sum(1, keepdims=True)
    packed_BL = jnp.take_along_axis(tokens_BL, order_BL, axis=1)
    return jnp.where(index_L < count_B1, packed_BL, jnp.where(index_L == count_B1, EOS, PADDING))

"""Clean-up of decoded sentences: drops repeated tokens, and keeps each text on one line."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from padir.text.ids import EOS, PADDING


def one_line(text: str) -> str:
    """Replaces carriage returns by spaces, because most programs read carriage returns as line ends."""
    return text.replace("\r", " ")


def without_repeats(tokens_L: np.ndarray, free_L: np.ndarray, copied: frozenset[int] = frozenset()) -> list[int]:
    """Leaves out free tokens that equal their left neighbour (the paper's section L.2).

    Args:
      copied: ids that may repeat; without this addition to the paper, digit pieces 1 0 0 would become 1 0.

    >>> without_repeats(np.array([7, 7, 8, 8, 7, 1, 0]), np.arange(7) < 5, frozenset([8]))
    [7, 8, 8, 7]
    """
    tokens = tokens_L[free_L].tolist()
    return [token for i, token in enumerate(tokens) if i == 0 or token != tokens[i - 1] or token in copied]


def collapsed(tokens_L: np.ndarray, free_L: np.ndarray, blank: int) -> list[int]:
    """Tokens of a CTC model's canvas: equal neighbours are merged, then blanks are removed (Graves et al., 2006).

    >>> collapsed(np.array([7, 7, 9, 7, 8, 9, 1]), np.arange(7) < 6, blank=9)
    [7, 7, 8]
    """
    return [token for token in without_repeats(tokens_L, free_L) if token != blank]


def packed_without_repeats(
    tokens_BL: Int[Array, "B L"], free_BL: Bool[Array, "B L"], copied_V: Bool[Array, " V"]
) -> Int[Array, "B L"]:
    """Applies `without_repeats` to every row inside jit; moves kept tokens to the left and adds EOS if there is room.

    Args:
      copied_V: True for ids that may repeat; all True leaves all repetitions in.
    """
    left_BL = jnp.pad(tokens_BL, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    kept_BL = free_BL & ((tokens_BL != left_BL) | copied_V[tokens_BL])
    order_BL = jnp.argsort(~kept_BL, axis=1, stable=True)
    index_L, count_B1 = jnp.arange(tokens_BL.shape[1]), kept_BL.sum(1, keepdims=True)
    packed_BL = jnp.take_along_axis(tokens_BL, order_BL, axis=1)
    return jnp.where(index_L < count_B1, packed_BL, jnp.where(index_L == count_B1, EOS, PADDING))

"""Text of decoded tokens: repeated tokens dropped, one line for each sentence."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from padir.text.ids import EOS, PADDING


def one_line(text: str) -> str:
    """The text without a carriage return."""
    return text.replace("\r", " ")  # most readers of text files take it for the end of a line


def without_repeats(tokens_L: np.ndarray, free_L: np.ndarray, copied: frozenset[int] = frozenset()) -> list[int]:
    """The free tokens, less those that equal their left neighbour (the paper's section L.2).

    Args:
      copied: ids that stay nevertheless; the paper knows none, and so would make 10 of 100 where digits are pieces.

    >>> without_repeats(np.array([7, 7, 8, 8, 7, 1, 0]), np.arange(7) < 5, frozenset([8]))
    [7, 8, 8, 7]
    """
    tokens = tokens_L[free_L].tolist()
    return [token for i, token in enumerate(tokens) if i == 0 or token != tokens[i - 1] or token in copied]


def packed_without_repeats(
    tokens_BL: Int[Array, "B L"], free_BL: Bool[Array, "B L"], copied_V: Bool[Array, " V"]
) -> Int[Array, "B L"]:
    """`without_repeats` of every row, for use inside jit: moved to the left, EOS after it where there is room.

    Args:
      copied_V: which ids stay nevertheless; all of them leaves repetitions in.
    """
    left_BL = jnp.pad(tokens_BL, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    kept_BL = free_BL & ((tokens_BL != left_BL) | copied_V[tokens_BL])
    order_BL = jnp.argsort(~kept_BL, axis=1, stable=True)
    index_L, count_B1 = jnp.arange(tokens_BL.shape[1]), kept_BL.sum(1, keepdims=True)
    packed_BL = jnp.take_along_axis(tokens_BL, order_BL, axis=1)
    return jnp.where(index_L < count_B1, packed_BL, jnp.where(index_L == count_B1, EOS, PADDING))

"""Work on the rows of a batch, some at a time: what is large for each row exists for those alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def by_rows(fn: Callable[..., tuple[Any, Any]], positions_at_once: int | None, *rows: Any) -> tuple[Any, Any]:
    """`fn(*rows)`, which gives sums over rows and arrays of rows, made chunk by chunk of rows.

    What `fn` makes of a row may depend on that row alone. A gradient computes a chunk's intermediate results again, so
    that no more than one chunk's exist at any time, forward or backward.

    A chunk has the largest number of rows that divides B and has at most `positions_at_once` positions, but one row at
    least. It takes its rows from all over the batch, so that of a batch whose rows are spread over devices every device
    has a part of each chunk, if that number is a multiple of theirs.

    Args:
      fn: gives a tree of sums, to be added up, and a tree of arrays [B, ...].
      positions_at_once: None: one chunk, of which a gradient keeps everything.
      rows: trees of arrays [B, ...]; the first is one array [B, L, ...].

    >>> import jax.numpy as jnp
    >>> by_rows(lambda x_BL: (x_BL.sum(), -x_BL), 2, jnp.array([[1, 2], [3, 4], [5, 6]]))[1].tolist()
    [[-1, -2], [-3, -4], [-5, -6]]
    """
    batch, length = rows[0].shape[:2]
    size = batch if positions_at_once is None else rows_at_once(batch, length, positions_at_once)
    if size == batch:
        return fn(*rows)
    leaves, row_tree = jax.tree.flatten(rows)  # a Canvas of chunks would be none
    made_tree = None

    def chunk(leaves):
        nonlocal made_tree
        sums, made = fn(*jax.tree.unflatten(row_tree, leaves))
        made_leaves, made_tree = jax.tree.flatten(made)
        return sums, made_leaves

    chunks = [x.reshape(size, batch // size, *x.shape[1:]).swapaxes(0, 1) for x in leaves]
    # Nothing is moved out of a loop's body, so that what is computed again there needs no barrier.
    sums, made = jax.lax.map(jax.checkpoint(chunk, prevent_cse=False), chunks)
    made = [x.swapaxes(0, 1).reshape(batch, *x.shape[2:]) for x in made]
    return jax.tree.map(lambda x: x.sum(0), sums), jax.tree.unflatten(made_tree, made)


def rows_at_once(batch: int, length: int, positions: int) -> int:
    """The largest number of rows of some length that divides the batch and has at most so many positions; at least 1.

    >>> rows_at_once(12, 10, 50), rows_at_once(12, 10, 9), rows_at_once(12, 10, 999)
    (4, 1, 12)
    """
    most = min(batch, max(1, positions // length))
    return next(rows for rows in range(most, 0, -1) if batch % rows == 0)

"""Working on some rows of a batch at a time, so that large intermediate results exist for these rows alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def by_rows(fn: Callable[..., tuple[Any, Any]], positions_at_once: int | None, *rows: Any) -> tuple[Any, Any]:
    """`fn(*rows)` computed chunk by chunk of rows, for functions that give sums over rows and arrays of rows.

    The results of `fn` for a row may depend on that row alone. The gradient computes a chunk's intermediate results
    again, so that the intermediate results of at most one chunk exist at any time, forward or backward.

    A chunk has the largest number of rows that divides B and gives at most `positions_at_once` positions, but at least
    one row. Its rows come from all over the batch: where devices share the rows, every device has a part of each chunk,
    if the number of rows is a multiple of the number of devices.

    Args:
      fn: returns a tree of sums, which are added up, and a tree of arrays [B, ...].
      positions_at_once: None: all rows at once, and the gradient keeps all intermediate results.
      rows: trees of arrays [B, ...]; the first is one array [B, L, ...].

    >>> import jax.numpy as jnp
    >>> by_rows(lambda x_BL: (x_BL.sum(), -x_BL), 2, jnp.array([[1, 2], [3, 4], [5, 6]]))[1].tolist()
    [[-1, -2], [-3, -4], [-5, -6]]
    """
    batch, length = rows[0].shape[:2]
    size = batch if positions_at_once is None else rows_at_once(batch, length, positions_at_once)
    if size == batch:
        return fn(*rows)
    leaves, row_tree = jax.tree.flatten(rows)  # chunks have one axis more than a Canvas may have
    made_tree = None

    def chunk(leaves):
        nonlocal made_tree
        sums, made = fn(*jax.tree.unflatten(row_tree, leaves))
        made_leaves, made_tree = jax.tree.flatten(made)
        return sums, made_leaves

    chunks = [x.reshape(size, batch // size, *x.shape[1:]).swapaxes(0, 1) for x in leaves]
    # XLA moves nothing out of a loop's body, so that recomputation needs no barrier there.
    sums, made = jax.lax.map(jax.checkpoint(chunk, prevent_cse=False), chunks)
    made = [x.swapaxes(0, 1).reshape(batch, *x.shape[2:]) for x in made]
    return jax.tree.map(lambda x: x.sum(0), sums), jax.tree.unflatten(made_tree, made)


def rows_at_once(batch: int, length: int, positions: int) -> int:
    """The largest divisor of `batch` whose rows of `length` have at most `positions` positions; at least 1.

    >>> rows_at_once(12, 10, 50), rows_at_once(12, 10, 9), rows_at_once(12, 10, 999)
    (4, 1, 12)
    """
    most = min(batch, max(1, positions // length))
    return next(rows for rows in range(most, 0, -1) if batch % rows == 0)

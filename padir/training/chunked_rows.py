"""Computes on a chunk of a batch's rows at a time, so that large intermediate results exist for one chunk alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def by_rows(fn: Callable[..., tuple[Any, Any]], positions_at_once: int | None, *rows: Any) -> tuple[Any, Any]:
    """Computes `fn(*rows)` in chunks of rows, where `fn` returns sums over rows and arrays with one entry for each row.

    The results of `fn` for a row must not depend on other rows. The backward pass recomputes a chunk's intermediate
    results, so that the intermediate results of at most one chunk exist at any time, forward or backward.

    A chunk has the largest number of rows that divides B and gives at most `positions_at_once` positions, but at least
    one row. The rows of a chunk come from all over the batch: where devices share the rows, every device has a part of
    each chunk if the number of rows is a multiple of the number of devices.

    Args:
      fn: a function that returns a tree of sums, which are added up, and a tree of arrays [B, ...].
      positions_at_once: maximum number of positions in a chunk; None computes all rows at once and keeps all
        intermediate results for the gradient.
      rows: trees of arrays [B, ...]; the first is one array [B, L, ...].

    >>> import jax.numpy as jnp
    >>> by_rows(lambda x_BL: (x_BL.sum(), -x_BL), 2, jnp.array([[1, 2], [3, 4], [5, 6]]))[1].tolist()
    [[-1, -2], [-3, -4], [-5, -6]]
    """
    batch, length = rows[0].shape[:2]
    size = batch if positions_at_once is None else rows_at_once(batch, length, positions_at_once)
    if size == batch:
        return fn(*rows)
    # Flattened, because rows may hold a Canvas, whose annotated shapes allow no axis of chunks.
    leaves, row_tree = jax.tree.flatten(rows)
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
    """The largest divisor of `batch` for which that many rows have at most `positions` positions; at least 1.

    >>> rows_at_once(12, 10, 50), rows_at_once(12, 10, 9), rows_at_once(12, 10, 999)
    (4, 1, 12)
    """
    most = min(batch, max(1, positions // length))
    return next(rows for rows in range(most, 0, -1) if batch % rows == 0)

"""Comparison of numbers that another processor, or another order of sums, rounds in another way."""

import jax
import numpy as np


def assert_close(got, expected, share=1e-5):
    """Compares trees of arrays; differences may be a share of each array's largest number, as rounding errors are."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    for (path, _), (one, other) in zip(jax.tree_util.tree_leaves_with_path(expected), pairs, strict=True):
        largest = float(np.abs(np.asarray(other, np.float64)).max(initial=0))
        np.testing.assert_allclose(one, other, rtol=share, atol=share * largest, err_msg=jax.tree_util.keystr(path))

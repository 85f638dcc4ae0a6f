"""Attention measures of pairs of target positions: the columns of the paper's Tables 4 and 5.

For a pair (i, j) and one head:

    self-attention      (A[i, j] + A[j, i]) / 2, A the decoder's self-attention
    positional          the same for the decoder's positional attention
    total variation     1/2 * sum over sources s of |C[i, s] - C[j, s]|, C the cross-attention
    cosine distance     1 - C[i]·C[j] / (|C[i]| |C[j]|)

Each measure gives three columns: its minimum, mean and maximum over all heads of all layers. The paper does not say
how the two directions of self-attention are joined; the mean is our choice.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from padir.analysis.attention import Maps

OVER_HEADS = {"min": np.min, "avg": np.mean, "max": np.max}
KINDS = ("self", "positional", "tv", "cosine")
LABELS = {
    "self": "self-attention",
    "positional": "positional attention",
    "tv": "total variation distance",
    "cosine": "cosine distance",
}


def measure(maps: Maps, row: int, pairs_P2: Int[np.ndarray, "P 2"]) -> dict[str, Float[np.ndarray, " P"]]:
    """Every measure of the pairs of positions in one row, by name: "self_min", "tv_avg", ...

    Args:
      maps: attention maps on the host.
    """
    by_kind = {"self": _mutual(maps.own_RJHLL[row], pairs_P2)}
    if maps.positional_RJHLL is not None:
        by_kind["positional"] = _mutual(maps.positional_RJHLL[row], pairs_P2)
    cross = np.asarray(maps.cross_RJHLS[row], np.float64)
    first, second = cross[..., pairs_P2[:, 0], :], cross[..., pairs_P2[:, 1], :]  # J H P S
    by_kind["tv"] = np.abs(first - second).sum(-1) / 2
    norms = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    by_kind["cosine"] = np.maximum(0.0, 1 - (first * second).sum(-1) / norms)
    return {
        f"{kind}_{name}": over(values_JHP, axis=(0, 1))
        for kind, values_JHP in by_kind.items()
        for name, over in OVER_HEADS.items()
    }


def adjacent(length: int) -> Int[np.ndarray, "P 2"]:
    """The pairs of neighbours among the first `length` positions."""
    return np.stack([np.arange(length - 1), np.arange(1, length)], axis=-1).reshape(-1, 2)


def every(length: int) -> Int[np.ndarray, "P 2"]:
    """All pairs i < j of the first `length` positions."""
    return np.stack(np.triu_indices(length, k=1), axis=-1)


def _mutual(attn_JHLL, pairs_P2):
    attn_JHLL = np.asarray(attn_JHLL, np.float64)
    i_P, j_P = pairs_P2.T
    return (attn_JHLL[..., i_P, j_P] + attn_JHLL[..., j_P, i_P]) / 2

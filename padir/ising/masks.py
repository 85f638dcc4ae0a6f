"""Masks: the blocks of spins that are hidden in learning or redrawn in sampling (Definitions 2, 3, 6, 7 and 8).

A training mask and a block of a Gibbs sampler are the same object, on which the paper's theory rests.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
from jaxtyping import Bool, Float

from padir.errors import PadirError

MOST_ENTRIES = 1 << 27  # of a law: 1 GB


@dataclasses.dataclass(frozen=True, eq=False)
class Masks:
    """K blocks of spins and the law by which one is chosen.

    Attributes:
      block_KN: the spins of each block.
      law_KS: the probability of each block given the state; its columns sum to 1. With equal
        columns the mask does not depend on the state (weighted pseudolikelihood, weighted block dynamics); otherwise it
        is adaptive.
    """

    block_KN: Bool[np.ndarray, "K N"]
    law_KS: Float[np.ndarray, "K S"]

    def __post_init__(self):
        (blocks, num_spins), shape = self.block_KN.shape, self.law_KS.shape
        if shape != (blocks, 1 << num_spins):
            raise PadirError(f"expected a law of shape {(blocks, 1 << num_spins)}, got {shape}")
        if np.any(self.law_KS < 0) or not np.allclose(self.law_KS.sum(axis=0), 1.0, atol=1e-12):
            raise PadirError("the law of the blocks must be probabilities that sum to 1 for every state")

    @property
    def num_spins(self) -> int:
        return self.block_KN.shape[1]


def subsets(num_spins: int, size: int) -> Bool[np.ndarray, "K N"]:
    """All blocks of one size.

    >>> subsets(3, 2).astype(int).tolist()
    [[1, 1, 0], [1, 0, 1], [0, 1, 1]]
    """
    if not 1 <= size <= num_spins:
        raise PadirError(f"a block of {num_spins} spins has 1 to {num_spins} of them, got {size}")
    block_KN = np.zeros((math.comb(num_spins, size), num_spins), bool)
    for k, inside in enumerate(itertools.combinations(range(num_spins), size)):
        block_KN[k, list(inside)] = True
    return block_KN


def _check_size(num_spins: int, blocks: int) -> None:
    if blocks << num_spins > MOST_ENTRIES:
        raise PadirError(
            f"the law of masks is a table of at most {MOST_ENTRIES:,} entries, got {blocks:,} blocks for each of 2^"
            f"{num_spins} states: take fewer spins, or draw samples (padir.ising.samplers)"
        )


def _all_blocks(num_spins: int, size: int) -> Bool[np.ndarray, "K N"]:
    _check_size(num_spins, math.comb(num_spins, max(size, 0)))
    return subsets(num_spins, size)


def uniform(num_spins: int, size: int) -> Masks:
    """Every block of `size` spins with equal probability: k-pseudolikelihood (Definition 3), k-Gibbs (equation 3)."""
    block_KN = _all_blocks(num_spins, size)
    return Masks(block_KN, np.full((len(block_KN), 1 << num_spins), 1 / len(block_KN)))


def weighted(block_KN: Bool[np.ndarray, "K N"], weight_K: Float[np.ndarray, " K"]) -> Masks:
    """Blocks with fixed probabilities (Definitions 2 and 6).

    Raises:
      PadirError: some spin is in no block.
    """
    _check_size(block_KN.shape[1], len(block_KN))
    if not block_KN.any(axis=0).all():
        raise PadirError(f"every spin must be in a block, none has {np.flatnonzero(~block_KN.any(axis=0)).tolist()}")
    return Masks(block_KN, np.repeat(weight_K[:, None], 1 << block_KN.shape[1], axis=1))


def random_weighted(rng: np.random.Generator, num_spins: int, blocks: int = 4) -> Masks:
    """Random blocks of random sizes that hold every spin, with random weights."""
    block_KN = rng.random((blocks, num_spins)) < 0.5
    block_KN[rng.integers(blocks, size=num_spins), np.arange(num_spins)] = True
    block_KN = block_KN[block_KN.any(axis=1)]
    return weighted(block_KN, rng.dirichlet(np.full(len(block_KN), 2.0)))


def random_adaptive(rng: np.random.Generator, num_spins: int, size: int) -> Masks:
    """Every block of `size` spins, with random probabilities for every state (Definitions 7 and 8)."""
    block_KN = _all_blocks(num_spins, size)
    return Masks(block_KN, rng.dirichlet(np.full(len(block_KN), 2.0), size=1 << num_spins).T)


def block_sum(value_xS: Float[np.ndarray, "... S"], block_N: Bool[np.ndarray, " N"]) -> Float[np.ndarray, "... S"]:
    """For every state, the sum of values over all states that agree with it outside the block.

    >>> block_sum(np.array([1.0, 2.0, 4.0, 8.0]), np.array([True, False])).tolist()  # spin 0 is summed over
    [3.0, 3.0, 12.0, 12.0]
    """
    num_spins, before = len(block_N), value_xS.shape[:-1]
    axes = tuple(len(before) + num_spins - 1 - int(i) for i in np.flatnonzero(block_N))  # spin 0 is the lowest bit
    cube = value_xS.reshape(*before, *(2,) * num_spins)
    return np.broadcast_to(cube.sum(axis=axes, keepdims=True), cube.shape).reshape(value_xS.shape)

"""Ising models small enough to enumerate (Definition 12): p(x) ∝ exp(Σ_i h_i x_i + Σ_{i<j} J_ij x_i x_j), x_i = ±1.

State s is a number whose bit i is 1 where spin i is +1. This module uses NumPy in float64; in JAX, `learning` fits
models and `chains` runs chains, many at a time. Axis letters of this package: N spins, S = 2^N states, D = N +
N(N-1)/2 parameters (the fields, then the couplings above the diagonal, row by row), K blocks of spins, C states of one
block. Training masks and blocks of a Gibbs sampler are the same object, `Masks`, as in the paper's theory.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from padir.errors import PadirError

MOST_SPINS = 20  # 2^20 probabilities are 8 MB
_CHUNK = 1 << 16  # states whose spins are held at a time
MOST_ENTRIES = 1 << 27  # entries of a law of masks: 1 GB


@dataclasses.dataclass(frozen=True, eq=False)
class Ising:
    """An Ising model.

    Attributes:
      coupling_NN: symmetric with a zero diagonal; each pair counts once.
      field_N: fields.

    Raises:
      PadirError: wrong shapes, infinite values, or couplings that are not symmetric with a zero diagonal.
    """

    coupling_NN: Float[np.ndarray, "N N"]
    field_N: Float[np.ndarray, " N"]

    def __post_init__(self):
        size = len(self.field_N)
        if self.coupling_NN.shape != (size, size) or size == 0:
            raise PadirError(
                f"expected N fields and N x N couplings, got {self.field_N.shape} and {self.coupling_NN.shape}"
            )
        if not (np.isfinite(self.coupling_NN).all() and np.isfinite(self.field_N).all()):
            raise PadirError("couplings and fields must be finite: a hard constraint is no Ising model")
        if np.any(self.coupling_NN != self.coupling_NN.T) or np.any(np.diag(self.coupling_NN)):
            raise PadirError("couplings must be symmetric with a zero diagonal: use (J + J.T) / 2 and take out diag(J)")

    @property
    def num_spins(self) -> int:
        return len(self.field_N)

    @property
    def theta_D(self) -> Float[np.ndarray, " D"]:
        """The parameters as a vector: the fields, then the couplings above the diagonal."""
        return np.concatenate([self.field_N, self.coupling_NN[np.triu_indices(self.num_spins, 1)]])


def clique(
    num_spins: int, size: int, coupling: float, field: float | Sequence[float], *, other_field: float = 0.0
) -> Ising:
    """The paper's family (equation 6): spins 0 to size-1 have couplings J > 0 and fields > 0, the others no coupling.

    Its two modes are R_1, where the whole clique is +1, and R_-1, where it is -1 (equations 7 and 8).

    Raises:
      PadirError: the size is not within 1 .. num_spins, or a coupling or field of the clique is not above 0.
    """
    if not 1 <= size <= num_spins:
        raise PadirError(f"the clique must have 1 to {num_spins} spins, got {size}")
    if coupling <= 0 or np.min(field) <= 0:
        raise PadirError(f"coupling and fields of the clique must be above 0, got {coupling} and {field}")
    field_N = np.full(num_spins, float(other_field))
    field_N[:size] = field
    coupling_NN = np.zeros((num_spins, num_spins))
    coupling_NN[:size, :size] = coupling * (1 - np.eye(size))
    return Ising(coupling_NN, field_N)


def random_model(rng: np.random.Generator, num_spins: int, coupling: float = 0.5, field: float = 0.5) -> Ising:
    """A random Ising model: normal couplings and fields with these standard deviations."""
    upper_NN = np.triu(rng.normal(0.0, coupling, (num_spins, num_spins)), 1)
    return Ising(upper_NN + upper_NN.T, rng.normal(0.0, field, num_spins))


def spins(state_S: Int[np.ndarray, " S"], num_spins: int) -> Float[np.ndarray, "S N"]:
    """Spins (±1) of states.

    >>> spins(np.array([0, 1, 2]), 2).tolist()
    [[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]]
    """
    return 2.0 * ((state_S[:, None] >> np.arange(num_spins)) & 1) - 1.0


def statistics(spin_SN: Float[np.ndarray, "S N"]) -> Float[np.ndarray, "S D"]:
    """Sufficient statistics, in the order of the parameters: every spin, then the product of every pair."""
    first, second = np.triu_indices(spin_SN.shape[1], 1)
    return np.concatenate([spin_SN, spin_SN[:, first] * spin_SN[:, second]], axis=1)


def _chunks(num_spins: int) -> Iterator[tuple[slice, Float[np.ndarray, "S N"]]]:
    """The spins of all states, in chunks, each with its slice of the states."""
    if num_spins > MOST_SPINS:
        raise PadirError(f"at most {MOST_SPINS} spins can be enumerated, got {num_spins}: draw from a chain instead")
    for start in range(0, 1 << num_spins, _CHUNK):
        stop = min(start + _CHUNK, 1 << num_spins)
        yield slice(start, stop), spins(np.arange(start, stop), num_spins)


def log_weights(model: Ising) -> Float[np.ndarray, " S"]:
    """Unnormalised log-probability of every state."""
    result_S = np.empty(1 << model.num_spins)
    for where, spin_SN in _chunks(model.num_spins):
        result_S[where] = spin_SN @ model.field_N + 0.5 * np.sum(spin_SN @ model.coupling_NN * spin_SN, axis=1)
    return result_S


def distribution(model: Ising) -> Float[np.ndarray, " S"]:
    """Exact probability of every state.

    >>> distribution(Ising(np.zeros((2, 2)), np.zeros(2))).tolist()
    [0.25, 0.25, 0.25, 0.25]

    Raises:
      PadirError: more than 20 spins.
    """
    weight_S = log_weights(model)
    prob_S = np.exp(weight_S - weight_S.max())
    return prob_S / prob_S.sum()


def conditional(model: Ising, block: Sequence[int], spin_N: Float[np.ndarray, " N"]) -> Float[np.ndarray, " C"]:
    """p(x_block | the rest of spin_N) for the 2^len(block) states of the block; bit j is spin block[j].

    Only the block is enumerated, so the model may have any number of spins. The block's own entries of spin_N are
    ignored.

    Raises:
      PadirError: the block repeats a spin or names an unknown one, or spin_N has another shape.
    """
    inside = list(block)
    if len(set(inside)) != len(inside) or not set(inside) <= set(range(model.num_spins)):
        raise PadirError(f"a block must have distinct spins of 0 to {model.num_spins - 1}, got {inside}")
    if spin_N.shape != (model.num_spins,):
        raise PadirError(f"expected the {model.num_spins} spins of the model, got an array of shape {spin_N.shape}")
    outside = [i for i in range(model.num_spins) if i not in inside]
    local = model.field_N[inside] + model.coupling_NN[np.ix_(inside, outside)] @ spin_N[outside]
    return distribution(Ising(model.coupling_NN[np.ix_(inside, inside)], local)) if inside else np.ones(1)


@dataclasses.dataclass(frozen=True, eq=False)
class Masks:
    """K blocks of spins and the law by which one is chosen.

    Attributes:
      block_KN: the spins of each block.
      law_KS: the probability of each block given the state; its columns sum to 1. With equal
        columns the mask does not depend on the state (weighted pseudolikelihood, weighted block dynamics);
        otherwise it is adaptive.
    """

    block_KN: Bool[np.ndarray, "K N"]
    law_KS: Float[np.ndarray, "K S"]

    def __post_init__(self):
        (blocks, num_spins) = self.block_KN.shape
        shape = self.law_KS.shape
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
        raise PadirError(f"a block of {num_spins} spins must have 1 to {num_spins} of them, got {size}")
    _check_entries(num_spins, math.comb(num_spins, size))
    block_KN = np.zeros((math.comb(num_spins, size), num_spins), bool)
    for k, inside in enumerate(itertools.combinations(range(num_spins), size)):
        block_KN[k, list(inside)] = True
    return block_KN


def _check_entries(num_spins: int, blocks: int) -> None:
    if blocks << num_spins > MOST_ENTRIES:
        raise PadirError(
            f"the law of masks is a table of at most {MOST_ENTRIES:,} entries, got {blocks:,} blocks for each of 2^"
            f"{num_spins} states: take fewer spins, or draw samples"
        )


def uniform_masks(num_spins: int, size: int) -> Masks:
    """Every block of `size` spins with equal probability: k-pseudolikelihood (Definition 3), k-Gibbs (equation 3)."""
    block_KN = subsets(num_spins, size)
    return Masks(block_KN, np.full((len(block_KN), 1 << num_spins), 1 / len(block_KN)))


def weighted_masks(block_KN: Bool[np.ndarray, "K N"], weight_K: Float[np.ndarray, " K"]) -> Masks:
    """Blocks with fixed probabilities (Definitions 2 and 6).

    Raises:
      PadirError: some spin is in no block.
    """
    _check_entries(block_KN.shape[1], len(block_KN))
    if not block_KN.any(axis=0).all():
        raise PadirError(
            f"every spin must be in a block, but no block has {np.flatnonzero(~block_KN.any(axis=0)).tolist()}"
        )
    return Masks(block_KN, np.repeat(weight_K[:, None], 1 << block_KN.shape[1], axis=1))


def random_masks(rng: np.random.Generator, num_spins: int, blocks: int = 4) -> Masks:
    """Random blocks of random sizes that hold every spin, with random weights."""
    block_KN = rng.random((blocks, num_spins)) < 0.5
    block_KN[rng.integers(blocks, size=num_spins), np.arange(num_spins)] = True
    block_KN = block_KN[block_KN.any(axis=1)]
    return weighted_masks(block_KN, rng.dirichlet(np.full(len(block_KN), 2.0)))


def adaptive_masks(rng: np.random.Generator, num_spins: int, size: int) -> Masks:
    """Every block of `size` spins, with random probabilities for every state (Definitions 7 and 8)."""
    block_KN = subsets(num_spins, size)
    return Masks(block_KN, rng.dirichlet(np.full(len(block_KN), 2.0), size=1 << num_spins).T)


def block_sum(value_xS: Float[np.ndarray, "... S"], block_N: Bool[np.ndarray, " N"]) -> Float[np.ndarray, "... S"]:
    """For every state, the sum of values over all states that agree with it outside the block.

    >>> block_sum(np.array([1.0, 2.0, 4.0, 8.0]), np.array([True, False])).tolist()  # spin 0 is summed over
    [3.0, 3.0, 12.0, 12.0]
    """
    num_spins = len(block_N)
    before = value_xS.shape[:-1]
    axes = tuple(len(before) + num_spins - 1 - int(i) for i in np.flatnonzero(block_N))  # spin 0 is the lowest bit
    cube = value_xS.reshape(*before, *(2,) * num_spins)
    return np.broadcast_to(cube.sum(axis=axes, keepdims=True), cube.shape).reshape(value_xS.shape)

"""Ising models small enough to enumerate (Definition 12): p(x) ∝ exp(Σ_i h_i x_i + Σ_{i<j} J_ij x_i x_j), x_i = ±1.

State s is a number whose bit i says whether spin i is +1. Everything here is NumPy in float64; what is drawn and fitted
by the thousand is JAX, in `learning` and `samplers`. Letters of this package: N spins, S = 2^N states, D = N + N(N-1)/2
parameters (the fields, then the couplings above the diagonal, row by row), K blocks of spins, C states of one block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from padir.errors import PadirError

MOST_SPINS = 20  # 2^20 probabilities are 8 MB
_CHUNK = 1 << 16  # states whose spins are held at a time


@dataclasses.dataclass(frozen=True, eq=False)
class Ising:
    """Couplings, symmetric with a zero diagonal (each pair counts once), and fields."""

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
        return np.concatenate([self.field_N, self.coupling_NN[np.triu_indices(self.num_spins, 1)]])

    @classmethod
    def of_theta(cls, theta_D: Float[np.ndarray, " D"], num_spins: int) -> Ising:
        """The model of a parameter vector, as `theta_D` gives it."""
        if len(theta_D) != num_parameters(num_spins):
            raise PadirError(f"{num_spins} spins have {num_parameters(num_spins)} parameters, got {len(theta_D)}")
        coupling_NN = np.zeros((num_spins, num_spins))
        coupling_NN[np.triu_indices(num_spins, 1)] = theta_D[num_spins:]
        return cls(coupling_NN + coupling_NN.T, np.array(theta_D[:num_spins], np.float64))


def num_parameters(num_spins: int) -> int:
    return num_spins * (num_spins + 1) // 2


def clique(
    num_spins: int, size: int, coupling: float, field: float | Sequence[float], *, other_field: float = 0.0
) -> Ising:
    """The paper's family (equation 6): spins 0 to size-1 have couplings J > 0 and fields > 0, the others no coupling.

    Its two modes are R_1, where the whole clique is +1, and R_-1, where it is -1 (equations 7 and 8).
    """
    if not 1 <= size <= num_spins:
        raise PadirError(f"the clique has 1 to {num_spins} of {num_spins} spins, got {size}")
    if coupling <= 0 or np.min(field) <= 0:
        raise PadirError(f"coupling and fields of the clique must be above 0, got {coupling} and {field}")
    field_N = np.full(num_spins, float(other_field))
    field_N[:size] = field
    coupling_NN = np.zeros((num_spins, num_spins))
    coupling_NN[:size, :size] = coupling * (1 - np.eye(size))
    return Ising(coupling_NN, field_N)


def random(rng: np.random.Generator, num_spins: int, coupling: float = 0.5, field: float = 0.5) -> Ising:
    """Normal couplings and fields with these standard deviations."""
    upper_NN = np.triu(rng.normal(0.0, coupling, (num_spins, num_spins)), 1)
    return Ising(upper_NN + upper_NN.T, rng.normal(0.0, field, num_spins))


def spins(state_S: Int[np.ndarray, " S"], num_spins: int) -> Float[np.ndarray, "S N"]:
    """The spins of states.

    >>> spins(np.array([0, 1, 2]), 2).tolist()
    [[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]]
    """
    return 2.0 * ((state_S[:, None] >> np.arange(num_spins)) & 1) - 1.0


def statistics(spin_SN: Float[np.ndarray, "S N"]) -> Float[np.ndarray, "S D"]:
    """What the parameters multiply: every spin, then the product of every pair."""
    first, second = np.triu_indices(spin_SN.shape[1], 1)
    return np.concatenate([spin_SN, spin_SN[:, first] * spin_SN[:, second]], axis=1)


def _chunks(num_spins: int) -> Iterator[tuple[slice, Float[np.ndarray, "S N"]]]:
    """All states, some at a time, as spins."""
    if num_spins > MOST_SPINS:
        raise PadirError(f"at most {MOST_SPINS} spins can be enumerated, got {num_spins}: draw from a chain instead")
    for start in range(0, 1 << num_spins, _CHUNK):
        stop = min(start + _CHUNK, 1 << num_spins)
        yield slice(start, stop), spins(np.arange(start, stop), num_spins)


def log_weights(model: Ising) -> Float[np.ndarray, " S"]:
    """The exponent of every state: its log-probability up to the partition function."""
    result_S = np.empty(1 << model.num_spins)
    for where, spin_SN in _chunks(model.num_spins):
        result_S[where] = spin_SN @ model.field_N + 0.5 * np.sum(spin_SN @ model.coupling_NN * spin_SN, axis=1)
    return result_S


def log_partition(model: Ising) -> float:
    weight_S = log_weights(model)
    most = weight_S.max()
    return float(most + np.log(np.sum(np.exp(weight_S - most))))


def distribution(model: Ising) -> Float[np.ndarray, " S"]:
    """The exact probability of every state."""
    weight_S = log_weights(model)
    prob_S = np.exp(weight_S - weight_S.max())
    return prob_S / prob_S.sum()


def mean_statistics(model: Ising) -> Float[np.ndarray, " D"]:
    """Exact means of the spins and of their products in pairs, with no more than a chunk of states in memory."""
    prob_S = distribution(model)
    mean_D = np.zeros(num_parameters(model.num_spins))
    for where, spin_SN in _chunks(model.num_spins):
        mean_D += prob_S[where] @ statistics(spin_SN)
    return mean_D


def conditional(model: Ising, block: Sequence[int], spin_N: Float[np.ndarray, " N"]) -> Float[np.ndarray, " C"]:
    """p(x_block | the rest of spin_N) for the 2^len(block) states of the block; bit j is spin block[j].

    Only the block is enumerated, so the model may be of any size. The spins of the block itself are not looked at.
    """
    inside = list(block)
    if len(set(inside)) != len(inside) or not set(inside) <= set(range(model.num_spins)):
        raise PadirError(f"a block has different spins of 0 to {model.num_spins - 1}, got {inside}")
    if spin_N.shape != (model.num_spins,):
        raise PadirError(f"expected the {model.num_spins} spins of the model, got an array of shape {spin_N.shape}")
    outside = [i for i in range(model.num_spins) if i not in inside]
    local = model.field_N[inside] + model.coupling_NN[np.ix_(inside, outside)] @ spin_N[outside]
    return distribution(Ising(model.coupling_NN[np.ix_(inside, inside)], local)) if inside else np.ones(1)


def sample(rng: np.random.Generator, model: Ising, count: int) -> Int[np.ndarray, " count"]:
    """Independent exact draws, as states."""
    cumulative_S = np.cumsum(distribution(model))
    drawn = np.searchsorted(cumulative_S, rng.random(count) * cumulative_S[-1], side="right")
    return np.minimum(drawn, len(cumulative_S) - 1)

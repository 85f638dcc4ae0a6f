"""Samplers as transition matrices over all states (sections 2.2.2 and 2.4), and as simulated chains.

Rows of a matrix are current states, columns next states, in float64; S = 1,024 (10 spins) takes seconds. Simulated
models may have any number of spins. JAX runs many chains at a time, in float32: events with a probability below about
1e-7 per step are not drawn correctly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from padir.errors import PadirError
from padir.studies.ising.spin_models import Ising, Masks, spins

MOST_SPINS = 12  # a matrix of 4,096 x 4,096 is 128 MB
LARGEST_BLOCK = 16  # all 2^k states of a block of k spins are enumerated


def _check_size(num_spins: int) -> None:
    if num_spins > MOST_SPINS:
        raise PadirError(
            f"transition matrices are for at most {MOST_SPINS} spins, got {num_spins}: draw chains instead"
        )


def groups(block_N: np.ndarray) -> Int[np.ndarray, "G C"]:
    """All states, grouped in rows that agree outside the block; column c has the bits of c inside the block.

    >>> groups(np.array([False, True])).tolist()
    [[0, 2], [1, 3]]
    """

    def spread(bits: np.ndarray) -> np.ndarray:
        number = np.arange(1 << len(bits))
        return ((number[:, None] >> np.arange(len(bits)) & 1) << bits).sum(axis=1)

    return spread(np.flatnonzero(~block_N))[:, None] + spread(np.flatnonzero(block_N))


def block_dynamics(prob_S: Float[np.ndarray, " S"], masks: Masks) -> Float[np.ndarray, "S S"]:
    """Transition matrix of block dynamics: draw a block, then its spins given the others (Definitions 6 and 8).

    P(x, y) = Σ_K q(K | x) p(y_K | x_-K, K) where y and x agree outside K, with p(y_K | x_-K, K) ∝ p(y) q(K | y). With
    `masks.uniform` it is k-Gibbs (equation 3).
    """
    _check_size(masks.num_spins)
    transition_SS = np.zeros((len(prob_S), len(prob_S)))
    for block_N, law_S in zip(masks.block_KN, masks.law_KS, strict=True):
        state_GC = groups(block_N)
        joint_GC = (prob_S * law_S)[state_GC]
        mass_G1 = joint_GC.sum(axis=1, keepdims=True)
        next_GC = joint_GC / np.where(mass_G1 > 0, mass_G1, 1.0)
        transition_SS[state_GC[:, :, None], state_GC[:, None, :]] += law_S[state_GC][:, :, None] * next_GC[:, None, :]
    return transition_SS


def independent_parallel(model: Ising) -> Float[np.ndarray, "S S"]:
    """Transition matrix of independent parallel: each spin drawn given the old values of the others (Definition 11)."""
    _check_size(model.num_spins)
    spin_SN = spins(np.arange(1 << model.num_spins), model.num_spins)
    local_SN = model.field_N + spin_SN @ model.coupling_NN
    log_SS = local_SN @ spin_SN.T - np.logaddexp(local_SN, -local_SN).sum(axis=1, keepdims=True)
    return np.exp(log_SS)


def independent_parallel_stationary(model: Ising) -> Float[np.ndarray, " S"]:
    """Stationary law of independent parallel: ∝ exp(h·x) Π_i cosh(h_i + Σ_j J_ij x_j), which is not p.

    From π(x) P(x, y) ∝ exp(h·x + h·y + xᵀJy), which is symmetric in x and y.
    """
    spin_SN = spins(np.arange(1 << model.num_spins), model.num_spins)
    local_SN = model.field_N + spin_SN @ model.coupling_NN
    weight_S = spin_SN @ model.field_N + np.logaddexp(local_SN, -local_SN).sum(axis=1)
    prob_S = np.exp(weight_S - weight_S.max())
    return prob_S / prob_S.sum()


def eigenvalues(transition_SS: Float[np.ndarray, "S S"], prob_S: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """Eigenvalues of a chain that is reversible with respect to p, the largest (1) first.

    Raises:
      PadirError: a state has probability 0, or the chain is not reversible.
    """
    if prob_S.min() <= 0:
        raise PadirError("every state must have a probability above 0 in float64: take smaller couplings and fields")
    root_S = np.sqrt(prob_S)
    symmetric_SS = root_S[:, None] * transition_SS / root_S
    if not np.allclose(symmetric_SS, symmetric_SS.T, atol=1e-9):
        raise PadirError("the chain is not reversible with respect to p: its eigenvalues give no Poincaré constant")
    return np.linalg.eigvalsh((symmetric_SS + symmetric_SS.T) / 2)[::-1]


def poincare(transition_SS: Float[np.ndarray, "S S"], prob_S: Float[np.ndarray, " S"]) -> float:
    """Poincaré constant: the least C with Var(f) ≤ C · E(f, f) for every f of the state (Definition 5).

    It is 1 / (1 - second eigenvalue). Errors are as in `eigenvalues`.
    """
    gap = 1.0 - eigenvalues(transition_SS, prob_S)[1]
    return float(1.0 / gap) if gap > 0 else float("inf")


def total_variation(first_xS: np.ndarray, second_xS: np.ndarray) -> np.ndarray:
    """Total variation distance of distributions on the last axis."""
    return np.asarray(0.5 * np.abs(first_xS - second_xS).sum(axis=-1))


def mixing_time(
    transition_SS: Float[np.ndarray, "S S"],
    prob_S: Float[np.ndarray, " S"],
    distance: float = 0.25,
    most: int = 1 << 30,
) -> int:
    """The fewest steps after which the chain is within `distance` of p in total variation, from any start.

    The distance never grows, so powers of the matrix are doubled, then bisected.

    Raises:
      PadirError: not mixed after `most` steps.
    """
    power_SS = np.eye(len(prob_S))
    powers = [transition_SS]
    while total_variation(powers[-1], prob_S).max() > distance:
        if 1 << len(powers) > most:
            raise PadirError(f"the chain has not mixed after {most:,} steps: take a smaller coupling or larger blocks")
        powers.append(powers[-1] @ powers[-1])
    steps = 0
    for i in reversed(range(len(powers))):
        longer_SS = power_SS @ powers[i]
        if total_variation(longer_SS, prob_S).max() > distance:
            power_SS = longer_SS
            steps = steps + (1 << i)
    return steps + 1 if total_variation(power_SS, prob_S).max() > distance else 0


def hitting_times(transition_SS: Float[np.ndarray, "S S"], target_S: np.ndarray) -> Float[np.ndarray, " S"]:
    """Expected steps to the first visit of a target, from every state; 0 inside it.

    The number is infinite if the target may never be visited, or only after more steps than float64 can hold. States
    are eliminated one by one with additions, products and quotients of positive numbers only (Grassmann, Taksar and
    Heyman 1985), so that a time of 1e60 has as many correct digits as a time of 10. Solving (I - P) t = 1 would lose
    all digits.
    """
    outside = np.flatnonzero(~target_S)
    move_SS = transition_SS[np.ix_(outside, outside)].copy()
    arrive_S = transition_SS[np.ix_(outside, np.flatnonzero(target_S))].sum(axis=1)
    time_S = np.ones(len(outside))
    leave_S = np.zeros(len(outside))
    found_S = np.full(len(outside), np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        for last in reversed(range(len(outside))):  # the states before it remain
            leave_S[last] = arrive_S[last] + move_SS[last, :last].sum()
            goes_S = move_SS[:last, last] > 0
            if leave_S[last] == 0:
                time_S[:last][goes_S] = np.inf
                continue
            through_S = move_SS[:last, last] / leave_S[last]
            move_SS[:last, :last] += np.outer(through_S, move_SS[last, :last])
            arrive_S[:last] += through_S * arrive_S[last]
            time_S[:last] += np.where(goes_S, through_S * time_S[last], 0.0)
        for state in np.flatnonzero(leave_S > 0):
            goes_S = move_SS[state, :state] > 0
            later = np.sum(move_SS[state, :state][goes_S] * found_S[:state][goes_S])
            found_S[state] = (time_S[state] + later) / leave_S[state]
    result_S = np.zeros(len(target_S))
    result_S[outside] = np.where(np.isnan(found_S), np.inf, found_S)
    return result_S


def hitting_probability(
    transition_SS: Float[np.ndarray, "S S"], target_S: np.ndarray, steps: int
) -> Float[np.ndarray, " S"]:
    """Probability of having visited a target within `steps` steps, from every state."""
    reached_S = target_S.astype(np.float64)
    for _ in range(steps):
        reached_S = np.where(target_S, 1.0, transition_SS @ reached_S)
    return reached_S


def k_gibbs_step(
    key: Key[Array, ""],
    spin_BN: Float[Array, "B N"],
    coupling_NN: Float[Array, "N N"],
    field_N: Float[Array, " N"],
    k: int,
) -> Float[Array, "B N"]:
    """One step of k-Gibbs (equation 3): k random spins of each chain are drawn together, given the others."""
    key_block, key_spins = jax.random.split(key)
    count, size = spin_BN.shape
    order_BN = jnp.argsort(jax.random.uniform(key_block, (count, size)), axis=1)
    inside_Bk = order_BN[:, :k]
    row = jnp.arange(count)[:, None]
    rest_BN = spin_BN.at[row, inside_Bk].set(0.0)
    local_Bk = jnp.take_along_axis(field_N + rest_BN @ coupling_NN, inside_Bk, axis=1)
    coupling_Bkk = coupling_NN[inside_Bk[:, :, None], inside_Bk[:, None, :]]
    choice_Ck = jnp.asarray(spins(np.arange(1 << k), k), spin_BN.dtype)
    logit_BC = local_Bk @ choice_Ck.T + 0.5 * jnp.einsum("ci,bij,cj->bc", choice_Ck, coupling_Bkk, choice_Ck)
    drawn_B = jax.random.categorical(key_spins, logit_BC)
    return rest_BN.at[row, inside_Bk].set(choice_Ck[drawn_B])


def parallel_step(
    key: Key[Array, ""], spin_BN: Float[Array, "B N"], coupling_NN: Float[Array, "N N"], field_N: Float[Array, " N"]
) -> Float[Array, "B N"]:
    """One step of independent parallel (Definition 11): every spin is drawn given the old values of the others."""
    prob_BN = jax.nn.sigmoid(2.0 * (field_N + spin_BN @ coupling_NN))
    return jnp.where(jax.random.uniform(key, spin_BN.shape) < prob_BN, 1.0, -1.0).astype(spin_BN.dtype)


def steps_to(
    key: Key[Array, ""],
    step: Callable[[Key[Array, ""], Array], Array],
    start_B: Array,
    reached: Callable[[Array], Bool[Array, " B"]],
    budget: int,
) -> Int[Array, " B"]:
    """Number of steps of each chain until `reached` first holds (0 at the start); budget + 1 if it never does."""

    def more(carry: tuple[Array, Array, Array]) -> Array:
        time, _, steps_B = carry
        return (time < budget) & jnp.any(steps_B > budget)

    def advance(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        time, state_B, steps_B = carry
        state_B = step(jax.random.fold_in(key, time), state_B)
        return time + 1, state_B, jnp.where((steps_B > budget) & reached(state_B), time + 1, steps_B)

    steps_B = jnp.where(reached(start_B), 0, budget + 1)
    return jax.lax.while_loop(more, advance, (jnp.zeros((), jnp.int32), start_B, steps_B))[2]


@functools.partial(jax.jit, static_argnames=("k", "size", "count", "budget"))
def _steps_to_larger_mode(key, coupling_NN, field_N, k: int | None, size: int, count: int, budget: int):
    def step(key, spin_BN):
        if k is None:
            return parallel_step(key, spin_BN, coupling_NN, field_N)
        return k_gibbs_step(key, spin_BN, coupling_NN, field_N, k)

    key_start, key_steps = jax.random.split(key)
    editable_BN = jnp.where(jax.random.bernoulli(key_start, shape=(count, len(field_N))), 1.0, -1.0)
    start_BN = jnp.where(jnp.arange(len(field_N)) < size, -1.0, editable_BN)
    return steps_to(key_steps, step, start_BN, lambda spin_BN: jnp.all(spin_BN[:, :size] > 0, axis=1), budget)


def steps_to_larger_mode(
    key: Key[Array, ""], model: Ising, size: int, *, k: int | None, count: int, budget: int
) -> Int[np.ndarray, " count"]:
    """Number of steps from the smaller mode R_-1 to the larger mode R_1 of a `model.clique` (figure 3).

    Args:
      size: number of spins in the clique.
      k: block size of k-Gibbs; None for independent parallel.
      count: number of chains; the spins outside the clique start at random.
      budget: maximum number of steps of a chain; chains that do not arrive get budget + 1.

    Raises:
      PadirError: a number out of its range.
    """
    if k is not None and not 1 <= k <= min(model.num_spins, LARGEST_BLOCK):
        raise PadirError(f"k is 1 to {min(model.num_spins, LARGEST_BLOCK)} for {model.num_spins} spins, got {k}")
    if not 1 <= size <= model.num_spins or count < 1 or budget < 1:
        raise PadirError(f"size, count and budget must be at least 1, got {size}, {count} and {budget}")
    coupling_NN, field_N = (jnp.asarray(a, jnp.float32) for a in (model.coupling_NN, model.field_N))
    return np.asarray(_steps_to_larger_mode(key, coupling_NN, field_N, k, size, count, budget))

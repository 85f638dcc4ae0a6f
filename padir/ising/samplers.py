"""The samplers of section 2.4 as jitted simulations, many chains at a time.

k-Gibbs and independent parallel take a model of any size (spins as ±1); block dynamics with any masks, adaptive or not,
works on states and needs 2^N to be small. `chains` has the same samplers as exact matrices. Draws are float32: what has
a chance below about 1e-7 a step is not drawn with its chance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from padir.errors import PadirError
from padir.ising.masks import Masks
from padir.ising.model import Ising, spins

LARGEST_BLOCK = 16  # a block of k spins has 2^k states, all of which are weighed


def k_gibbs(
    key: Key[Array, ""],
    spin_BN: Float[Array, "B N"],
    coupling_NN: Float[Array, "N N"],
    field_N: Float[Array, " N"],
    k: int,
) -> Float[Array, "B N"]:
    """One step of k-Gibbs (equation 3): k spins of each chain, chosen alike, are drawn together given the others."""
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


def independent_parallel(
    key: Key[Array, ""], spin_BN: Float[Array, "B N"], coupling_NN: Float[Array, "N N"], field_N: Float[Array, " N"]
) -> Float[Array, "B N"]:
    """One step of independent parallel (Definition 11): every spin from its own conditional given the old others."""
    prob_BN = jax.nn.sigmoid(2.0 * (field_N + spin_BN @ coupling_NN))
    return jnp.where(jax.random.uniform(key, spin_BN.shape) < prob_BN, 1.0, -1.0).astype(spin_BN.dtype)


def block_dynamics(
    key: Key[Array, ""],
    state_B: Int[Array, " B"],
    log_weight_S: Float[Array, " S"],
    block_KN: Bool[Array, "K N"],
    law_KS: Float[Array, "K S"],
) -> Int[Array, " B"]:
    """One step of (adaptive, weighted) block dynamics on states (Definitions 6 and 8)."""
    key_block, key_state = jax.random.split(key)
    block_B = jax.random.categorical(key_block, jnp.log(law_KS.T[state_B]))
    bits_K = jnp.sum(jnp.where(block_KN, 1 << jnp.arange(block_KN.shape[1]), 0), axis=1)
    fixed_B = ~bits_K[block_B]
    same_BS = ((jnp.arange(len(log_weight_S)) ^ state_B[:, None]) & fixed_B[:, None]) == 0
    logit_BS = jnp.where(same_BS, log_weight_S + jnp.log(law_KS[block_B]), -jnp.inf)
    return jax.random.categorical(key_state, logit_BS)


def steps_to(
    key: Key[Array, ""],
    step: Callable[[Key[Array, ""], Array], Array],
    start_B: Array,
    reached: Callable[[Array], Bool[Array, " B"]],
    budget: int,
) -> Int[Array, " B"]:
    """Steps that each chain takes until `reached` first holds, 0 at the start; budget + 1 where it never does."""

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
            return independent_parallel(key, spin_BN, coupling_NN, field_N)
        return k_gibbs(key, spin_BN, coupling_NN, field_N, k)

    key_start, key_steps = jax.random.split(key)
    free_BN = jnp.where(jax.random.bernoulli(key_start, shape=(count, len(field_N))), 1.0, -1.0)
    start_BN = jnp.where(jnp.arange(len(field_N)) < size, -1.0, free_BN)
    return steps_to(key_steps, step, start_BN, lambda spin_BN: jnp.all(spin_BN[:, :size] > 0, axis=1), budget)


def steps_to_larger_mode(
    key: Key[Array, ""], model: Ising, size: int, *, k: int | None, count: int, budget: int
) -> Int[np.ndarray, " count"]:
    """Steps from the smaller mode R_-1 to the larger one R_1 of a `model.clique` of `size` spins (figure 3).

    Args:
      k: of k-Gibbs; None is independent parallel.
      count: chains; the spins outside the clique start at random.
      budget: of steps; chains that do not arrive count as budget + 1.
    """
    if k is not None and not 1 <= k <= min(model.num_spins, LARGEST_BLOCK):
        raise PadirError(f"k is 1 to {min(model.num_spins, LARGEST_BLOCK)} for {model.num_spins} spins, got {k}")
    if not 1 <= size <= model.num_spins or count < 1 or budget < 1:
        raise PadirError(f"size, count and budget must be at least 1, got {size}, {count} and {budget}")
    coupling_NN, field_N = (jnp.asarray(a, jnp.float32) for a in (model.coupling_NN, model.field_N))
    return np.asarray(_steps_to_larger_mode(key, coupling_NN, field_N, k, size, count, budget))


def simulate(
    key: Key[Array, ""], masks: Masks, prob_S: Float[np.ndarray, " S"], start: int, *, count: int, steps: int
) -> Int[np.ndarray, " count"]:
    """The states of chains of block dynamics after so many steps from one state."""
    log_weight_S = jnp.log(jnp.asarray(prob_S, jnp.float32))
    block_KN, law_KS = jnp.asarray(masks.block_KN), jnp.asarray(masks.law_KS, jnp.float32)

    def advance(state_B: Array, key: Array) -> tuple[Array, None]:
        return block_dynamics(key, state_B, log_weight_S, block_KN, law_KS), None

    run = jax.jit(lambda start_B: jax.lax.scan(advance, start_B, jax.random.split(key, steps))[0])
    return np.asarray(run(jnp.full(count, start, jnp.int32)))

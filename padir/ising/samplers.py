"""Simulation of k-Gibbs and independent parallel (section 2.4), many chains at a time, in JAX.

Models may have any number of spins (±1). `padir.ising.chains` has the same samplers as exact matrices. Draws are
float32: events with a probability below about 1e-7 a step are not drawn with their probability.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from padir.errors import PadirError
from padir.ising.model import Ising, spins

LARGEST_BLOCK = 16  # all 2^k states of a block of k spins are enumerated


def k_gibbs(
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


def independent_parallel(
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
    """Number of steps of each chain until `reached` first holds (0 at the start); budget + 1 where it never does."""

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

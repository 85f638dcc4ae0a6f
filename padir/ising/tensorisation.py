"""Block-generalised approximate tensorisation of entropy (section 2.3): its constant and bounds on small models.

The constant is the supremum over distributions μ of KL(μ‖p) / E KL(μ(·|x_-K, K)‖p(·|x_-K, K)) (Definition 9). By the
chain rule the denominator is KL(μ‖p) - KL(μ_-‖p_-), where μ_- is the law of (K, x_-K) under μ(x) q(K | x).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from padir.ising import chains, masks, model
from padir.ising.learning import traced_block_sum
from padir.ising.masks import Masks, block_sum
from padir.ising.model import Ising, distribution
from padir.ising.statement import Statement, equal, less, truth

_ASCENT = 800  # steps
_LEAST = 1e-6  # divergences below this are too small to divide by: there the constant is Poincaré's


def divergence(first_S: Float[np.ndarray, " S"], second_S: Float[np.ndarray, " S"]) -> float:
    """KL(first‖second) in nats."""
    seen_S = first_S > 0
    return float(np.sum(first_S[seen_S] * np.log(first_S[seen_S] / second_S[seen_S])))


def conditional_divergence(first_S: Float[np.ndarray, " S"], second_S: Float[np.ndarray, " S"], which: Masks) -> float:
    """E_K E_{x_-K ~ first} KL(first(·|x_-K, K) ‖ second(·|x_-K, K)).

    It is the excess population loss of the model `second` on data from `first`.
    """
    total = 0.0
    for block_N, law_S in zip(which.block_KN, which.law_KS, strict=True):
        mine_S, other_S = first_S * law_S, second_S * law_S
        seen_S = mine_S > 0
        ratio_S = mine_S[seen_S] / block_sum(mine_S, block_N)[seen_S]
        total += np.sum(mine_S[seen_S] * np.log(ratio_S * block_sum(other_S, block_N)[seen_S] / other_S[seen_S]))
    return float(total)


@jax.jit
def _climb(start_RS: Array, prob_S: Array, block_KN: Array, law_KS: Array) -> Array:
    """The ratios that ascent on the logarithm of the ratio finds from each start."""

    def parts(tilt_S: Array) -> tuple[Array, Array]:
        log_S = jax.nn.log_softmax(jnp.log(prob_S) + tilt_S)
        mine_S = jnp.exp(log_S)

        def of_block(total: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
            block_N, law_S = block
            mass_S = traced_block_sum(mine_S * law_S, block_N) + 1e-300
            least_S = traced_block_sum(prob_S * law_S, block_N) + 1e-300
            return total + jnp.sum(mine_S * law_S * jnp.log(mass_S / least_S)), None

        whole = jnp.sum(mine_S * (log_S - jnp.log(prob_S)))
        return whole, whole - jax.lax.scan(of_block, jnp.zeros((), prob_S.dtype), (block_KN, law_KS))[0]

    def ratio(tilt_S: Array) -> Array:
        whole, conditional = parts(tilt_S)
        usable = (whole > _LEAST) & (conditional > _LEAST**2)
        return jnp.where(usable, -jnp.log(jnp.where(usable, whole / conditional, 1.0)), 0.0)

    optimizer = optax.adam(optax.cosine_decay_schedule(0.3, _ASCENT))

    def ascend(carry: tuple[Array, optax.OptState], _: None) -> tuple[tuple[Array, optax.OptState], None]:
        tilt_RS, state = carry
        updates, state = optimizer.update(jax.vmap(jax.grad(ratio))(tilt_RS), state)
        return (tilt_RS + jnp.asarray(updates), state), None

    (found_RS, _), _ = jax.lax.scan(ascend, (start_RS, optimizer.init(start_RS)), length=_ASCENT)
    return jnp.exp(-jnp.minimum(jax.vmap(ratio)(found_RS), jax.vmap(ratio)(start_RS)))


def constant(prob_S: Float[np.ndarray, " S"], which: Masks, rng: np.random.Generator, starts: int = 24) -> float:
    """A lower bound of the tensorisation constant, found by ascent from random starts and from every state.

    `upper_bound` bounds the constant from above. The result is within 1e-4 of that of another ascent, and within 1e-2
    where the constant is in the thousands: there the supremum lies at the edge of the simplex, which tilts of p only
    approach. It is at least the Poincaré constant, the limit of the ratio as μ → p.
    """
    scale_R1 = 10 ** rng.uniform(-1, 1, (starts, 1))
    start_RS = np.concatenate([scale_R1 * rng.normal(size=(starts, len(prob_S))), 4.0 * np.eye(len(prob_S))])
    spare = max(0, math.comb(which.num_spins, which.num_spins // 2) - len(which.block_KN))  # one program for every k
    block_KN, law_KS = (np.pad(a, ((0, spare), (0, 0))) for a in (which.block_KN, which.law_KS))
    with jax.enable_x64(True):
        ratio_R = np.asarray(_climb(*(jnp.asarray(a) for a in (start_RS, prob_S, block_KN, law_KS))))
    return max(chains.poincare(chains.block_dynamics(prob_S, which), prob_S), float(np.nanmax(ratio_R)))


def upper_bound(prob_S: Float[np.ndarray, " S"], which: Masks) -> float:
    """Upper bound of the constant: C_Poincaré · log(1/p_min - 1) / (1 - 2 p_min) (derived in docs/theory.md)."""
    poincare = chains.poincare(chains.block_dynamics(prob_S, which), prob_S)
    least = float(prob_S.min())
    return poincare * (math.log(1 / least - 1) / (1 - 2 * least) if least < 0.5 else 2.0)


def _which(rng: np.random.Generator, num_spins: int) -> Masks:
    k = int(rng.integers(1, num_spins))  # k = N is left out, where C = 1
    return masks.random_adaptive(rng, num_spins, k) if rng.random() < 0.3 else masks.uniform(num_spins, k)


def _others(rng: np.random.Generator, prob_S: Float[np.ndarray, " S"]) -> Iterator[Float[np.ndarray, " S"]]:
    """Distributions to compare with p: dense, sparse, empirical, and tilted from p."""
    for spread in (1.0, 0.1):
        yield rng.dirichlet(np.full(len(prob_S), spread))
    yield np.bincount(rng.choice(len(prob_S), size=20, p=prob_S), minlength=len(prob_S)) / 20.0
    tilted_S = prob_S * np.exp(rng.normal(size=len(prob_S)))
    yield tilted_S / tilted_S.sum()


def _bounded(rng: np.random.Generator, num_spins: int) -> Iterator[float]:
    prob_S, which = distribution(truth(rng, num_spins)), _which(rng, num_spins)
    yield less(constant(prob_S, which, rng), upper_bound(prob_S, which))


def _inequality(rng: np.random.Generator, num_spins: int) -> Iterator[float]:
    prob_S, which = distribution(truth(rng, num_spins)), _which(rng, num_spins)
    found = constant(prob_S, which, rng)
    for other_S in _others(rng, prob_S):
        yield less(divergence(other_S, prob_S), found * conditional_divergence(other_S, prob_S, which))


def _independent(rng: np.random.Generator, num_spins: int) -> Iterator[float]:
    prob_S, k = distribution(model.random(rng, num_spins, 0.0, 0.6)), int(rng.integers(1, num_spins + 1))
    yield equal(constant(prob_S, masks.uniform(num_spins, k), rng), num_spins / k)


def _decay(rng: np.random.Generator, num_spins: int) -> Iterator[float]:
    prob_S, which = distribution(truth(rng, num_spins)), _which(rng, num_spins)
    transition_SS = chains.block_dynamics(prob_S, which)
    found = constant(prob_S, which, rng)
    for other_S in _others(rng, prob_S):
        before = divergence(other_S, prob_S)
        yield (before * (1 - 1 / found) - divergence(other_S @ transition_SS, prob_S)) / before


def _population_bound(rng: np.random.Generator, num_spins: int) -> Iterator[float]:
    data_S, model_S = (distribution(truth(rng, num_spins)) for _ in range(2))
    which = _which(rng, num_spins)
    sampled_S = np.bincount(rng.choice(len(data_S), size=50, p=data_S), minlength=len(data_S)) / 50.0
    found = constant(model_S, which, rng)
    for true_S in (data_S, sampled_S):
        excess = found * conditional_divergence(true_S, model_S, which)
        yield less(divergence(true_S, model_S), excess)
        yield less(float(chains.total_variation(true_S, model_S)), math.sqrt(excess / 2))


def _constant_of_the_data(rng: np.random.Generator, num_spins: int) -> Iterator[float]:
    strength = float(rng.uniform(1.5, 3.0))
    data_S = distribution(Ising(np.zeros((2, 2)), np.full(2, strength)))  # nearly always (+, +): C(data) = N/k = 2
    model_S = distribution(Ising(strength * (1 - np.eye(2)), np.zeros(2)))  # both + or both -
    which = masks.uniform(2, 1)
    yield less(divergence(data_S, model_S), 2.0 * conditional_divergence(data_S, model_S, which))


STATEMENTS = (
    Statement("tensorisation", "Definition 9", "KL(μ‖p) ≤ C · E KL of conditionals, at any μ", _inequality, 4),
    Statement("tensorisation, bracket", "2.3, ours", "C ≤ C_Poincaré log(1/p_min - 1)/(1 - 2 p_min)", _bounded, 4),
    Statement("tensorisation, independent spins", "2.3, ours", "C = N/k where J = 0", _independent, 4),
    Statement("decay of KL", "2.3", "a step of block dynamics leaves 1 - 1/C of KL(μ‖p)", _decay, 4),
    Statement(
        "population bound", "Proposition 1", "KL, TV of data and model ≤ C(model) · excess loss", _population_bound, 4
    ),
    Statement("population bound, data's C", "not claimed", "the same with C(data)", _constant_of_the_data, 2, False),
)

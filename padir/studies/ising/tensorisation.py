"""Block-generalised approximate tensorisation of entropy (section 2.3): its constant and bounds on small models.

The constant is the supremum over distributions μ of KL(μ‖p) / E KL(μ(·|x_-K, K)‖p(·|x_-K, K)) (Definition 9). By the
chain rule the denominator is KL(μ‖p) - KL(μ_-‖p_-), where μ_- is the law of (K, x_-K) under μ(x) q(K | x).

Finite samples (appendix D): the loss on n sentences with m masks each bounds the distance of distributions. Our copy of
the paper lacks these formulas; docs/theory.md derives them. Axis letters here: P models of a grid, R data sets.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from padir.studies.ising import chains, spin_models
from padir.studies.ising.chains import total_variation
from padir.studies.ising.learning import traced_block_sum
from padir.studies.ising.spin_models import Ising, Masks, block_sum, distribution
from padir.studies.ising.statement import Margins, Statement, equal, less, truth

_ASCENT = 800  # steps
_LEAST = 1e-6  # divergences below this are too small to divide by: there the constant is Poincaré's
_DATA_SETS = 200
_DELTA = 0.1  # probability with which the bound for finite samples may fail


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
        mine_S = first_S * law_S
        other_S = second_S * law_S
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

    `upper_bound` bounds the constant from above. The result agrees with another ascent within 1e-4, and within 1e-2 if
    the constant is in the thousands. Such a supremum lies at the edge of the simplex, which tilts of p only approach.
    The result is at least the Poincaré constant, the limit of the ratio as μ → p.
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
    return (
        spin_models.adaptive_masks(rng, num_spins, k) if rng.random() < 0.3 else spin_models.uniform_masks(num_spins, k)
    )


def _others(rng: np.random.Generator, prob_S: Float[np.ndarray, " S"]) -> Iterator[Float[np.ndarray, " S"]]:
    """Distributions to compare with p: dense, sparse, empirical, and tilted from p."""
    for spread in (1.0, 0.1):
        yield rng.dirichlet(np.full(len(prob_S), spread))
    yield np.bincount(rng.choice(len(prob_S), size=20, p=prob_S), minlength=len(prob_S)) / 20.0
    tilted_S = prob_S * np.exp(rng.normal(size=len(prob_S)))
    yield tilted_S / tilted_S.sum()


def _bounded(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    which = _which(rng, num_spins)
    yield less(constant(prob_S, which, rng), upper_bound(prob_S, which))


def _inequality(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    which = _which(rng, num_spins)
    found = constant(prob_S, which, rng)
    for other_S in _others(rng, prob_S):
        yield less(divergence(other_S, prob_S), found * conditional_divergence(other_S, prob_S, which))


def _independent(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(spin_models.random_model(rng, num_spins, 0.0, 0.6))
    k = int(rng.integers(1, num_spins + 1))
    yield equal(constant(prob_S, spin_models.uniform_masks(num_spins, k), rng), num_spins / k)


def _decay(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    which = _which(rng, num_spins)
    transition_SS = chains.block_dynamics(prob_S, which)
    found = constant(prob_S, which, rng)
    for other_S in _others(rng, prob_S):
        before = divergence(other_S, prob_S)
        yield (before * (1 - 1 / found) - divergence(other_S @ transition_SS, prob_S)) / before


def _population_bound(rng: np.random.Generator, num_spins: int) -> Margins:
    data_S, model_S = (distribution(truth(rng, num_spins)) for _ in range(2))
    which = _which(rng, num_spins)
    sampled_S = np.bincount(rng.choice(len(data_S), size=50, p=data_S), minlength=len(data_S)) / 50.0
    found = constant(model_S, which, rng)
    for true_S in (data_S, sampled_S):
        excess = found * conditional_divergence(true_S, model_S, which)
        yield less(divergence(true_S, model_S), excess)
        yield less(float(chains.total_variation(true_S, model_S)), math.sqrt(excess / 2))


def _constant_of_the_data(rng: np.random.Generator, num_spins: int) -> Margins:
    strength = float(rng.uniform(1.5, 3.0))
    data_S = distribution(Ising(np.zeros((2, 2)), np.full(2, strength)))  # nearly always (+, +): C(data) = N/k = 2
    model_S = distribution(Ising(strength * (1 - np.eye(2)), np.zeros(2)))  # both + or both -
    which = spin_models.uniform_masks(2, 1)
    yield less(divergence(data_S, model_S), 2.0 * conditional_divergence(data_S, model_S, which))


def deviation(largest: float, models: int, draws: int, delta: float) -> float:
    """Bound of the loss's deviation from its mean over masks, for all models at once: ln(1/β) √(ln(2P/δ) / 2nm)."""
    return largest * math.sqrt(math.log(2 * models / delta) / (2 * draws))


def empirical_distance(states: int, samples: int, delta: float) -> float:
    """Bound of the total variation distance between n samples and their law: √(S/n) / 2 + √(ln(1/δ) / 2n)."""
    return math.sqrt(states / samples) / 2 + math.sqrt(math.log(1 / delta) / (2 * samples))


def chebyshev_distance(states: int, samples: int, delta: float) -> float:
    """Bound of the same distance by Chebyshev's inequality and a union over states (Lemma 6): √(S³ / 16nδ)."""
    return math.sqrt(states**3 / (16 * samples * delta))


def losses(prob_S: Float[np.ndarray, " S"], which: Masks) -> Float[np.ndarray, "K S"]:
    """-log p(x_K | x_-K) for every block and state; the law of the masks must not depend on the state."""
    return np.stack([np.log(block_sum(prob_S, block_N) / prob_S) for block_N in which.block_KN])


def grid(num_spins: int, points: int = 5) -> Float[np.ndarray, "P S"]:
    """Models with one coupling and one field for all spins, each from -0.8 to 0.8."""
    values = np.linspace(-0.8, 0.8, points)
    pairs_NN = 1 - np.eye(num_spins)
    return np.stack(
        [distribution(Ising(j * pairs_NN, np.full(num_spins, h))) for j, h in itertools.product(values, values)]
    )


@dataclasses.dataclass(frozen=True)
class Data:
    """Data sets of n states and m masks of each.

    Attributes:
      state_RS: share of each state.
      mask_RKS: share of each pair of block and state.
    """

    state_RS: Float[np.ndarray, "R S"]
    mask_RKS: Float[np.ndarray, "R K S"]


def draw(rng: np.random.Generator, prob_S: np.ndarray, which: Masks, samples: int, each: int) -> Data:
    """Draws data sets from p, with `each` independent masks of every state."""
    count_RS = rng.multinomial(samples, prob_S / prob_S.sum(), size=_DATA_SETS)
    law_K = which.law_KS[:, 0]
    mask_RSK = rng.multinomial(count_RS * each, law_K / law_K.sum())
    return Data(count_RS / samples, np.moveaxis(mask_RSK, 2, 1) / (samples * each))


def least_losses(state_RS: Float[np.ndarray, "R S"], which: Masks) -> Float[np.ndarray, " R"]:
    """The least mean loss that any model can have on each data set: the conditional entropy of its empirical law."""
    total_R = np.zeros(len(state_RS))
    for block_N, law in zip(which.block_KN, which.law_KS[:, 0], strict=True):
        mass_RS = block_sum(state_RS, block_N)
        ratio_RS = np.where(state_RS > 0, mass_RS / np.where(state_RS > 0, state_RS, 1.0), 1.0)
        total_R += law * np.sum(state_RS * np.log(ratio_RS), axis=1)
    return total_R


def _finite_samples(rng: np.random.Generator, num_spins: int) -> Margins:
    model_PS = grid(num_spins)
    true_S = model_PS[rng.integers(len(model_PS))]
    which = spin_models.uniform_masks(num_spins, int(rng.integers(1, num_spins)))
    loss_PKS = np.stack([losses(prob_S, which) for prob_S in model_PS])
    constant_P = np.array([upper_bound(prob_S, which) for prob_S in model_PS])
    distance_P = total_variation(model_PS, true_S)
    # The bound is below 1 for most models from a million samples on, and for few below ten thousand.
    samples = int(rng.choice([3_000, 100_000, 10_000_000]))
    each = int(rng.choice([1, 4, 16]))
    data = draw(rng, true_S, which, samples, each)
    over_masks_PS = np.einsum("k,pks->ps", which.law_KS[:, 0], loss_PKS)
    found_RP = np.einsum("rks,pks->rp", data.mask_RKS, loss_PKS)
    mean_RP = data.state_RS @ over_masks_PS.T
    least_R1 = least_losses(data.state_RS, which)[:, None]
    # Whatever the data: the mean loss over masks bounds the distance from the empirical law.
    apart_RP = total_variation(data.state_RS[:, None], model_PS)
    yield less(apart_RP, np.sqrt(constant_P * np.maximum(0.0, mean_RP - least_R1) / 2) + 1e-12)
    slack = deviation(float(loss_PKS.max()), len(model_PS), samples * each, _DELTA / 2)
    stray = empirical_distance(len(true_S), samples, _DELTA / 2)
    yield less(stray, chebyshev_distance(len(true_S), samples, _DELTA / 2))
    lost_R = np.abs(found_RP - mean_RP).max(axis=1) > slack
    far_R = total_variation(data.state_RS, true_S) > stray
    bound_RP = np.sqrt(constant_P * np.maximum(0.0, found_RP - least_R1 + slack) / 2) + stray
    wrong_R = (distance_P > bound_RP).any(axis=1)
    for failed_R, share in ((lost_R, _DELTA / 2), (far_R, _DELTA / 2), (wrong_R, _DELTA)):
        yield (share - float(failed_R.mean())) / share
    yield -1.0 if (wrong_R & ~lost_R & ~far_R).any() else 1.0
    if (bites_RP := bound_RP < 1).any():
        yield less(np.broadcast_to(distance_P, bound_RP.shape)[bites_RP], bound_RP[bites_RP])


STATEMENTS = (
    Statement("tensorisation", "Definition 9", "KL(μ‖p) ≤ C · E KL of conditionals, at any μ", _inequality, 4),
    Statement("tensorisation, bracket", "2.3, ours", "C ≤ C_Poincaré log(1/p_min - 1)/(1 - 2 p_min)", _bounded, 4),
    Statement("tensorisation, independent spins", "2.3, ours", "C = N/k where J = 0", _independent, 4),
    Statement("decay of KL", "2.3", "a step of block dynamics leaves 1 - 1/C of KL(μ‖p)", _decay, 4),
    Statement(
        "population bound", "Proposition 1", "KL, TV of data and model ≤ C(model) · excess loss", _population_bound, 4
    ),
    Statement("population bound, data's C", "not claimed", "the same with C(data)", _constant_of_the_data, 2, False),
    Statement(
        "finite samples",
        "theorem in 2.3, appendix D",
        "TV ≤ √(C/2 · (excess loss + ln(1/β) √(ln(4P/δ) / 2nm))) + √(S/4n) + √(ln(2/δ) / 2n)",
        _finite_samples,
        3,
        smallest=3,
    ),
)

"""Statements on the sample efficiency of masked estimators (the paper's section 2.2, appendices A to C and K)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from padir.studies.ising import chains, learning, spin_models
from padir.studies.ising.learning import (
    all_statistics,
    composite_covariance,
    composite_information,
    fisher,
    information,
)
from padir.studies.ising.spin_models import Ising, Masks, block_sum, distribution
from padir.studies.ising.statement import Margins, Statement, equal, order_margin, relative_eigenvalues, strictly, truth


def _masks(rng: np.random.Generator, num_spins: int) -> Iterator[Masks]:
    """Uniform, weighted and adaptive masks."""
    yield spin_models.uniform_masks(num_spins, int(rng.integers(1, num_spins + 1)))
    yield spin_models.random_masks(rng, num_spins)
    yield spin_models.adaptive_masks(rng, num_spins, int(rng.integers(1, num_spins + 1)))


@functools.cache
def _compiled(transform: Callable) -> Callable:
    return jax.jit(transform(learning.loss))


def _differentiated(
    transform: Callable, theta_D: Float[np.ndarray, " D"], frequency_KS: Float[np.ndarray, "K S"], which: Masks
) -> np.ndarray:
    """A derivative of the loss by JAX, independent of the formulas that it is compared with."""
    with jax.enable_x64(True):
        stat_SD, block_KN, law_KS = learning.arrays(which)
        derivative = _compiled(transform)
        return np.asarray(derivative(jnp.asarray(theta_D), jnp.asarray(frequency_KS), stat_SD, block_KN, law_KS))


def _convex(rng: np.random.Generator, num_spins: int) -> Margins:
    which = spin_models.adaptive_masks(rng, num_spins, 1 + num_spins // 2)
    frequency_KS = rng.dirichlet(np.full(which.law_KS.size, 0.3)).reshape(which.law_KS.shape)  # any data at all
    theta_D = rng.normal(0.0, 1.0, all_statistics(num_spins).shape[1])
    value_D = np.linalg.eigvalsh(_differentiated(jax.hessian, theta_D, frequency_KS, which))
    yield value_D[0] / np.abs(value_D).max()


def _information_equality(rng: np.random.Generator, num_spins: int) -> Margins:
    model = truth(rng, num_spins)
    prob_S = distribution(model)
    for which in (
        spin_models.uniform_masks(num_spins, 1 + num_spins // 2),
        spin_models.adaptive_masks(rng, num_spins, 1 + num_spins // 2),
    ):
        hessian_DD = _differentiated(jax.hessian, model.theta_D, prob_S * which.law_KS, which)
        yield equal(hessian_DD, information(prob_S, which))


def _truth_is_minimum(rng: np.random.Generator, num_spins: int) -> Margins:
    model = truth(rng, num_spins)
    which = spin_models.adaptive_masks(rng, num_spins, 1 + num_spins // 2)
    yield -float(np.abs(_differentiated(jax.grad, model.theta_D, distribution(model) * which.law_KS, which)).max())


def _composite_equality(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    which = spin_models.uniform_masks(num_spins, 1)
    yield equal(composite_information(prob_S, which), information(prob_S, which))


def _informations(rng: np.random.Generator, num_spins: int) -> list[Float[np.ndarray, "D D"]]:
    prob_S = distribution(truth(rng, num_spins))
    return [information(prob_S, spin_models.uniform_masks(num_spins, k)) for k in range(1, num_spins + 1)]


def _masking_more(rng: np.random.Generator, num_spins: int) -> Margins:
    ordered = _informations(rng, num_spins)
    yield from (order_margin(more, less) for less, more in zip(ordered, ordered[1:], strict=False))


def _masking_more_strictly(rng: np.random.Generator, num_spins: int) -> Margins:
    ordered = _informations(rng, num_spins)[:-1]
    yield from (strictly(order_margin(more, less)) for less, more in zip(ordered, ordered[1:], strict=False))


def _last_mask_is_free(rng: np.random.Generator, num_spins: int) -> Margins:
    *_, less, more = _informations(rng, num_spins)
    value_D = relative_eigenvalues(more, less)
    yield -float(np.abs(value_D[num_spins:] - 1).max())  # no gain in N(N-1)/2 directions
    yield strictly(1.0 - value_D[num_spins - 1])  # and some in the other N


def star(coupling: float = 0.5, num_spins: int = 5) -> Ising:
    """A model without fields whose spin 0 is coupled to all others.

    With 5 spins, the covariances of its composite likelihoods for k = 1 and k = 2 are not ordered: hiding 2 spins is
    not better in every direction.
    """
    coupling_NN = np.zeros((num_spins, num_spins))
    coupling_NN[0, 1:] = coupling_NN[1:, 0] = coupling
    return Ising(coupling_NN, np.zeros(num_spins))


def _composite_order(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(star(float(rng.uniform(0.4, 1.0))))
    yield order_margin(*(composite_covariance(prob_S, spin_models.uniform_masks(5, k)) for k in (1, 2)))


def _composite_between(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    for which in _masks(rng, num_spins):
        composite_DD = np.linalg.inv(composite_covariance(prob_S, which))
        yield order_margin(composite_DD, information(prob_S, which))
        yield order_margin(fisher(prob_S), composite_DD)


def _poincare_bound(rng: np.random.Generator, num_spins: int, which: Masks) -> float:
    """Γ ⪯ C · I⁻¹, that is I ⪯ C · Γ⁻¹."""
    prob_S = distribution(truth(rng, num_spins))
    constant = chains.poincare(chains.block_dynamics(prob_S, which), prob_S)
    return order_margin(constant * information(prob_S, which), fisher(prob_S))


def _weighted_bound(rng: np.random.Generator, num_spins: int) -> Margins:
    yield _poincare_bound(rng, num_spins, spin_models.random_masks(rng, num_spins))
    # Without k = N: there C = 1, and the bound is an equality.
    yield from (_poincare_bound(rng, num_spins, spin_models.uniform_masks(num_spins, k)) for k in range(1, num_spins))


def _adaptive_bound(rng: np.random.Generator, num_spins: int) -> Margins:
    for k in range(1, num_spins):
        yield _poincare_bound(rng, num_spins, spin_models.adaptive_masks(rng, num_spins, k))


def forgetful_gradient(prob_S: Float[np.ndarray, " S"], which: Masks) -> Float[np.ndarray, " D"]:
    """Mean gradient at the truth of -log p_θ(x_K | x_-K), which ignores what the choice of K reveals of x."""
    stat_SD = all_statistics(which.num_spins)
    total_D = np.zeros(stat_SD.shape[1])
    for block_N, law_S in zip(which.block_KN, which.law_KS, strict=True):
        mean_DS = block_sum(prob_S * stat_SD.T, block_N) / block_sum(prob_S, block_N)
        total_D += (prob_S * law_S) @ (mean_DS.T - stat_SD)
    return total_D


def _forgetful(rng: np.random.Generator, num_spins: int) -> Margins:
    which = spin_models.adaptive_masks(rng, num_spins, 1)
    yield -float(np.abs(forgetful_gradient(distribution(truth(rng, num_spins)), which)).max())


STATEMENTS = (
    Statement("convexity", "appendix K", "the loss is convex, for any masks and any data", _convex, 4),
    Statement(
        "consistency", "Definition 7", "the truth has zero gradient, masks adaptive or not", _truth_is_minimum, 4
    ),
    Statement(
        "information equality", "lemma in 2.2.1, C.2", "Hessian = covariance of the gradient", _information_equality, 4
    ),
    Statement("masking more", "theorem in 2.2.1", "Γ_k+1 ⪯ Γ_k", _masking_more, 10),
    Statement("masking more, strictly", "2.2.1", "Γ_k+1 ≺ Γ_k for k + 1 < N", _masking_more_strictly, 10, smallest=3),
    Statement(
        "the last mask",
        "ours",
        "from k = N-1 to k = N, the variance falls in N directions and stays in the other N(N-1)/2",
        _last_mask_is_free,
        10,
    ),
    Statement(
        "composite between",
        "ours",
        "I⁻¹ ⪯ covariance when averaging over masks ⪯ Γ (one mask for each sample)",
        _composite_between,
        6,
    ),
    Statement("Poincaré bound", "theorem in 2.2.2", "Γ ⪯ C · I⁻¹, weighted blocks", _weighted_bound, 10),
    Statement("Poincaré bound, adaptive", "theorem in 2.2.3", "Γ ⪯ C · I⁻¹, adaptive blocks", _adaptive_bound, 10),
    Statement(
        "equality, composite",
        "not claimed",
        "Hessian = covariance, averaging over masks",
        _composite_equality,
        5,
        False,
    ),
    Statement(
        "order, composite", "not claimed", "Γ_k+1 ⪯ Γ_k, averaging over masks", _composite_order, 5, False, smallest=5
    ),
    Statement("forgetting K", "not claimed", "adaptive masks with p(x_K | x_-K) are consistent", _forgetful, 5, False),
)

"""Masked estimators: information matrices by enumeration of all states, and fits by Newton's method in JAX.

The loss of one sample is -log p_θ(x_K | x_-K, K). For an exponential family its gradient is E[t | x_-K, K] - t(x) with
t the statistics, and its Hessian Cov(t | x_-K, K), which does not depend on x_K. Sections 2.2.1 to 2.2.3 follow from
the law of total variance for these two (docs/theory.md).

The data of a fit are frequencies of pairs (mask, state), so a fit costs the same for any number of samples. Call fits
within `jax.enable_x64(True)`: float32 is too coarse for their last digits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from padir.errors import PadirError
from padir.studies.ising.spin_models import Masks, block_sum, spins, statistics

MOST_SPINS = 16  # 65,536 states of 136 statistics are 71 MB, and some copies of them are made
MAX_STEPS = 30
TOLERANCE = 1e-18  # of the squared Newton decrement, gᵀH⁻¹g
_HALVINGS = 40


def all_statistics(num_spins: int) -> Float[np.ndarray, "S D"]:
    """Sufficient statistics of every state.

    Raises:
      PadirError: too many spins.
    """
    if num_spins > MOST_SPINS:
        raise PadirError(
            f"information matrices are for at most {MOST_SPINS} spins, got {num_spins}: draw samples instead"
        )
    return statistics(spins(np.arange(1 << num_spins), num_spins))


def fisher(prob_S: Float[np.ndarray, " S"]) -> Float[np.ndarray, "D D"]:
    """Fisher information of the full likelihood: the covariance of the statistics (Definition 1)."""
    stat_SD = all_statistics(len(prob_S).bit_length() - 1)
    centred_SD = stat_SD - prob_S @ stat_SD
    return centred_SD.T @ (prob_S[:, None] * centred_SD)


def scores(
    prob_S: Float[np.ndarray, " S"], masks: Masks
) -> Iterator[tuple[Float[np.ndarray, " S"], Float[np.ndarray, "S D"]]]:
    """For each block K: joint probabilities of state and block, and the scores t(x) - E[t | x_-K, K]."""
    stat_SD = all_statistics(masks.num_spins)
    for block_N, law_S in zip(masks.block_KN, masks.law_KS, strict=True):
        joint_S = prob_S * law_S
        mass_S = block_sum(joint_S, block_N)
        mean_DS = block_sum(joint_S * stat_SD.T, block_N) / np.where(mass_S > 0, mass_S, 1.0)
        yield joint_S, stat_SD - mean_DS.T


def information(prob_S: Float[np.ndarray, " S"], masks: Masks) -> Float[np.ndarray, "D D"]:
    """Covariance of the gradient at the truth with one mask a sample; it equals the Hessian (lemma in 2.2.1)."""
    return sum(
        (score_SD.T @ (joint_S[:, None] * score_SD) for joint_S, score_SD in scores(prob_S, masks)), np.zeros(())
    )


def covariance(prob_S: Float[np.ndarray, " S"], masks: Masks) -> Float[np.ndarray, "D D"]:
    """Γ: asymptotic covariance of the estimator with one mask a sample, times the number of samples (Lemma 1)."""
    return np.linalg.inv(information(prob_S, masks))


def composite_information(prob_S: Float[np.ndarray, " S"], masks: Masks) -> Float[np.ndarray, "D D"]:
    """Covariance of the gradient at the truth when every sample is averaged over all its masks."""
    mean_SD = sum(
        (law_S[:, None] * score_SD for law_S, (_, score_SD) in zip(masks.law_KS, scores(prob_S, masks), strict=True)),
        np.zeros(()),
    )
    return mean_SD.T @ (prob_S[:, None] * mean_SD)


def composite_covariance(prob_S: Float[np.ndarray, " S"], masks: Masks) -> Float[np.ndarray, "D D"]:
    """Asymptotic covariance of the composite likelihood over all masks: the sandwich H⁻¹ V H⁻¹, as H differs from V."""
    inverse_DD = covariance(prob_S, masks)
    return inverse_DD @ composite_information(prob_S, masks) @ inverse_DD


@flax.struct.dataclass
class Fit:
    """A fitted model, or a batch of them.

    Attributes:
      theta_D: the parameters, fields first.
      loss: mean of -log p_θ(x_K | x_-K, K) over the data.
      decrement: gᵀH⁻¹g at theta_D, about twice the distance of the loss from its minimum.
      steps: Newton steps taken.
      converged: True if a minimum was found. Some data have no minimum: if a block state never occurs with some
        surroundings, parameters go to infinity, as in logistic regression on separable data.
    """

    theta_D: Float[Array, "*batch D"]
    loss: Float[Array, "*batch"]
    decrement: Float[Array, "*batch"]
    steps: Int[Array, "*batch"]
    converged: Bool[Array, "*batch"]


def draw(
    key: Key[Array, ""], prob_S: Float[Array, " S"], law_KS: Float[Array, "K S"], count: int
) -> Float[Array, "K S"]:
    """Frequencies of (mask, state) in `count` independent samples with one mask each (Definitions 2, 3 and 7).

    The states depend on the key, p and the count alone, so that masks can be compared on the same samples.
    """
    key_state, key_mask = jax.random.split(key)
    state_B = _states(key_state, prob_S, count)
    cumulative_KB = jnp.cumsum(law_KS, axis=0)[:, state_B]
    uniform_B = jax.random.uniform(key_mask, (count,), prob_S.dtype) * cumulative_KB[-1]
    block_B = jnp.sum(cumulative_KB[:-1] <= uniform_B, axis=0)
    return jnp.zeros_like(law_KS).at[block_B, state_B].add(1.0 / count)


def draw_composite(
    key: Key[Array, ""], prob_S: Float[Array, " S"], law_KS: Float[Array, "K S"], count: int
) -> Float[Array, "K S"]:
    """Frequencies with the states of `draw`, each with all its masks weighted by their law: composite likelihood."""
    state_B = _states(jax.random.split(key)[0], prob_S, count)
    return law_KS * jnp.zeros_like(prob_S).at[state_B].add(1.0 / count)


def _states(key: Key[Array, ""], prob_S: Float[Array, " S"], count: int) -> Int[Array, " B"]:
    cumulative_S = jnp.cumsum(prob_S)
    uniform_B = jax.random.uniform(key, (count,), prob_S.dtype) * cumulative_S[-1]
    return jnp.minimum(jnp.searchsorted(cumulative_S, uniform_B, side="right"), len(prob_S) - 1)


def traced_block_sum(value_Sx: Array, block_N: Bool[Array, " N"]) -> Array:
    """`masks.block_sum` over axis 0 for a traced block: spin by spin, each state adds its neighbour's value."""
    for i in range(len(block_N)):
        pairs = value_Sx.reshape(-1, 2, 1 << i, *value_Sx.shape[1:])
        value_Sx = value_Sx + block_N[i] * pairs[:, ::-1].reshape(value_Sx.shape)
    return value_Sx


def loss(
    theta_D: Float[Array, " D"],
    frequency_KS: Float[Array, "K S"],
    stat_SD: Float[Array, "S D"],
    block_KN: Bool[Array, "K N"],
    law_KS: Float[Array, "K S"],
) -> Float[Array, ""]:
    """Pseudolikelihood loss Σ frequency · -log p_θ(x_K | x_-K, K), with p_θ ∝ exp(θ·t(x)) q(K | x) (equation 1).

    Convex in θ: minus a linear function plus logarithms of sums of exponentials of linear functions.
    """
    logit_S = stat_SD @ theta_D
    logit_S = logit_S - jax.lax.stop_gradient(logit_S.max())  # the same for every state of a block: nothing changes
    weight_S = jnp.exp(logit_S)

    def of_block(total: Array, block: tuple[Array, Array, Array]) -> tuple[Array, None]:
        block_N, law_S, frequency_S = block
        mass_S = traced_block_sum(weight_S * law_S, block_N)
        seen_S = frequency_S > 0  # where the law is 0, so is the frequency
        log_prob_S = logit_S + jnp.log(jnp.where(seen_S, law_S, 1.0)) - jnp.log(jnp.where(seen_S, mass_S, 1.0))
        return total - jnp.sum(frequency_S * log_prob_S), None

    return jax.lax.scan(of_block, jnp.zeros((), theta_D.dtype), (block_KN, law_KS, frequency_KS))[0]


def derivatives(
    theta_D: Float[Array, " D"],
    frequency_KS: Float[Array, "K S"],
    stat_SD: Float[Array, "S D"],
    block_KN: Bool[Array, "K N"],
    law_KS: Float[Array, "K S"],
) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
    """Gradient and Hessian of the loss: means of E[t | x_-K, K] - t(x) and of Cov(t | x_-K, K); one block at a time."""
    logit_S = stat_SD @ theta_D
    weight_S = jnp.exp(logit_S - logit_S.max())

    def of_block(totals: tuple[Array, Array], block: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], None]:
        block_N, law_S, frequency_S = block
        joint_S = weight_S * law_S
        mass_S = traced_block_sum(joint_S, block_N)
        prob_S = joint_S / jnp.where(mass_S > 0, mass_S, 1.0)
        centred_SD = stat_SD - traced_block_sum(prob_S[:, None] * stat_SD, block_N)
        expected_S = traced_block_sum(frequency_S, block_N) * prob_S  # frequencies that the model expects
        gradient_D, hessian_DD = totals
        gradient_D = gradient_D - frequency_S @ centred_SD
        return (gradient_D, hessian_DD + centred_SD.T @ (expected_S[:, None] * centred_SD)), None

    size = len(theta_D)
    zeros = jnp.zeros(size, theta_D.dtype), jnp.zeros((size, size), theta_D.dtype)
    return jax.lax.scan(of_block, zeros, (block_KN, law_KS, frequency_KS))[0]


@functools.partial(jax.jit, static_argnames=("max_steps",))
def _fit(
    frequency_KS: Float[Array, "K S"],
    stat_SD: Float[Array, "S D"],
    block_KN: Bool[Array, "K N"],
    law_KS: Float[Array, "K S"],
    max_steps: int,
) -> Fit:
    def loss_at(theta_D: Array) -> Array:
        return loss(theta_D, frequency_KS, stat_SD, block_KN, law_KS)

    def direction(theta_D: Array) -> tuple[Array, Array]:
        gradient_D, hessian_DD = derivatives(theta_D, frequency_KS, stat_SD, block_KN, law_KS)
        ridge = 1e-12 * jnp.trace(hessian_DD)  # changes only the direction, and not the minimum
        step_D = -jnp.linalg.solve(hessian_DD + ridge * jnp.eye(len(theta_D)), gradient_D)
        return step_D, -gradient_D @ step_D

    def newton(fit: Fit) -> Fit:
        step_D, decrement = direction(fit.theta_D)

        def too_long(state: tuple[Array, Array]) -> Array:
            size, halvings = state
            wanted = fit.loss - 1e-4 * size * decrement + 1e-14
            return ~(loss_at(fit.theta_D + size * step_D) <= wanted) & (halvings < _HALVINGS)

        start = (jnp.ones((), step_D.dtype), jnp.zeros((), jnp.int32))
        size, _ = jax.lax.while_loop(too_long, lambda state: (state[0] / 2, state[1] + 1), start)
        theta_D = fit.theta_D + size * step_D
        return Fit(theta_D, loss_at(theta_D), decrement, fit.steps + 1, decrement < TOLERANCE)

    theta_D = jnp.zeros(stat_SD.shape[1], stat_SD.dtype)
    start = Fit(
        theta_D, loss_at(theta_D), jnp.full((), jnp.inf, theta_D.dtype), jnp.zeros((), jnp.int32), jnp.array(False)
    )
    return jax.lax.while_loop(lambda fit: ~fit.converged & (fit.steps < max_steps), newton, start)


def fit(frequency_xKS: Float[Array, "*batch K S"], masks: Masks, max_steps: int = MAX_STEPS) -> Fit:
    """Minimises the loss from θ = 0 by Newton's method; leading axes are a batch (vmapped).

    Raises:
      PadirError: the frequencies are not float64.
    """
    if frequency_xKS.dtype != jnp.float64:
        raise PadirError(f"fits need float64, got {frequency_xKS.dtype}: call within jax.enable_x64(True)")
    stat_SD, block_KN, law_KS = arrays(masks)
    run = functools.partial(_fit, max_steps=max_steps)
    for _ in range(frequency_xKS.ndim - 2):
        run = jax.vmap(run, in_axes=(0, None, None, None))
    return run(frequency_xKS, stat_SD, block_KN, law_KS)


def arrays(masks: Masks) -> tuple[Float[Array, "S D"], Bool[Array, "K N"], Float[Array, "K S"]]:
    """The statistics and the masks as arguments of `loss` and `derivatives`."""
    return jnp.asarray(all_statistics(masks.num_spins)), jnp.asarray(masks.block_KN), jnp.asarray(masks.law_KS)


@functools.partial(jax.jit, static_argnames=("count", "composite"))
def _frequencies(key_R: Array, prob_S: Array, law_KS: Array, count: int, composite: bool) -> Array:
    sampler = draw_composite if composite else draw
    return jax.lax.map(lambda key: sampler(key, prob_S, law_KS, count), key_R)


def squared_errors(
    key_R: Key[Array, " R"],
    prob_S: Float[np.ndarray, " S"],
    theta_D: Float[np.ndarray, " D"],
    masks: Masks,
    counts: Sequence[int],
    *,
    composite: bool = False,
) -> tuple[Float[np.ndarray, "M R"], Bool[np.ndarray, "M R"]]:
    """Squared distances of fits to the true parameters, for each sample size and key, and where a minimum was found.

    Computed in float64, also outside of `jax.enable_x64`.
    """
    error_MR = []
    found_MR = []
    with jax.enable_x64(True):
        law_KS = jnp.asarray(masks.law_KS)
        prob = jnp.asarray(prob_S)
        for number, count in enumerate(counts):  # one size at a time: all at once takes that much more memory
            keys = jax.vmap(jax.random.fold_in, (0, None))(key_R, number)
            fitted = fit(_frequencies(keys, prob, law_KS, count, composite), masks)
            error_MR.append(np.asarray(jnp.sum((fitted.theta_D - theta_D) ** 2, axis=-1)))
            found_MR.append(np.asarray(fitted.converged))
    return np.stack(error_MR), np.stack(found_MR)

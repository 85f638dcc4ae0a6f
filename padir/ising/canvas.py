"""Decoders that start from random tokens: what a random canvas can do that a mask cannot.

Canvases are states, too: spin i of the canvas is its true value with probability 1 - r and a fair coin with probability
r, the noise rate. docs/theory.md derives the statements. Axis letter here: Z = 2^N canvases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from padir.ising import decoders
from padir.ising.decoders import Oracle, Partition
from padir.ising.model import distribution
from padir.ising.separation import total_correlation
from padir.ising.statement import Statement, equal, less, truth
from padir.ising.tensorisation import divergence

Margins = Iterator[float]


def product(plus_xN: Float[np.ndarray, "*x N"]) -> Float[np.ndarray, "*x S"]:
    """Product distributions with these probabilities of +1.

    >>> product(np.array([0.25, 0.5])).tolist()
    [0.375, 0.125, 0.375, 0.125]
    """
    result_xS = np.ones((*plus_xN.shape[:-1], 1))
    for i in reversed(range(plus_xN.shape[-1])):  # spin 0 is the lowest bit: it varies fastest
        both = np.stack([1 - plus_xN[..., i], plus_xN[..., i]], axis=-1)
        result_xS = (result_xS[..., :, None] * both[..., None, :]).reshape(*plus_xN.shape[:-1], -1)
    return result_xS


def plus_of(prob_xS: Float[np.ndarray, "*x S"]) -> Float[np.ndarray, "*x N"]:
    """Probability of +1 of every spin."""
    states = np.arange(prob_xS.shape[-1])
    bits_SN = (states[:, None] >> np.arange(len(states).bit_length() - 1)) & 1
    return prob_xS @ bits_SN.astype(np.float64)


def noise(num_spins: int, rate: float) -> Float[np.ndarray, "S Z"]:
    """Probability of every canvas given the true state: each spin is redrawn fairly with probability `rate`."""
    bits_SN = ((np.arange(1 << num_spins)[:, None] >> np.arange(num_spins)) & 1).astype(np.float64)
    return product((1 - rate) * bits_SN + rate / 2)


def posterior(prob_S: Float[np.ndarray, " S"], rate: float) -> Float[np.ndarray, "Z S"]:
    """p(x | z): the true state given a canvas of this noise rate."""
    joint_ZS = noise(len(prob_S).bit_length() - 1, rate).T * prob_S
    return joint_ZS / joint_ZS.sum(axis=1, keepdims=True)


def denoised(prob_S: Float[np.ndarray, " S"], rate: float) -> Float[np.ndarray, "Z S"]:
    """Law of one pass from every canvas by a perfectly trained model: all spins at once, each from p(x_i | z)."""
    return product(np.clip(plus_of(posterior(prob_S, rate)), 0.0, 1.0))


def denoising_law(prob_S: Float[np.ndarray, " S"], rates: Sequence[float]) -> Float[np.ndarray, " S"]:
    """Law of a decoder that starts from pure noise and noises its result at the next rate before each further pass."""
    law_S = np.full(len(prob_S), 1 / len(prob_S))  # noise of rate 1, whatever it is applied to
    for rate in rates:
        law_S = law_S @ noise(len(prob_S).bit_length() - 1, rate) @ denoised(prob_S, rate)
    return law_S


def noisy_correlation(prob_S: Float[np.ndarray, " S"], rate: float) -> float:
    """E TC(x | z): mean total correlation of the true state given a canvas of this noise rate."""
    canvas_Z = prob_S @ noise(len(prob_S).bit_length() - 1, rate)
    posterior_ZS, alone_ZS = posterior(prob_S, rate), denoised(prob_S, rate)
    return float(canvas_Z @ [divergence(*pair) for pair in zip(posterior_ZS, alone_ZS, strict=True)])


def canvas_map(prob_S: Float[np.ndarray, " S"], canvases: int) -> Float[np.ndarray, " S"]:
    """Law of a state that is read off M equally likely canvases, of which each state has at least (M - S) p."""
    count_S = np.floor((canvases - len(prob_S)) * prob_S) + 1
    count_S[int(np.argmax(prob_S))] += canvases - count_S.sum()
    return count_S / canvases


def mapped_law(oracle: Oracle, blocks: Partition, canvases: int) -> Float[np.ndarray, " S"]:
    """Law of a decoder that reads the first block off its random canvas and draws the others, each in one pass.

    The spins of the first block are a function of the canvas (`canvas_map`), so that the first pass can draw the second
    block given them: T + 1 blocks take T passes. With 2 blocks the law is a mixture of product distributions.
    """
    states = np.arange(len(oracle.prob_S))
    inside_C = states[states & ~blocks[0] == 0]  # the states of the first block
    share_S = np.zeros(len(oracle.prob_S))
    share_S[inside_C] = canvas_map(oracle.marginal_AS[blocks[0]][inside_C], canvases)
    law_S, shown = share_S[states & blocks[0]], blocks[0]
    for block in blocks[1:]:
        law_S = law_S * oracle.drawn(shown, block)
        shown |= block
    return law_S


def mapped_bound(oracle: Oracle, blocks: Partition, canvases: int) -> float:
    """Upper bound of the KL of `mapped_law`: the sum of correlations without the first block's, - log(1 - 2^k / M)."""
    rounding = -float(np.log1p(-(2.0 ** blocks[0].bit_count()) / canvases))
    return decoders.partition_sum(oracle, blocks) - oracle.correlation(0, blocks[0]) + rounding


def _floor(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    plus_N, other_N = plus_of(prob_S), rng.uniform(0.02, 0.98, num_spins)
    alone = [divergence(np.array([1 - p, p]), np.array([1 - q, q])) for p, q in zip(plus_N, other_N, strict=True)]
    yield equal(divergence(prob_S, product(other_N)), total_correlation(prob_S) + sum(alone))
    yield -abs(divergence(prob_S, product(plus_N)) - total_correlation(prob_S)) / total_correlation(prob_S)


def _mapped(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = Oracle(distribution(truth(rng, num_spins)))
    for canvases in (4**num_spins, 64**num_spins):  # canvases of 4 and of 64 tokens a spin
        blocks = decoders.random_partition(rng, num_spins)
        yield less(
            divergence(oracle.prob_S, mapped_law(oracle, blocks, canvases)), mapped_bound(oracle, blocks, canvases)
        )


def _pure_noise(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    first_S = denoising_law(prob_S, [1.0])
    yield -abs(divergence(prob_S, first_S) - total_correlation(prob_S)) / total_correlation(prob_S)
    # From each canvas alone, too: pure noise says nothing about the truth.
    yield equal(denoised(prob_S, 1.0), np.broadcast_to(product(plus_of(prob_S)), (len(prob_S),) * 2))


def _noise_and_denoise(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    rates = [1.0, *np.sort(rng.uniform(0.05, 1.0, 3))[::-1].tolist()]
    scale = total_correlation(prob_S)
    for passes in range(1, len(rates)):
        before_S, after_S = denoising_law(prob_S, rates[:passes]), denoising_law(prob_S, rates[: passes + 1])
        noise_SZ, correlation = noise(num_spins, rates[passes]), noisy_correlation(prob_S, rates[passes])
        between = divergence(prob_S @ noise_SZ, before_S @ noise_SZ)
        yield (between + correlation - divergence(prob_S, after_S)) / scale
        yield (divergence(prob_S, before_S) - between) / scale


STATEMENTS = (
    Statement("the floor of a mask", "ours", "KL of any product = TC + Σ KL of the marginals ≥ TC", _floor, 10),
    Statement(
        "pure noise", "ours", "a trained first pass draws the marginals, from any canvas: KL = TC", _pure_noise, 8
    ),
    Statement("a canvas is worth a pass", "ours", "KL ≤ Σ_{t>1} TC(B_t | A_t) - log(1 - 2^|B_1| / M)", _mapped, 8),
    Statement(
        "noise and denoise",
        "ours",
        "KL after a pass ≤ KL of the noised laws + E TC(x | z) ≤ KL before + E TC(x | z)",
        _noise_and_denoise,
        8,
    ),
)

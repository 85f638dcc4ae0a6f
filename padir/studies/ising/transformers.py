"""Transformers that carry out parallel chains (section 2.4.1, appendix I), and what training on noise makes of them.

One block of uniform attention and a wide MLP carries out every chain whose rows are product distributions, and every
deterministic chain; `Network` builds it weight by weight. Its axis letters: W width of the stream, F of the MLP.

For training, spin i of a canvas is its true value with probability 1 - r and a fair coin with probability r, the noise
rate. docs/theory.md derives the statements. Axis letter here: Z = 2^N canvases.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from jaxtyping import Float, Int

from padir.studies.ising import chains
from padir.studies.ising.spin_models import distribution, spins
from padir.studies.ising.statement import Margins, Statement, equal, less, strictly, truth
from padir.studies.ising.tensorisation import divergence


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


def attention(query_NK: np.ndarray, key_NK: np.ndarray, value_NW: np.ndarray) -> np.ndarray:
    """Softmax attention with one head."""
    score_NN = query_NK @ key_NK.T
    weight_NN = np.exp(score_NN - score_NN.max(axis=1, keepdims=True))
    return weight_NN / weight_NN.sum(axis=1, keepdims=True) @ value_NW


@dataclasses.dataclass(frozen=True, eq=False)
class Network:
    """A decoder of one transformer block that writes all positions at once.

    The stream of a position has its one-hot number (N), its own token (N) and, after attention, all tokens (N). A
    hidden unit of the MLP is 1 at one position and one state, and 0 elsewhere; the output layer is a table of their
    logits.

    Attributes:
      logit_SN: the log-odds of + that the network must give at each position, for every state of its input.
    """

    logit_SN: Float[np.ndarray, "S N"]

    @property
    def num_spins(self) -> int:
        return self.logit_SN.shape[1]

    @functools.cached_property
    def weights(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(input weights of the MLP of shape W x F, biases of F, output weights of F)."""
        count, size = self.logit_SN.shape
        state_SN = spins(np.arange(count), size)
        unit_NN = np.eye(size)
        to_hidden = [
            np.concatenate([2.0 * size * unit_NN[i], np.zeros(size), state_N])
            for i in range(size)
            for state_N in state_SN
        ]
        # All tokens match: N. One does not: at most N - 2. Another position: 2N less.
        return np.array(to_hidden).T, np.full(size * count, -(size - 1.0) - 2.0 * size), self.logit_SN.T.ravel()

    def logits(self, spin_N: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """One forward pass: log-odds of + at each position."""
        size = self.num_spins
        stream_NW = np.concatenate([np.eye(size), np.diag(spin_N), np.zeros((size, size))], axis=1)
        nothing_NK = np.zeros((size, 1))  # queries and keys of 0: every position attends to all of them alike
        seen_NW = attention(nothing_NK, nothing_NK, size * stream_NW[:, size : 2 * size])
        stream_NW[:, 2 * size :] += seen_NW
        into_WF, bias_F, out_F = self.weights
        return np.maximum(stream_NW @ into_WF + bias_F, 0.0) @ out_F

    def table(self) -> Float[np.ndarray, "S N"]:
        """The logits that forward passes give from every state."""
        states_SN = spins(np.arange(len(self.logit_SN)), self.num_spins)
        return np.stack([self.logits(spin_N) for spin_N in states_SN])

    def sampled(self) -> Float[np.ndarray, "S S"]:
        """Transition matrix if every position's token is drawn."""
        return product(1 / (1 + np.exp(-self.table())))

    def greedy(self) -> Int[np.ndarray, " S"]:
        """The next state of every state if every position gets its likelier token."""
        return ((self.table() > 0) << np.arange(self.num_spins)).sum(axis=1)


def one_coordinate(prob_S: Float[np.ndarray, " S"], i: int) -> Float[np.ndarray, "S N"]:
    """Probabilities of + in a step of 1-Gibbs at spin i: the others stay."""
    size = len(prob_S).bit_length() - 1
    plus_SN = (spins(np.arange(len(prob_S)), size) + 1) / 2
    for state in range(len(prob_S)):
        both = prob_S[[state & ~(1 << i), state | 1 << i]]
        plus_SN[state, i] = both[1] / both.sum()
    return plus_SN


def _product_chains(rng: np.random.Generator, num_spins: int) -> Margins:
    drawn = truth(rng, num_spins)
    prob_S = distribution(drawn)
    plus_SN = rng.uniform(0.01, 0.99, (len(prob_S), num_spins))
    yield equal(Network(np.log(plus_SN / (1 - plus_SN))).sampled(), product(plus_SN))
    local_SN = drawn.field_N + spins(np.arange(len(prob_S)), num_spins) @ drawn.coupling_NN
    yield equal(Network(2 * local_SN).sampled(), chains.independent_parallel(drawn))
    # Tokens that stay have a probability of 1: finite logits come near. A sweep of such steps keeps p, no product.
    swept_S = prob_S
    size = 12.0
    for i in range(num_spins):
        target_SN = one_coordinate(prob_S, i)
        logit_SN = np.clip(np.log(np.maximum(target_SN, 1e-300) / np.maximum(1 - target_SN, 1e-300)), -size, size)
        distance = chains.total_variation(Network(logit_SN).sampled(), product(target_SN)).max()
        yield less(distance, num_spins * np.exp(-size))
        swept_S = swept_S @ product(target_SN)
    yield equal(swept_S, prob_S)


def _deterministic_chains(rng: np.random.Generator, num_spins: int) -> Margins:
    next_S = rng.integers(0, 1 << num_spins, 1 << num_spins)
    for steps in (1, 2, 7):
        after_S = np.arange(1 << num_spins)
        for _ in range(steps):
            after_S = next_S[after_S]
        yield equal(Network(spins(after_S, num_spins)).greedy(), after_S)


def trained(prob_S: Float[np.ndarray, " S"], rate: float) -> Float[np.ndarray, "Z N"]:
    """Probabilities of + that a model approaches when it is trained on canvases of this noise rate: p(x_i = + | z)."""
    return plus_of(posterior(prob_S, rate))


def conditionals(prob_S: Float[np.ndarray, " S"]) -> Float[np.ndarray, "Z N"]:
    """Probabilities of + in a step of independent parallel: p(x_i = + | x_-i = z_-i)."""
    return np.stack([one_coordinate(prob_S, i)[:, i] for i in range(len(prob_S).bit_length() - 1)], axis=1)


def _losses(prob_S: np.ndarray, plus_ZN: np.ndarray, rate: float) -> float:
    """Mean loss over truth and canvas: cross-entropy of all positions."""
    size = plus_ZN.shape[1]
    joint_SZ = prob_S[:, None] * noise(size, rate)
    plus_SN = (spins(np.arange(len(prob_S)), size) + 1) / 2
    return float(-np.sum(joint_SZ * (plus_SN @ np.log(plus_ZN).T + (1 - plus_SN) @ np.log(1 - plus_ZN).T)))


def _remark_8(rng: np.random.Generator, num_spins: int) -> Margins:
    prob_S = distribution(truth(rng, num_spins))
    rate = float(rng.uniform(0.1, 1.0))
    best_ZN = trained(prob_S, rate)
    alone_ZN = conditionals(prob_S)
    least = _losses(prob_S, best_ZN, rate)
    more = _losses(prob_S, alone_ZN, rate)
    canvas_Z = prob_S @ noise(num_spins, rate)
    apart = sum(
        mass * divergence(np.array([1 - p, p]), np.array([1 - q, q]))
        for mass, best_N, alone_N in zip(canvas_Z, best_ZN, alone_ZN, strict=True)
        for p, q in zip(best_N, alone_N, strict=True)
    )
    yield strictly((more - least) / least)
    yield -abs(more - least - apart) / least
    for _ in range(3):  # no other function does better
        other_ZN = np.clip(best_ZN + rng.normal(0.0, 0.1, best_ZN.shape), 0.01, 0.99)
        yield (_losses(prob_S, other_ZN, rate) - least) / least


STATEMENTS = (
    Statement(
        "implementable, product",
        "2.4.1, I.1",
        "a transformer carries out every chain of product rows",
        _product_chains,
        6,
    ),
    Statement(
        "implementable, deterministic",
        "2.4.1, I.1",
        "one pass makes T steps of any deterministic chain",
        _deterministic_chains,
        6,
    ),
    Statement(
        "trained updates",
        "Remark 8",
        "training approaches p(x_i | z), not independent parallel's p(x_i | z_-i)",
        _remark_8,
        6,
    ),
)

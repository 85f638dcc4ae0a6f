"""Exact output distributions of decoders that draw several spins in each pass, and their total correlations.

The decoder knows the true conditionals: in each pass it draws every hidden spin from p(x_i | shown spins),
independently of the others, and keeps a block of what it drew. docs/theory.md derives the statements. A set of spins is
a number whose bit i says that spin i is in the set. Axis letter here: A = 2^N sets.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Float

from padir.errors import PadirError
from padir.studies.ising import spin_models
from padir.studies.ising.spin_models import block_sum, distribution
from padir.studies.ising.statement import Margins, Statement, equal, truth
from padir.studies.ising.tensorisation import divergence

MOST_SPINS = 10  # 2^10 sets of 2^10 states are 8 MB
Partition = Sequence[int]  # blocks, as sets, in the order in which they are drawn


def members(block: int, num_spins: int) -> np.ndarray:
    """A set as N booleans.

    >>> members(5, 3).tolist()
    [True, False, True]
    """
    return (block >> np.arange(num_spins) & 1).astype(bool)


@dataclasses.dataclass(frozen=True, eq=False)
class Oracle:
    """A distribution whose conditionals the decoder knows.

    Raises:
      PadirError: too many spins, or a state of probability 0.
    """

    prob_S: Float[np.ndarray, " S"]

    def __post_init__(self):
        if self.num_spins > MOST_SPINS:
            raise PadirError(f"decoders are enumerated for at most {MOST_SPINS} spins, got {self.num_spins}")
        if self.prob_S.min() <= 0:
            raise PadirError("every state must have a probability above 0: take smaller couplings and fields")

    @property
    def num_spins(self) -> int:
        return len(self.prob_S).bit_length() - 1

    @property
    def everything(self) -> int:
        """The set of all spins."""
        return len(self.prob_S) - 1

    @functools.cached_property
    def marginal_AS(self) -> Float[np.ndarray, "A S"]:
        """p(x_A) of every set A at every state."""
        return np.stack([block_sum(self.prob_S, ~members(a, self.num_spins)) for a in range(len(self.prob_S))])

    @functools.cached_property
    def entropy_A(self) -> Float[np.ndarray, " A"]:
        """Entropy of x_A in nats for every set A."""
        return -(np.log(self.marginal_AS) @ self.prob_S)

    def spins_of(self, block: int) -> list[int]:
        return np.flatnonzero(members(block, self.num_spins)).tolist()

    def sum_over(self, block: int, value_S: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
        """Sum of values over all states of the block, the other spins fixed."""
        return block_sum(value_S, members(block, self.num_spins)) if block else value_S

    def each(self, shown: int, block: int) -> Float[np.ndarray, "k S"]:
        """p(x_i | x_shown) of every spin of the block, one row each, at every state."""
        return np.stack([self.marginal_AS[shown | 1 << i] / self.marginal_AS[shown] for i in self.spins_of(block)])

    def drawn(self, shown: int, block: int) -> Float[np.ndarray, " S"]:
        """Probability with which a pass draws the block's spins as they are in each state."""
        return self.each(shown, block).prod(axis=0) if block else np.ones(len(self.prob_S))

    def correlation(self, shown: int, block: int) -> float:
        """Conditional total correlation of a block given the shown spins, in nats, from entropies of sets."""
        before = self.entropy_A[shown]
        alone = sum(self.entropy_A[shown | 1 << i] - before for i in self.spins_of(block))
        return float(alone - (self.entropy_A[shown | block] - before))

    def correlation_at(self, shown: int, block: int) -> Float[np.ndarray, " S"]:
        """Total correlation of p(x_block | x_shown) at every state's x_shown; its mean is `correlation`."""
        joint_S = self.marginal_AS[shown | block] / self.marginal_AS[shown]
        result_S = self.sum_over(block, joint_S * np.log(joint_S))
        for i, prob_S in zip(self.spins_of(block), self.each(shown, block), strict=True):
            result_S = result_S - self.sum_over(1 << i, prob_S * np.log(prob_S))
        return result_S


# For each set of shown spins: the blocks that a pass may keep, with their probabilities at every state. They may depend
# on the shown spins and on those that the pass has drawn, and sum to 1 at every state.
Order = Callable[[Oracle, int], Iterable[tuple[int, Float[np.ndarray, " S"]]]]


def walk(oracle: Oracle, order: Order, *, true: bool = False) -> tuple[Float[np.ndarray, " S"], float]:
    """(law, mean sum): the law of the decoder's result, and the mean sum of total correlations along its passes.

    With `true`, spins that are drawn together come from their joint conditional distribution. The law is then p, unless
    an order depends on what the pass itself has drawn, and the mean is over the decoder's orders on true states.
    Otherwise the mean is over the decoder's own orders.
    """
    at_AS = np.zeros_like(oracle.marginal_AS)
    at_AS[0] = 1.0
    total = 0.0
    for shown in range(oracle.everything):
        hidden = oracle.everything ^ shown
        if not at_AS[shown].any():
            continue
        next_S = oracle.prob_S / oracle.marginal_AS[shown] if true else oracle.drawn(shown, hidden)
        for block, weight_S in order(oracle, shown):
            joint_S = at_AS[shown] * next_S * weight_S
            at_AS[shown | block] += oracle.sum_over(hidden & ~block, joint_S)
            total += float(np.sum(joint_S * oracle.correlation_at(shown, block)))
    return at_AS[-1], total


def partition_law(oracle: Oracle, blocks: Partition) -> Float[np.ndarray, " S"]:
    """Law of the decoder that draws these blocks in this order."""
    law_S = np.ones(len(oracle.prob_S))
    shown = 0
    for block in blocks:
        law_S = law_S * oracle.drawn(shown, block)
        shown |= block
    return law_S


def partition_sum(oracle: Oracle, blocks: Partition) -> float:
    """Sum of the conditional total correlations along an ordered partition."""
    shown = 0
    total = 0.0
    for block in blocks:
        total += oracle.correlation(shown, block)
        shown |= block
    return total


def ordered_partitions(everything: int) -> Iterator[tuple[int, ...]]:
    """All ordered partitions of a set: 1, 3, 13, 75, 541 and 4,683 for 1 to 6 spins.

    >>> sorted(ordered_partitions(3))
    [(1, 2), (2, 1), (3,)]
    """
    if not everything:
        yield ()
    block = everything
    while block:
        yield from ((block, *rest) for rest in ordered_partitions(everything ^ block))
        block = block - 1 & everything


def random_partition(rng: np.random.Generator, num_spins: int) -> tuple[int, ...]:
    """A random ordered partition: a random order, cut at random places."""
    order = rng.permutation(num_spins)
    cut = np.flatnonzero(rng.random(num_spins - 1) < rng.random()) + 1
    return tuple(int(np.sum(1 << part)) for part in np.split(order, cut))


def confident(slack: float) -> Order:
    """An order by confidence: each pass keeps the spins whose likelier value is within `slack` of the most certain."""

    def order(oracle: Oracle, shown: int) -> Iterator[tuple[int, np.ndarray]]:
        hidden = oracle.everything ^ shown
        sure_kS = oracle.each(shown, hidden)
        yield from _groups(oracle, hidden, np.maximum(sure_kS, 1 - sure_kS), slack)

    return order


def by_drawn(slack: float) -> Order:
    """An order by the drawn tokens: each pass keeps the tokens whose probability is within `slack` of the highest."""

    def order(oracle: Oracle, shown: int) -> Iterator[tuple[int, np.ndarray]]:
        hidden = oracle.everything ^ shown
        yield from _groups(oracle, hidden, oracle.each(shown, hidden), slack)

    return order


def _groups(
    oracle: Oracle, hidden: int, score_kS: Float[np.ndarray, "k S"], slack: float
) -> Iterator[tuple[int, Float[np.ndarray, " S"]]]:
    """Blocks of the spins with the highest scores, each with the states at which it is chosen."""
    kept_kS = score_kS >= score_kS.max(axis=0) - slack - 1e-12  # equal scores may differ by rounding
    block_S = (kept_kS << np.array(oracle.spins_of(hidden))[:, None]).sum(axis=0)
    for block in np.unique(block_S):
        yield int(block), (block_S == block).astype(np.float64)


def random_sizes(sizes: Sequence[int]) -> Order:
    """Uniformly random blocks of these sizes, independent of the tokens."""
    size_of = dict(zip(np.cumsum([0, *sizes[:-1]]).tolist(), sizes, strict=True))

    def order(oracle: Oracle, shown: int) -> Iterator[tuple[int, np.ndarray]]:
        hidden = oracle.everything ^ shown
        size = size_of[shown.bit_count()]
        weight_S = np.full(len(oracle.prob_S), 1 / math.comb(hidden.bit_count(), size))
        yield from ((b, weight_S) for b in range(1, hidden + 1) if b & hidden == b and b.bit_count() == size)

    return order


def mixed(first: Order, second: Order, share: float) -> Order:
    """Before each pass a coin decides which of two orders chooses the block."""

    def order(oracle: Oracle, shown: int) -> Iterator[tuple[int, np.ndarray]]:
        yield from ((block, share * weight_S) for block, weight_S in first(oracle, shown))
        yield from ((block, (1 - share) * weight_S) for block, weight_S in second(oracle, shown))

    return order


def random_composition(rng: np.random.Generator, num_spins: int) -> list[int]:
    """Random sizes of passes that sum to the number of spins."""
    return [block.bit_count() for block in random_partition(rng, num_spins)]


def random_oracle(rng: np.random.Generator, num_spins: int) -> Oracle:
    """The oracle of a random model."""
    return Oracle(distribution(truth(rng, num_spins)))


def _partitions(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = random_oracle(rng, num_spins)
    all_of_them = ordered_partitions(oracle.everything)
    some = (random_partition(rng, num_spins) for _ in range(500))
    for blocks in all_of_them if num_spins <= 6 else some:
        law_S = partition_law(oracle, blocks)
        total = partition_sum(oracle, blocks)
        scale = oracle.correlation(0, oracle.everything)
        yield -abs(divergence(oracle.prob_S, law_S) - total) / scale
        yield equal(law_S.sum(), 1.0)


def posterior_gap(
    prob_S: Float[np.ndarray, " S"], prior_O: Float[np.ndarray, " O"], law_OS: Float[np.ndarray, "O S"]
) -> float:
    """Mean KL between the prior of the order and its posterior given a true state."""
    posterior_OS = prior_O[:, None] * law_OS / (prior_O @ law_OS)
    return float(prob_S @ (prior_O @ np.log(prior_O[:, None] / posterior_OS)))


def _random_orders(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = random_oracle(rng, num_spins)
    orders = [random_partition(rng, num_spins) for _ in range(12)]
    prior_O = rng.dirichlet(np.ones(len(orders)))
    law_OS = np.stack([partition_law(oracle, blocks) for blocks in orders])
    average = float(prior_O @ [partition_sum(oracle, blocks) for blocks in orders])
    found = divergence(oracle.prob_S, prior_O @ law_OS)
    scale = oracle.correlation(0, oracle.everything)
    yield (average - found) / scale
    yield -abs(average - found - posterior_gap(oracle.prob_S, prior_O, law_OS)) / scale
    sizes = random_sizes(random_composition(rng, num_spins))
    for order in (sizes, mixed(confident(rng.uniform(0.0, 0.3)), confident(0.0), rng.uniform(0.1, 0.9))):
        law_S = walk(oracle, order)[0]
        average = walk(oracle, order, true=True)[1]
        yield (average - divergence(oracle.prob_S, law_S)) / scale


def _by_confidence(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = random_oracle(rng, num_spins)
    order = confident(rng.uniform(0.0, 0.3))
    law_S = walk(oracle, order)[0]
    (true_S, total) = walk(oracle, order, true=True)
    yield -abs(divergence(oracle.prob_S, law_S) - total) / oracle.correlation(0, oracle.everything)
    yield equal(true_S, oracle.prob_S)


def _own_order(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = random_oracle(rng, num_spins)
    order = confident(rng.uniform(0.0, 0.3))
    law_S, total = walk(oracle, order)
    yield -abs(divergence(oracle.prob_S, law_S) - total) / oracle.correlation(0, oracle.everything)


def _by_drawn(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = Oracle(
        distribution(spin_models.random_model(rng, num_spins, 0.0, 0.6))
    )  # independent: every correlation is 0
    law_S, _ = walk(oracle, by_drawn(0.0))
    yield -divergence(oracle.prob_S, law_S)


STATEMENTS = (
    Statement("parallel passes", "ours", "KL of a fixed ordered partition = Σ TC(block | shown)", _partitions, 8),
    Statement("random orders", "ours", "KL ≤ mean of Σ TC, by E KL(prior ‖ posterior of the order)", _random_orders, 7),
    Statement("orders by confidence", "ours", "KL = mean of Σ TC over the orders of true states", _by_confidence, 7),
    Statement(
        "the decoder's own orders", "not claimed", "the same, over the decoder's own results", _own_order, 7, False, 3
    ),
    Statement(
        "kept by what was drawn", "not claimed", "the same, if a token's own probability decides", _by_drawn, 7, False
    ),
)

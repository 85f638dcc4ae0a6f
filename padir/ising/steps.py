"""Statements on decoders of several parallel passes: their KL from the truth and total correlations (ours)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from padir.ising import model
from padir.ising.decoders import (
    Oracle,
    by_drawn,
    confident,
    mixed,
    ordered_partitions,
    partition_law,
    partition_sum,
    random_composition,
    random_partition,
    random_sizes,
    walk,
)
from padir.ising.model import distribution
from padir.ising.statement import Statement, equal, truth
from padir.ising.tensorisation import divergence

Margins = Iterator[float]


def _oracle(rng: np.random.Generator, num_spins: int) -> Oracle:
    return Oracle(distribution(truth(rng, num_spins)))


def _partitions(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = _oracle(rng, num_spins)
    all_of_them = ordered_partitions(oracle.everything)
    some = (random_partition(rng, num_spins) for _ in range(500))
    for blocks in all_of_them if num_spins <= 6 else some:
        law_S = partition_law(oracle, blocks)
        total, scale = partition_sum(oracle, blocks), oracle.correlation(0, oracle.everything)
        yield -abs(divergence(oracle.prob_S, law_S) - total) / scale
        yield equal(law_S.sum(), 1.0)


def posterior_gap(
    prob_S: Float[np.ndarray, " S"], prior_O: Float[np.ndarray, " O"], law_OS: Float[np.ndarray, "O S"]
) -> float:
    """Mean KL between the prior of the order and its posterior given a true state."""
    posterior_OS = prior_O[:, None] * law_OS / (prior_O @ law_OS)
    return float(prob_S @ (prior_O @ np.log(prior_O[:, None] / posterior_OS)))


def _random_orders(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = _oracle(rng, num_spins)
    orders = [random_partition(rng, num_spins) for _ in range(12)]
    prior_O = rng.dirichlet(np.ones(len(orders)))
    law_OS = np.stack([partition_law(oracle, blocks) for blocks in orders])
    average = float(prior_O @ [partition_sum(oracle, blocks) for blocks in orders])
    found, scale = divergence(oracle.prob_S, prior_O @ law_OS), oracle.correlation(0, oracle.everything)
    yield (average - found) / scale
    yield -abs(average - found - posterior_gap(oracle.prob_S, prior_O, law_OS)) / scale
    sizes = random_sizes(random_composition(rng, num_spins))
    for order in (sizes, mixed(confident(rng.uniform(0.0, 0.3)), confident(0.0), rng.uniform(0.1, 0.9))):
        law_S, average = walk(oracle, order)[0], walk(oracle, order, true=True)[1]
        yield (average - divergence(oracle.prob_S, law_S)) / scale


def _by_confidence(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle, order = _oracle(rng, num_spins), confident(rng.uniform(0.0, 0.3))
    law_S, (true_S, total) = walk(oracle, order)[0], walk(oracle, order, true=True)
    yield -abs(divergence(oracle.prob_S, law_S) - total) / oracle.correlation(0, oracle.everything)
    yield equal(true_S, oracle.prob_S)


def _own_order(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle, order = _oracle(rng, num_spins), confident(rng.uniform(0.0, 0.3))
    law_S, total = walk(oracle, order)
    yield -abs(divergence(oracle.prob_S, law_S) - total) / oracle.correlation(0, oracle.everything)


def _by_drawn(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = Oracle(distribution(model.random(rng, num_spins, 0.0, 0.6)))  # independent: every correlation is 0
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

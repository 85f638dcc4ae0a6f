"""Statements on schedules of parallel passes: entropy curves, the best sizes, bounds, errors of tokens (ours)."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from padir.ising import decoders, schedules
from padir.ising.chains import total_variation
from padir.ising.decoders import Oracle
from padir.ising.masks import block_sum
from padir.ising.model import distribution
from padir.ising.statement import Statement, equal, less, truth
from padir.ising.tensorisation import divergence
from padir.refinement.strategies.schedules import SCHEDULES

Margins = Iterator[float]


def _oracle(rng: np.random.Generator, num_spins: int) -> Oracle:
    return Oracle(distribution(truth(rng, num_spins)))


def _curve(rng: np.random.Generator, num_spins: int) -> schedules.Curve:
    return schedules.entropy_curve(_oracle(rng, num_spins))


def _mean_by_sizes(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle, sums = _oracle(rng, num_spins), collections.defaultdict(list)
    for blocks in decoders.ordered_partitions(oracle.everything):
        sizes = tuple(block.bit_count() for block in blocks)
        sums[sizes].append(decoders.partition_sum(oracle, blocks))
    curve = schedules.entropy_curve(oracle)
    scale = schedules.total_correlation(curve)
    for sizes, found in sums.items():
        yield -abs(float(np.mean(found)) - schedules.cost(curve, sizes)) / scale


def _best(rng: np.random.Generator, num_spins: int) -> Margins:
    curve = _curve(rng, num_spins)
    scale = schedules.total_correlation(curve)
    for passes, (least, sizes) in enumerate(schedules.best_schedules(curve), 1):
        every = [schedules.cost(curve, each) for each in schedules.compositions(num_spins, passes)]
        yield -abs(schedules.cost(curve, sizes) - least) / scale
        yield -abs(min(every) - least) / scale
        yield -abs(float(np.mean(every)) - schedules.random_cost(curve, passes)) / scale
        for schedule in SCHEDULES:
            yield (schedules.cost(curve, schedules.sizes_of(schedule, num_spins, passes)) - least) / scale


def _equal_sizes(rng: np.random.Generator, num_spins: int) -> Margins:
    curve = _curve(rng, num_spins)
    scale = schedules.total_correlation(curve)
    for size in range(2, num_spins + 1):
        found = []
        for first in range(1, size + 1):
            rest, last = divmod(num_spins - first, size)
            sizes = [first, *[size] * rest, *[last] * (last > 0)]
            found.append(schedules.cost(curve, sizes))
            yield (schedules.equal_bound(curve, size) - found[-1]) / scale
        yield (float(np.mean(found)) - schedules.phases_bound(curve, size)) / scale


def _changing_sizes(rng: np.random.Generator, num_spins: int) -> Margins:
    curve = _curve(rng, num_spins)
    scale = schedules.total_correlation(curve)
    for passes in range(2, num_spins + 1):
        for sizes in schedules.compositions(num_spins, passes):
            if sizes[0] == 1:
                yield (schedules.growing_bound(curve, sizes) - schedules.cost(curve, sizes)) / scale
            if sizes[-1] == 1:
                yield (schedules.shrinking_bound(curve, sizes) - schedules.cost(curve, sizes)) / scale


def token_errors(first_S: Float[np.ndarray, " S"], second_S: Float[np.ndarray, " S"]) -> Float[np.ndarray, " N"]:
    """Total variation distance of every spin's marginals."""
    num_spins = len(first_S).bit_length() - 1
    others_NN = ~np.eye(num_spins, dtype=bool)
    return np.array([0.5 * abs(block_sum(first_S - second_S, others_N)[[0, -1]]).sum() for others_N in others_NN])


def sequence_bound(kl: float) -> float:
    """Upper bound of the total variation distance: the smaller of √(KL/2) and √(1 - exp(-KL))."""
    return min(math.sqrt(kl / 2), math.sqrt(-math.expm1(-kl)))


def _errors(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = _oracle(rng, num_spins)
    law_S, _ = decoders.walk(oracle, decoders.random_sizes(decoders.random_composition(rng, num_spins)))
    blocks = decoders.random_partition(rng, num_spins)
    fixed_S = decoders.partition_law(oracle, blocks)
    for each_S in (law_S, fixed_S):
        whole = float(total_variation(oracle.prob_S, each_S))
        yield whole - float(token_errors(oracle.prob_S, each_S).max()) + 1e-12
        yield sequence_bound(max(0.0, divergence(oracle.prob_S, each_S))) - whole + 1e-12
    yield -float(token_errors(oracle.prob_S, fixed_S)[oracle.spins_of(blocks[0])].max())


def affinity(first_S: Float[np.ndarray, " S"], second_S: Float[np.ndarray, " S"]) -> float:
    """Bhattacharyya affinity Σ √(p q): 1 for equal distributions; that of independent parts is the product."""
    return float(np.sqrt(first_S * second_S).sum())


def sequence_bounds(affinity: float, copies: int) -> tuple[float, float]:
    """Bounds of the total variation distance of that many independent copies: 1 - BC^m and √(1 - BC^2m)."""
    return 1 - affinity**copies, math.sqrt(max(0.0, 1 - affinity ** (2 * copies)))


def _phrases(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = _oracle(rng, num_spins)
    law_S = decoders.partition_law(oracle, decoders.random_partition(rng, num_spins))
    single, close = divergence(oracle.prob_S, law_S), affinity(oracle.prob_S, law_S)
    true_S, drawn_S = oracle.prob_S, law_S
    for copies in range(2, 1 + 12 // num_spins):
        true_S, drawn_S = np.outer(true_S, oracle.prob_S).ravel(), np.outer(drawn_S, law_S).ravel()
        yield equal(divergence(true_S, drawn_S), copies * single) if single > 1e-9 else 0.0
        yield -float(abs(token_errors(true_S, drawn_S) - np.tile(token_errors(oracle.prob_S, law_S), copies)).max())
        low, high = sequence_bounds(close, copies)
        yield less(low, float(total_variation(true_S, drawn_S)) + 1e-12)
        yield less(float(total_variation(true_S, drawn_S)), high + 1e-7)


STATEMENTS = (
    Statement(
        "entropy curve", "ours", "mean of Σ TC over orders = Σ k (h(a+1) - h(a)) - h(a+k) + h(a)", _mean_by_sizes
    ),
    Statement("best sizes", "ours", "dynamic programming finds the cheapest schedule of T passes", _best, 10),
    Statement(
        "equal sizes", "ours", "passes of K spins: Σ_{j<K} I_j / K ≤ mean over phases ≤ (K-1) I_1", _equal_sizes, 10
    ),
    Statement(
        "changing sizes", "ours", "growing: ≤ (ρ-1) DTC + I_1; shrinking: ≤ (1 - 1/ρ) TC + I_1", _changing_sizes, 10
    ),
    Statement("token and sequence", "ours", "TV of a token ≤ TV ≤ √(KL/2) and √(1 - exp(-KL))", _errors, 7),
    Statement("phrases", "ours", "m copies: KL is m times, 1 - BC^m ≤ TV ≤ √(1 - BC^2m)", _phrases, 4),
)

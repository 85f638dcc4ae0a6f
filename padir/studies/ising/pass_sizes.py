"""Schedules, which say how many spins each pass of a decoder draws in random order, and their cost in KL.

In a random order the mean sum of conditional total correlations (`padir.studies.ising.decoders`) depends on the sizes
of the passes alone, through the entropy curve: the mean entropy h(a) of a uniformly random set of a spins.
docs/theory.md derives the formulas and bounds. Axis letter here: M = N + 1 numbers of spins.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from padir.errors import PadirError
from padir.refinement.strategies.schedules import SCHEDULES, still_masked
from padir.studies.ising import decoders
from padir.studies.ising.chains import total_variation
from padir.studies.ising.decoders import Oracle, random_oracle
from padir.studies.ising.separation import Clique, counts, log_choose
from padir.studies.ising.spin_models import block_sum
from padir.studies.ising.statement import Margins, Statement, equal, less
from padir.studies.ising.tensorisation import divergence

Curve = Float[np.ndarray, " M"]  # h(0) = 0, h(1), ..., h(N), in nats


def entropy_curve(oracle: Oracle) -> Curve:
    """Mean entropy of the sets of each size, by enumeration."""
    size_A = np.array([block.bit_count() for block in range(len(oracle.prob_S))])
    return np.array([oracle.entropy_A[size_A == a].mean() for a in range(oracle.num_spins + 1)])


def clique_curve(clique: Clique) -> Curve:
    """Entropy curve of a clique without other spins, by counting its +1 spins: all sets of one size are alike.

    Raises:
      PadirError: there are spins outside the clique.
    """
    size = clique.size
    if clique.num_spins != size:
        raise PadirError(
            f"the curve is for a clique without other spins: num_spins must be {size}, got {clique.num_spins}"
        )
    plus = np.arange(size + 1)
    log_state_T = np.log(np.maximum(counts(clique), 1e-300)) - log_choose(size, plus)  # of one state with so many +
    curve = [0.0]
    for drawn in range(1, size + 1):
        rest = np.arange(size - drawn + 1)
        log_prob_T = np.array(
            [np.logaddexp.reduce(log_choose(size - drawn, rest) + log_state_T[j + rest]) for j in range(drawn + 1)]
        )
        curve.append(-float(np.sum(np.exp(log_choose(drawn, np.arange(drawn + 1)) + log_prob_T) * log_prob_T)))
    return np.array(curve)


def chain_curve(num_spins: int, coupling: float) -> Curve:
    """Entropy curve of a chain without fields, whose neighbours have one coupling J.

    Two spins at a distance d that have no drawn spin between them are equal with probability (1 + tanh(J)^d) / 2,
    independently of all other such pairs.
    """
    distances = range(1, num_spins)
    differ = (1 - math.tanh(coupling) ** np.array(distances)) / 2
    entropy_d = -differ * np.log(differ) - (1 - differ) * np.log1p(-differ)
    curve = np.zeros(num_spins + 1)
    for drawn in range(1, num_spins + 1):
        pairs_d = [(num_spins - d) * math.comb(num_spins - d - 1, drawn - 2) if drawn > 1 else 0 for d in distances]
        shares_d = [pairs / math.comb(num_spins, drawn) for pairs in pairs_d]  # quotients of exact integers
        curve[drawn] = math.log(2) + float(np.dot(shares_d, entropy_d))
    return curve


def copies_curve(curve: Curve, copies: int) -> Float[np.ndarray, " K"]:
    """Entropy curve of independent copies of a model, such as phrases of a sentence."""
    size = len(curve) - 1
    total = copies * (len(curve) - 1)
    inside = np.arange(size + 1)
    result = []
    for drawn in range(total + 1):
        ways = [math.comb(size, j) * math.comb(total - size, drawn - j) if j <= drawn else 0 for j in inside]
        result.append(copies * float(np.dot([way / math.comb(total, drawn) for way in ways], curve)))
    return np.array(result)


def pass_cost(curve: Curve, shown: int, size: int | np.ndarray) -> np.ndarray:
    """Mean conditional total correlation of a pass that draws `size` spins when `shown` are shown."""
    return np.asarray(size * (curve[shown + 1] - curve[shown]) - (curve[shown + size] - curve[shown]))


def cost(curve: Curve, sizes: Sequence[int]) -> float:
    """Mean sum of conditional total correlations of a schedule in random order, in nats.

    >>> cost(np.array([0.0, 1.0, 1.0]), [2])  # two spins that are always equal, in one pass
    1.0
    """
    starts = itertools.accumulate(sizes[:-1], initial=0)
    return float(sum(pass_cost(curve, shown, size) for shown, size in zip(starts, sizes, strict=True)))


def best_schedules(curve: Curve) -> list[tuple[float, list[int]]]:
    """The cheapest schedule of 1, 2, ..., N passes and its cost."""
    num_spins = len(curve) - 1
    cost_MM = np.zeros((num_spins + 1, num_spins + 1))
    for shown in range(num_spins):
        cost_MM[shown, shown + 1 :] = pass_cost(curve, shown, np.arange(1, num_spins - shown + 1))
    return cheapest(cost_MM)


def cheapest(cost_MM: Float[np.ndarray, "M M"]) -> list[tuple[float, list[int]]]:
    """The least cost of 1, 2, ..., N passes and their sizes, by dynamic programming over the spins shown.

    Args:
      cost_MM: cost of a pass that begins with a spins shown and ends with b > a, at [a, b].

    >>> cheapest(np.array([[0.0, 0.0, 5.0, 9.0], [0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 0.0, 0.0], [0.0] * 4]))
    [(9.0, [3]), (2.0, [1, 2]), (1.0, [1, 1, 1])]
    """
    num_spins = len(cost_MM) - 1
    least_a = np.full(num_spins + 1, np.inf)
    sizes_a = [[] for _ in range(num_spins + 1)]
    least_a[0] = 0.0
    found = []
    for _ in range(num_spins):
        next_a = np.full(num_spins + 1, np.inf)
        next_sizes = list(sizes_a)
        for shown in np.flatnonzero(np.isfinite(least_a[:-1])):
            size = np.arange(1, num_spins - shown + 1)
            total = least_a[shown] + cost_MM[shown, shown + 1 :]
            for k in size[total < next_a[shown + size]]:
                next_a[shown + k] = total[k - 1]
                next_sizes[shown + k] = [*sizes_a[shown], int(k)]
        least_a = next_a
        sizes_a = next_sizes
        found.append((float(least_a[-1]), sizes_a[-1]))
    return found


@functools.cache
def sizes_of(schedule: str, num_spins: int, passes: int) -> list[int]:
    """Sizes of the passes of one of the decoder's schedules; passes that would draw no spin are left out.

    >>> {name: sizes_of(name, 15, 4) for name in ("linear", "cosine", "geometric", "doubling")}
    {'linear': [4, 4, 4, 3], 'cosine': [2, 3, 5, 5], 'geometric': [1, 2, 4, 8], 'doubling': [2, 2, 4, 7]}
    """
    length_1T = jnp.full((1, passes), num_spins)
    hidden = [num_spins, *still_masked(schedule, length_1T, jnp.arange(1, passes + 1), passes)[0].tolist()]
    return [before - after for before, after in itertools.pairwise(hidden) if before > after]


def compositions(num_spins: int, passes: int) -> Iterator[list[int]]:
    """All schedules with this number of passes.

    >>> list(compositions(4, 2))
    [[1, 3], [2, 2], [3, 1]]
    """
    for cuts in itertools.combinations(range(1, num_spins), passes - 1):
        yield np.diff([0, *cuts, num_spins]).tolist()


def random_cost(curve: Curve, passes: int) -> float:
    """Mean cost of uniformly random sizes of this number of passes: all `compositions` are equally likely."""
    num_spins = len(curve) - 1

    def ways(total: int, parts: int) -> int:
        return math.comb(total - 1, parts - 1) if total > 0 and parts > 0 else int(total == parts == 0)

    total = 0.0
    for shown, size in ((a, k) for a in range(num_spins) for k in range(1, num_spins - a + 1)):
        left = num_spins - shown - size
        count = sum(ways(shown, step) * ways(left, passes - 1 - step) for step in range(passes))
        total += count / ways(num_spins, passes) * float(pass_cost(curve, shown, size))
    return total


def total_correlation(curve: Curve) -> float:
    """TC = N h(1) - h(N): the cost of a single pass."""
    return float((len(curve) - 1) * curve[1] - curve[-1])


def dual_total_correlation(curve: Curve) -> float:
    """DTC = h(N) - N (h(N) - h(N-1)): the information that spins share, counted once."""
    return float(curve[-1] - (len(curve) - 1) * (curve[-1] - curve[-2]))


def between(curve: Curve, size: int) -> float:
    """I_j = h(j) + h(N-j) - h(N): mean mutual information of a random set of j spins with the other spins."""
    return float(curve[size] + curve[-1 - size] - curve[-1])


def equal_bound(curve: Curve, largest: int) -> float:
    """Upper bound (K-1) I_1 of the cost of a schedule whose passes draw at most K spins."""
    return (largest - 1) * between(curve, 1)


def phases_bound(curve: Curve, size: int) -> float:
    """Lower bound (1/K) Σ_{j<K} I_j of the mean cost of passes of K spins over the K sizes of the first pass."""
    return sum(between(curve, j) for j in range(1, size)) / size


def growing_bound(curve: Curve, sizes: Sequence[int]) -> float:
    """Upper bound (ρ - 1) DTC + I_1 of the cost of a schedule whose first pass draws one spin.

    No pass draws more than ρ times as many spins as the pass before.
    """
    ratio = max([1.0, *(after / before for before, after in itertools.pairwise(sizes))])
    return (ratio - 1) * dual_total_correlation(curve) + between(curve, 1)


def shrinking_bound(curve: Curve, sizes: Sequence[int]) -> float:
    """Upper bound (1 - 1/ρ) TC + I_1 of the cost of a schedule whose last pass draws one spin.

    After the first pass, every pass draws at least 1/ρ times as many spins as the pass before.
    """
    ratio = min([1.0, *(after / before for before, after in itertools.pairwise(sizes))])
    return (1 - ratio) * total_correlation(curve) + between(curve, 1)


def _curve(rng: np.random.Generator, num_spins: int) -> Curve:
    return entropy_curve(random_oracle(rng, num_spins))


def _mean_by_sizes(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = random_oracle(rng, num_spins)
    sums = collections.defaultdict(list)
    for blocks in decoders.ordered_partitions(oracle.everything):
        sizes = tuple(block.bit_count() for block in blocks)
        sums[sizes].append(decoders.partition_sum(oracle, blocks))
    curve = entropy_curve(oracle)
    scale = total_correlation(curve)
    for sizes, found in sums.items():
        yield -abs(float(np.mean(found)) - cost(curve, sizes)) / scale


def _best(rng: np.random.Generator, num_spins: int) -> Margins:
    curve = _curve(rng, num_spins)
    scale = total_correlation(curve)
    for passes, (least, sizes) in enumerate(best_schedules(curve), 1):
        every = [cost(curve, each) for each in compositions(num_spins, passes)]
        yield -abs(cost(curve, sizes) - least) / scale
        yield -abs(min(every) - least) / scale
        yield -abs(float(np.mean(every)) - random_cost(curve, passes)) / scale
        for schedule in SCHEDULES:
            yield (cost(curve, sizes_of(schedule, num_spins, passes)) - least) / scale


def _equal_sizes(rng: np.random.Generator, num_spins: int) -> Margins:
    curve = _curve(rng, num_spins)
    scale = total_correlation(curve)
    for size in range(2, num_spins + 1):
        found = []
        for first in range(1, size + 1):
            rest, last = divmod(num_spins - first, size)
            sizes = [first, *[size] * rest, *[last] * (last > 0)]
            found.append(cost(curve, sizes))
            yield (equal_bound(curve, size) - found[-1]) / scale
        yield (float(np.mean(found)) - phases_bound(curve, size)) / scale


def _changing_sizes(rng: np.random.Generator, num_spins: int) -> Margins:
    curve = _curve(rng, num_spins)
    scale = total_correlation(curve)
    for passes in range(2, num_spins + 1):
        for sizes in compositions(num_spins, passes):
            if sizes[0] == 1:
                yield (growing_bound(curve, sizes) - cost(curve, sizes)) / scale
            if sizes[-1] == 1:
                yield (shrinking_bound(curve, sizes) - cost(curve, sizes)) / scale


def token_errors(first_S: Float[np.ndarray, " S"], second_S: Float[np.ndarray, " S"]) -> Float[np.ndarray, " N"]:
    """Total variation distance of every spin's marginals."""
    num_spins = len(first_S).bit_length() - 1
    others_NN = ~np.eye(num_spins, dtype=bool)
    return np.array([0.5 * abs(block_sum(first_S - second_S, others_N)[[0, -1]]).sum() for others_N in others_NN])


def sequence_bound(kl: float) -> float:
    """Upper bound of the total variation distance: the smaller of √(KL/2) and √(1 - exp(-KL))."""
    return min(math.sqrt(kl / 2), math.sqrt(-math.expm1(-kl)))


def _errors(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = random_oracle(rng, num_spins)
    law_S, _ = decoders.walk(oracle, decoders.random_sizes(decoders.random_composition(rng, num_spins)))
    blocks = decoders.random_partition(rng, num_spins)
    fixed_S = decoders.partition_law(oracle, blocks)
    for each_S in (law_S, fixed_S):
        whole = float(total_variation(oracle.prob_S, each_S))
        yield whole - float(token_errors(oracle.prob_S, each_S).max()) + 1e-12
        yield sequence_bound(max(0.0, divergence(oracle.prob_S, each_S))) - whole + 1e-12
    yield -float(token_errors(oracle.prob_S, fixed_S)[oracle.spins_of(blocks[0])].max())


def affinity(first_S: Float[np.ndarray, " S"], second_S: Float[np.ndarray, " S"]) -> float:
    """Bhattacharyya affinity Σ √(p q): 1 for equal distributions; for independent parts, their product."""
    return float(np.sqrt(first_S * second_S).sum())


def sequence_bounds(affinity: float, copies: int) -> tuple[float, float]:
    """Bounds of the total variation distance of m independent copies: 1 - BC^m and √(1 - BC^2m)."""
    return 1 - affinity**copies, math.sqrt(max(0.0, 1 - affinity ** (2 * copies)))


def _phrases(rng: np.random.Generator, num_spins: int) -> Margins:
    oracle = random_oracle(rng, num_spins)
    law_S = decoders.partition_law(oracle, decoders.random_partition(rng, num_spins))
    single = divergence(oracle.prob_S, law_S)
    close = affinity(oracle.prob_S, law_S)
    true_S = oracle.prob_S
    drawn_S = law_S
    for copies in range(2, 1 + 12 // num_spins):
        true_S = np.outer(true_S, oracle.prob_S).ravel()
        drawn_S = np.outer(drawn_S, law_S).ravel()
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

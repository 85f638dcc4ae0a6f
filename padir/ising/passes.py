"""Experiments on decoders of several passes, as rows: costs of schedules, errors of sequences, masks and canvases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from padir.errors import PadirError
from padir.ising import canvas, decoders, experiments, model, schedules, scheduling
from padir.ising.chains import total_variation
from padir.ising.cliques import Clique
from padir.ising.decoders import Oracle
from padir.ising.experiments import Progress, Row, quiet
from padir.ising.tensorisation import divergence
from padir.refinement.strategies.schedules import SCHEDULES


@dataclasses.dataclass(frozen=True)
class ScheduleSizes:
    """Sizes of the figure of schedules.

    Attributes:
      num_spins: spins of each model, a multiple of `clique`.
      clique: spins of one of the small cliques ("phrases").
    """

    num_spins: int = 64
    clique: int = 4

    def __post_init__(self):
        if not 2 <= self.clique <= decoders.MOST_SPINS:
            raise PadirError(f"a phrase has 2 to {decoders.MOST_SPINS} spins, got {self.clique}")
        if not self.clique <= self.num_spins <= 256 or self.num_spins % self.clique:
            raise PadirError(
                f"schedules are for at most 256 spins, a multiple of the phrase's {self.clique}, got {self.num_spins}"
            )


def phrase(size: int) -> Clique:
    """A strongly coupled clique whose two modes are nearly alike: J = 4 / size, h = 0.1."""
    return Clique(size, size, 4.0 / size, 0.1)


def curves(sizes: ScheduleSizes) -> dict[str, schedules.Curve]:
    """Entropy curves of the three models: spins that all agree, spins that agree in phrases, and a chain."""
    whole = dataclasses.replace(phrase(sizes.num_spins), field=0.01)
    copies = sizes.num_spins // sizes.clique
    return {
        "one clique": schedules.clique_curve(whole),
        "phrases": schedules.copies_curve(schedules.clique_curve(phrase(sizes.clique)), copies),
        "chain": schedules.chain_curve(sizes.num_spins, 1.0),
    }


def schedule_costs(sizes: ScheduleSizes, progress: Progress = quiet) -> list[Row]:
    """KL in nats of every schedule, for 1, 2, 3, 4, 6, 8, ... passes: its mean over random orders."""
    rows = []
    for name, curve in curves(sizes).items():
        found_best = schedules.best_schedules(curve)
        for passes in sorted({c << p for c in (1, 3) for p in range(9) if c << p <= sizes.num_spins}):
            least, best = found_best[passes - 1]
            fixed = {each: schedules.sizes_of(each, sizes.num_spins, passes) for each in SCHEDULES}
            found = [("best", least, best), *((each, schedules.cost(curve, k), k) for each, k in fixed.items())]
            for each, kl, steps in [*found, ("random", schedules.random_cost(curve, passes), None)]:
                rows.append(
                    {
                        "model": name,
                        "passes": passes,
                        "schedule": each,
                        "kl": max(0.0, kl),
                        "sizes": " ".join(map(str, steps)) if steps else None,
                    }
                )
                progress(rows[-1])
    return rows


def schedule_bounds(sizes: ScheduleSizes) -> list[Row]:
    """Exact costs of equal and of doubling sizes beside their bounds, where the number of passes divides the spins."""
    rows = []
    for name, curve in curves(sizes).items():
        doubling = schedules.sizes_of("doubling", sizes.num_spins, sizes.num_spins.bit_length())
        of_model = {
            "total_correlation": schedules.total_correlation(curve),
            "dual_total_correlation": schedules.dual_total_correlation(curve),
            "between": schedules.between(curve, 1),
            "passes_of_doubling": len(doubling),
            "doubling": schedules.cost(curve, doubling),
            "doubling_upper": schedules.growing_bound(curve, doubling),
        }
        for passes in (p for p in range(1, sizes.num_spins) if sizes.num_spins % p == 0):
            size = sizes.num_spins // passes
            equal = {
                "lower": schedules.phases_bound(curve, size),
                "linear": schedules.cost(curve, schedules.sizes_of("linear", sizes.num_spins, passes)),
                "upper": schedules.equal_bound(curve, size),
            }
            rows.append({"model": name, "passes": passes, **equal, **of_model})
    return rows


def phrase_errors(size: int, copies: Sequence[int] = (1, 4, 16, 64, 256)) -> list[Row]:
    """Errors of tokens and of whole sequences for sentences of independent phrases, by passes and phrases.

    Each pass draws as many spins of every phrase as the schedule "geometric" says, in a fixed order. `low` and `high`
    bound the total variation distance of the whole sequences.
    """
    each = phrase(size)
    oracle = Oracle(model.distribution(model.clique(size, size, each.coupling, each.field)))
    rows = []
    for passes in range(1, size):
        ends = np.cumsum([0, *schedules.sizes_of("geometric", size, passes)]).tolist()
        blocks = [(1 << end) - (1 << start) for start, end in zip(ends, ends[1:], strict=False)]
        law_S = decoders.partition_law(oracle, blocks)
        for count in copies:
            low, high = scheduling.sequence_bounds(scheduling.affinity(oracle.prob_S, law_S), count)
            rows.append(
                {
                    "passes": passes,
                    "phrases": count,
                    "kl_of_a_token": divergence(oracle.prob_S, law_S) / size,
                    "tv_of_a_token": float(scheduling.token_errors(oracle.prob_S, law_S).max()),
                    "tv_of_a_phrase": float(total_variation(oracle.prob_S, law_S)),
                    "low": low,
                    "high": high,
                }
            )
    return rows


@dataclasses.dataclass(frozen=True)
class CanvasSizes:
    """Sizes of the figure of masks and random canvases.

    Attributes:
      num_spins: spins of each model; the number of passes goes up to it.
    """

    num_spins: int = 6

    def __post_init__(self):
        if not 2 <= self.num_spins <= 6:
            raise PadirError(f"all ordered partitions are tried for 2 to 6 spins, got {self.num_spins}")


def canvas_costs(sizes: CanvasSizes, progress: Progress = quiet) -> list[Row]:
    """Exact KL of decoders from masks and from random tokens, by passes, on the models of figures 1 and 2."""
    rows = []
    truths = {
        "flat": experiments.flat_truth(sizes.num_spins),
        "two modes": experiments.peaky_truth(sizes.num_spins),
    }
    for name, truth in truths.items():
        oracle = Oracle(model.distribution(truth))
        noised, fed = _best_rates(oracle, again=True), _best_rates(oracle, again=False)
        for passes in range(1, sizes.num_spins + 1):
            found = {
                "mask, random order": _best_random_order(oracle, passes),
                "mask, fixed order": _best_fixed_order(oracle, passes),
                "random canvas, noised again": next(noised),
                "random canvas, fed back": next(fed),
                "random canvas, mapped": _best_map(oracle, passes),
            }
            for decoder, (kl, detail) in found.items():
                row = {"model": name, "decoder": decoder, "passes": passes, "kl": max(0.0, kl), "detail": detail}
                rows.append(row)
                progress(row)
    return rows


def _best_random_order(oracle: Oracle, passes: int) -> tuple[float, str]:
    """The least KL over all sizes of so many passes in random order; exact, not the mean of sums that bounds it."""
    found = []
    for sizes in schedules.compositions(oracle.num_spins, passes):
        law_S, _ = decoders.walk(oracle, decoders.random_sizes(sizes))
        found.append((divergence(oracle.prob_S, law_S), " ".join(map(str, sizes))))
    return min(found)


def _best_fixed_order(oracle: Oracle, passes: int) -> tuple[float, str]:
    every = (blocks for blocks in decoders.ordered_partitions(oracle.everything) if len(blocks) == passes)
    return min((decoders.partition_sum(oracle, blocks), " ".join(map(str, blocks))) for blocks in every)


def _best_map(oracle: Oracle, passes: int) -> tuple[float, str]:
    """The least KL of a decoder that reads its first block off a canvas of 4 tokens a position."""
    found = []
    for blocks in decoders.ordered_partitions(oracle.everything):
        if len(blocks) <= passes + 1:
            law_S = canvas.mapped_law(oracle, blocks, 4**oracle.num_spins)
            found.append((divergence(oracle.prob_S, law_S), " ".join(map(str, blocks))))
    return min(found)


def _best_rates(oracle: Oracle, *, again: bool) -> Iterator[tuple[float, str]]:
    """The least KL and its noise rates for 1, 2, 3, ... passes of a trained denoiser, by coordinate descent on a grid.

    Either the result of a pass is noised `again` at the next rate, or fed back as it is; the model is told the rate.
    """
    grid = np.linspace(0.0, 1.0, 21)
    noise = [canvas.noise(oracle.num_spins, r) if again else np.eye(len(oracle.prob_S)) for r in grid]
    step = [noise_SZ @ canvas.denoised(oracle.prob_S, r) for noise_SZ, r in zip(noise, grid, strict=True)]
    first_S = canvas.denoising_law(oracle.prob_S, [1.0])

    def cost(chosen: Sequence[int]) -> float:
        law_S = first_S
        for each in chosen:
            law_S = law_S @ step[each]
        return divergence(oracle.prob_S, law_S)

    best: list[int] = []
    while True:
        yield cost(best), " ".join(f"{grid[each]:.2g}" for each in [len(grid) - 1, *best])
        longer = [[*best[:i], each, *best[i:]] for i in range(len(best) + 1) for each in range(len(grid))]
        best, before = min(longer, key=cost), np.inf
        while cost(best) < before - 1e-12:
            before = cost(best)
            for i in range(len(best)):
                best = min(([*best[:i], each, *best[i + 1 :]] for each in range(len(grid))), key=cost)

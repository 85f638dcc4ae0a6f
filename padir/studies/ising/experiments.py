"""The experiments of `padir ising` as rows of metrics: figures 1 to 3 and costs of schedules."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from padir.errors import PadirError
from padir.refinement.strategies.schedules import SCHEDULES
from padir.studies.ising import chains, decoders, learning, pass_sizes, separation, spin_models
from padir.studies.ising.chains import total_variation
from padir.studies.ising.decoders import Oracle
from padir.studies.ising.learning import composite_covariance, covariance
from padir.studies.ising.separation import Clique
from padir.studies.ising.spin_models import Ising, distribution
from padir.studies.ising.tensorisation import divergence

_MOST_DRAWS = 1 << 27  # probabilities of masks for samples, all held at a time: 1 GB
Row = dict[str, Any]
Progress = Callable[[Row], None]


def flat_truth(num_spins: int, seed: int = 0) -> Ising:
    """The model behind figure 1: weak couplings and fields of either sign (standard deviation 0.2)."""
    return spin_models.random_model(np.random.default_rng(seed), num_spins, 0.2, 0.2)


def peaky_truth(num_spins: int) -> Ising:
    """The model behind figure 2: one clique, whose two modes hold most of the probability (0.7 at N = 6)."""
    return spin_models.clique(num_spins, num_spins, 1.8 / num_spins, 0.1)


@dataclasses.dataclass(frozen=True)
class LearningSizes:
    """Sizes of figures 1 and 2.

    Attributes:
      samples: data set sizes.
      seeds: data sets of each size.
    """

    num_spins: int = 6
    samples: tuple[int, ...] = (500, 1_000, 2_000, 4_000, 8_000, 16_000)
    seeds: int = 100

    def __post_init__(self):
        if not 2 <= self.num_spins <= 10:
            raise PadirError(
                f"learning curves are for 2 to 10 spins, got {self.num_spins}: each fit enumerates 2^N states"
            )
        if self.seeds < 2 or not self.samples or min(self.samples) < 1:
            raise PadirError(
                f"at least 2 seeds and sizes of at least 1 are needed, got {self.seeds} and {self.samples}"
            )
        most = _MOST_DRAWS // math.comb(self.num_spins, self.num_spins // 2)  # number of masks to draw from
        if max(self.samples) > most:
            raise PadirError(f"data sets of {self.num_spins} spins have at most {most:,} samples, got {self.samples}")


def learning_curves(truth: Ising, sizes: LearningSizes, seed: int, progress: Progress = lambda row: None) -> list[Row]:
    """Squared error of fitted parameters for every k and data set size, with one mask a sample and with all masks.

    `expected` is the theory's value, tr Γ / samples. If a fit has no minimum for some data set (see `learning.Fit`),
    the mean is None, and the median counts this error as infinite.
    """
    prob_S = distribution(truth)
    theta_D = truth.theta_D
    rows = []
    for k in range(1, truth.num_spins + 1):
        which = spin_models.uniform_masks(truth.num_spins, k)
        for composite, asymptotic in ((False, covariance), (True, composite_covariance)):
            trace = float(np.trace(asymptotic(prob_S, which)))
            key_R = jax.random.split(jax.random.key(seed), sizes.seeds)  # the same samples for every k
            measured = learning.squared_errors(key_R, prob_S, theta_D, which, sizes.samples, composite=composite)
            for count, error_R, found_R in zip(sizes.samples, *measured, strict=True):
                rows.append(
                    {
                        "estimator": "all masks" if composite else "one mask",
                        "k": k,
                        "samples": count,
                        "seeds": sizes.seeds,
                        "no_minimum": int(np.sum(~found_R)),
                        **_summary(np.where(found_R, error_R, np.inf)),
                        "expected": trace / count,
                        "trace": trace,
                    }
                )
                progress(rows[-1])
    return rows


def _summary(value_R: np.ndarray) -> Row:
    """Mean and standard error (None if a value is infinite) and median (None if infinite)."""
    finite = bool(np.isfinite(value_R).all())
    median = float(np.median(value_R))
    return {
        "mean": float(value_R.mean()) if finite else None,
        "standard_error": float(value_R.std(ddof=1) / np.sqrt(len(value_R))) if finite else None,
        "median": median if np.isfinite(median) else None,
    }


@dataclasses.dataclass(frozen=True)
class SamplingSizes:
    """Sizes of figure 3.

    Attributes:
      clique: number of spins of the clique, at most `num_spins`.
      chains: number of chains, simulated from the smaller mode for at most `budget` steps.
    """

    num_spins: int = 10
    clique: int = 6
    couplings: tuple[float, ...] = (0.25, 0.5, 1.0)
    fields: tuple[float, ...] = (0.05, 0.5)
    chains: int = 400
    budget: int = 10_000

    def __post_init__(self):
        if not 2 <= self.num_spins <= chains.LARGEST_BLOCK:
            raise PadirError(f"figure 3 is for 2 to {chains.LARGEST_BLOCK} spins, got {self.num_spins}")
        if not self.budget < (1 << 31) - 1:
            raise PadirError(f"the budget must be below {(1 << 31) - 1:,} steps, got {self.budget:,}")
        if self.chains < 2 or self.budget < 1 or not self.couplings or not self.fields:
            raise PadirError(f"at least 2 chains and 1 step are needed, got {self.chains} and {self.budget}")
        for coupling in self.couplings:
            for field in self.fields:
                Clique(self.num_spins, self.clique, coupling, field)


def sampling_times(sizes: SamplingSizes, seed: int, progress: Progress = lambda row: None) -> list[Row]:
    """Steps from the smaller mode to the larger one, simulated and exact, for every k and for independent parallel.

    `exact` is the expected number without a budget; None if it is beyond float64. The simulated mean is None if a chain
    reached the budget.
    """
    rows = []
    target_T = np.arange(sizes.clique + 1) == sizes.clique
    for field in sizes.fields:
        for coupling in sizes.couplings:
            lumped = Clique(sizes.num_spins, sizes.clique, coupling, field)
            full = spin_models.clique(sizes.num_spins, sizes.clique, coupling, field)
            for k in (*range(1, sizes.num_spins + 1), None):
                transition_TT = separation.counted_k_gibbs(lumped, k) if k else separation.counted_parallel(lumped)
                exact = float(chains.hitting_times(transition_TT, target_T)[0])
                key = jax.random.fold_in(jax.random.key(seed), len(rows))
                steps_B = chains.steps_to_larger_mode(
                    key, full, sizes.clique, k=k, count=sizes.chains, budget=sizes.budget
                )
                rows.append(
                    {
                        "sampler": "k-Gibbs" if k else "independent parallel",
                        "k": k,
                        "coupling": coupling,
                        "field": field,
                        "larger_mode": separation.larger_mode(lumped),
                        "exact": exact if np.isfinite(exact) else None,
                        **_summary(np.where(steps_B > sizes.budget, np.inf, steps_B)),
                        "arrived": float(np.mean(steps_B <= sizes.budget)),
                        "chains": sizes.chains,
                        "budget": sizes.budget,
                    }
                )
                progress(rows[-1])
    return rows


def separations(delta: float, steps: Sequence[int], num_spins: int = 1_000) -> list[Row]:
    """The smallest cliques that separate the two samplers (corollary of 2.4.2), one row for each number of steps."""
    rows = []
    for count in steps:
        clique, k = separation.separating_clique(delta, count, num_spins)
        rows.append(
            {
                "delta": delta,
                "steps": count,
                **dataclasses.asdict(clique),
                "k": k,
                **separation.separation(clique, k, count),
            }
        )
    return rows


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
                f"num_spins must be a multiple of clique, {self.clique}, and at most 256, got {self.num_spins}"
            )


def phrase(size: int) -> Clique:
    """A strongly coupled clique whose two modes are nearly equally likely: J = 4 / size, h = 0.1."""
    return Clique(size, size, 4.0 / size, 0.1)


def curves(sizes: ScheduleSizes) -> dict[str, pass_sizes.Curve]:
    """Entropy curves of the three models: spins that all agree, spins that agree in phrases, and a chain."""
    whole = dataclasses.replace(phrase(sizes.num_spins), field=0.01)
    copies = sizes.num_spins // sizes.clique
    return {
        "one clique": pass_sizes.clique_curve(whole),
        "phrases": pass_sizes.copies_curve(pass_sizes.clique_curve(phrase(sizes.clique)), copies),
        "chain": pass_sizes.chain_curve(sizes.num_spins, 1.0),
    }


def schedule_costs(sizes: ScheduleSizes, progress: Progress = lambda row: None) -> list[Row]:
    """KL in nats of every schedule, for 1, 2, 3, 4, 6, 8, ... passes: its mean over random orders."""
    rows = []
    for name, curve in curves(sizes).items():
        found_best = pass_sizes.best_schedules(curve)
        for passes in sorted({c << p for c in (1, 3) for p in range(9) if c << p <= sizes.num_spins}):
            least, best = found_best[passes - 1]
            fixed = {each: pass_sizes.sizes_of(each, sizes.num_spins, passes) for each in SCHEDULES}
            found = [("best", least, best), *((each, pass_sizes.cost(curve, k), k) for each, k in fixed.items())]
            for each, kl, steps in [*found, ("random", pass_sizes.random_cost(curve, passes), None)]:
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


def phrase_errors(size: int, copies: Sequence[int] = (1, 4, 16, 64, 256)) -> list[Row]:
    """Errors of tokens and of whole sequences for sentences of independent phrases, by passes and phrases.

    Each pass draws the number of spins that the schedule "geometric" gives for every phrase, in a fixed order. `low`
    and `high` bound the total variation distance of the whole sequences.
    """
    each = phrase(size)
    oracle = Oracle(spin_models.distribution(spin_models.clique(size, size, each.coupling, each.field)))
    rows = []
    for passes in range(1, size):
        ends = np.cumsum([0, *pass_sizes.sizes_of("geometric", size, passes)]).tolist()
        blocks = [(1 << end) - (1 << start) for start, end in zip(ends, ends[1:], strict=False)]
        law_S = decoders.partition_law(oracle, blocks)
        for count in copies:
            low, high = pass_sizes.sequence_bounds(pass_sizes.affinity(oracle.prob_S, law_S), count)
            rows.append(
                {
                    "passes": passes,
                    "phrases": count,
                    "kl_of_a_token": divergence(oracle.prob_S, law_S) / size,
                    "tv_of_a_token": float(pass_sizes.token_errors(oracle.prob_S, law_S).max()),
                    "tv_of_a_phrase": float(total_variation(oracle.prob_S, law_S)),
                    "low": low,
                    "high": high,
                }
            )
    return rows

"""Experiments of figures 1 to 3, as rows: one dict of metrics for each point, for CSV, JSON and plots."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from padir.errors import PadirError
from padir.ising import chains, cliques, learning, masks, model, samplers
from padir.ising.cliques import Clique
from padir.ising.information import composite_covariance, covariance
from padir.ising.model import Ising, distribution
from padir.ising.separation import separating_clique, separation

_MOST_DRAWS = 1 << 27  # probabilities of masks for samples, all held at a time: 1 GB
Row = dict[str, Any]
Progress = Callable[[Row], None]


def quiet(row: Row) -> None:
    """Progress that nobody sees."""


def flat_truth(num_spins: int, seed: int = 0) -> Ising:
    """The model behind figure 1: weak couplings and fields of either sign (standard deviation 0.2)."""
    return model.random(np.random.default_rng(seed), num_spins, 0.2, 0.2)


def peaky_truth(num_spins: int) -> Ising:
    """The model behind figure 2: one clique, whose two modes hold most of the probability (0.7 at N = 6)."""
    return model.clique(num_spins, num_spins, 1.8 / num_spins, 0.1)


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
        most = _MOST_DRAWS // math.comb(self.num_spins, self.num_spins // 2)  # masks that one is drawn of
        if max(self.samples) > most:
            raise PadirError(f"data sets of {self.num_spins} spins have at most {most:,} samples, got {self.samples}")


def learning_curves(truth: Ising, sizes: LearningSizes, seed: int, progress: Progress = quiet) -> list[Row]:
    """Squared error of fitted parameters for every k and data set size, with one mask a sample and with all masks.

    `expected` is the theory's value, tr Γ / samples. Where a data set leaves a fit without a minimum (see
    `learning.Fit`), the mean is None and the median counts that error as infinite.
    """
    prob_S, theta_D = distribution(truth), truth.theta_D
    rows = []
    for k in range(1, truth.num_spins + 1):
        which = masks.uniform(truth.num_spins, k)
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
    finite, median = bool(np.isfinite(value_R).all()), float(np.median(value_R))
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
        if not 2 <= self.num_spins <= samplers.LARGEST_BLOCK:
            raise PadirError(f"figure 3 is for 2 to {samplers.LARGEST_BLOCK} spins, got {self.num_spins}")
        if not self.budget < (1 << 31) - 1:
            raise PadirError(f"the budget must be below {(1 << 31) - 1:,} steps, got {self.budget:,}")
        if self.chains < 2 or self.budget < 1 or not self.couplings or not self.fields:
            raise PadirError(f"at least 2 chains and 1 step are needed, got {self.chains} and {self.budget}")
        for coupling in self.couplings:
            for field in self.fields:
                Clique(self.num_spins, self.clique, coupling, field)


def sampling_times(sizes: SamplingSizes, seed: int, progress: Progress = quiet) -> list[Row]:
    """Steps from the smaller mode to the larger one, simulated and exact, for every k and for independent parallel.

    `exact` is the expected number without a budget, None where it is beyond float64. The simulated mean is None where
    some chain reached the budget.
    """
    rows = []
    target_T = np.arange(sizes.clique + 1) == sizes.clique
    for field in sizes.fields:
        for coupling in sizes.couplings:
            lumped = Clique(sizes.num_spins, sizes.clique, coupling, field)
            full = model.clique(sizes.num_spins, sizes.clique, coupling, field)
            for k in (*range(1, sizes.num_spins + 1), None):
                transition_TT = cliques.k_gibbs(lumped, k) if k else cliques.independent_parallel(lumped)
                exact = float(chains.hitting_times(transition_TT, target_T)[0])
                key = jax.random.fold_in(jax.random.key(seed), len(rows))
                steps_B = samplers.steps_to_larger_mode(
                    key, full, sizes.clique, k=k, count=sizes.chains, budget=sizes.budget
                )
                rows.append(
                    {
                        "sampler": "k-Gibbs" if k else "independent parallel",
                        "k": k,
                        "coupling": coupling,
                        "field": field,
                        "larger_mode": cliques.larger_mode(lumped),
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
        clique, k = separating_clique(delta, count, num_spins)
        rows.append(
            {"delta": delta, "steps": count, **dataclasses.asdict(clique), "k": k, **separation(clique, k, count)}
        )
    return rows

"""Statements of the theory and their checks: margins of inequalities over random small models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from jaxtyping import Float

from padir.studies.ising import spin_models
from padir.studies.ising.spin_models import Ising

Numbers = np.ndarray | float | int
Margins = Iterator[float]

TOLERANCE = 1e-9  # margins are relative, computed in float64; what lies within this of 0 is rounding


@dataclasses.dataclass(frozen=True)
class Statement:
    """A claim and its check.

    Attributes:
      name: its name in docs/theory.md.
      source: its place in the paper; "ours" if the paper does not have it.
      claim: the claim in one line.
      check: takes a generator and a number of spins, draws models, and yields margins. The margin of an inequality is
        its distance from failing, as a share of its larger side. The margin of an equality is minus its relative
        deviation.
      largest: the number of spins up to which the check is quick.
      true: False for plausible claims that do not hold; the smallest margin then belongs to a counterexample.
      smallest: the number of spins that the check needs.
    """

    name: str
    source: str
    claim: str
    check: Callable[[np.random.Generator, int], Iterable[float]]
    largest: int = 5
    true: bool = True
    smallest: int = 2


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
      statement: the statement that was checked.
      margin: the smallest margin that the check yielded.
      num_spins: number of spins of the model that has this margin.
      margins: number of margins that the check yielded.
    """

    statement: Statement
    margin: float
    num_spins: int
    margins: int

    @property
    def holds(self) -> bool:
        """True if no margin is below 0 by more than rounding."""
        return self.margin >= -TOLERANCE

    @property
    def as_expected(self) -> bool:
        """True if a true statement held, or a false one failed."""
        return self.holds == self.statement.true


def check(statement: Statement, *, seed: int, models: int, largest: int) -> Finding:
    """Checks a statement on `models` random models of 2 to `largest` spins, within the statement's own limits."""
    # Each statement has a seed of its own, so that its models do not depend on which other statements are checked.
    name = int.from_bytes(statement.name.encode(), "big") % (1 << 32)
    rng = np.random.default_rng([seed, name])
    sizes = range(statement.smallest, max(statement.smallest, min(largest, statement.largest)) + 1)
    found = [
        (float(m), size) for i in range(models) for size in [sizes[i % len(sizes)]] for m in statement.check(rng, size)
    ]
    margin, size = min(found, key=lambda pair: pair[0] if np.isfinite(pair[0]) else -np.inf)
    return Finding(statement, margin if np.isfinite(margin) else -np.inf, size, len(found))


def truth(rng: np.random.Generator, num_spins: int) -> Ising:
    """A random model, from nearly independent to strongly coupled spins.

    Couplings shrink as the number of spins grows, because otherwise margins would be lost in rounding.
    """
    share = 2.0 / max(num_spins, 4) ** 0.5
    coupling = rng.choice([0.1, 0.3, 0.6, 1.0])
    field = rng.choice([0.1, 0.3, 0.6, 1.0])
    return spin_models.random_model(rng, num_spins, share * coupling, field)


def order_margin(larger_DD: Float[np.ndarray, "D D"], smaller_DD: Float[np.ndarray, "D D"]) -> float:
    """1 - max over v of vᵀSv / vᵀLv: at least 0 if and only if S ⪯ L, for a positive definite L.

    Inverses are ordered the other way round with the same margin.
    """
    return float(1.0 - relative_eigenvalues(larger_DD, smaller_DD)[-1])


def relative_eigenvalues(
    larger_DD: Float[np.ndarray, "D D"], smaller_DD: Float[np.ndarray, "D D"]
) -> Float[np.ndarray, " D"]:
    """Eigenvalues of L^-1/2 S L^-1/2, ascending."""
    root_DD = np.linalg.cholesky((larger_DD + larger_DD.T) / 2)
    half_DD = np.linalg.solve(root_DD, (smaller_DD + smaller_DD.T) / 2)
    return np.linalg.eigvalsh(np.linalg.solve(root_DD, half_DD.T))


def strictly(margin: float) -> float:
    """Margin of a strict inequality: a margin of 0 up to rounding fails."""
    return float(margin) - 10 * TOLERANCE


def less(smaller: Numbers, larger: Numbers) -> float:
    """The smallest margin of an inequality between non-negative numbers or arrays."""
    smaller = np.asarray(smaller, np.float64)
    larger = np.asarray(larger, np.float64)
    size = np.maximum(np.maximum(smaller, larger), np.finfo(float).tiny)
    return float(np.min((larger - smaller) / size))


def equal(first: Numbers, second: Numbers) -> float:
    """Margin of an equality: minus the largest deviation, as a share of the largest entry (or of 1, if all are 0)."""
    first = np.asarray(first, np.float64)
    second = np.asarray(second, np.float64)
    size = max(np.abs(first).max(), np.abs(second).max()) or 1.0
    return float(-np.abs(first - second).max() / size)

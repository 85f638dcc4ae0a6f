"""Checks of the statements of the paper's sections 2.2 to 2.4 and of ours, on small models: `padir ising theorems`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from padir.errors import PadirError
from padir.ising import (
    canvas,
    efficiency,
    generalisation,
    implementable,
    scheduling,
    separation,
    steps,
    tensorisation,
)
from padir.ising.statement import Finding, Statement, check

MOST_SPINS = 10  # checks have a limit of their own, too: `Statement.largest`
_PARTS = (efficiency, tensorisation, generalisation, separation, implementable, steps, scheduling, canvas)
STATEMENTS: tuple[Statement, ...] = tuple(statement for part in _PARTS for statement in part.STATEMENTS)


def check_all(
    *,
    seed: int,
    models: int = 40,
    largest: int = 7,
    only: Sequence[str] = (),
    progress: Callable[[Finding], None] = lambda finding: None,
) -> list[Finding]:
    """Checks the statements, or those named, each on `models` random models of 2 to `largest` spins.

    Raises:
      PadirError: an unknown name, no models, or too few or many spins.
    """
    known = {statement.name: statement for statement in STATEMENTS}
    if unknown := [name for name in only if name not in known]:
        raise PadirError(f"no statement is called {unknown[0]!r}: there are {', '.join(map(repr, known))}")
    if models < 1:
        raise PadirError(f"at least 1 model is needed, got {models}")
    if not 2 <= largest <= MOST_SPINS:
        raise PadirError(f"statements are checked on models of 2 to {MOST_SPINS} spins at most, got {largest}")
    findings = []
    for statement in [known[name] for name in only] or STATEMENTS:
        findings.append(check(statement, seed=seed, models=models, largest=largest))
        progress(findings[-1])
    return findings


def verdict(finding: Finding) -> str:
    """The table's verdict on a statement, such as "holds" or "fails, as it should"."""
    if finding.as_expected:
        return "holds" if finding.holds else "fails, as it should"
    return "FAILS" if finding.statement.true else "HOLDS, unlike expected"


def to_row(finding: Finding) -> dict[str, Any]:
    """A finding as a row of the table."""
    statement = finding.statement
    return {
        "statement": statement.name,
        "source": statement.source,
        "claim": statement.claim,
        "verdict": verdict(finding),
        "holds": finding.holds,
        "as_expected": finding.as_expected,
        "smallest_margin": finding.margin,
        "num_spins": finding.num_spins,
        "margins": finding.margins,
    }

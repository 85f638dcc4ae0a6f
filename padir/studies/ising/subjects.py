"""Runs a subject of `padir ising`: a figure's experiment, or the checks of all statements on small models."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from padir.errors import PadirError
from padir.reporting.tables import require_matplotlib
from padir.storage.files import check_writable, write_json
from padir.studies.ising import (
    decoders,
    drawings,
    efficiency,
    experiments,
    pass_sizes,
    separation,
    tensorisation,
    transformers,
)
from padir.studies.ising.experiments import LearningSizes, Row, SamplingSizes, ScheduleSizes
from padir.studies.ising.statement import Finding, Statement, check

MOST_SPINS = 10  # checks have a limit of their own, too: `Statement.largest`
_PARTS = (efficiency, tensorisation, separation, decoders, pass_sizes, transformers)
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
        raise PadirError(f"num_spins must be 2 to {MOST_SPINS} for theorems, got {largest}")
    findings = []
    for statement in [known[name] for name in only] or STATEMENTS:
        findings.append(check(statement, seed=seed, models=models, largest=largest))
        progress(findings[-1])
    return findings


SHARP = 0.01  # a smaller margin says that a model nearly reaches the bound, or that an equality holds


def verdict(finding: Finding) -> str:
    """The table's verdict on a statement: "checked sharply", "holds loosely" or "fails, as it should"."""
    if finding.as_expected:
        checked = "checked sharply" if finding.margin < SHARP else "holds loosely"
        return checked if finding.holds else "fails, as it should"
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


@dataclasses.dataclass(frozen=True)
class TheoremSizes:
    """Sizes of the table of statements; `only` names some of them."""

    models: int = 40
    num_spins: int = 7
    only: tuple[str, ...] = ()


SUBJECTS = ("fig1", "fig2", "fig3", "schedules", "theorems")
_SIZES = {"fig3": SamplingSizes, "schedules": ScheduleSizes, "theorems": TheoremSizes}
COLUMNS = {
    "fig1": ("estimator", "k", "samples", "mean", "standard_error", "expected", "no_minimum"),
    "fig2": ("estimator", "k", "samples", "mean", "standard_error", "expected", "no_minimum"),
    "fig3": ("sampler", "k", "coupling", "field", "exact", "mean", "standard_error", "arrived"),
    "schedules": ("model", "passes", "schedule", "kl", "sizes"),
    "theorems": ("statement", "source", "claim", "verdict", "smallest_margin", "num_spins", "margins"),
}


def sizes_of(subject: str) -> type:
    """The dataclass whose fields are a subject's sizes."""
    return _SIZES.get(subject, LearningSizes)


def run(
    subject: str, *, seed: int = 0, output: str | None = None, tell: Callable[[str], None] = print, **sizes: Any
) -> dict[str, Any]:
    """Runs a figure's experiment or checks the statements, and writes files if a name is given.

    Args:
      subject: one of `SUBJECTS`.
      seed: seed of all random draws, 32 bits.
      output: NAME, a path without an ending; the files are NAME.json and, for figures, NAME.png. None writes no file.
      tell: receives a line of text for every row.
      sizes: fields of `sizes_of(subject)`; None keeps a default.

    Returns:
      The content of NAME.json: the sizes, and "rows".

    Raises:
      PadirError: a size that the subject does not have, a seed of over 32 bits, or nothing can be written to `output`.
    """
    if not 0 <= seed < 1 << 32:  # JAX would drop the other bits
        raise PadirError(f"the seed must be 0 to {(1 << 32) - 1:,}, got {seed:,}")
    given = {name: value for name, value in sizes.items() if value is not None}
    allowed = {field.name for field in dataclasses.fields(sizes_of(subject))}
    if wrong := sorted(set(given) - allowed):
        raise PadirError(f"{subject} has no setting {wrong[0]!r}: it has {', '.join(sorted(allowed))}")
    if output is not None:  # before the work
        if os.path.basename(output) in ("", ".", ".."):
            raise PadirError("output", "a path that ends in a name, such as figures/fig1", output)
        check_writable(f"{output}.json", file=True)
        if subject != "theorems":
            require_matplotlib()
    if subject == "theorems":
        return _theorems(seed, output, tell, TheoremSizes(**given))
    about, rows, draw = _figure(subject, seed, given, lambda row: tell(line(subject, row)))
    if output is not None:
        drawings.write(output, rows, about, draw)
    return {**about, "rows": rows}


def _figure(
    subject: str, seed: int, given: dict[str, Any], progress: Callable[[Row], None]
) -> tuple[dict[str, Any], list[Row], Callable[[Any], None]]:
    """(facts, rows, drawing function) of a figure."""
    if subject == "fig3":
        sizes = SamplingSizes(**given)
        rows = experiments.sampling_times(sizes, seed, progress)
        about = {"separations": experiments.separations(0.1, (10, 1_000, 100_000))}
        title = f"From the smaller mode to the larger: {sizes.num_spins} spins, {sizes.clique} of them a clique"
        draw = functools.partial(drawings.draw_sampling, rows=rows, title=title)
    elif subject == "schedules":
        sizes = ScheduleSizes(**given)
        rows = experiments.schedule_costs(sizes, progress)
        about = {"errors": experiments.phrase_errors(sizes.clique)}
        title = f"What parallel passes cost, by the sizes of the passes: {sizes.num_spins} spins in random order"
        draw = functools.partial(drawings.draw_schedules, rows=rows, title=title)
    else:
        sizes = LearningSizes(**given)
        flat = subject == "fig1"
        truth = experiments.flat_truth(sizes.num_spins) if flat else experiments.peaky_truth(sizes.num_spins)
        rows = experiments.learning_curves(truth, sizes, seed, progress)
        about = {"theta": truth.theta_D.tolist()}
        title = f"Learning {sizes.num_spins} spins from {'a flat' if flat else 'a two-mode'} distribution"
        draw = functools.partial(drawings.draw_learning, rows=rows, title=title)
    return {"subject": subject, "seed": seed, **dataclasses.asdict(sizes), **about}, rows, draw


def _theorems(
    seed: int,
    output: str | None,
    tell: Callable[[str], None],
    sizes: TheoremSizes,
) -> dict[str, Any]:
    rows: list[Row] = []

    def progress(finding: Finding) -> None:
        rows.append(to_row(finding))
        tell(line("theorems", rows[-1]))

    check_all(seed=seed, models=sizes.models, largest=sizes.num_spins, only=sizes.only, progress=progress)
    about = {"subject": "theorems", "seed": seed, "models": sizes.models, "num_spins": sizes.num_spins}
    if output is not None:
        write_json(f"{output}.json", {**about, "rows": rows})
    return {**about, "rows": rows}


def verify(result: dict[str, Any]) -> None:
    """Checks that every statement came out as expected; results of figures always pass.

    Args:
      result: from `run`.

    Raises:
      PadirError: a true statement failed, or a false one held.
    """
    if wrong := [row for row in result["rows"] if not row.get("as_expected", True)]:
        named = ", ".join(f"{row['statement']} ({row['smallest_margin']:.1e})" for row in wrong)
        raise PadirError(f"{len(wrong)} of {len(result['rows'])} statements have an unexpected verdict: {named}")


def cells(subject: str, row: Row) -> list[str]:
    """The cells of a row in the terminal's table, one for each of `COLUMNS[subject]`."""
    return [_cell(row[name]) for name in COLUMNS[subject]]


def line(subject: str, row: Row) -> str:
    """A row as one line of text, printed while the work goes on."""
    return ", ".join(
        f"{name.replace('_', ' ')} {_cell(row[name])}" for name in COLUMNS[subject] if row[name] is not None
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.1e}"
    return "" if value is None else str(value)

"""Tables in the layout of the paper's Tables 1 to 3 (section L.4): systems down, test sets or steps across."""

from __future__ import annotations

from collections.abc import Sequence

from padir.errors import PadirError
from padir.evaluation.columns import SYSTEM, RowDict, Rows, cell, label, steps, system_columns, test_set_name
from padir.evaluation.tables import TITLES, signatures
from padir.reporting.tables import markdown

_COLUMN_OF = {"test_set": test_set_name, "steps": steps}
_HEADS = {"hypotheses": "# Hyp.", "steps": "Steps"}

Grid = dict[tuple[str, ...], dict[str, RowDict]]
"""Nested mapping from a system, then a test set or number of steps, to a row."""


def paper_tables(rows: Rows, metrics: Sequence[str] = ("bleu", "bleurt", "stutter"), across: str = "test_set") -> str:
    """Format one table a metric in Markdown; a metric that no row has gets no table.

    Lines of a model follow each other, and only the first names the model. Rows that differ only in the test set or
    steps across share a line. Rows without metrics (options that do not fit the model) are left out.

    Args:
      across: "test_set" or "steps".

    Raises:
      PadirError: no row has any of the metrics, two rows are the same system on the same test set, one name stands for
        two test sets, or rows of several test sets are to have the steps across.
    """
    rows = [row for row in rows if row["scores"]]
    _check_test_sets(rows, across)
    columns = list(dict.fromkeys(map(_COLUMN_OF[across], rows)))
    system = [column for column in system_columns(rows) if column != across]
    grid = _grid(rows, system, across)
    parts = [
        _table(rows, grid, system, columns, metric, across)
        for metric in metrics
        if any(metric in row["scores"] for row in rows)
    ]
    if not parts:
        raise PadirError(f"no row has any of {', '.join(metrics)}: name metrics that the rows have")
    return "\n".join(parts)


def _check_test_sets(rows: Rows, across: str) -> None:
    texts: dict[str, set[str]] = {}
    for row in rows:
        texts.setdefault(test_set_name(row), set()).add(row.get("sha256", ""))
    if twice := [name for name, found in texts.items() if len(found - {""}) > 1]:
        raise PadirError(f"the rows call different sentences {twice[0]!r}: make a table of each test set")
    if across == "steps" and len(texts) > 1:
        raise PadirError("the steps can stand across for one test set only: give rows of one, or across='test_set'")


def _grid(rows: Rows, system: Sequence[str], across: str) -> Grid:
    """Sort the rows into lines and columns."""
    grid: Grid = {}
    models = [row["model"] for row in rows]
    for row in sorted(rows, key=lambda row: models.index(row["model"])):
        line = grid.setdefault(tuple(SYSTEM[c](row) for c in system), {})
        column = _COLUMN_OF[across](row)
        if column in line:
            raise PadirError(f"two rows are {label(row, rows)} on {test_set_name(row)}: leave one of them out")
        line[column] = row
    return grid


def _table(rows: Rows, grid: Grid, system: Sequence[str], columns: Sequence[str], metric: str, across: str) -> str:
    """Format the table of one metric, with its title and signatures."""
    lines, named = [], None
    for key, by_column in grid.items():
        values = [cell(by_column[name], metric) if name in by_column else "-" for name in columns]
        lines.append(["" if key[0] == named else key[0], *key[1:], *values])
        named = key[0]
    heads = [_HEADS.get(c, c.capitalize().replace("_", " ")) for c in system]
    words = [head for head in heads if head not in _HEADS.values()]
    heads += [f"{name} step{'s' * (name != '1')}" for name in columns] if across == "steps" else columns
    computed = "".join(f"{line}\n" for line in signatures(rows) if line.startswith(f"{metric}: "))
    if "drop_repeats" not in system:  # all rows agree
        computed += f"drop_repeats: {SYSTEM['drop_repeats'](rows[0])}\n"
    return f"**{TITLES.get(metric, metric)}**\n\n{markdown(heads, lines, words)}\n{computed}"

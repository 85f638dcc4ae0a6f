"""Files and terminal output of `padir evaluate`, and tables of systems in the layout of the paper's Tables 1 to 3.

The files share the beginning of their names:

x.md          the whole table, the weights that each model used (such as "of step 1,000"), length recalls, signatures
x.json        the rows, with settings, signatures and all digits; `padir tables` reads it
x.rows/       reference.txt, and the hypotheses of each row: 01.txt, 02.txt, ... for `padir compare`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from padir.errors import PadirError
from padir.evaluation.evaluation import TestSet
from padir.evaluation.rows import SYSTEM, RowDict, Rows, cell, label, system_columns, test_set_name
from padir.evaluation.systems import Row
from padir.reporting import tables
from padir.reporting.tables import markdown
from padir.storage.files import write_json, write_text


def show(rows: Rows, warn: Callable[[str], None]) -> None:
    """Print the table and its signatures."""
    models = ", ".join(dict.fromkeys(row["model"] for row in rows))
    tables.show(f"{models} on {rows[0]['sentences']:,} sentences", *cells(rows))
    for line in (*facts(rows), *signatures(rows)):
        print(line)
    truncated = {row["model"]: int(row["scores"]["truncated"]["value"]) for row in rows if row["scores"]}
    for model, count in truncated.items():
        if count:
            warn(f"{count} sentences are longer than {model} takes and were cut")


def write(output: str | Path, rows: Sequence[Row], test_set: TestSet, described: Rows) -> None:
    """Write all files of an evaluation, whose names begin with `output`; `described` are the rows as JSON."""
    for stale in Path(f"{output}.rows").glob("[0-9]*.txt"):  # hypotheses of an earlier table
        stale.unlink()
    for i, row in enumerate(rows, 1):
        if row.evaluation:
            write_text(f"{output}.rows/{i:02d}.txt", "".join(line + "\n" for line in row.evaluation.hypotheses))
    write_text(f"{output}.rows/reference.txt", "".join(line + "\n" for line in test_set.references))
    write_text(f"{output}.md", to_markdown(described))
    write_json(f"{output}.json", described)


TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "bleurt": "BLEURT",
    "length_ratio": "length ratio",
    "exact_match": "exact match",
    "stutter_before": "stutter before clean-up",
    "non_words": "outputs with a non-word",
    "reference_non_words": "references with a non-word",
}
# These metrics get no column: the system column of the same name shows "hypotheses", a warning reports "truncated",
# and a table needs no more than one measure of non-words.
_UNTABLED = re.compile(r"hypotheses|truncated|(reference_)?non_words_.*")
_LENGTH = "reference_tokens"
_RECALL = "length_recall_"
_HEADS = {"hypotheses": "# Hyp.", "steps": "Steps"}

Grid = dict[tuple[str, ...], dict[str, RowDict]]
"""Nested mapping from a system, then a test set, to a row."""


def metric_names(rows: Rows) -> list[str]:
    """Metrics that get a column, in the order in which rows have them."""
    names = dict.fromkeys(name for row in rows for name in row["scores"])
    return [name for name in names if not _UNTABLED.fullmatch(name) and not _is_fact(name)]


def _is_fact(name: str) -> bool:
    return name == _LENGTH or name.startswith(_RECALL)


def cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Columns and lines of the whole table; if a row lacks metrics, the last column says why."""
    system = system_columns(rows)
    metrics = metric_names(rows)
    lines = [[*(SYSTEM[c](row) for c in system), *(cell(row, name) for name in metrics)] for row in rows]
    if any(row.get("note") for row in rows):
        return [*system, *metrics, "note"], [[*x, row.get("note", "")] for x, row in zip(lines, rows, strict=True)]
    return [*system, *metrics], lines


def signatures(rows: Rows) -> list[str]:
    """Signature of each metric, "NAME: SIGNATURE"; a metric with several signatures has several lines."""
    seen = [(name, score["signature"]) for row in rows for name, score in row["scores"].items()]
    shown = (each for each in dict.fromkeys(seen) if each[1] and not _is_fact(each[0]))
    return [f"{name}: {signature}" for name, signature in shown]


def facts(rows: Rows) -> list[str]:
    """Weights of each model, the references' mean length in its tokens, and its length recall, one line each."""
    lines = {row["model"]: f"weights of {row['model']}: {row['weights']}" for row in rows if row.get("weights")}
    for row in rows:
        test_set = test_set_name(row)
        if mean := row["scores"].get(_LENGTH):
            text = f"references of {test_set}: {mean['value']:.1f} tokens of {row['model']} on average, EOS included"
            lines[row["model"], test_set, _LENGTH] = text
        found = {
            name.removeprefix(_RECALL): s["value"] for name, s in row["scores"].items() if name.startswith(_RECALL)
        }
        if found:
            shares = ", ".join(f"{value:.1f} % at {k}" for k, value in found.items())
            lines[row["model"], test_set] = f"length recall of {row['model']} on {test_set}: {shares}"
    return list(lines.values())


def to_markdown(rows: Rows) -> str:
    """Format the whole table with numbered rows, common settings, weights, length recalls and signatures."""
    columns, lines = cells(rows)
    columns = ["#", *columns]
    lines = [[str(number), *line] for number, line in enumerate(lines, 1)]
    sets = dict.fromkeys(
        f"{test_set_name(row)} ({row['languages']}, {row['sentences']:,} sentences)"
        if "sentences" in row
        else test_set_name(row)
        for row in rows
    )
    notes = [*_settings(rows, columns), *facts(rows), *signatures(rows)]
    head = f"Test set: {'; '.join(sets)}\n\n"
    table = markdown([TITLES.get(c, c) for c in columns], lines, words=(*system_columns(rows)[:-2], "note"))
    return head + table + "\n" + "".join(f"- {n}\n" for n in notes)


def _settings(rows: Rows, columns: Sequence[str]) -> list[str]:
    """Settings that have no column: one line if all models agree, else one line for each model."""
    lines = []
    for name in SYSTEM.keys() - set(columns):
        said = dict.fromkeys((row["model"], text) for row in rows if (text := SYSTEM[name](row)) != "-")
        if len({text for _, text in said}) == 1:
            lines.append(f"{name}: {next(iter(said))[1]}")
        else:
            lines += [f"{name} of {model}: {text}" for model, text in said]
    return sorted(lines)


def paper_tables(rows: Rows, metrics: Sequence[str] = ("bleu", "bleurt", "stutter")) -> str:
    """Format one table a metric in Markdown; a metric that no row has gets no table.

    Lines of a model follow each other, and only the first names the model. Rows that differ only in the test
    set share a line. Rows without metrics (options that do not fit the model) are left out.

    Raises:
      PadirError: no row has any of the metrics, two rows are the same system on the same test set, or one name stands
        for two test sets.
    """
    rows = [row for row in rows if row["scores"]]
    _check_test_sets(rows)
    columns = list(dict.fromkeys(map(test_set_name, rows)))
    system = system_columns(rows)
    grid = _grid(rows, system)
    present = [metric for metric in metrics if any(metric in row["scores"] for row in rows)]
    parts = [_table(rows, grid, system, columns, metric) for metric in present]
    if not parts:
        raise PadirError(f"no row has any of {', '.join(metrics)}: name metrics that the rows have")
    return "\n".join(parts)


def _check_test_sets(rows: Rows) -> None:
    texts: dict[str, set[str]] = {}
    for row in rows:
        texts.setdefault(test_set_name(row), set()).add(row.get("sha256", ""))
    if twice := [name for name, found in texts.items() if len(found - {""}) > 1]:
        raise PadirError(f"the name {twice[0]!r} stands for different test sets: make one table for each")


def _grid(rows: Rows, system: Sequence[str]) -> Grid:
    """Sort the rows into lines and columns."""
    grid: Grid = {}
    models = [row["model"] for row in rows]
    for row in sorted(rows, key=lambda row: models.index(row["model"])):
        line = grid.setdefault(tuple(SYSTEM[c](row) for c in system), {})
        column = test_set_name(row)
        if column in line:
            raise PadirError(f"two rows have the system {label(row, rows)} and the test set {column}: leave one out")
        line[column] = row
    return grid


def _table(rows: Rows, grid: Grid, system: Sequence[str], columns: Sequence[str], metric: str) -> str:
    """Format the table of one metric, with its title and signatures."""
    lines = []
    named = None
    for key, by_column in grid.items():
        values = [cell(by_column[name], metric) if name in by_column else "-" for name in columns]
        if {*values} == {"-"}:
            continue
        lines.append(["" if key[0] == named else key[0], *key[1:], *values])
        named = key[0]
    heads = [_HEADS.get(c, c.capitalize().replace("_", " ")) for c in system]
    words = [head for head in heads if head not in _HEADS.values()]
    computed = "".join(f"{line}\n" for line in signatures(rows) if line.startswith(f"{metric}: "))
    if "drop_repeats" not in system:  # all rows agree
        computed += f"drop_repeats: {SYSTEM['drop_repeats'](rows[0])}\n"
    return f"**{TITLES.get(metric, metric)}**\n\n{markdown([*heads, *columns], lines, words)}\n{computed}"

"""Tables of systems as Markdown and CSV, made of the rows of `padir.evaluation.rows`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from padir.evaluation.columns import SYSTEM, Rows, cell, system_columns, test_set_name
from padir.reporting.tables import markdown

TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "bleurt": "BLEURT",
    "length_ratio": "length ratio",
    "exact_match": "exact match",
    "oracle_gap": "oracle gap",
    "stutter_before": "stutter before clean-up",
    "non_words": "outputs with a non-word",
    "reference_non_words": "references with a non-word",
}
# These metrics get no column: the system column of the same name shows "hypotheses", a warning reports "truncated",
# and a table needs no more than one measure of non-words.
_UNTABLED = re.compile(r"hypotheses|truncated|(reference_)?non_words_.*")
_RECALL = "length_recall_"


def metric_names(rows: Rows) -> list[str]:
    """Metrics that get a column, in the order in which rows have them."""
    names = dict.fromkeys(name for row in rows for name in row["scores"])
    return [name for name in names if not _UNTABLED.fullmatch(name) and not name.startswith(_RECALL)]


def cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Columns and lines of the whole table; if a row lacks metrics, the last column says why."""
    system, metrics = system_columns(rows), metric_names(rows)
    lines = [[*(SYSTEM[c](row) for c in system), *(cell(row, name) for name in metrics)] for row in rows]
    if any(row.get("note") for row in rows):
        return [*system, *metrics, "note"], [[*x, row.get("note", "")] for x, row in zip(lines, rows, strict=True)]
    return [*system, *metrics], lines


def signatures(rows: Rows) -> list[str]:
    """Signature of each metric, "NAME: SIGNATURE"; a metric with several signatures has several lines."""
    seen = {
        (name, score["signature"]): None
        for row in rows
        for name, score in row["scores"].items()
        if score["signature"] and not name.startswith(_RECALL)
    }
    return [f"{name}: {signature}" for name, signature in seen]


def facts(rows: Rows) -> list[str]:
    """Weights of each model, and its top-k length recall on each test set, one line each."""
    lines = {row["model"]: f"weights of {row['model']}: {row['weights']}" for row in rows if row.get("weights")}
    for row in rows:
        found = {
            name.removeprefix(_RECALL): s["value"] for name, s in row["scores"].items() if name.startswith(_RECALL)
        }
        if found:
            shares = ", ".join(f"{value:.1f} % at {k}" for k, value in found.items())
            test_set = test_set_name(row)
            lines[row["model"], test_set] = f"length recall of {row['model']} on {test_set}: {shares}"
    return list(lines.values())


def to_markdown(rows: Rows, skipped: Sequence[str] = ()) -> str:
    """Format the whole table with numbered rows, common settings, weights, length recalls and signatures.

    Args:
      skipped: metrics that could not be computed, and why.
    """
    columns, lines = cells(rows)
    columns, lines = ["#", *columns], [[str(number), *line] for number, line in enumerate(lines, 1)]
    sets = dict.fromkeys(
        f"{test_set_name(row)} ({row['languages']}, {row['sentences']:,} sentences)"
        if "sentences" in row
        else test_set_name(row)
        for row in rows
    )
    notes = [*_settings(rows, columns), *facts(rows), *signatures(rows), *skipped]
    head = f"Test set: {'; '.join(sets)}\n\n"
    table = markdown([TITLES.get(c, c) for c in columns], lines, words=(*system_columns(rows)[:-2], "note"))
    return head + table + "\n" + "".join(f"- {n}\n" for n in notes)


def _settings(rows: Rows, columns: Sequence[str]) -> list[str]:
    """Settings that have no column: one line for all models if they agree, else one line a model."""
    lines = []
    for name in SYSTEM.keys() - set(columns):
        said = dict.fromkeys((row["model"], text) for row in rows if (text := SYSTEM[name](row)) != "-")
        if len({text for _, text in said}) == 1:
            lines.append(f"{name}: {next(iter(said))[1]}")
        else:
            lines += [f"{name} of {model}: {text}" for model, text in said]
    return sorted(lines)


def to_csv(rows: Rows) -> str:
    """Format rows as CSV: the test set, the system, then every metric with all its digits."""
    names = list(dict.fromkeys(name for row in rows for name in row["scores"] if name not in SYSTEM))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["test set", *SYSTEM, *names, "note"])
    for row in rows:
        values = [row["scores"][name]["value"] if name in row["scores"] else "" for name in names]
        writer.writerow([test_set_name(row), *(text(row) for text in SYSTEM.values()), *values, row.get("note", "")])
    return file.getvalue()

"""The paper's results on WMT (Li et al., ICML 2024, section L.4, Tables 1 to 3) beside rows of one's own.

`paper.json` also has Tables 4 and 5, as far as their headings are known, and the numbers that the text claims.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from typing import Any

from padir.errors import PadirError
from padir.evaluation.rows import RowDict, Rows, hypotheses, steps


@functools.cache
def _paper() -> dict[str, Any]:
    return json.loads((importlib.resources.files("padir.evaluation") / "paper.json").read_text())


def claims() -> list[str]:
    """A line for each number that the paper's text claims."""
    lines = []
    for each in _paper()["claims"]:
        value = f"{each['from']} to {each['to']}" if "to" in each else f"at least {each['from']} times"
        lines.append(f"the paper, section {each['section']}: {each['claim']}: {value}")
    return lines


@functools.cache
def _every_row() -> Rows:
    """A row for each system, number of steps and task of the paper, with the scores of all tables."""
    paper = _paper()
    found: dict[tuple[str, str, str], RowDict] = {}
    for table in paper["tables"]:
        for line in table["rows"]:
            for task, value in zip(paper["tasks"], line["values"], strict=True):
                if value is None:
                    continue
                row = found.setdefault((line["model"], task, str(line["steps"])), _row(line, task))
                signature = table.get(f"signature_of_{task[-2:]}", table["signature"])
                row["scores"][table["metric"]] = {"value": value, "signature": signature}
    return list(found.values())


def _row(line: RowDict, task: str) -> RowDict:
    causal = line["steps"] is None
    return {
        "model": line["model"],
        "task": task,
        "split": "test",
        "causal": causal,
        "search": {"name": "beam", "size": line["hypotheses"]} if causal else None,
        "strategy": None if causal else {"name": line["strategy"]},
        "num_steps": line["steps"],
        "num_lengths": line["hypotheses"],
        "num_drafts": 1,
        "scores": {},
    }


def _system(row: RowDict) -> tuple[str, str | None, str, str]:
    """Columns that a row shares with the paper's row beside it."""
    return row["task"], row["strategy"] and row["strategy"]["name"], hypotheses(row), steps(row)


def _apart(own: str, theirs: str) -> str:
    """The parts of two signatures in which they differ."""
    one, other = own.split("|"), theirs.split("|")
    return f"{'|'.join(p for p in one if p not in other)} and {'|'.join(p for p in other if p not in one)}"


def paper_rows(rows: Rows) -> Rows:
    """The paper's rows on the test sets of one's own rows.

    Raises:
      PadirError: the paper has no results on these test sets.
    """
    tasks = {row["task"] for row in rows}
    found = [row for row in _every_row() if row["task"] in tasks]
    if not found:
        known = ", ".join(dict.fromkeys(row["task"] for row in _every_row()))
        raise PadirError("the paper's results", f"on one of {known}", ", ".join(sorted(tasks)), "leave --paper out")
    return found


def differences(rows: Rows, paper: Rows) -> list[str]:
    """A line for each score that the paper has for the same task, strategy, hypotheses and steps, and the difference.

    Where the signatures differ, the line says so and in what.
    """
    lines = []
    for row in rows:
        for other in paper:
            if row.get("split") != "test" or _system(row) != _system(other):
                continue
            for metric, theirs in other["scores"].items():
                if (own := row["scores"].get(metric)) is None:
                    continue
                line = f"{row['model']}, {row['task']}, {steps(row)} steps, {metric}: {own['value']:.2f}"
                line += f", {other['model']} {theirs['value']:.2f}: {own['value'] - theirs['value']:+.2f}"
                if own["signature"] != theirs["signature"]:
                    line += f" (other signature: {_apart(own['signature'], theirs['signature'])})"
                lines.append(line)
    return lines

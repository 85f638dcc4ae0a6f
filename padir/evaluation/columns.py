"""Columns that describe a system in a table: the text of each, and the choice of columns that tell rows apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from padir.decoding.rerank import RULES, Rescore
from padir.decoding.search import SEARCHES
from padir.refinement.strategies import STRATEGIES

RowDict = dict[str, Any]
Rows = list[RowDict]
"""Rows as `padir.evaluation.rows.describe_row` makes them."""


def test_set_name(row: RowDict) -> str:
    """Name of a row's test set: its task, and its split unless that is "test"."""
    return row["task"] if row.get("split", "test") in ("test", row["task"]) else f"{row['task']} {row['split']}"


def steps(row: RowDict) -> str:
    """Number of refinement steps; "N" for an autoregressive model, which makes one pass a token, "<N" with a draft."""
    if row.get("causal"):
        return "<N" if row.get("draft") else "N"
    return str(row["num_steps"])


def _strategy(row: RowDict) -> str:
    description = row.get("search") if row.get("causal") else row.get("strategy")
    return _with_settings(description) if description else "-"


def _rerank(row: RowDict) -> str:
    return "-" if row.get("causal") else _with_settings(row.get("rerank") or {"name": "own"})


def _canvas(row: RowDict) -> str:
    return _with_settings(row["canvas"]) if row.get("canvas") else "-"


def _drop_repeats(row: RowDict) -> str:
    drop, strategy = row.get("drop_repeats"), (row.get("strategy") or {}).get("name")
    if drop is None and (strategy or row.get("causal")):  # an older version used the strategy's default
        drop = strategy == "padir"
    return {True: "yes", False: "no", None: "-"}[drop]


def _with_settings(description: dict[str, Any]) -> str:
    """Name of a strategy, search or rule, with the hyperparameters that differ from their defaults."""
    kinds = {**STRATEGIES, **SEARCHES, **{name: type(rule) for name, rule in RULES.items()}, "rescore": Rescore}
    known = kinds.get(description["name"])
    fields = dataclasses.fields(known) if known and dataclasses.is_dataclass(known) else ()
    default = {field.name: field.default for field in fields}
    settings = [f"{k}={v}" for k, v in description.items() if k != "name" and default.get(k, dataclasses.MISSING) != v]
    return f"{description['name']}({', '.join(settings)})" if settings else description["name"]


def _lengths(row: RowDict) -> str:
    """Says where the hypotheses' lengths come from, then their offsets, the draws of each length, and the pruning."""
    if row.get("causal"):
        return "-"
    words = ["oracle" if row.get("oracle_lengths") else "predicted"]
    if row.get("adjacent") and row["top_k"] > 1:
        words.append("adjacent")
    if row["offsets"] != [0]:
        words.append("offsets " + " ".join(map(str, row["offsets"])))
    if row["draws"] > 1:
        words.append(f"{row['draws']} draws")
    if prune := row.get("prune"):
        words.append(f"{prune['keep']} go on after step {prune['steps']}")
    return ", ".join(words)


def _shortlist(row: RowDict) -> str:
    kept = row.get("shortlist")
    return f"{kept['candidates']} candidates, {kept['frequent']} frequent" if kept else "-"


def _hypotheses(row: RowDict) -> str:
    """Number of hypotheses asked for; duplicates among them are removed later."""
    if row.get("causal"):
        return str((row.get("search") or {}).get("size", 1))
    return str((1 if row.get("oracle_lengths") else row["top_k"]) * len(row["offsets"]) * row["draws"])


SYSTEM: dict[str, Callable[[RowDict], str]] = {
    "model": lambda row: row["model"],
    "strategy": _strategy,
    "rerank": _rerank,
    "lengths": _lengths,
    "shortlist": _shortlist,
    "draft": lambda row: (row.get("draft") or {"name": "-"})["name"],
    "canvas": _canvas,
    "drop_repeats": _drop_repeats,
    "batch": lambda row: str(row.get("batch_size", "-")),
    "seed": lambda row: str(row.get("seed", "-")),
    "hypotheses": _hypotheses,
    "steps": steps,
}


def system_columns(rows: Rows) -> list[str]:
    """Columns that tell the rows apart: always model, hypotheses and steps, others if rows differ in them."""
    models = [[row for row in rows if row["model"] == name] for name in dict.fromkeys(row["model"] for row in rows)]

    def differ(name: str, some: Rows) -> bool:
        return len({text for row in some if (text := SYSTEM[name](row)) != "-"}) > 1

    between = [name for name in ("strategy", "rerank", "lengths", "drop_repeats") if differ(name, rows)]
    for name in ("shortlist", "draft"):  # a row with and a row without one differ, too
        if len({SYSTEM[name](row) for row in rows}) > 1:
            between.append(name)
    # Defaults of these settings come from the model, so that a column is needed only if one model has several values.
    within = [n for n in ("canvas", "batch", "seed") if any(differ(n, some) for some in models)]
    return ["model", *between, *within, "hypotheses", "steps"]


def label(row: RowDict, rows: Rows) -> str:
    """Name a row among others in a few words."""
    words = {"hypotheses": "{} hyp.", "steps": "T={}"} | {c: f"{c} {{}}" for c in ("lengths", "shortlist", "draft")}
    return ", ".join(words.get(c, "{}").format(SYSTEM[c](row)) for c in system_columns(rows))


def cell(row: RowDict, metric: str) -> str:
    """Value of a metric with two decimals; "-" if the row lacks the metric."""
    return f"{row['scores'][metric]['value']:.2f}" if metric in row["scores"] else "-"


def summary(row: RowDict) -> str:
    """Summarise a row in one line, for progress messages."""
    system = ", ".join(f"{name} {text}" for name in SYSTEM if (text := SYSTEM[name](row)) != "-")
    return f"{system}: {row['note'] or 'BLEU ' + cell(row, 'bleu') + ', ' + cell(row, 'seconds') + ' s'}"

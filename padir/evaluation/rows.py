"""Rows of a table of systems, as JSON that `padir evaluate` writes and `padir tables` reads, and their columns.

A row is a dict: the system (model, strategy, num_steps, ...), the test set, and `scores`, which maps the name of each
metric to its value and signature. All tables are made of such rows, whether just measured or read from files.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from padir.decoding.fusion import Fusion
from padir.decoding.options import Decoding
from padir.decoding.ranker import CausalScore, MinimumBayesRisk, Rescore
from padir.decoding.search import SEARCHES
from padir.errors import PadirError
from padir.evaluation.evaluation import TestSet
from padir.evaluation.systems import Row
from padir.models.directory import name_and_fields
from padir.options import COUNTS, OPTIONS
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.strategies import STRATEGIES
from padir.storage.files import parsed_json

RowDict = dict[str, Any]
Rows = list[RowDict]
"""Rows as `describe_row` makes them."""

_NUMBERS = ("num_steps", "num_lengths", "length_window", "length_min_p", "prefix_beam", "num_drafts", "blank_penalty")
_RULES = {"causal": CausalScore, "mbr": MinimumBayesRisk, "rescore": Rescore}


def describe_row(row: Row, test_set: TestSet) -> dict[str, Any]:
    """Describe a row as JSON.

    Autoregressive rows have null refinement options, refining rows a null `search`, and rows of another engine both,
    with the numbers that are not at their defaults.
    """
    decoding = row.decoding
    scores = row.evaluation.scores if row.evaluation else {}
    described = {
        "model": row.model,
        "task": test_set.task,
        "split": test_set.split,
        "languages": f"{test_set.source_language}-{test_set.target_language}",
        "sentences": len(test_set.sources),
        "sha256": test_set.sha256,
        "causal": row.causal,
        "weights": row.weights,
        **_refinement(row),
        "search": name_and_fields(decoding.search, SEARCHES) if row.causal else None,
        "shortlist": decoding.shortlist and decoding.shortlist.describe(),
        "fusion": decoding.fusion and {"name": "bigrams", **dataclasses.asdict(decoding.fusion)},
        "batch_size": decoding.batch_size,
        "placeholders": [*decoding.placeholders],
        "seed": decoding.seed,
        "note": row.note,
        "scores": {name: {"value": s.value, "signature": s.signature} for name, s in scores.items()},
    }
    if row.own_engine:  # which numbers it reads is not known: defaults are left out
        defaults = [name for name in _NUMBERS if getattr(decoding, name) == OPTIONS[name].default]
        described |= dict.fromkeys([*defaults, "strategy", "canvas", "search", "drop_repeats", "oracle_lengths"])
    return described


def _refinement(row: Row) -> dict[str, Any]:
    """Describe how drafts were made, refined and chosen."""
    decoding = row.decoding
    mode = "causal" if row.causal else "refine"
    numbers = {name: getattr(decoding, name) if mode in OPTIONS[name].modes else None for name in _NUMBERS}
    if row.causal:
        rerank = _describe_rerank(decoding) if decoding.ranker else None
        none = dict.fromkeys(("strategy", "canvas", "oracle_lengths"))
        return {**none, **numbers, "rerank": rerank, "drop_repeats": False}
    assert decoding.strategy is not None and decoding.canvas is not None
    return {
        "strategy": name_and_fields(decoding.strategy, STRATEGIES),
        "canvas": name_and_fields(decoding.canvas, CORRUPTIONS),
        **numbers,
        "drop_repeats": decoding.drops_repeats,
        "rerank": _describe_rerank(decoding),
        "oracle_lengths": row.oracle_lengths,
    }


def _describe_rerank(decoding: Decoding) -> dict[str, Any]:
    rerank: Any = decoding.ranker
    if rerank is None:
        return {"name": "own", "length_normalization": decoding.length_normalization}
    if isinstance(rerank, Rescore):
        return {"name": "rescore", "model": rerank.name, "length_normalization": rerank.length_normalization}
    return name_and_fields(rerank, _RULES)


def read_rows(paths: Iterable[str]) -> Rows:
    """Read rows from JSON files of `padir evaluate`; raises a PadirError if a file is missing or holds no rows."""
    rows: Rows = []
    for path in map(Path, paths):
        try:
            found = parsed_json(path.read_bytes())
            if not isinstance(found, list) or not found:
                raise ValueError
            for row in found:
                {name: float(score["value"]) for name, score in row["scores"].items()}
                rows.append({"model": path.stem, "task": path.stem, **row})
                system_columns(rows[-1:])
                [text(rows[-1]) for text in SYSTEM.values()]
        except OSError as error:
            raise PadirError(f"cannot read {path} ({error.strerror}): give a JSON file of `padir evaluate`") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PadirError(f"{path} holds no rows: give a JSON file of `padir evaluate`") from None
    return rows


def test_set_name(row: RowDict) -> str:
    """Name of a row's test set: its task, and its split unless that is "test"."""
    return row["task"] if row.get("split", "test") in ("test", row["task"]) else f"{row['task']} {row['split']}"


def steps(row: RowDict) -> str:
    """Number of refinement steps; "N" for an autoregressive model, which makes one pass a token."""
    return "N" if row.get("causal") else str(row["num_steps"] or "-")


def _with_settings(description: dict[str, Any] | None) -> str:
    """Name of a strategy, search or rule, with the hyperparameters that differ from their defaults; "-" for none."""
    if not description:
        return "-"
    kinds = {**STRATEGIES, **SEARCHES, **_RULES, "own": Decoding, "bigrams": Fusion}  # "own" has its number there
    known = kinds.get(description["name"])
    default = {name: each.default for name, each in inspect.signature(known).parameters.items()} if known else {}
    settings = [f"{k}={v}" for k, v in description.items() if k != "name" and default.get(k, dataclasses.MISSING) != v]
    return f"{description['name']}({', '.join(settings)})" if settings else description["name"]


def _lengths(row: RowDict) -> str:
    """Describes the hypotheses: the source of their lengths, whether these are neighbours, and the drafts of each."""
    if row.get("causal") or row["num_lengths"] is None:
        return "-"
    words = ["oracle" if row.get("oracle_lengths") else "predicted"]
    if row.get("length_window") and row["num_lengths"] > 1:
        words.append("neighbours")
    if row.get("length_min_p") and row["num_lengths"] > 1:
        words.append(f"min_p {row['length_min_p']:g}")
    if (row["num_drafts"] or 1) > 1:  # None: another engine wrote, with the default
        words.append(f"{row['num_drafts']} drafts")
    return ", ".join(words)


def _shortlist(row: RowDict) -> str:
    kept = row.get("shortlist")
    return f"{kept['candidates']} candidates, {kept['frequent']} frequent" if kept else "-"


def hypotheses(row: RowDict) -> str:
    """Number of hypotheses asked for; duplicates among them are removed later."""
    if row.get("strategy", "") is row.get("search") is None:  # of another engine, with what options asked for
        asked = [row[name] for name in COUNTS if row[name] is not None]
        return str(math.prod(asked)) if asked else "-"
    if row.get("causal"):
        return str((row.get("search") or {}).get("size", 1))
    return str(math.prod(row.get(name, 1) for name in COUNTS))


SYSTEM: dict[str, Callable[[RowDict], str]] = {
    "model": lambda row: row["model"],
    "strategy": lambda row: _with_settings(row.get("search" if row.get("causal") else "strategy")),
    "rerank": lambda row: _with_settings(row.get("rerank") or {"name": "own"}),
    "lengths": _lengths,
    "shortlist": _shortlist,
    "fusion": lambda row: _with_settings(row.get("fusion")),
    "canvas": lambda row: _with_settings(row.get("canvas")),
    "drop_repeats": lambda row: {True: "yes", False: "no", None: "-"}[row.get("drop_repeats")],
    "batch": lambda row: str(row.get("batch_size", "-")),
    "seed": lambda row: str(row.get("seed", "-")),
    "hypotheses": hypotheses,
    "steps": steps,
}


def system_columns(rows: Rows) -> list[str]:
    """Columns that identify a row: always model, hypotheses and steps; others if rows differ in them."""
    models = [[row for row in rows if row["model"] == name] for name in dict.fromkeys(row["model"] for row in rows)]

    def differ(name: str, some: Rows) -> bool:
        return len({text for row in some if (text := SYSTEM[name](row)) != "-"}) > 1

    between = [name for name in ("strategy", "rerank", "lengths", "drop_repeats") if differ(name, rows)]
    # Here "-" (none) also counts as a value.
    between += [name for name in ("shortlist", "fusion") if len({SYSTEM[name](row) for row in rows}) > 1]
    # Defaults of these settings come from the model, so that a column is needed only if one model has several values.
    within = [n for n in ("canvas", "batch", "seed") if any(differ(n, some) for some in models)]
    return ["model", *between, *within, "hypotheses", "steps"]


def label(row: RowDict, rows: Rows) -> str:
    """Name a row among others in a few words."""
    words = {"hypotheses": "{} hyp.", "steps": "T={}"}
    words |= {c: f"{c} {{}}" for c in ("lengths", "shortlist", "drop_repeats")}
    columns = [c for c in system_columns(rows) if c != "drop_repeats" or not row.get("causal")]
    return ", ".join(words.get(c, "{}").format(SYSTEM[c](row)) for c in columns)


def cell(row: RowDict, metric: str) -> str:
    """Value of a metric with two decimals; "-" if the row lacks the metric."""
    return f"{row['scores'][metric]['value']:.2f}" if metric in row["scores"] else "-"


def summary(row: RowDict) -> str:
    """Summarise a row in one line, for progress messages."""
    system = ", ".join(f"{name} {text}" for name in SYSTEM if (text := SYSTEM[name](row)) != "-")
    return f"{system}: {row['note'] or 'BLEU ' + cell(row, 'bleu') + ', ' + cell(row, 'seconds') + ' s'}"

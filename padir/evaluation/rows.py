"""Rows of a table of systems as JSON, which `padir evaluate` writes and `padir tables` reads.

A row is a dict: the system (model, strategy, num_steps, ...), the test set, and `scores`, which maps the name of each
metric to its value and signature. Tables in every format are made of such rows, just measured or read from files.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from padir.decoding.lengths import LengthSearch
from padir.decoding.rerank import RULES, Rescore
from padir.decoding.search import SEARCHES
from padir.errors import PadirError
from padir.evaluation.columns import SYSTEM, Rows, system_columns
from padir.evaluation.systems import Row
from padir.evaluation.test_set import TestSet
from padir.models.card import name_and_fields
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.strategies import STRATEGIES


def describe_row(row: Row, test_set: TestSet) -> dict[str, Any]:
    """Describe a row as JSON. Refinement options are null for autoregressive models, `search` for all other models."""
    decoding = row.decoding
    scores = row.evaluation.scores if row.evaluation else {}
    return {
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
        "draft": decoding.draft and decoding.draft.describe(),
        "batch_size": decoding.batch_size,
        "seed": decoding.seed,
        "note": row.note,
        "scores": {name: {"value": s.value, "signature": s.signature} for name, s in scores.items()},
    }


def _refinement(row: Row) -> dict[str, Any]:
    """Describe how drafts were made, refined and chosen."""
    if row.causal:
        of_lengths = (field.name for field in dataclasses.fields(LengthSearch))
        names = ("strategy", "canvas", "num_steps", *of_lengths, "prune", "rerank", "oracle_lengths")
        return {**dict.fromkeys(names), "drop_repeats": False}
    decoding, lengths = row.decoding, row.decoding.lengths
    assert decoding.strategy is not None and decoding.canvas is not None
    return {
        "strategy": name_and_fields(decoding.strategy, STRATEGIES),
        "canvas": name_and_fields(decoding.canvas, CORRUPTIONS),
        "num_steps": decoding.num_steps,
        **dataclasses.asdict(lengths),
        "offsets": list(lengths.offsets),
        "prune": decoding.prune and dataclasses.asdict(decoding.prune),
        "drop_repeats": decoding.drops_repeats,
        "rerank": _describe_rerank(decoding.rerank),
        "oracle_lengths": row.oracle_lengths,
    }


def _describe_rerank(rerank: Any) -> dict[str, Any]:
    if isinstance(rerank, Rescore):
        return {"name": "rescore", "model": rerank.name, "brevity": rerank.brevity}
    names = [name for name, rule in RULES.items() if type(rule) is type(rerank)]  # mbr comes before mbr_bleu
    return {"name": names[0] if names else type(rerank).__qualname__, **dataclasses.asdict(rerank)}


def read_rows(paths: Iterable[str]) -> Rows:
    """Read rows from JSON files of `padir evaluate`; files of older versions may lack some fields.

    Raises:
      PadirError: a file is missing or holds something else.
    """
    rows: Rows = []
    for path in map(Path, paths):
        try:
            for row in json.loads(path.read_text(encoding="utf-8")):
                {name: float(score["value"]) for name, score in row["scores"].items()}
                rows.append({"model": path.stem, "task": path.stem, **row})
                system_columns(rows[-1:])
                [text(rows[-1]) for text in SYSTEM.values()]
        except OSError as error:
            raise PadirError(f"cannot read {path} ({error.strerror}): give a JSON file of `padir evaluate`") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise PadirError(f"{path} holds no rows: give a JSON file of `padir evaluate`") from None
    return rows

"""Rows of figures as JSON, CSV, Markdown, and on the terminal.

A row is a dict, as `padir evaluate` writes them in JSON: the system (model, strategy, steps, ...), the test set, and
`scores`, each with its signature. Everything else here is made of such rows, whether just measured or read from files.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from padir.decoding.rerank import MinimumBayesRisk, OwnScore, Rescore
from padir.decoding.search import SEARCHES
from padir.errors import PadirError
from padir.evaluation.evaluate import TestSet
from padir.evaluation.systems import Row
from padir.models.card import describe
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.strategies import STRATEGIES

Rows = list[dict[str, Any]]

_TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "bleurt": "BLEURT",
    "stutter": "stutter",
    "length_ratio": "length ratio",
    "exact_match": "exact match",
    "oracle_gap": "oracle gap",
}
_UNTABLED = ("hypotheses", "truncated")  # the one is a column of its own, the other a warning
_RECALL = "length_recall_"


def describe_row(row: Row, test_set: TestSet) -> dict[str, Any]:
    """A row as JSON; what means nothing for an autoregressive model is null."""
    decoding, lengths = row.decoding, row.decoding.lengths
    names = ("strategy", "canvas", "num_steps", "top_k", "offsets", "draws", "prune", "drop_repeats", "rerank")
    refining: dict[str, Any] = dict.fromkeys((*names, "oracle_lengths"))
    if not row.causal:
        assert decoding.strategy is not None and decoding.canvas is not None
        refining = {
            "strategy": describe(decoding.strategy, STRATEGIES),
            "canvas": describe(decoding.canvas, CORRUPTIONS),
            "num_steps": decoding.num_steps,
            "top_k": lengths.top_k,
            "offsets": list(lengths.offsets),
            "draws": lengths.draws,
            "prune": decoding.prune and dataclasses.asdict(decoding.prune),
            "drop_repeats": decoding.drop_repeats,
            "rerank": _describe_rerank(decoding.rerank),
            "oracle_lengths": row.oracle_lengths,
        }
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
        **refining,
        "search": describe(decoding.search, SEARCHES) if row.causal else None,
        "shortlist": decoding.shortlist and decoding.shortlist.describe(),
        "batch_size": decoding.batch_size,
        "seed": decoding.seed,
        "note": row.note,
        "scores": {name: {"value": s.value, "signature": s.signature} for name, s in scores.items()},
    }


def _describe_rerank(rerank: Any) -> dict[str, Any]:
    if isinstance(rerank, Rescore):
        return {"name": "rescore", "model": rerank.name, "brevity": rerank.brevity}
    names = {OwnScore: "own", MinimumBayesRisk: "mbr"}
    return {"name": names.get(type(rerank), type(rerank).__qualname__), **dataclasses.asdict(rerank)}


def read_rows(paths: Iterable[str]) -> Rows:
    """The rows of files that `padir evaluate` wrote as JSON, older ones included.

    Raises:
      PadirError: a file that is missing or holds something else.
    """
    rows: Rows = []
    for path in map(Path, paths):
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            for row in read:
                {name: float(score["value"]) for name, score in row["scores"].items()}
                rows.append({"model": path.stem, "task": path.stem, **row})
                system_columns(rows[-1:])
                [text(rows[-1]) for text in _SYSTEM.values()]
        except OSError as error:
            raise PadirError(
                f"cannot read {path} ({error.strerror}): give what `padir evaluate --json` wrote"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PadirError(f"{path} holds no rows of `padir evaluate --json`: give one that does") from None
    return rows


def system_columns(rows: Rows) -> list[str]:
    """The columns that tell the rows apart: model, hypotheses and steps always, others where rows differ in them."""
    models = [[row for row in rows if row["model"] == name] for name in dict.fromkeys(row["model"] for row in rows)]

    def differ(name: str, some: Rows) -> bool:
        return len({text for row in some if (text := _SYSTEM[name](row)) != "-"}) > 1

    between = [name for name in ("strategy", "rerank", "lengths") if differ(name, rows)]
    if len({_shortlist(row) for row in rows}) > 1:  # one and none differ, too
        between.append("shortlist")
    # A model brings its own values of these: they are shown where one model has several.
    within = [n for n in ("canvas", "drop_repeats", "batch", "seed") if any(differ(n, some) for some in models)]
    return ["model", *between, *within, "hypotheses", "steps"]


def _strategy(row) -> str:
    how = row.get("search") if row.get("causal") else row.get("strategy")
    return _with_settings(how) if how else "-"


def _rerank(row) -> str:
    return "-" if row.get("causal") else _with_settings(row.get("rerank") or {"name": "own"})


def _canvas(row) -> str:
    return _with_settings(row["canvas"]) if row.get("canvas") else "-"


def _drop_repeats(row) -> str:
    return {True: "yes", False: "no"}.get(row.get("drop_repeats"), "-")


def _with_settings(description: dict[str, Any]) -> str:
    """A name and those of its hyperparameters that are not the default."""
    kinds = {**STRATEGIES, **SEARCHES, "own": OwnScore, "mbr": MinimumBayesRisk, "rescore": Rescore}
    known = kinds.get(description["name"])
    fields = dataclasses.fields(known) if known and dataclasses.is_dataclass(known) else ()
    default = {field.name: field.default for field in fields}
    settings = [f"{k}={v}" for k, v in description.items() if k != "name" and default.get(k, dataclasses.MISSING) != v]
    return f"{description['name']}({', '.join(settings)})" if settings else description["name"]


def _test_set(row) -> str:
    return row["task"] if row.get("split", "test") in ("test", row["task"]) else f"{row['task']} {row['split']}"


def _lengths(row) -> str:
    """Where hypotheses' lengths are from, what is added to them, and how many drafts each has."""
    if row.get("causal"):
        return "-"
    words = ["oracle" if row.get("oracle_lengths") else "predicted"]
    if row["offsets"] != [0]:
        words.append("offsets " + " ".join(map(str, row["offsets"])))
    if row["draws"] > 1:
        words.append(f"{row['draws']} draws")
    if prune := row.get("prune"):
        words.append(f"{prune['keep']} go on after step {prune['steps']}")
    return ", ".join(words)


def _shortlist(row) -> str:
    kept = row.get("shortlist")
    return f"{kept['candidates']} candidates, {kept['frequent']} frequent" if kept else "-"


def _steps(row) -> str:
    return "N" if row.get("causal") else str(row["num_steps"])


def _hypotheses(row) -> str:
    """How many were asked for."""
    if row.get("causal"):
        return str((row.get("search") or {}).get("size", 1))
    return str((1 if row.get("oracle_lengths") else row["top_k"]) * len(row["offsets"]) * row["draws"])


_SYSTEM = {
    "model": lambda row: row["model"],
    "strategy": _strategy,
    "rerank": _rerank,
    "lengths": _lengths,
    "shortlist": _shortlist,
    "canvas": _canvas,
    "drop_repeats": _drop_repeats,
    "batch": lambda row: str(row.get("batch_size", "-")),
    "seed": lambda row: str(row.get("seed", "-")),
    "hypotheses": _hypotheses,
    "steps": _steps,
}


def label(row: dict[str, Any], rows: Rows) -> str:
    """What tells a row apart from others, in a few words."""
    words = {"hypotheses": "{} hyp.", "steps": "T={}", "lengths": "lengths {}", "shortlist": "shortlist {}"}
    return ", ".join(words.get(c, "{}").format(_SYSTEM[c](row)) for c in system_columns(rows))


def summary(row: dict[str, Any]) -> str:
    """A row in one line, for those who wait."""
    system = ", ".join(f"{name} {text}" for name in _SYSTEM if (text := _SYSTEM[name](row)) != "-")
    return f"{system}: {row['note'] or 'BLEU ' + _cell(row, 'bleu') + ', ' + _cell(row, 'seconds') + ' s'}"


def _value(row: dict[str, Any], name: str) -> float:
    return row["scores"][name]["value"]


def _cell(row: dict[str, Any], name: str) -> str:
    return f"{_value(row, name):.2f}" if name in row["scores"] else "-"


def figure_names(rows: Rows) -> list[str]:
    """The figures of a table's columns, in the order in which rows have them."""
    names = dict.fromkeys(name for row in rows for name in row["scores"])
    return [name for name in names if name not in _UNTABLED and not name.startswith(_RECALL)]


def cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """The columns of the whole table and its lines; a row without figures says why in its last column."""
    system, figures = system_columns(rows), figure_names(rows)
    lines = [[*(_SYSTEM[c](row) for c in system), *(_cell(row, name) for name in figures)] for row in rows]
    if any(row.get("note") for row in rows):
        return [*system, *figures, "note"], [[*x, row.get("note", "")] for x, row in zip(lines, rows, strict=True)]
    return [*system, *figures], lines


def signatures(rows: Rows) -> list[str]:
    """How each figure was computed, one line a signature."""
    seen = {
        (name, score["signature"]): None
        for row in rows
        for name, score in row["scores"].items()
        if score["signature"] and not name.startswith(_RECALL)
    }
    return [f"{name}: {signature}" for name, signature in seen]


def facts(rows: Rows) -> list[str]:
    """Which weights each model has, and its top-k length recall on each test set, one line each."""
    lines = {row["model"]: f"weights of {row['model']}: {row['weights']}" for row in rows if row.get("weights")}
    for row in rows:
        found = {
            name.removeprefix(_RECALL): s["value"] for name, s in row["scores"].items() if name.startswith(_RECALL)
        }
        if found:
            shares = ", ".join(f"{value:.1f} % at {k}" for k, value in found.items())
            lines[row["model"], _test_set(row)] = f"length recall of {row['model']} on {_test_set(row)}: {shares}"
    return list(lines.values())


def to_markdown(rows: Rows, skipped: Sequence[str] = ()) -> str:
    """The whole table with numbered rows, what they share, the weights, the length recalls and the signatures.

    Args:
      skipped: metrics that could not be computed, and why.
    """
    columns, lines = cells(rows)
    columns, lines = ["#", *columns], [[str(number), *line] for number, line in enumerate(lines, 1)]
    sets = dict.fromkeys(
        f"{_test_set(row)} ({row['languages']}, {row['sentences']:,} sentences)"
        if "sentences" in row
        else _test_set(row)
        for row in rows
    )
    notes = [*_settings(rows, columns), *facts(rows), *signatures(rows), *skipped]
    head = f"Test set: {'; '.join(sets)}\n\n"
    table = markdown([_TITLES.get(c, c) for c in columns], lines, words=(*system_columns(rows)[:-2], "note"))
    return head + table + "\n" + "".join(f"- {n}\n" for n in notes)


def _settings(rows: Rows, columns: Sequence[str]) -> list[str]:
    """What the columns do not tell of the systems: one line for all where they agree, else one a model."""
    lines = []
    for name in _SYSTEM.keys() - set(columns):
        said = dict.fromkeys((row["model"], text) for row in rows if (text := _SYSTEM[name](row)) != "-")
        if len({text for _, text in said}) == 1:
            lines.append(f"{name}: {next(iter(said))[1]}")
        else:
            lines += [f"{name} of {model}: {text}" for model, text in said]
    return sorted(lines)


def to_csv(rows: Rows) -> str:
    """One line a row: the system and its test set, then every figure with all its digits."""
    names = list(dict.fromkeys(name for row in rows for name in row["scores"] if name not in _SYSTEM))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["test set", *_SYSTEM, *names, "note"])
    for row in rows:
        values = [_value(row, name) if name in row["scores"] else "" for name in names]
        writer.writerow([_test_set(row), *(text(row) for text in _SYSTEM.values()), *values, row.get("note", "")])
    return file.getvalue()


def paper_tables(rows: Rows, metrics: Sequence[str] = ("bleu", "bleurt", "stutter"), across: str = "test_set") -> str:
    """One table a metric, laid out as the paper's Tables 1 to 3 (section L.4): systems down, test sets or steps across.

    A model's rows follow each other and name it once; rows that differ in nothing but what stands across are one. A
    combination that has no meaning gets no row, and a metric that no row has no table.

    Args:
      across: "test_set" or "steps".

    Raises:
      PadirError: no row has any of the metrics, two rows are the same system on the same test set, a name stands for
        two test sets, or rows of several test sets with the steps across.
    """
    rows = [row for row in rows if row["scores"]]
    texts: dict[str, set[str]] = {}
    for row in rows:
        texts.setdefault(_test_set(row), set()).add(row.get("sha256", ""))
    if twice := [name for name, found in texts.items() if len(found - {""}) > 1]:
        raise PadirError(f"the rows call different sentences {twice[0]!r}: make a table of each test set")
    if across == "steps" and len(set(map(_test_set, rows))) > 1:
        raise PadirError("the steps can stand across for one test set only: give files of one, or --across test_set")
    column_of = {"test_set": _test_set, "steps": _steps}[across]
    columns = list(dict.fromkeys(map(column_of, rows)))
    heads_across = [f"{name} step{'s' * (name != '1')}" for name in columns] if across == "steps" else columns
    system = [column for column in system_columns(rows) if column != across]
    table: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: [r["model"] for r in rows].index(row["model"])):
        cell = table.setdefault(tuple(_SYSTEM[c](row) for c in system), {})
        if column_of(row) in cell:
            raise PadirError(f"two rows are {label(row, rows)} on {_test_set(row)}: leave one of their files out")
        cell[column_of(row)] = row
    parts = []
    for metric in metrics:
        if not any(metric in row["scores"] for row in rows):
            continue
        lines, named = [], None
        for key, by_column in table.items():
            figures = [_cell(by_column[name], metric) if name in by_column else "-" for name in columns]
            lines.append(["" if key[0] == named else key[0], *key[1:], *figures])
            named = key[0]
        titles = {"model": "Model", "hypotheses": "# Hyp.", "steps": "Steps"}
        heads = [titles.get(c, c.capitalize()) for c in system]
        counts = [titles["hypotheses"], titles["steps"]]
        words = [head for head in heads if head not in counts]
        computed = [line for line in signatures(rows) if line.startswith(f"{metric}: ")]
        parts.append(
            f"**{_TITLES.get(metric, metric)}**\n\n{markdown([*heads, *heads_across], lines, words)}\n"
            + "".join(f"{line}\n" for line in computed)
        )
    if not parts:
        raise PadirError(f"no row has any of {', '.join(metrics)}: name figures that the files have with --metrics")
    return "\n".join(parts)


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]], words: Sequence[str]) -> str:
    """A table in Markdown; the columns that hold `words` are aligned to the left, numbers to the right."""
    rule = ["---" if column in words else "---:" for column in columns]
    return "".join("| " + " | ".join(c.replace("|", "\\|") for c in line) + " |\n" for line in (columns, rule, *lines))


def show(title: str, columns: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Prints a table."""
    import rich.console
    import rich.table

    table = rich.table.Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(*line)
    # Wider than a narrow terminal if need be: a line that wraps can be read, and a number that is cut cannot.
    width = rich.console.Console(width=10_000).measure(table).maximum
    rich.console.Console(width=max(width, rich.console.Console().width)).print(table)

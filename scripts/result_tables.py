"""Tables of results/*.json, which `padir evaluate` wrote, for README and docs/ (`fill_tables.py`)."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from padir.evaluation.rows import SYSTEM

REPEATS = "repeats dropped"
RESULTS = Path(__file__).resolve().parent.parent / "results"


def evaluation(name: str) -> str:
    """A table of what `padir evaluate` wrote to results/NAME.json."""
    rows = load(name)
    if len({row["sha256"] for row in rows if "sha256" in row}) > 1:
        raise SystemExit(f"the rows of {name} are of several test sets")
    columns = {"bleu": "BLEU", "chrf": "chrF", "similarity": "similarity", "stutter": "stutter"}
    columns["length_ratio"] = "length ratio"
    columns |= {"non_words": "non-words, %", **{name: name for name in ("toy_right", "toy_mixed", "passes")}}
    columns = {column: label for column, label in columns.items() if column in rows[0]["scores"]}
    several = len({row.get("model") for row in rows}) > 1
    shown = {"rerank": "chosen by", "fusion": "table"}
    shown = {
        name: label
        for name, label in shown.items()
        if len({SYSTEM[name](row) for row in rows if not row.get("causal")}) > 1
    }
    lines = []
    for row in rows:
        scores = [f"{row['scores'][c]['value']:.2f}" if c in row["scores"] else "-" for c in columns]
        beam = (row.get("search") or {}).get("size")
        steps = "N" if row["num_steps"] is None else str(row["num_steps"])
        setting = [
            steps,
            f"beam {beam}" if beam else str(row["num_lengths"] * row.get("prefix_beam", 1)),
            *(SYSTEM[name](row) for name in shown),
        ]
        setting.append(SYSTEM["drop_repeats"](row))
        lines.append([f"`{row['model']}`", *setting, *scores] if several else [*setting, *scores])
    head = ["model"] * several + ["steps", "lengths"] + [*shown.values()] + [REPEATS, *columns.values()]
    return table(head, lines, text=several)


_MOST = (30, 60, 120)  # core-minutes
SOURCES = ("teacher", "commit", "machine")


def tries() -> dict[str, dict[str, Any]]:
    """The lines of results/speedrun.json, by name."""
    return json.loads((RESULTS / "speedrun.json").read_text())


def check_sources(head: list[str], lines: Iterable[dict[str, Any]]) -> None:
    """Refuses a table whose lines differ in teacher, commit or machine and that has no column of this name."""
    lines = list(lines)
    for name in SOURCES:
        found = {line[name] for line in lines}
        if name not in head and (len(found) > 1 or any(each.startswith("unknown") for each in found)):
            raise SystemExit(f"the lines of a table differ in {name}: give it the column {name!r}")


def readme() -> str:
    """The README's table: SacreBLEU and seconds of the shipped models' own ways, from one run of `padir evaluate`."""
    ways = {
        ("de_en, refine", None): "`de_en` refines up to five drafts and ranks them autoregressively (the default)",
        ("de_en, causal", 1): "`de_en` from left to right (`--beam 1`)",
        ("de_en_ctc, refine, blank penalty 1", None): "`de_en_ctc` in one parallel pass, with its table of bigrams",
        ("de_en_ctc, causal", 1): "`de_en_ctc` from left to right (`--beam 1`)",
        ("de_en_ar", 5): "`de_en_ar`, an autoregressive model with a beam of 5",
    }
    found = {(row["model"], row["search"] and row["search"]["size"]): row for row in load("shipped_tatoeba")}
    rows = []
    for way, what in ways.items():
        row = found[way]
        passes = "-" if row["causal"] else f"{row['num_lengths']} x {row['num_steps']}"
        scores = (row["scores"][name]["value"] for name in ("bleu", "seconds"))
        rows.append([what, passes, *(f"{value:.1f}" for value in scores)])
    return table(["German to English", "drafts x passes, at most", "BLEU", "seconds"], rows, text=True)


def board() -> str:
    """The best tries of results/speedrun.json in few passes, and the best autoregressive one, by what they cost."""
    best: dict[tuple[int, str, bool], tuple[float, dict[str, Any]]] = {}
    starts = {"teacher": "a teacher's", "nothing": "random"}
    for each in (each for each in tries().values() if each["start"] in starts):
        start = starts[each["start"]]
        for most in (most for most in _MOST if each["core_minutes"] <= most):
            for row in (row for row in each["rows"] if "bleu" in row):
                kind = most, start, row["steps"] is None
                if row["bleu"] > best.get(kind, (0.0, {}))[0]:
                    best[kind] = row["bleu"], each
    head = ["core-minutes, at most", "first parameters", "best try", "core-minutes", "BLEU", *SOURCES]
    shown, lines = [], []
    for (most, start, _), (score, each) in sorted(best.items(), key=lambda one: one[0]):
        if (score, each) not in shown:  # it is the best one of a smaller budget, too
            shown.append((score, each))
            what, cost = each["what"].removeprefix("the same as "), f"{each['core_minutes']:.0f}"
            lines.append([f"{most}", start, what, cost, f"{score:.1f}", *(each[name] for name in SOURCES)])
    check_sources(head, [each for _, each in shown])
    return table(head, lines, text=True)


def load(name: str) -> list[dict[str, Any]]:
    """The rows that `padir evaluate` wrote."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    return found["rows"] if isinstance(found, dict) else found


def table(head: list[str], rows: list[list[str]], text: bool = False) -> str:
    """A table in Markdown; with `text` its first column is text and not a number."""
    ruler = ["---" if text else "---:", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ruler, *rows])

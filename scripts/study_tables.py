"""Tables of docs/theory.md, of the results in docs/analysis and docs/ising (`fill_tables.py`)."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from result_tables import table

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAPER = ROOT / "padir" / "evaluation" / "paper.json"

LABELS = {
    "self_avg": "self-attention",
    "positional_avg": "positional attention",
    "tv_avg": "total variation",
    "cosine_avg": "cosine distance",
}


markdown = functools.partial(table, text=True)


def load(name: str) -> Any:
    """Read the results of one analysis."""
    return json.loads((DOCS / "analysis" / f"{name}.json").read_text())


def interval(row: Mapping[str, Any], name: str) -> str:
    """Format a metric with its interval."""
    if row.get(name) is None:
        return "-"
    return f"{row[name]:.2f} ({row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f})"


def attention(name: str) -> str:
    """Table of attention to stuttered and other neighbours (the paper's Tables 4 and 5), means over heads."""
    found = load(name)
    theirs = {row["measure"]: row for row in json.loads(PAPER.read_text())["attention"]}
    rows = []
    for row in found["rows"]:
        if row["measure"] in LABELS:
            kinds = ("stutter", "other")
            means = [f"{row[f'{kind}_mean']:.3f} ± {row[f'{kind}_sd']:.3f}" for kind in kinds]
            areas = [interval(row, name) for name in ("auc", "auc_within")]
            paper = theirs.get(row["measure"])
            places = {4: 3, 5: 2}[paper["table"]] if paper else 0  # as the tables print them
            printed = [" ± ".join(f"{x:.{places}f}" for x in paper[kind]) if paper else "-" for kind in kinds]
            rows.append([f"{row['pass']}, {LABELS[row['measure']]}", *means, *areas, *printed])
    count = f"stutter ({found['stutter']:,} pairs)", f"other ({found['neighbours'] - found['stutter']:,})"
    head = [f"pass, measure: {found['sentences']:,} sentences", *count, "AUC (95 %)", "within a sentence"]
    return markdown([*head, "the paper: stutter", "the paper: other"], rows)


def by_step(name: str) -> str:
    """Table of the changes that each refinement step makes."""
    columns = ("changed", "settled", "confidence", "accuracy", "calibration_error", "equal", "right", "mixed")
    rows = load(name)["by_step"]
    columns = [column for column in columns if column in rows[-1]]
    cells = [[str(row["step"]), *(_per_cent(row.get(column)) for column in columns)] for row in rows]
    return markdown(["step", *(column.replace("_", " ") for column in columns)], cells)


def ising(name: str, part: str = "rows") -> Any:
    """Read one part of the results of `padir ising`."""
    return json.loads((DOCS / "ising" / f"{name}.json").read_text())[part]


def _figure(value: float) -> str:
    """Format a number with about three digits; what is below 0.001 has an exponent."""
    text = f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3g}"
    return text.replace("-", "\u2212")


def learning() -> str:
    """Table of squared errors of figures 1 and 2, times the number of samples, beside theory."""
    most = max(row["samples"] for row in ising("fig1"))
    found = {(f, r["estimator"], r["k"]): r for f in ("fig1", "fig2") for r in ising(f) if r["samples"] == most}
    rows = []
    for k in sorted({k for *_, k in found}):
        cells = [str(k)]
        for figure in ("fig1", "fig2"):
            for estimator in ("one mask", "all masks"):
                row = found[figure, estimator, k]
                cells += [f"{most * row['mean']:.1f} ± {most * row['standard_error']:.1f}", f"{row['trace']:.1f}"]
        rows.append(cells)
    columns = ("measured", "tr Γ", "all masks", "tr sandwich")
    return markdown(["k", *(f"{truth}: {each}" for truth in ("flat", "two modes") for each in columns)], rows)


def steps() -> str:
    """Table of the exact and the simulated numbers of steps of figure 3."""
    found = {(row["coupling"], row["field"], row["k"]): row for row in ising("fig3")}
    shown = {1: "k = 1", 5: "k = 5", 6: "k = 6, the clique", 8: "k = 8", 10: "k = 10", None: "independent parallel"}
    rows = []
    for coupling, field in dict.fromkeys((coupling, field) for coupling, field, _ in found):
        cells = [f"{coupling:g}", f"{field:g}"]
        for k in shown:
            row = found[coupling, field, k]
            late = f"{100 * row['arrived']:.3g} % arrived"
            simulated = late if row["mean"] is None else f"{row['mean']:.3g} ± {row['standard_error']:.2g}"
            cells.append(f"{row['exact']:.3g} ({simulated})")
        rows.append(cells)
    return markdown(["J", "h", *shown.values()], rows)


def separations() -> str:
    """Table of the smallest cliques that separate the two samplers."""
    names = {"k-Gibbs, 1 step": "k-Gibbs in R_1 after 1 step", "k-Gibbs, bound": "bound"}
    names |= {"parallel": "parallel in R_1 within T", "parallel leaves": "leaves the low sums"}
    names |= {"parallel, bound": "bound"}
    rows = []
    for row in ising("fig3", "separations"):
        values = ("below 1e\u2212308" if row[name] < 1e-307 else _figure(row[name]) for name in names)
        rows.append([f"{row['steps']:,}", str(row["size"]), str(row["k"]), *values])
    return markdown(["T", "clique", "k", *names.values()], rows)


def pass_costs() -> str:
    """Table of the cost of each schedule, and of the best sizes of few passes."""
    found = {(row["model"], row["passes"], row["schedule"]): row for row in ising("schedules")}
    schedules = list(dict.fromkeys(schedule for *_, schedule in found))
    rows = []
    for model, passes in dict.fromkeys((model, passes) for model, passes, _ in found):
        if passes in (1, 2, 4, 8, 16, 32):
            sizes = found[model, passes, "best"]["sizes"] if passes <= 8 else ""
            costs = (_figure(found[model, passes, each]["kl"]) for each in schedules)
            rows.append([model, str(passes), sizes, *costs])
    return markdown(["model", "T", "best sizes", *schedules], rows)


def phrase_errors() -> str:
    """Table of errors of tokens, phrases and sentences of several phrases."""
    found = {(row["passes"], row["phrases"]): row for row in ising("schedules", "errors")}
    several = sorted({phrases for _, phrases in found} - {1})
    rows = []
    for passes in sorted({passes for passes, _ in found}):
        one = found[passes, 1]
        cells = [f"{one[name]:.4f}" for name in ("kl_of_a_token", "tv_of_a_token", "tv_of_a_phrase")]
        cells += [f"{found[passes, m]['low']:.3f} to {found[passes, m]['high']:.3f}" for m in several]
        rows.append([str(passes), *cells])
    head = ["T", "KL of a token", "TV of a token", "TV of a phrase", *(f"TV of {m} phrases" for m in several)]
    return markdown(head, rows)


def statements() -> str:
    """Table of all statements, their verdicts and their smallest margins."""
    rows = []
    for row in ising("theorems"):
        texts = [row[name].replace("|", "\\|") for name in ("statement", "source", "claim", "verdict")]
        margin = _figure(row["smallest_margin"]) if row["smallest_margin"] else "0"
        rows.append([*texts, margin, str(row["num_spins"]), str(row["margins"])])
    return markdown(["statement", "where", "claim", "verdict", "smallest margin", "at N", "margins"], rows)


def _per_cent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


TABLES = {
    each.__name__: each
    for each in (
        *(attention, by_step),
        *(learning, steps, separations, pass_costs, phrase_errors, statements),
    )
}

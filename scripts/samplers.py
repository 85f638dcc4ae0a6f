"""Compares the order of samplers by exact errors with their order on trained models, for docs/samplers.md.

python scripts/samplers.py          # gathers runs/samplers/*.json in results/samplers.json
python scripts/samplers.py --names  # the strategies that the models can run
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from result_tables import RESULTS, table
from scipy.stats import spearmanr

from padir.models import ModelConfig
from padir.refinement import Mask, parse_strategy
from padir.refinement.strategies import check_strategy
from padir.studies.analysis.association import RESAMPLES, Estimate
from padir.studies.analysis.audit import STRATEGIES

ROOT = Path(__file__).resolve().parent.parent
AUDIT = ROOT / "docs" / "analysis" / "audit.json"
sys.path.append(str(ROOT / "examples" / "strategies"))
import bounds  # noqa: E402  # of examples/strategies

OWN = tuple(f"bounds:{each.__name__}" for each in (bounds.EntropyBound, bounds.Frechet))
PASSES = 4
SHOWN = (1, 2, 4, 6)  # numbers of passes in the table of the audit


def names() -> list[str]:
    """The audited strategies that a model with masks and no further head can run."""
    found = []
    for name in (*STRATEGIES, *OWN):
        strategy = parse_strategy(name)
        if not {"decontextualised", "rejecter", "pieces"} & getattr(strategy, "needs", frozenset()):
            check_strategy(strategy, canvas=Mask(1.0), trained=Mask(), config=ModelConfig())
            found.append(name)
    return found


def draws(name: str) -> bool:
    """True if a strategy draws tokens; False if it takes the likeliest ones."""
    return getattr(parse_strategy(name), "temperature", 0.0) > 0


def gather() -> list[dict[str, Any]]:
    """For each strategy its exact errors on wordings, and per cent of right outputs of each model."""
    exact = {
        row["strategy"]: row
        for row in json.loads(AUDIT.read_text())["rows"]
        if (row["targets"], row["canvas"], row["steps"]) == ("wordings", "mask", PASSES)
    }
    runs = [json.loads(path.read_text()) for path in sorted(Path("runs/samplers").glob("mdlm_?.json"))]
    assert all(len(run) == len(names()) for run in runs), "score all samplers anew"
    return [
        {
            "strategy": name,
            "kl": exact[name]["kl"],
            "not_right": exact[name]["not_right"],
            "right": [run[number]["scores"]["toy_right"]["value"] for run in runs],
        }
        for number, name in enumerate(names())
        if name in exact
    ]


def spearman(rows: list[dict[str, Any]], error: str) -> Estimate:
    """The rank correlation of an exact error, negated, with right outputs; the interval is over samplers."""
    right = np.array([statistics.mean(row["right"]) for row in rows])
    errors = np.array([math.inf if row[error] is None else row[error] for row in rows])
    ranks = -np.unique(errors, return_inverse=True)[1]
    drawn_RG = np.random.default_rng(0).multinomial(len(rows), np.full(len(rows), 1 / len(rows)), RESAMPLES)
    samples = [np.repeat([ranks, right], times, axis=1) for times in drawn_RG]
    found = [spearmanr(*sides).statistic for sides in samples if np.ptp(sides, axis=1).all()]  # not of equal values
    low, high = np.percentile(found, [2.5, 97.5])
    return Estimate(float(spearmanr(ranks, right).statistic), float(low), float(high))


def audit() -> str:
    """The table of docs/samplers.md: exact errors of each sampler on wordings, by passes."""
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in json.loads(AUDIT.read_text())["rows"]:
        if row["targets"] == "wordings":
            found.setdefault((row["strategy"], row["canvas"]), {})[row["steps"]] = row
    lines = []
    for (name, canvas), by_steps in found.items():
        cells = [f"`{name}`", "masks" if canvas == "mask" else "random"]
        for steps in SHOWN:
            kl = by_steps.get(steps, {}).get("kl", math.nan)
            cells.append("infinite" if kl is None else "-" if math.isnan(kl) else f"{kl:.2f}")
        for steps in SHOWN:
            cells.append(f"{by_steps[steps]['tv']:.2f}" if steps in by_steps else "-")
        lines.append(cells)
    head = ["sampler", "canvas", *(f"KL, {steps}" for steps in SHOWN), *(f"TV, {steps}" for steps in SHOWN)]
    return table(head, lines, text=True)


def prediction() -> str:
    """The table of docs/samplers.md: samplers that draw by KL, then those that take the likeliest tokens."""
    rows = json.loads((RESULTS / "samplers.json").read_text())
    drawn = sorted(
        (row for row in rows if draws(row["strategy"])), key=lambda row: math.inf if row["kl"] is None else row["kl"]
    )
    likeliest = sorted((row for row in rows if not draws(row["strategy"])), key=lambda row: row["not_right"])
    lines = []
    for title, errors, part in (
        ("draw", ("kl", "not_right"), drawn),
        ("take the likeliest", ("not_right",), likeliest),
    ):
        found = {"by KL" if error == "kl" else "by wrong outputs": spearman(part, error) for error in errors}
        said = (f"{how} {each.value:.2f} ({each.low:.2f} to {each.high:.2f})" for how, each in found.items())
        lines.append([f"**{title}**: Spearman {', '.join(said)}", "", "", ""])
        for row in part:
            kl = "infinite" if row["kl"] is None else f"{row['kl']:.2f}"
            spread = f"{statistics.mean(row['right']):.1f} ± {statistics.stdev(row['right']):.1f}"
            lines.append([f"`{row['strategy']}`", kl, f"{100 * row['not_right']:.1f}", spread])
    head = [f"sampler, {PASSES} passes", "exact KL, nats", "exactly: wrong, %", "three models: right, %"]
    return table(head, lines, text=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true")
    if parser.parse_args().names:
        print(*names())
    else:
        (RESULTS / "samplers.json").write_text(json.dumps(gather(), indent=2) + "\n")
        print(prediction())

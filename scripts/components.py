"""Gathers the runs of `scripts/objectives.sh components` in results/components.json and .md, and makes tables of them.

    python scripts/components.py   # in the folder that has runs/components

A difference is a mean over three seeds, with a 95 % interval by Student's t. Two runs with one seed read the data in
one order.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from result_tables import RESULTS, check_sources, table

RUNS = Path("runs") / "components"
STUDENT_T = 4.303  # 97.5 % quantile with 2 degrees of freedom
COMPONENTS = {  # the paper's choice and what it is compared with
    "two stages, not one": ("padir", "one_stage"),
    "unmasking rate 0.3, not 0.1": ("padir", "unmasking_01"),
    "unmasking rate 0.3, not 0.9": ("padir", "unmasking_09"),
    "a teacher's text, equal updates": ("distilled", "padir"),
    "a teacher's text, equal core-minutes": ("distilled", "padir_longer"),
    "positional attention": ("padir", "no_positions"),
    "random pieces, not masks": ("padir", "masks"),
}
TRIED = ("padir", "masks")  # decoded with several strategies


def gather() -> dict[str, dict[str, Any]]:
    """Cost, origin and scores of each run by its name."""
    found = {}
    for path in sorted(RUNS.glob("*_[012].json")):
        commit, machine = path.with_suffix(".origin").read_text().splitlines()
        origin = {"commit": commit, "machine": machine.strip()}
        run = {"core_minutes": core_minutes(path.stem), "teacher": "-", **origin, "right": right(path)}
        if path.stem.startswith("distilled"):
            teaching = core_minutes("teacher_0") + core_minutes("distill")
            run |= {"core_minutes": run["core_minutes"] + teaching, "teacher": "teacher_0"}
        for split in ("validation", "test"):
            if (strategies := path.with_suffix(f".{split}.json")).exists():
                run[split] = right(strategies)
        found[path.stem] = run
    return found


def core_minutes(name: str) -> float:
    """Process time of a run, whose file has a line for each time that it was begun."""
    return sum(map(float, (RUNS / f"{name}.seconds").read_text().split())) / 60


def right(path: Path) -> dict[str, float]:
    """Per cent of right outputs by strategy and number of passes."""
    rows = json.loads(path.read_text())
    return {f"{row['strategy']['name']} {row['num_steps']}": row["scores"]["toy_right"]["value"] for row in rows}


def compared(first: list[float], second: list[float]) -> tuple[str, str]:
    """The difference of two systems with its interval, and whether the first one is better."""
    gaps = [one - other for one, other in zip(first, second, strict=True)]
    if len(gaps) < 3:
        return "-", "fewer than three seeds"
    mean, half = statistics.mean(gaps), STUDENT_T * statistics.stdev(gaps) / len(gaps) ** 0.5
    verdict = "not decidable here" if abs(mean) <= half else "holds" if mean > 0 else "does not hold"
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})", verdict


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else "-"


def seeds(system: str) -> dict[str, dict[str, Any]]:
    """The runs of a system, by seed."""
    runs = json.loads((RESULTS / "components.json").read_text())
    return {name[-1]: runs[name] for name in sorted(runs) if name.rpartition("_")[0] == system}


def after(passes: int, runs: list[dict[str, Any]]) -> list[float]:
    """Right outputs of some runs after a number of passes."""
    return [run["right"][f"padir {passes}"] for run in runs]


def components() -> str:
    """Each component of the paper: right outputs with and without it, and what three seeds decide."""
    head = ["component", "seeds", "core-minutes, with", "without", "right, with", "without", "difference", "in 1 pass"]
    head += ["verdict", "teacher"]
    lines, shown = [], []
    for label, systems in COMPONENTS.items():
        first, second = map(seeds, systems)
        pairs = [(first[seed], second[seed]) for seed in first if seed in second]  # the loop may not be through
        sides = [[pair[side] for pair in pairs] for side in (0, 1)]
        shown += [run for runs in sides for run in runs]
        (four, verdict), (one, _) = (compared(*(after(passes, runs) for runs in sides)) for passes in (4, 1))
        costs = [f"{statistics.mean(run['core_minutes'] for run in runs):.1f}" if runs else "-" for runs in sides]
        means = [spread(after(4, runs)) for runs in sides]
        teacher = "its own" if "text" in label else "-"
        lines.append([label, str(len(pairs)), *costs, *means, four, one, verdict, teacher])
    if not shown:
        return "No two of these systems are trained yet."
    check_sources(head, shown)
    return table(head, lines, text=True)


def page() -> str:
    """The table with what its columns mean, for results/components.md."""
    return f"""# The paper's components, early in training

Each line compares two systems from random parameters, after 1,500 updates. It counts right outputs of 1,000 test
sentences of the built-in corpus after 4 passes. A difference has a 95 % interval over three seeds; intervals are not
corrected for several comparisons. **Holds** means that the interval lies above zero. Each run has one core, and about
the same process time: 1,500 updates, 1,650 without positional attention and 2,250 with one stage. A distilled line is
charged for its teacher, so one line compares it with a longer run of the paper's objective.

{components()}
"""


def chosen_strategies() -> str:
    """The strategy that is best on the validation split beside the default one, both on the test split."""
    head = ["trained as", "passes", "seeds", "`padir`", "chosen on validation", "chosen", "difference", "verdict"]
    lines = []
    for system in TRIED:
        runs = [run for run in seeds(system).values() if "test" in run]
        for passes in (4, 10) if runs else ():
            tried = [name for name in runs[0]["validation"] if name.endswith(f" {passes}")]
            best = max(tried, key=lambda name: sum(run["validation"][name] for run in runs))
            default, chosen = ([run["test"][name] for run in runs] for name in (f"padir {passes}", best))
            scores = [spread(default), f"`{best.split()[0]}`", spread(chosen)]
            lines.append([f"`{system}`", str(passes), str(len(runs)), *scores, *compared(chosen, default)])
    return table(head, lines, text=True) if lines else "No system has been decoded with several strategies yet."


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    (RESULTS / "components.json").write_text(json.dumps(gather(), indent=1) + "\n")
    (RESULTS / "components.md").write_text(page())

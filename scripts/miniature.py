"""Gathers the runs of `scripts/miniature.sh` in results/miniature.json, with learning curves, and makes table and plot.

    python scripts/miniature.py   # in the folder that has runs/miniature; directions that it lacks stay as they are

A direction's core-minutes are the process time of all its parts. Its scores are of the test split of its first corpus.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from result_tables import RESULTS, table

from padir.reporting.tables import COLOURS, styled_figure

RUNS = Path("runs") / "miniature"
PARTS = ("prepare", "teacher", "distill", "student", "evaluate")
CURVES = {
    "loss": "loss of the training batches",
    "length_accuracy": "share of right lengths in the batches",
    "validation_bleu": "BLEU on the validation split",
}


def gather() -> dict[str, dict[str, Any]]:
    """Cost, origin, size of the data, learning curves and scores of each direction that is done."""
    found = {}
    for table_of_scores in sorted(RUNS.glob("*/scores.md")):  # the last file of an evaluation
        run = table_of_scores.parent
        commit, machine = (run / "origin").read_text().splitlines()
        manifest = json.loads((run / "data" / "manifest.json").read_text())
        found[run.name] = {
            "commit": commit,
            "machine": machine.strip(),
            "pairs": manifest["splits"]["train"]["written"],
            "target_tokens": manifest["splits"]["train"]["target_tokens"],
            "core_minutes": {part: seconds(run / f"{part}.seconds") / 60 for part in PARTS},
            "curves": {part: curves(run / part / "metrics.jsonl") for part in ("teacher", "student")},
            "rows": json.loads((run / "scores.json").read_text()),
        }
    return found


def seconds(path: Path) -> float:
    """Process time of a part, whose file has a line for each time that it was begun."""
    return sum(map(float, path.read_text().split()))


def curves(metrics: Path) -> dict[str, list[list[float]]]:
    """(step, value) of each of `CURVES` in a training run."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {name: [[row["step"], round(row[name], 3)] for row in rows if name in row] for name in CURVES}


def directions() -> str:
    """A line for each direction: what it cost, and what the teacher and the student score."""
    runs = json.loads((RESULTS / "miniature.json").read_text())
    head = ["direction", "pairs", "updates", "core-minutes", "teacher, beam 5", "student, 4 passes", "10 passes"]
    head += ["stutter, 4 passes", "before clean-up", "tokenizer"]
    lines = []
    for name, run in runs.items():
        rows = {(row["search"] and row["search"]["size"]) or row["num_steps"]: row["scores"] for row in run["rows"]}
        beam, four, ten = rows[5], rows[4], rows[10]
        cells = [f"{row['bleu']['value']:.1f} / {row['chrf']['value']:.1f}" for row in (beam, four, ten)]
        updates = " + ".join(f"{run['curves'][part]['loss'][-1][0]:,}" for part in ("teacher", "student"))
        repeats = (f"{four[each]['value']:.1f}" for each in ("stutter", "stutter_before"))
        tokenizer = re.search(r"tok:([^|]+)", four["bleu"]["signature"])
        assert tokenizer is not None
        minutes = f"{sum(run['core_minutes'].values()):.0f}"
        lines.append([name, f"{run['pairs']:,}", updates, minutes, *cells, *repeats, f"`{tokenizer[1]}`"])
    return table(head, lines, text=True)


def page() -> str:
    """The table with what its columns mean, for results/miniature.md."""
    return f"""# The whole recipe in small

`scripts/miniature.sh` takes real text through the pipeline on one CPU core: vocabulary, pairs with placeholders, an
autoregressive teacher, its translations, and a student of two stages that starts from the teacher's parameters. It
tests the pipeline; models of minutes translate badly, and nothing here compares with the paper. Scores are BLEU / chrF
on the test split of Tatoeba, with five lengths for the student. Stutter is repeated words per 1,000.

{directions()}

![loss, right lengths and validation BLEU by step](miniature.png)

To lay a run of yours beside these: `MODEL_DIR/metrics.jsonl` has the same names by step as `results/miniature.json`.
"""


def plot(path: Path) -> None:
    """Draws the learning curves: a colour for each direction, dashes for teachers, which predict no length."""
    runs = json.loads((RESULTS / "miniature.json").read_text())
    with styled_figure(font_size=9) as made:
        made.set_size_inches(13, 4)
        for axes, (name, words) in zip(made.subplots(1, len(CURVES)), CURVES.items(), strict=True):
            for number, (direction, run) in enumerate(runs.items()):
                for part, line in (("teacher", "--"), ("student", "-")):
                    points = run["curves"][part].get(name)
                    if points and not (part == "teacher" and name == "length_accuracy"):
                        label = f"{direction} {part}"
                        axes.plot(
                            *zip(*points, strict=True),
                            line,
                            color=COLOURS[number],
                            label=label,
                            marker=".",
                            markersize=3,
                        )
            axes.set_title(words)
            axes.set_xlabel("updates")
            axes.grid(alpha=0.3)
        made.legend(*made.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
        made.savefig(path, dpi=110)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    known = json.loads((RESULTS / "miniature.json").read_text())
    (RESULTS / "miniature.json").write_text(json.dumps(known | gather(), indent=1) + "\n")
    (RESULTS / "miniature.md").write_text(page())
    plot(RESULTS / "miniature.png")

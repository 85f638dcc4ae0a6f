"""Gathers the runs of `scripts/miniature.sh` in results/miniature.json, with losses by step, and makes their table.

    python scripts/miniature.py   # in the folder that has runs/miniature

A direction's core-minutes are the process time of all its parts. Its scores are of the test split of its first corpus.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

from result_tables import RESULTS, table

RUNS = Path("runs") / "miniature"
PARTS = ("prepare", "teacher", "distill", "student", "evaluate")


def gather() -> dict[str, dict[str, Any]]:
    """Cost, origin, size of the data, losses and scores of each direction that is done."""
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
            "losses": {part: losses(run / part / "metrics.jsonl") for part in ("teacher", "student")},
            "rows": json.loads((run / "scores.json").read_text()),
        }
    return found


def seconds(path: Path) -> float:
    """Process time of a part, whose file has a line for each time that it was begun."""
    return sum(map(float, path.read_text().split()))


def losses(metrics: Path) -> list[list[float]]:
    """(step, training loss) of a training run, every 50 steps."""
    rows = map(json.loads, metrics.read_text().splitlines())
    return [[row["step"], round(row["loss"], 3)] for row in rows if "loss" in row]


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
        updates = " + ".join(f"{run['losses'][part][-1][0]:,}" for part in ("teacher", "student"))
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
"""


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    (RESULTS / "miniature.json").write_text(json.dumps(gather(), indent=1) + "\n")
    (RESULTS / "miniature.md").write_text(page())

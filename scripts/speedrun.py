"""Trains and scores the tries of a board: the best Multi30k de-en score in 15, 30 or 60 CPU minutes.

python scripts/speedrun.py                                                               # lists the tries
python scripts/speedrun.py NAME ... --data DISTILLED --teacher MODEL --known_words FILE  # runs them, writes the board

DISTILLED is a folder of `padir distill`, MODEL the teacher's model directory, FILE human English text for the metric of
non-words. A CPU minute is a minute of both of two cores: process time (user and system) divided by 2. The number of
steps of a try is fixed in this file, chosen from a measured rate. Scores are those of the validation split; the board
is results/speedrun.json and, as a table, results/speedrun.md. A stopped try goes on where it stopped.
"""

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BOARD = ROOT / "results" / "speedrun.json"
RUNS = ROOT / "runs" / "speedrun"
BASE = "configs/run/multi30k_de_en_distilled_cpu.gin"
SHARED = ("Batching.rows=16", "Batching.row_length=64", "Intervals.evaluate=0")
LENGTHS = ("Objective.length_weight=5.0",)
FROM_TEACHER = ("Cosine.peak=1e-2", "Cosine.warmup_steps=50")

SCORES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "non_words": "non-words",
    "stutter_before": "stutter before clean-up",
    "length_ratio": "length ratio",
    "passes": "passes",
}


@dataclasses.dataclass(frozen=True)
class Try:
    """One line of the board.

    Attributes:
      what: what is special about it.
      minutes: CPU minutes that it may take.
      steps: number of training steps.
      files, bindings: gin files and bindings after those that all tries share.
      from_teacher: begin with the teacher's parameters.
    """

    what: str
    minutes: int
    steps: int
    files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    from_teacher: bool = True


CTC = ("configs/objective/ctc.gin",)
CTC_SHAPE = ("ModelConfig.max_length=192", "Ctc.label_smoothing=0.0", "Batching.rows=64")
TRIES = {
    "padir_nothing": Try("the paper's objective", 15, 2_800, bindings=LENGTHS, from_teacher=False),
    "padir": Try("the paper's objective", 15, 2_800, bindings=LENGTHS),
    "ctc": Try("CTC with glancing, stages none and all", 15, 1_150, CTC, CTC_SHAPE),
    "ctc_one_stage": Try("CTC, one stage", 15, 1_350, CTC, (*CTC_SHAPE, "Ctc.stage_weights=('all',)")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--data", default="data/multi30k_de_en_distilled")
    parser.add_argument("--teacher", default="runs/multi30k_de_en_ar_cpu")
    parser.add_argument("--known_words", nargs="+", default=[])
    args = parser.parse_args()
    if not args.names:
        print("\n".join(f"{name}: {each.what}, {each.minutes} minutes" for name, each in TRIES.items()))
    if unknown := set(args.names) - set(TRIES):
        parser.error(f"there is no try {unknown.pop()!r}: known are {', '.join(TRIES)}")
    for name in args.names:
        train(name, args.data, args.teacher)
        rows = json.loads(BOARD.read_text()) if BOARD.exists() else {}
        rows[name] = score(name, args.data, args.known_words)
        BOARD.write_text(json.dumps(rows, indent=1) + "\n")
        BOARD.with_suffix(".md").write_text(table(rows))


def train(name: str, data: str, teacher: str) -> None:
    """Train a try to its end, unless it is there, and add the process time of this call to that of earlier ones."""
    each, folder = TRIES[name], RUNS / name
    if (folder / "manifest.json").exists():
        return
    bindings = [*SHARED, f"train.num_steps={each.steps}", *each.bindings]
    if each.from_teacher:
        bindings += [f"train.start_from='{teacher}'", *FROM_TEACHER]
    files = [f"--gin_file={file}" for file in (BASE, *each.files)]
    words = [*files, *(f"--gin.{binding}" for binding in bindings), "--data", data, "--model_dir", str(folder)]
    spent = folder.with_suffix(".seconds")
    before = _process_time()
    done = padir("train", *words)
    spent.parent.mkdir(parents=True, exist_ok=True)
    total = (float(spent.read_text()) if spent.exists() else 0.0) + _process_time() - before
    spent.write_text(f"{total}\n")
    if done:
        raise SystemExit(f"{name} stopped after {total / 120:.1f} CPU minutes; the same command goes on with it")


def score(name: str, data: str, known_words: list[str]) -> dict[str, Any]:
    """Scores of a trained try on the validation split, and what it cost."""
    folder = RUNS / name
    results = folder.with_suffix(".json")
    ways = ["--split", "validation", "--num_steps", "1", "4", "--top_k", "1", "5", "--json", str(results)]
    words = ["--known_words", *known_words] if known_words else []
    if padir("evaluate", "--model", str(folder), "--data", data, *ways, *words):
        raise SystemExit(f"{name} could not be scored")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    return {
        **dataclasses.asdict(TRIES[name]),
        "cpu_minutes": float(folder.with_suffix(".seconds").read_text()) / 120,
        "loss": next(row["loss"] for row in reversed(logged) if "loss" in row),
        "rows": [_scores(row) for row in json.loads(results.read_text())],
    }


def _scores(row: dict[str, Any]) -> dict[str, Any]:
    scores = {name: row["scores"][name]["value"] for name in SCORES if name in row["scores"]}
    return {"steps": row["num_steps"], "lengths": row["top_k"], **scores}


def table(rows: dict[str, Any]) -> str:
    """The board: a line for each try and way of decoding, the best BLEU of a budget first."""
    lines = [(each, score) for each in rows.values() for score in each["rows"]]
    lines.sort(key=lambda line: (line[0]["minutes"], -line[1]["bleu"]))
    head = ["CPU minutes", "start", "what changed", "steps", "passes allowed", "lengths"]
    head += SCORES.values()
    cells = [
        [
            f"{each['cpu_minutes']:.1f}",
            "teacher" if each["from_teacher"] else "nothing",
            each["what"],
            f"{each['steps']:,}",
            *(str(score[name]) for name in ("steps", "lengths")),
            *(_number(score.get(name)) for name in SCORES),
        ]
        for each, score in lines
    ]
    about = "Multi30k de-en, validation split, `python scripts/speedrun.py NAME`; 2 cores of an AMD EPYC.\n\n"
    return about + "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *cells])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _process_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def padir(*words: str) -> int:
    """Run a command of padir in the root of the checkout; returns its exit status."""
    return subprocess.run([sys.executable, "-m", "padir", *words], cwd=ROOT).returncode


if __name__ == "__main__":
    main()

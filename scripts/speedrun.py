"""Trains and scores the tries of a board: the best Multi30k de-en score in 16 to 120 core-minutes.

python scripts/speedrun.py                                                               # lists the tries
python scripts/speedrun.py NAME ... --data DISTILLED --teacher MODEL --known_words FILE  # runs them, writes the board

DISTILLED is a folder of `padir distill`, MODEL the teacher's model directory, FILE human English text for the metric of
non-words. Beside DISTILLED, `raw` needs the folder that was distilled, by the name multi30k_de_en. The tries of 60
and more core-minutes need DISTILLED_greedy, from the same MODEL without a beam, and `drafter` needs it by the name
multi30k_de_en_distilled_greedy. The `_adapted` tries need the vocabulary padir/pretrained/de_en_ar/vocab.model.

Tries run on one core (start two at once with `taskset -c 0` and `-c 1`) with the variables of `VARIABLES`. A
core-minute is one core for a minute, measured as process time. The number of steps of a try is fixed in this file,
chosen from a measured rate. Scores are those of the validation split; the board is results/speedrun.json
and, as a table, results/speedrun.md. A stopped try goes on where it stopped.
"""

import argparse
import dataclasses
import fcntl
import hashlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from result_tables import SOURCES, table

from padir.measuring.benchmark.speed_report import environment
from padir.storage.files import write_json, write_text
from padir.storage.manifest import MANIFEST

ROOT = Path(__file__).resolve().parent.parent
BOARD = ROOT / "results" / "speedrun.json"
RUNS = ROOT / "runs" / "speedrun"
BASE = "configs/run/multi30k_de_en_distilled_cpu.gin"
SHARED = ("Intervals.evaluate=0",)
VARIABLES = {"JAX_DEFAULT_MATMUL_PRECISION": "BF16_BF16_F32", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
STARTED = ("Cosine.peak=1e-2", "Cosine.warmup_steps=50")

SCORES = {"bleu": "BLEU", "chrf": "chrF", "non_words": "non-words", "stutter_before": "stutter before clean-up"}
SCORES |= {"length_ratio": "length ratio", "passes": "passes"}


@dataclasses.dataclass(frozen=True)
class Try:
    """One line of the board.

    Attributes:
      what: what is special about it.
      budget: core-minutes that its training may take.
      steps: number of training steps.
      files, bindings: gin files and bindings after those that all tries share.
      start: begin with the parameters of the "teacher", of "nothing", or of a model that comes with padir.
      data: the prepared folder beside DISTILLED to train on; "": DISTILLED itself.
      more: what the name of a second folder adds to the first one's; "": there is no second folder.
    """

    what: str
    budget: int
    steps: int
    files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    start: str = "teacher"
    data: str = ""
    more: str = ""


CTC = ("configs/objective/ctc.gin",)
DUAL = ("configs/objective/dual.gin",)
# The canvas is twice as wide as the widest source of a batch, which is therefore no wider than the targets.
CTC_SHAPE = ("ModelConfig.max_length=128", "Batching.rows=32", "Batching.source_row_length=64")
LONG = ("ModelConfig.dropout_rate=0.1", "Batching.rows=8")
CTC_LONG = (CTC_SHAPE[0], CTC_SHAPE[2], "ModelConfig.dropout_rate=0.1", "Batching.rows=16")
DUAL_LONG = (*LONG, "Causal.label_smoothing=0.1")
CAUSAL = ("configs/objective/autoregressive.gin",)
RDM = ("configs/objective/rdm.gin",)
# The shipped models' vocabulary splits some captions into more than 64 pieces.
WIDE = ("ModelConfig.dropout_rate=0.1", "Batching.source_row_length=96")
CAUSAL_LONG = ("ModelConfig.dropout_rate=0.1", "Causal.label_smoothing=0.1")
DEEP = ("ModelConfig.encoder_layers=5", "ModelConfig.decoder_layers=1")
TRIES = {
    "padir": Try("the paper's objective", 30, 2_100),
    "padir_120": Try("the paper's objective, dropout 0.1, also greedy text", 120, 6_500, (), LONG, more="_greedy"),
    "ctc_120": Try("CTC with glancing, dropout 0.1, also greedy text", 120, 3_000, CTC, CTC_LONG, more="_greedy"),
    "dual_120": Try(
        "the same as a dual model, whose causal score chooses the length", 120, 5_000, DUAL, DUAL_LONG, more="_greedy"
    ),
    "dual_120_deep": Try(
        "a dual model with dropout 0.1 and greedy text, 5 encoder layers and 1 decoder layer",
        120,
        6_000,
        DUAL,
        (*DUAL_LONG, *DEEP),
        more="_greedy",
    ),
    "ctc_dual": Try(
        "CTC with glancing from masks, as a dual model, dropout 0.1, also greedy text",
        60,
        1_200,
        (*CTC, *DUAL),
        (*CTC_LONG, "Objective.corruption=@Mask()", "Sum.causal_weight=0.5"),
        more="_greedy",
    ),
    "causal": Try("autoregressive, dropout 0.1, also greedy text", 60, 4_000, CAUSAL, CAUSAL_LONG, more="_greedy"),
    "ctc_adapted": Try(
        "`de_en_ctc`, trained further as it was, also greedy text",
        90,
        1_600,
        (*CTC, *DUAL),
        (
            *WIDE,
            "ModelConfig.max_length=192",
            "Batching.rows=8",
            "Objective.corruption=@Mask()",
            "Sum.causal_weight=0.5",
        ),
        start="de_en_ctc",
        more="_greedy",
    ),
    "causal_adapted": Try(
        "`de_en_ar`, trained further, also greedy text", 90, 3_500, CAUSAL, WIDE, start="de_en_ar", more="_greedy"
    ),
    "deep": Try("5 encoder layers and 1 decoder layer, in place of 3 and 2", 30, 2_300, bindings=DEEP),
    "deep_causal": Try(
        "autoregressive, 5 encoder layers and 1 decoder layer", 30, 3_800, CAUSAL, (*DEEP, "Causal.label_smoothing=0.1")
    ),
    "mdlm": Try("masked diffusion (mdlm)", 30, 3_200, ("configs/objective/mdlm.gin",)),
    "rdm": Try("reparameterised diffusion (rdm)", 30, 3_200, RDM),
    "ctc": Try("CTC with glancing, stages none and all", 30, 1_450, CTC, CTC_SHAPE),
    "drafter": Try(
        "CTC with glancing, 1 decoder layer on the teacher's frozen encoder, greedy text",
        30,
        1_100,
        CTC,
        (
            "ModelConfig.max_length=160",
            CTC_SHAPE[1],
            "Batching.source_row_length=80",
            "ModelConfig.decoder_layers=1",
            "train.freeze=('encoder', 'token_embedder')",
        ),
        data="multi30k_de_en_distilled_greedy",
    ),
    # The paper's components, one left out of each try.
    "baseline": Try("the paper's objective", 16, 1_050),
    "unmasking_01": Try("unmasking rate 0.1", 16, 1_050, ("configs/ablation/unmasking_01.gin",)),
    "unmasking_09": Try("unmasking rate 0.9", 16, 1_050, ("configs/ablation/unmasking_09.gin",)),
    "no_positions": Try("no positional attention", 16, 1_175, ("configs/ablation/no_positional_attention.gin",)),
    "stages_1": Try("one stage", 16, 1_600, ("configs/ablation/stages_1.gin",)),
    "raw": Try("the corpus, not distilled", 16, 1_050, data="multi30k_de_en"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--data", default="data/multi30k_de_en_distilled")
    parser.add_argument("--teacher", default="runs/multi30k_de_en_ar_cpu")
    parser.add_argument("--known_words", nargs="+", default=[])
    args = parser.parse_args()
    if not args.names:
        print("\n".join(f"{name}: {each.what}, {each.budget} core-minutes" for name, each in TRIES.items()))
        print("With _nothing behind its name a try begins with nothing, with _other it has another seed.")
    chosen: dict[str, Try] = {}
    for name in args.names:
        if (each := tried(name)) is None:
            parser.error(f"there is no try {name!r}: known are {', '.join(TRIES)}")
        chosen[name] = each
    needed = {folder for each in chosen.values() for folder in folders(each, args.data)}
    missing = {str(each) for each in needed if not each.is_dir()}
    if missing:
        parser.error(f"there is no folder {', '.join(sorted(missing))}: see --help")
    for name, each in chosen.items():
        data = [str(folder) for folder in folders(each, args.data)]
        train(name, each, data, args.teacher)
        found = score(name, each, data[0], args.teacher, args.known_words)
        with open(RUNS / "lock", "w") as lock:  # the board may get two tries at once
            fcntl.flock(lock, fcntl.LOCK_EX)
            rows = json.loads(BOARD.read_text()) if BOARD.exists() else {}
            rows[name] = found
            write_json(BOARD, rows)
            write_text(BOARD.with_suffix(".md"), page(rows))


def tried(name: str) -> Try | None:
    """The try of a name, which may end in `_nothing` or `_other`; None if there is none."""
    if name in TRIES:
        return TRIES[name]
    base, _, change = name.rpartition("_")
    each = TRIES.get(base)
    if each is None or change not in ("nothing", "other") or (change == "nothing" and each.start != "teacher"):
        return None
    if change == "nothing":
        return dataclasses.replace(each, start="nothing")
    return dataclasses.replace(each, what=f"{each.what}, seed 1", bindings=(*each.bindings, "train.seed=1"))


def folders(each: Try, distilled: str) -> list[Path]:
    """The prepared folders of a try."""
    first = each.data or Path(distilled).name
    names = [first, first + each.more] if each.more else [first]
    return [ROOT / Path(distilled).parent / name for name in names]


def train(name: str, each: Try, data: list[str], teacher: str) -> None:
    """Train a try to its end, unless it is there, and add the process time of this call to that of earlier ones."""
    run = RUNS / name
    recipe, asked = run.with_suffix(".recipe"), json.dumps([dataclasses.asdict(each), SHARED, data, teacher])
    if recipe.exists() and recipe.read_text() != asked:
        raise SystemExit(f"{run} was begun as another try or from other data: remove it and {recipe}")
    RUNS.mkdir(parents=True, exist_ok=True)
    recipe.write_text(asked)
    if (run / "manifest.json").exists():
        return
    # Models without predicted lengths have no such loss, and RDM has a weight of its own.
    lengths = [] if {*CTC, *CAUSAL, *RDM} & {*each.files} else ["Objective.length_weight=5.0"]
    bindings = [*SHARED, *lengths, f"train.num_steps={each.steps}", *each.bindings]
    if each.start != "nothing":
        bindings += [f"train.start_from='{teacher if each.start == 'teacher' else each.start}'", *STARTED]
    files = [f"--gin_file={file}" for file in (BASE, *each.files)]
    words = [*files, *(f"--gin.{binding}" for binding in bindings), "--data", *data, "--model_dir", str(run)]
    spent = run.with_suffix(".seconds")
    before = _process_time()
    done = padir("train", *words)
    total = (float(spent.read_text()) if spent.exists() else 0.0) + _process_time() - before
    write_text(spent, f"{total}\n")
    if done:
        raise SystemExit(f"{name} stopped after {total / 60:.1f} core-minutes; the same command goes on with it")


def score(name: str, each: Try, data: str, teacher: str, known_words: list[str]) -> dict[str, Any]:
    """Scores of a trained try on the validation split, what it cost, and what it was trained with."""
    run = RUNS / name
    results = run.with_suffix(".json")
    ways = ["--split", "validation", "--json", str(results)]
    if each.files == CAUSAL:
        ways += ["--beam", "1", "5"]
    elif {*CTC} & {*each.files}:
        ways += ["--num_steps", "1", "--prefix_beam", "1", "5", "--blank_penalty", "0", "0.5", "1", "1.5", "2"]
    else:
        ways += ["--num_steps", "1", "4", "--num_lengths", "1", "5"]
    words = ["--metric", *(f"known_words={path}" for path in known_words)] if known_words else []
    words += ["--rerank", "causal"] if {*DUAL} & {*each.files} else []
    if padir("evaluate", "--model", str(run), "--data", data, *ways, *words):
        raise SystemExit(f"{name} could not be scored")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    return {
        **dataclasses.asdict(each),
        "core_minutes": float(run.with_suffix(".seconds").read_text()) / 60,
        "teacher": f"{Path(teacher).name} {hashlib.sha256((ROOT / teacher / MANIFEST).read_bytes()).hexdigest()[:8]}",
        "commit": subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip(),
        "machine": environment()["processor"],
        "loss": next(row["loss"] for row in reversed(logged) if "loss" in row),
        "rows": [_scores(row) for row in json.loads(results.read_text())],
    }


def _scores(row: dict[str, Any]) -> dict[str, Any]:
    scores = {name: row["scores"][name]["value"] for name in SCORES if name in row["scores"]}
    beam = (row["search"] or {}).get("size")
    way = {"steps": row["num_steps"], "lengths": row["num_lengths"] * row["prefix_beam"] if beam is None else beam}
    return {**way, "blank_penalty": row["blank_penalty"], **scores}


def page(rows: dict[str, Any]) -> str:
    """The board: a line for each try, the best of a budget first. Columns after the best way belong to it."""
    tries = sorted(rows.values(), key=lambda each: (each["budget"], -_best(each)["bleu"]))
    ways = [(1, 1), (1, 5), (4, 1), (4, 5)]
    head = ["core-minutes", "start", "what changed", "steps"]
    head += [f"BLEU, {_way(*way)}" for way in ways] + ["best way", "its BLEU", *list(SCORES.values())[1:], *SOURCES]
    cells = []
    for each in tries:
        best = _best(each)
        usual = [row for row in _scored(each) if not row.get("blank_penalty")]
        by_way = {(row["steps"], row["lengths"]): row["bleu"] for row in usual}
        others = [best.get(name) for name in SCORES]
        best_way = _way(best["steps"], best["lengths"], best.get("blank_penalty"))
        what = [f"{each['core_minutes']:.1f}", each["start"], each["what"], f"{each['steps']:,}"]
        cells.append(
            [
                *what,
                *(_number(by_way.get(way)) for way in ways),
                best_way,
                *map(_number, others),
                *(each[name] for name in SOURCES),
            ]
        )
    about = (
        "Multi30k de-en, validation split, `python scripts/speedrun.py NAME`. A core-minute is one core for a minute,"
    )
    about += " without the training of the teacher or of what a try begins with."
    about += " Compare only lines with the same budget, teacher and machine.\n\n"
    return about + table(head, cells) + "\n"


def _way(steps: int | None, lengths: int, blank_penalty: float | None = None) -> str:
    if steps is None:
        return f"beam of {lengths}" if lengths > 1 else "greedy search"
    penalty = f", blank penalty {blank_penalty:g}" if blank_penalty else ""
    return f"{steps} pass{'es' * (steps > 1)}, {lengths} length{'s' * (lengths > 1)}{penalty}"


def _best(each: dict[str, Any]) -> dict[str, Any]:
    return max(_scored(each), key=lambda score: score["bleu"])


def _scored(each: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in each["rows"] if "bleu" in row]  # a model may refuse several lengths


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _process_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def padir(*words: str) -> int:
    """Run a command of padir in the root of the checkout; returns its exit status. After Ctrl-C it may still save."""
    command = subprocess.Popen([sys.executable, "-m", "padir", *words], cwd=ROOT, env={**os.environ, **VARIABLES})
    while True:
        try:
            return command.wait()
        except KeyboardInterrupt:
            print("waiting for padir to save its step", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Gathers what `scripts/shipped.sh` evaluated in files of results/, and compares models by paired bootstrap.

python scripts/shipped.py runs/shipped
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from result_tables import RESULTS

from padir.cli.console import read_lines
from padir.metrics.significance import compare
from padir.storage.files import parsed_json, write_json

COPIED = ("bible_stutter", "strategies_validation", "blank_penalty")
SETS = {"Tatoeba": "tatoeba", "the Bible": "bible", "Multi30k": "multi30k"}
WAYS = {"one pass": "one_pass", "table": "table", "fallback": "fallback", "greedy": "greedy"}
Texts = dict[tuple[str, int | None, int], list[str]]


def texts(evaluated: Path) -> tuple[Texts, list[str]]:
    """The translations of each row by (model, beam, hypotheses read out of a canvas), and the references."""
    rows = evaluated.with_suffix(".rows")
    found = {}
    for number, row in enumerate(parsed_json(evaluated.with_suffix(".json").read_bytes()), 1):
        model = row["model"].partition(",")[0]
        beam = row["search"] and row["search"]["size"]
        found[model, beam, 1 if row["causal"] else row["prefix_beam"]] = read_lines(str(rows / f"{number:02}.txt"))
    return found, read_lines(str(rows / "reference.txt"))


def apart(better: list[str], worse: list[str], references: list[str]) -> dict[str, Any]:
    """BLEU of two systems, and the 95 % interval of their difference."""
    baseline, other = (
        each for each in compare(references, [("worse", worse), ("better", better)], "en") if each.metric == "BLEU"
    )
    return {"score": other.score, "baseline": baseline.score, "difference": other.difference}


def differences(runs: Path) -> dict[str, dict[str, Any]]:
    """The comparisons that pages name."""
    test, references = texts(runs / "shipped_tatoeba")
    held_out, held_out_references = texts(runs / "shipped_validation")
    one_pass, _ = texts(runs / "one_pass")
    said = {
        "de_en_ar_beam_5": apart(test["de_en_ar", 5, 1], test["de_en", 1, 1], references),
        "de_en_greedy": apart(test["de_en", 1, 1], test["de_en", None, 1], references),
        "de_en_greedy_validation": apart(held_out["de_en", 1, 1], held_out["de_en", None, 1], held_out_references),
    }
    others = {"greedy": ("de_en_ctc", 1), "de_en_ar_greedy": ("de_en_ar", 1), "de_en_ar_beam_5": ("de_en_ar", 5)}
    for way, beam in (("one_pass", 1), ("choice_of_5", 5)):
        for name, (model, size) in others.items():
            said[f"{way} {name}"] = apart(one_pass[model, size, 1], one_pass["de_en_ctc", None, beam], references)
    return said


def fusion(runs: Path) -> dict[str, dict[str, Any]]:
    """The row of each way on each validation set."""
    return {
        name: {way: parsed_json((runs / f"fusion_{own}.{file}.json").read_bytes())[0] for way, file in WAYS.items()}
        for name, own in SETS.items()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path, help="the folder of `scripts/shipped.sh`")
    folder = parser.parse_args().runs
    for name in COPIED:
        shutil.copyfile(folder / f"{name}.json", RESULTS / f"{name}.json")
    write_json(RESULTS / "fusion_validation.json", fusion(folder))
    write_json(RESULTS / "shipped_compare.json", differences(folder))

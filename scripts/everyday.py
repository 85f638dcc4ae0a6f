"""Translates the everyday sentences with every shipped system, and counts what readers find acceptable.

python scripts/everyday.py translate               # results/everyday.json: each system's outputs
python scripts/everyday.py sheet --seed 1 > A.tsv  # for a reader: each sentence's distinct outputs, in random order
python scripts/everyday.py count A.tsv B.tsv       # results/everyday.md: outputs side by side, counts, agreement

The readers' sheets are results/everyday_reader1.tsv and results/everyday_reader2.tsv.

A reader, who does not know which system wrote what, puts a 1 for an acceptable output or a 0 at the end of each line of
the sheet, after the last tab. Acceptable is what says in understandable English what the German sentence says; small
faults of grammar do not count.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

from result_tables import RESULTS, table

SENTENCES, OUTPUTS, PAGE = (RESULTS / name for name in ("everyday_de.txt", "everyday.json", "everyday.md"))
SYSTEMS = {  # options of `padir translate`
    "de_en, 1 length": "--model de_en --top_k 1",
    "de_en, 5 lengths": "--model de_en --rerank own --brevity 1.5",
    "de_en, 5 lengths, chosen by its autoregressive side (the default)": "--model de_en",
    "de_en, 5 lengths, rescored by de_en_ar": "--model de_en --rerank de_en_ar",
    "de_en, from left to right, beam 5": "--model de_en --mode causal --beam 5",
    "de_en_ar, greedy": "--model de_en_ar --beam 1",
    "de_en_ar, beam 5": "--model de_en_ar --beam 5",
}
Marks = dict[tuple[int, str], int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("translate")
    commands.add_parser("sheet").add_argument("--seed", type=int, required=True)
    commands.add_parser("count").add_argument("sheets", nargs=2, metavar="SHEET")
    args = parser.parse_args()
    if args.command == "translate":
        found = {name: translate(options.split()) for name, options in SYSTEMS.items()}
        OUTPUTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return
    sources, outputs = lines(SENTENCES), json.loads(OUTPUTS.read_text(encoding="utf-8"))
    if args.command == "sheet":
        sys.stdout.writelines(sheet(sources, outputs, args.seed))
        return
    PAGE.write_text(page(sources, outputs, *(marks(Path(each)) for each in args.sheets)), encoding="utf-8")


def translate(options: list[str]) -> list[str]:
    """The outputs of `padir translate` for the everyday sentences."""
    command = [sys.executable, "-m", "padir", "translate", *options]
    done = subprocess.run(command, input=SENTENCES.read_bytes(), stdout=subprocess.PIPE, check=True)
    return done.stdout.decode("utf-8").splitlines()


def sheet(sources: list[str], outputs: dict[str, list[str]], seed: int) -> list[str]:
    """A reader's lines, without marks."""
    rows = []
    for i, source in enumerate(sources):
        distinct = sorted({texts[i] for texts in outputs.values()})
        random.Random(f"{seed} {i}").shuffle(distinct)
        rows += [f"{i + 1}\t{source}\t{text}\t\n" for text in distinct]
    return rows


def marks(path: Path) -> Marks:
    """The marks of a reader's sheet, by number of the sentence and output."""
    found = {}
    for i, line in enumerate(lines(path), 1):
        fields = line.split("\t")
        if len(fields) != 4 or fields[3] not in ("0", "1"):
            raise SystemExit(f"{path}, line {i} must end in a tab and 0 or 1, got {line!r}")
        found[int(fields[0]) - 1, fields[2]] = int(fields[3])
    return found


def page(sources: list[str], outputs: dict[str, list[str]], first: Marks, second: Marks) -> str:
    """The counts of both readers, their agreement, and all outputs; ✓ for each reader who accepts an output."""
    names = list(outputs)
    given = [(i, outputs[name][i]) for i in range(len(sources)) for name in names]
    if missing := [text for text in given if text not in first or text not in second]:
        raise SystemExit(f"a sheet lacks an output, {missing[0]}: it was made for other outputs")
    judged = [(first[each], second[each]) for each in sorted(set(given))]
    agreed, kappa = agreement(judged)
    counts = [
        (name, *(sum(reader[i, text] for i, text in enumerate(outputs[name])) for reader in (first, second)))
        for name in names
    ]
    head = [
        "# Everyday sentences",
        "",
        f"{len(sources)} sentences ([everyday_de.txt](everyday_de.txt)), translated with `python scripts/everyday.py"
        f" translate`. Two readers, who did not know the systems, marked {len(judged)} different outputs as good or"
        f" not. They agree on {100 * agreed:.0f} % of them (Cohen's kappa {kappa:.2f}).",
        "",
        table(["system", "reader 1", "reader 2"], [[name, str(one), str(two)] for name, one, two in counts], text=True),
        "",
        "## Every output",
        "",
        "A ✓ for each reader who accepts it.",
        "",
    ]
    body = []
    for i, source in enumerate(sources):
        systems: dict[str, list[str]] = {}
        for name in names:
            systems.setdefault(outputs[name][i], []).append(name)
        for text, by in systems.items():
            accepted = "✓" * (first[i, text] + second[i, text])
            body.append([source, text, accepted, "; ".join(by)])
    return "\n".join([*head, table(["German", "output", "accepted", "systems"], body, text=True), ""])


def agreement(judged: list[tuple[int, int]]) -> tuple[float, float]:
    """The share of outputs on which two readers agree, and Cohen's kappa, 0 for as often as by chance."""
    one, two = (sum(marks) / len(judged) for marks in zip(*judged, strict=True))
    agreed, chance = sum(a == b for a, b in judged) / len(judged), one * two + (1 - one) * (1 - two)
    return agreed, (agreed - chance) / (1 - chance) if chance < 1 else 0.0


def lines(path: Path) -> list[str]:
    """The lines of a file, without their ends."""
    return path.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    main()

"""The record of all ways of decoding with the models that come with padir, before and after a change of structure.

    python scripts/record.py --input test.de --output before.json                         # minutes on 2 cores
    python scripts/record.py --input test.de --output after.json --compare before.json

A record has the text, score, passes and length of every translation, its candidates, alignment and traced pieces. All
lines are translated by each model's default and by each of its modes; the first 60 lines by every other option. A
combination that is refused is recorded with its error. `--compare` prints the ways in which a line differs, and ends
with status 1 if one does. Scores are compared up to `--tolerance`, because other programs round differently.

The file holds the input's sentences: keep it outside the repository.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from padir import Translator
from padir.decoding import Decoding
from padir.errors import PadirError
from padir.refinement.strategies import STRATEGIES

SOME = 60
SPANS = "<b>{}</b> Siehe www.example.org/a, 20 km, {{name}} &amp; Söhne."


def ways_of(name: str) -> Iterator[dict[str, Any]]:
    """The options of a model's rows; the first three are for all lines."""
    several = "prefix_beam" if name == "de_en_ctc" else "num_lengths"
    yield {}
    yield dict(mode="refine")
    yield dict(mode="causal", beam=1)
    for strategy in (*STRATEGIES, "padir:remask=start", "threshold:tau=0.5", "rewrite_all"):
        yield dict(mode="refine", strategy=strategy, num_steps=4, trace=True)
    yield dict(mode="refine", canvas="mask", strategy="mask_predict", num_steps=3)
    for number in (1, 2, 10):
        yield dict(mode="refine", num_steps=number, trace=True)
    for rerank in ("own", "causal", "mbr", "mbr_bleu", "de_en_ar"):
        yield dict(mode="refine", **{several: 4}, rerank=rerank, n_best=4)
        yield dict(mode="refine", **{several: 4}, rerank=rerank, n_best=2, num_steps=1)
    yield dict(mode="refine", **{several: 3}, length_window=False, num_drafts=2, rerank="own", n_best=6)
    yield dict(mode="refine", **{several: 3}, rerank="own", length_normalization=0.0)
    yield dict(mode="refine", **{several: 1}, drop_repeats=False, seed=7)
    yield dict(mode="refine", **{several: 1}, rerank="own", blank_penalty=2.0)
    for mode in ("refine", "causal"):
        yield dict(mode=mode, precision="int8")
        yield dict(mode=mode, precision="bfloat16")
        yield dict(mode=mode, align=True)
        yield dict(mode=mode, lines=SPANS, placeholders=("tags", "urls", "numbers"))
        yield dict(mode=mode, terms={"Haus": "mansion", "Wasser": "water supply", "nicht": "never"})
        yield dict(mode=mode, template="I ___")
        yield dict(mode=mode, seed=5, batch_size=30)
    yield dict(mode="refine", template="I ___ it.")
    yield dict(mode="refine", lines="Nur {} Zahlen 1000, 2000.", placeholders=("numbers",), **{several: 3}, n_best=3)
    yield dict(mode="causal", beam=5, length_penalty=1.0)
    yield dict(mode="causal", temperature=0.7, num_drafts=3)


def row(translator: Translator, lines: Sequence[str], options: dict[str, Any]) -> Any:
    """The translations of a way, or the error that refuses it."""
    lines = [options.get("lines", "{}").format(line) for line in lines]
    options = {name: value for name, value in options.items() if name != "lines"}
    if len(lines) == SOME:  # one batch needs one program
        options = {"batch_size": SOME, **options}
    try:
        found = translator.translate(lines, truncate=True, **options)
    except PadirError as error:
        return str(error)
    return [
        {
            "text": each.text,
            "score": each.score,
            "passes": each.passes,
            "length": each.length,
            "candidates": [(other.text, other.score, other.length) for other in each.candidates],
            "alignment": each.alignment,
            "trace": None if each.trace is None else [" ".join(pieces) for pieces, _ in each.trace],
        }
        for each in found
    ]


def made(lines: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for name in ("de_en", "de_en_ctc", "de_en_ar"):
        translator = Translator.load(name)
        for number, options in enumerate(ways_of(name)):
            began = time.perf_counter()
            found = row(translator, lines if number < 3 else lines[:SOME], options)
            seconds = time.perf_counter() - began
            title = f"{name} {json.dumps(options, sort_keys=True)}"
            print(f"{seconds:6.1f} s  {title}", file=sys.stderr)
            yield title, found
        some = lines[:SOME]
        targets = [each.text for each in translator.translate(some, Decoding(), truncate=True)]
        try:
            scored = translator.score(some, targets, truncate=True)
            yield f"{name} score", [{"score": each[0], "tokens": each[1]} for each in scored]
        except PadirError as error:
            yield f"{name} score", str(error)


def differences(before: Any, after: Any, tolerance: float) -> list[str]:
    """The names of the fields in which two rows differ, with the number of lines."""
    if isinstance(before, str) or isinstance(after, str):
        return [] if before == after else [f"was {str(before)[:100]!r}, is {str(after)[:100]!r}"]
    counts: dict[str, int] = {}
    for one, other in zip(before, after, strict=True):
        for name, value in one.items():
            if not close(value, other[name], tolerance):
                counts[name] = counts.get(name, 0) + 1
    return [f"{name} of {count} of {len(before)} lines" for name, count in counts.items()]


def close(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= tolerance or one == other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(close(a, b, tolerance) for a, b in zip(one, other, strict=True))
    return one == other


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="German sentences, one a line")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the record, as JSON")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier record")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="largest difference of equal scores (1e-5)")
    args = parser.parse_args()
    lines = args.input.read_text(encoding="utf-8").splitlines()
    record = json.loads(json.dumps(dict(made(lines))))
    args.output.write_text(json.dumps(record, ensure_ascii=False, indent=0), encoding="utf-8")
    if args.compare is None:
        return 0
    before = json.loads(args.compare.read_text(encoding="utf-8"))
    status = 0
    for title in dict.fromkeys([*before, *record]):
        if title not in before or title not in record:
            print(f"{title}: only {'before' if title in before else 'after'}")
            status = 1
        elif found := differences(before[title], record[title], args.tolerance):
            print(f"{title}: {'; '.join(found)}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())

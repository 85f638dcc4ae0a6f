"""Sends hostile lines through `padir translate` and checks that as many come out, in order.

    python scripts/fuzz.py --lines 10000

The lines are empty, of spaces, of a megabyte, NUL, surrogates and other bytes that are not UTF-8, bidirectional
controls, storms of combining marks, emoji, text that looks like special tokens, CRLF and lone CR, and separators that
end no line. Three things are checked:

1. As many lines come out as went in, and those of blanks are empty.
2. A sample of lines, each translated alone, is what stands in its place.
3. A second run with another --batch_size writes the same. Batches of other shapes are other matrix products, of which
   the last bits differ, so few lines may change: where two tokens are as likely to the model.

    python scripts/fuzz.py --folders 500

instead makes up that many model directories whose manifests agree: fields of model.json with values of other types and
sizes, weights of other types or not finite, bytes flipped or cut. Each must load or be refused by a PadirError, and
soon.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORDS = "Wo ist der Bahnhof bitte heute eins zwei drei Straße Öl 10.000 3,5 %".split()
LOOK_SPECIAL = "<extra_id_0> </s> <s> <pad> <unk> <0x41> <mask> [LENGTH] ▁ ⁇".split()
SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"
BIDI = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "👍🏽", "❤️", "\U0001faf8", "\U000e0041"]
INVALID = [bytes.fromhex(each) for each in "ff feff eda080 edb080eda080 c080 f4908080 e4b8".split()]
MAY_DIFFER = 0.005  # of the lines, where two tokens are as likely


def words(rng: random.Random, most: int = 12) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def sprinkled(rng: random.Random, signs: list[str] | str) -> str:
    """Words with some of the signs between and inside them."""
    return "".join(rng.choice(signs) if rng.random() < 0.4 else rng.choice(WORDS) for _ in range(rng.randint(1, 12)))


def any_bytes(rng: random.Random) -> bytes:
    return bytes(rng.randrange(256) for _ in range(rng.randint(1, 60))).replace(b"\n", b"")


def invalid(rng: random.Random) -> bytes:
    return b" ".join(rng.choice([rng.choice(INVALID), words(rng, 2).encode()]) for _ in range(rng.randint(1, 8)))


def any_text(rng: random.Random) -> str:
    return "".join(chr(rng.choice([rng.randrange(32, 0xD800), rng.randrange(0xE000, 0x110000)])) for _ in range(20))


def storm(rng: random.Random) -> str:
    marks = [chr(rng.randrange(0x300, 0x370)) for _ in range(rng.choice([3, 50, 2_000]))]
    return words(rng, 2) + "".join(marks)


def megabyte(rng: random.Random) -> bytes:
    unit = rng.choice([b"a", b" ", b"Wort ", b"\x00", b"\xff", "e\u0301".encode(), "👍".encode(), b"7", b"\r"])
    return unit * (1_000_000 // len(unit))


# What makes a line, without its end, and how often.
KINDS: dict[str, tuple[int, Callable[[random.Random], str | bytes]]] = {
    "words": (300, words),
    "empty": (80, lambda rng: b""),
    "spaces": (60, lambda rng: "".join(rng.choice(" \t\u00a0\u3000\u2003") for _ in range(rng.randint(1, 30)))),
    "NUL": (60, lambda rng: sprinkled(rng, "\x00")),
    "controls": (60, lambda rng: sprinkled(rng, "\x01\x07\x08\x1b\x7f\x9b")),
    "not UTF-8": (80, invalid),
    "any bytes": (60, any_bytes),
    "any text": (80, any_text),
    "bidirectional": (50, lambda rng: sprinkled(rng, BIDI)),
    "combining": (40, storm),
    "emoji": (50, lambda rng: sprinkled(rng, EMOJI)),
    "like special": (80, lambda rng: sprinkled(rng, LOOK_SPECIAL)),
    "lone CR": (40, lambda rng: sprinkled(rng, "\r")),
    "separators": (60, lambda rng: sprinkled(rng, SEPARATORS)),
    "marks": (40, lambda rng: sprinkled(rng, "\ufeff\u200b\u2060\ufffe\uffff\ufffd")),
    "long": (20, lambda rng: words(rng, 2_000)),
    "megabyte": (1, megabyte),
}


def hostile_lines(count: int, seed: int = 0) -> list[bytes]:
    """Lines without their LF; every kind is among the first of them, and a fifth ends in CR."""
    rng = random.Random(seed)
    weights = [weight for weight, _ in KINDS.values()]
    lines = []
    for name in [*KINDS, *rng.choices(list(KINDS), weights, k=count)][:count]:
        line = KINDS[name][1](rng)
        line = line if isinstance(line, bytes) else line.encode("utf-8")
        lines.append(line + b"\r" * (rng.random() < 0.2))
    return lines


def translate(model: str, source: Path, *options: str) -> tuple[list[str], str, float]:
    """Lines, stderr and seconds of `padir translate`; leaves by an error if it fails."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "padir", "translate", "--model", model, *options]
    done = subprocess.run(command, input=source.read_bytes(), capture_output=True)
    errors = done.stderr.decode("utf-8")
    if done.returncode or "Traceback" in errors:
        sys.exit(f"exit status {done.returncode}:\n{errors[-2_000:]}")
    out = done.stdout.decode("utf-8").split("\n")
    if out.pop() != "":
        sys.exit("the last line has no end")
    return out, errors, time.perf_counter() - began


WRONG: list[Any] = [None, True, -1, 0, 0.5, 2**31, 10**9, 10**12, 10**400, float("nan"), float("inf"), 1e-300]
WRONG += ["", "\x1b[2J", "../../etc/passwd", "\ud800", "x" * 100_000]
WRONG += [[], {}, [[]], ["relu"] * 100_000, {"name": "os.system"}]
MOST_SECONDS = 20.0  # to load or to refuse a small model, on a machine that does other work, too


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def forge_card(rng: random.Random, folder: Path) -> str:
    """Replaces or removes a value of model.json; returns what was done."""
    card = json.loads((folder / "model.json").read_text())
    *parents, last = rng.choice(places(card)[1:])
    place = card
    for parent in parents:
        place = place[parent]
    value = rng.choice([*WRONG, ...])
    if value is ...:
        del place[last]
    else:
        place[last] = value
    (folder / "model.json").write_text(json.dumps(card))
    return f"model.json: {'/'.join(map(str, [*parents, last]))} = {str(value)[:40]}"


def forge_weights(rng: random.Random, folder: Path) -> str:
    """Gives an array another type, or a value that is not finite; returns what was done."""
    path = folder / "weights.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + size], bytearray(content[8 + size :])
    kind = rng.choice(["F8_E4M3", "F8_E5M2", "F16", "F64", "I32", "BOOL", "X", "NaN", "inf"])
    if kind in ("NaN", "inf"):
        at = 4 * rng.randrange(len(data) // 4)
        data[at : at + 4] = b"\xff\xff\xff\x7f" if kind == "NaN" else b"\x00\x00\x80\x7f"
    else:
        header = header.replace(b'"F32"', f'"{kind}"'.encode(), rng.choice([1, -1]))
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return f"weights.safetensors: {kind}"


def damage(rng: random.Random, folder: Path) -> str:
    """Flips bytes of a file, or cuts it; returns what was done."""
    path = rng.choice([path for path in sorted(folder.iterdir()) if path.name != "manifest.json"])
    content = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(min(len(content), 4_000))] = rng.randrange(256)
    path.write_bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])
    return f"{path.name}: damaged"


def fuzz_folders(model: str, count: int, seed: int) -> dict[str, int]:
    """Loads made-up model directories; leaves by an error if one ends in a traceback or takes long."""
    from padir.errors import PadirError
    from padir.models.directory import load_model
    from padir.pretrained import model_folder
    from padir.storage.manifest import write_manifest

    rng, refused = random.Random(seed), 0
    for number in range(count):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(shutil.copytree(model_folder(model), Path(place) / "model"))
            done = rng.choice([forge_card, forge_card, forge_weights, damage])(rng, folder)
            write_manifest(folder)
            began = time.perf_counter()
            try:
                load_model(folder)
            except PadirError:
                refused += 1
            except Exception as error:
                sys.exit(f"folder {number} ({done}) ended in {type(error).__name__}: {str(error)[:300]}")
            if (seconds := time.perf_counter() - began) > MOST_SECONDS:
                sys.exit(f"folder {number} ({done}) took {seconds:.0f} s")
    return {"folders": count, "refused": refused}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="de_en", help="a model directory, or one that comes with padir (de_en)")
    parser.add_argument("--num_steps", type=int, default=2)
    parser.add_argument("--sample", type=int, default=100, help="lines that are translated alone, too")
    parser.add_argument("--folders", type=int, help="make up this number of model directories instead")
    args = parser.parse_args()
    if args.folders is not None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        print(json.dumps(fuzz_folders(args.model, args.folders, args.seed)))
        return

    raw = hostile_lines(args.lines, args.seed)
    texts = [line.removesuffix(b"\r").decode("utf-8", errors="replace") for line in raw]  # by Python alone
    options = ("--num_steps", str(args.num_steps))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.txt"
        source.write_bytes(b"".join(line + b"\n" for line in raw))
        out, errors, seconds = translate(args.model, source, *options)
        again, _, _ = translate(args.model, source, *options, "--batch_size", "20")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    if len(out) != len(raw) or len(again) != len(raw):
        sys.exit(f"{len(raw)} lines went in, {len(out)} and {len(again)} came out")
    filled = [i + 1 for i, (text, line) in enumerate(zip(texts, out, strict=True)) if line and not text.strip()]
    if filled:
        sys.exit(f"blank lines were translated: {filled[:10]}")

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from padir import Translator

    translator = Translator.load(args.model)
    numbers = random.Random(args.seed).sample(range(len(raw)), min(args.sample, len(raw)))
    alone = {i: translator.translate([texts[i]], num_steps=args.num_steps, truncate=True)[0].text for i in numbers}
    moved = [i for i in numbers if alone[i] != out[i]]
    differ = [i for i, (one, other) in enumerate(zip(out, again, strict=True)) if one != other]
    figures = {
        "lines": len(raw),
        "megabytes": round(sum(map(len, raw)) / 1e6, 1),
        "warnings": len(re.findall("^padir: warning: ", errors, flags=re.MULTILINE)),
        "seconds": round(seconds, 1),
        "peak_mb": peak,
        "alone": len(numbers),
        "alone_differ": len(moved),
        "other_batches_differ": len(differ),
    }
    print(json.dumps(figures))
    for what, count, total in (("alone", len(moved), len(numbers)), ("in other batches", len(differ), len(raw))):
        if count > max(1, MAY_DIFFER * total):
            sys.exit(f"{count} of {total} lines are translated otherwise {what}")


if __name__ == "__main__":
    main()

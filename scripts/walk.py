"""Counts the rooms that a text, and a batch, pass on the way to a translation.

    python scripts/walk.py "Wo ist der Bahnhof?" [OPTION=VALUE ...]

A stay is a call of a function of padir, in another file than the call before, that gets the text (or the batch's token
ids) as an argument, or a record that holds it. Calls inside one file, or inside padir/text, are one stay. Prints each
stay, and both numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import padir

ROOT = Path(padir.__file__).parent
DEPTH = 4  # of records within records


def holds(value: Any, wanted: Any, depth: int = DEPTH) -> bool:
    """True if a value is what is wanted, or a record or sequence that holds it."""
    if type(value) is type(wanted) and value == wanted:
        return True
    if depth == 0 or value is None or isinstance(value, str | bytes | int | float | type):
        return False
    if isinstance(value, np.ndarray):
        return (
            isinstance(wanted, list) and value.ndim == 2 and any(row[: len(wanted)] == wanted for row in value.tolist())
        )
    if isinstance(value, dict):
        return any(holds(each, wanted, depth - 1) for each in value.values())
    if isinstance(value, list | tuple):
        return any(holds(each, wanted, depth - 1) for each in value[:8])
    if dataclasses.is_dataclass(value):
        return any(holds(getattr(value, each.name, None), wanted, depth - 1) for each in dataclasses.fields(value))
    return False


class Walk:
    """Follows what is wanted through the calls of one thread (`sys.setprofile`)."""

    def __init__(self, wanted: Any):
        self.wanted = wanted
        self.stays: list[tuple[str, list[str]]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(str(ROOT)) or frame.f_code.co_name.startswith("<"):
            return
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        if not any(holds(frame.f_locals.get(name), self.wanted) for name in names):
            return
        room = str(Path(path).relative_to(ROOT))
        if room.startswith("text/"):
            room = "text"
        if room == "checks.py":  # it looks at arguments and passes nothing on
            return
        if not self.stays or self.stays[-1][0] != room:
            self.stays.append((room, []))
        self.stays[-1][1].append(frame.f_code.co_qualname)

    def lines(self) -> Iterator[str]:
        for number, (room, functions) in enumerate(self.stays, 1):
            yield f"{number:3d}. {room}: {', '.join(dict.fromkeys(functions))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", nargs="?", default="Wo ist der Bahnhof?")
    parser.add_argument("options", nargs="*", metavar="OPTION=NUMBER", help="decoding options")
    args = parser.parse_args()
    text = args.text
    changes: Any = {name: int(value) for name, _, value in (each.partition("=") for each in args.options)}
    translator = padir.Translator.load()
    translator.translate([text], **changes)  # compiles
    (tokens,), _ = translator.loaded.source_tokens([text], truncate=False)
    for name, wanted in (("text", text), ("batch", tokens)):
        walk = Walk(wanted)
        sys.setprofile(walk)
        translator.translate([text], **changes)
        sys.setprofile(None)
        print(f"{name}: {len(walk.stays)} stays in {len({room for room, _ in walk.stays})} rooms")
        print("\n".join(walk.lines()))


if __name__ == "__main__":
    main()

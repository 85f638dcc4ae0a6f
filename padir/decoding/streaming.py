"""Lines of bytes in, lines of text out: what `padir translate` does with any input.

Whatever a line holds, one line comes out for it. What the library would refuse is mended with a warning: bytes that are
not UTF-8 are replaced, sources that are too long are cut. Control characters and text that looks like a special token
are warned of, too, since they are seldom meant. However long the input is, only a chunk of it is in memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import Any, TextIO

from padir.decoding.options import Decoding
from padir.decoding.translation import Translation
from padir.decoding.translator import Translator
from padir.storage.files import atomic_file
from padir.text.lines import ByteReader, byte_lines

_CHUNK_BATCHES = 16  # lines are read for so many batches at once, so that sorting by length saves padding
_CHUNK_CHARACTERS = 1 << 21  # and no more of them than have this many characters
LONGEST_LINE = 1 << 20  # bytes, of which models read the first few thousand at most
_ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|</?s>|<(?:pad|unk|extra_id_\d+)>")


def lines(file: ByteReader, warn: Callable[[str], None], name: str = "") -> Iterator[str]:
    """The lines of a file without line ends (LF or CRLF) and without a byte-order mark.

    Args:
      warn: told of each line that holds what is seldom meant, and of each that is cut.
      name: of the file, for messages.

    Raises:
      PadirError: the file cannot be read to its end.
    """
    where = f"{name}, line" if name else "line"
    for number, (raw, cut) in enumerate(byte_lines(file, name or "the input", LONGEST_LINE), 1):
        if cut:
            warn(f"{where} {number} has more than {LONGEST_LINE:,} bytes: the rest of it was left out")
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            line = raw.decode("utf-8", errors="replace")
            if not cut or error.start < len(raw) - 3:  # else a character that the cut went through
                warn(f"{where} {number} is not UTF-8 (byte {error.start + 1}): what cannot be read became U+FFFD")
        if odd := _ODD.search(line):
            warn(f"{where} {number} holds {odd[0]!r}: it is taken as ordinary text")
        yield line


@dataclasses.dataclass(frozen=True)
class Written:
    """What `translate_lines` has done: lines in all, and the mean of their decoder passes."""

    lines: int = 0
    passes: float = 0.0


def translate_lines(
    translator: Translator,
    source: Iterable[str],
    out: TextIO,
    decoding: Decoding,
    *,
    warn: Callable[[str], None],
    progress: Callable[[int], None] = lambda count: None,
    each: Callable[[str, Translation], None] = lambda source, translation: None,
    trace: bool = False,
) -> Written:
    """Writes one line for each line of `source`, as they get ready, and keeps none.

    Args:
      warn: told of each line that was cut.
      progress: told how many lines have been written since the last time.
      each: given each source with its translation, in their order, before its line is written.
      trace: let translations have their steps.
    """
    first, passes = 0, 0
    for chunk in _chunks(source, decoding.batch_size * _CHUNK_BATCHES):
        results = translator.translate(chunk, decoding, truncate=True, trace=trace, first_number=first)
        for number, (text, result) in enumerate(zip(chunk, results, strict=True), first + 1):
            if result.truncated:
                warn(f"line {number} is longer than the model takes: its end was not translated")
            each(text, result)
            out.write(result.text + "\n")
            passes += result.passes
        out.flush()
        progress(len(chunk))
        first += len(chunk)
    return Written(first, passes / max(1, first))


def _chunks(source: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of `size` lines, or of fewer where they are long; nothing is read before it is asked for."""
    chunk, characters = [], 0
    for line in source:
        chunk.append(line)
        characters += len(line)
        if len(chunk) == size or characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


@contextlib.contextmanager
def translations_json(path: str | PathLike[str]) -> Iterator[tuple[Callable[[str, Translation], None], dict[str, Any]]]:
    """Writes translations as JSON while they come: {"translations": [{...}, ...], "lines": ...}.

    Gives a function that adds one, and a dictionary for the figures that follow them. The file appears when all is
    written, or not at all.
    """
    figures: dict[str, Any] = {}
    count = 0

    def add(source: str, translation: Translation) -> None:
        nonlocal count
        score = translation.score if math.isfinite(translation.score) else None  # JSON knows no infinity
        fields = {name: getattr(translation, name) for name in ("text", "length", "passes", "hypotheses", "truncated")}
        row = {"source": source, "score": score, **fields}
        file.write((",\n  " if count else "\n  ") + json.dumps(row, ensure_ascii=False))
        count += 1

    with atomic_file(path) as file:
        file.write('{\n "translations": [')
        yield add, figures
        file.write("\n ]" if count else "]")
        for name, value in figures.items():
            file.write(f",\n {json.dumps(name)}: {json.dumps(value)}")
        file.write("\n}\n")

"""Translates a stream of lines, as `padir translate` does: bytes in, a translation out for each line.

Input that the library would refuse is repaired with a warning: bytes that are not UTF-8 are replaced, sources that are
too long are cut. Control characters and text that looks like a special token also cause a warning, because they are
seldom intended. Memory holds only a chunk of the input at a time.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import Any

from padir.decoding.options import Decoding
from padir.decoding.paragraphs import TranslatedLine, by_sentences, check_split
from padir.storage.files import atomic_file
from padir.text.lines import ByteReader, byte_lines
from padir.translator import CHUNK_BATCHES, Translator

_CHUNK_CHARACTERS = 1 << 21  # a chunk ends with the line that exceeds this number of characters
LONGEST_INPUT = 1 << 20  # maximum length of a line in bytes; models read at most the first few thousand bytes
_ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|</?s>|<(?:pad|unk|extra_id_\d+)>")


def lines(file: ByteReader, warn: Callable[[str], None], name: str = "") -> Iterator[str]:
    """The lines of a file without line ends (LF or CRLF) and without a byte-order mark.

    `warn` gets a message for each line that was repaired, was cut or holds characters that are seldom intended, with
    `name` as the name of the file.
    """
    where = f"{name}, line" if name else "line"
    for number, (raw, cut) in enumerate(byte_lines(file, name or "the input", LONGEST_INPUT), 1):
        if cut:
            warn(f"{where} {number} has more than {LONGEST_INPUT:,} bytes: the rest of it was left out")
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            line = raw.decode("utf-8", errors="replace")
            if not cut or error.start < len(raw) - 3:  # otherwise the cut went through a character
                became = "what cannot be read became U+FFFD; convert the text with iconv"
                warn(f"{where} {number} is not UTF-8 (byte {error.start + 1}): {became}")
        if odd := _ODD.search(line):
            warn(f"{where} {number} holds {odd[0]!r}: it is taken as ordinary text")
        yield line


def translate_lines(
    translator: Translator,
    source: Iterable[str],
    decoding: Decoding,
    *,
    warn: Callable[[str], None],
    ready: Callable[[], bool] = lambda: True,
    progress: Callable[[int], None] = lambda count: None,
    split: bool = False,
    **how: Any,
) -> Iterator[list[TranslatedLine]]:
    """Translates lines chunk by chunk.

    Args:
      warn: gets a message for each line that was cut, and one at the end about empty translations.
      ready: says whether the next line is there; if it is not, the lines that were read are translated first.
      progress: gets the number of lines, or of their sentences, translated since its last call.
      split: translate each sentence of a line by itself.
      how: further arguments of `Translator.translate` for all lines, such as `trace` and one `template`.
    """
    if split:
        check_split(**{name: value for name, value in how.items() if name != "trace"})
    done_before = empty = first_empty = 0
    translate = functools.partial(translator.translate, decoding=decoding, truncate=True, progress=progress, **how)
    for chunk in _chunks(source, decoding.batch_size, ready):
        done = by_sentences(chunk, translator.card, decoding.placeholders, translate, split=split)
        for number, line in enumerate(done, done_before + 1):
            if line.translation.truncated:
                warn(f"line {number} is longer than the model takes: its end was not translated")
            if any(not result.text.strip() and any(map(str.isalpha, text)) for text, result in line.sentences):
                first_empty = first_empty or number
                empty += 1
        yield done
        done_before += len(chunk)
    if empty:
        warn(
            f"empty translations of lines with words: {empty:,}, the first of line {first_empty}: check their language"
        )


def _chunks(source: Iterable[str], size: int, ready: Callable[[], bool]) -> Iterator[list[str]]:
    """Yields lists of lines; reads no line before its list is needed.

    The first list has `size` lines, so that the first translations come soon. Each further list has twice as many lines
    as the one before it, but at most `CHUNK_BATCHES` * `size`. A list has fewer lines if the lines are long, or if the
    next line is not ready.
    """
    chunk, characters, most = [], 0, size
    for line in source:
        chunk.append(line)
        characters += len(line)
        if len(chunk) == most or characters >= _CHUNK_CHARACTERS or not ready():
            yield chunk
            chunk, characters, most = [], 0, min(2 * most, size * CHUNK_BATCHES)
    if chunk:
        yield chunk


def translation_row(line: TranslatedLine) -> dict[str, Any]:
    """A translated line as JSON, with its candidates (best first) if any, and its sentences if there are several."""
    source, translation, sentences = line
    fields = {name: getattr(translation, name) for name in ("text", "length", "passes", "hypotheses", "truncated")}
    row = {"source": source, "score": _finite(translation.score), **fields}
    if translation.fell_back:
        row["fell_back"] = True
    if translation.alignment is not None:
        row["alignment"] = " ".join(f"{source}-{target}" for source, target in translation.alignment)
    if translation.candidates:
        row["candidates"] = [
            {"text": each.text, "score": _finite(each.score), "length": each.length} for each in translation.candidates
        ]
    if sentences[1:]:
        row["sentences"] = [translation_row(TranslatedLine(*pair, ())) for pair in sentences]
    return row


def _finite(score: float) -> float | None:
    return score if math.isfinite(score) else None  # JSON has no infinity


@contextlib.contextmanager
def translations_json(path: str | PathLike[str]) -> Iterator[tuple[Callable[[TranslatedLine], None], dict[str, Any]]]:
    """Writes translations as JSON one by one: {"translations": [{...}, ...], "lines": ...}.

    Yields a function that adds a translated line, and a dictionary: the metrics that the caller puts into it are
    written after the translations. The file appears once it is complete, or not at all.
    """
    metrics: dict[str, Any] = {}
    count = 0

    def add(line: TranslatedLine) -> None:
        nonlocal count
        row = translation_row(line)
        file.write((",\n  " if count else "\n  ") + json.dumps(row, ensure_ascii=False))
        count += 1

    with atomic_file(path) as file:
        file.write('{\n "translations": [')
        yield add, metrics
        file.write("\n ]" if count else "]")
        for name, value in metrics.items():
            file.write(f",\n {json.dumps(name)}: {json.dumps(value)}")
        file.write("\n}\n")

"""Lines of bytes in, lines of text out: what `padir translate` does with any input.

Whatever a line holds, one line comes out for it. What the library would refuse is mended with a warning: bytes that are
not UTF-8 are replaced, sources that are too long are cut. Control characters and text that looks like a special token
are warned of, too, since they are seldom meant.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

from padir.decoding import Decoding
from padir.translate import Translation, Translator

_CHUNK_BATCHES = 16  # lines are read for so many batches at once, so that sorting by length saves padding
_ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|</?s>|<(?:pad|unk|extra_id_\d+)>")


def lines(file: Iterable[bytes], warn: Callable[[str], None], name: str = "") -> Iterator[str]:
    """The lines of a file without line ends (LF or CRLF) and without a byte-order mark.

    Args:
      warn: told of each line that holds what is seldom meant.
      name: of the file, for warnings.
    """
    where = f"{name}, line" if name else "line"
    for number, raw in enumerate(file, 1):
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            warn(f"{where} {number} is not UTF-8 (byte {error.start + 1}): what cannot be read became U+FFFD")
            line = raw.decode("utf-8", errors="replace")
        if odd := _ODD.search(line):
            warn(f"{where} {number} holds {odd[0]!r}: it is taken as ordinary text")
        yield line


def translate_lines(
    translator: Translator,
    source: Iterator[str],
    out: TextIO,
    decoding: Decoding,
    *,
    warn: Callable[[str], None],
    progress: Callable[[int], None] = lambda count: None,
    trace: Callable[[str, Translation], None] | None = None,
) -> list[Translation]:
    """Writes one line for each line of `source`, as they get ready; returns the translations without their traces.

    Args:
      warn: told of each line that was cut.
      progress: told how many lines have been written since the last time.
      trace: given each source with its translation and steps, before its line is written.
    """
    first, done = 0, []
    while chunk := list(itertools.islice(source, decoding.batch_size * _CHUNK_BATCHES)):
        results = translator.translate(chunk, decoding, truncate=True, trace=trace is not None, first_number=first)
        for number, (text, result) in enumerate(zip(chunk, results, strict=True), first + 1):
            if result.truncated:
                warn(f"line {number} is longer than the model takes: its end was not translated")
            if trace is not None and result.trace:
                trace(text, result)
            out.write(result.text + "\n")
        out.flush()
        progress(len(chunk))
        first += len(chunk)
        done += [dataclasses.replace(result, trace=None) for result in results]
    return done

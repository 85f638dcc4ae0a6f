"""Reads text in columns, as TSV or CSV, and finds the columns of source and target by their names."""

from __future__ import annotations

import contextlib
import csv
import functools
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from padir.data.markup import Pairs, unwrapped
from padir.errors import PadirError
from padir.text.languages import closest
from padir.text.lines import LONGEST_LINE, Metered, Reader, lines_of

# Names of columns other than codes of languages.
_SIDES = (
    frozenset("source src input sentence1".split()),
    frozenset("target tgt trg reference ref output translation sentence2".split()),
)
_ENGLISH = (
    "german de english en french fr spanish es italian it portuguese pt dutch nl swedish sv danish da norwegian no"
    " finnish fi estonian et czech cs polish pl russian ru ukrainian uk romanian ro hungarian hu greek el turkish tr"
    " arabic ar hebrew he persian fa hindi hi chinese zh japanese ja korean ko vietnamese vi indonesian id thai th"
).split()
_CODES: dict[str, str] = dict(zip(_ENGLISH[::2], _ENGLISH[1::2], strict=True))
# Words in the names of columns that say nothing about the side.
_FILLER = re.compile(r"(?:^|[\W_]+)(?:text|sentence|string)s?(?=[\W_]|$)")
_LONGEST_NAME = 100  # characters of a name that are read
_MOST_NAMES = 1_000  # maximum number of columns among which names are looked for

_log = logging.getLogger("padir")


def tsv(file: Reader, path: Path, languages: tuple[str, str]) -> Pairs:
    """Yields the pairs of lines with a tab between their columns."""
    rows = ((number, line.split("\t")) for number, line in enumerate(lines_of(file, path), 1))
    return _columns(rows, languages, path, "columns separated by a tab")


def csv_text(file: Reader, path: Path, languages: tuple[str, str]) -> Pairs:
    """Yields the pairs of CSV, whose beginning determines its separator."""
    begin = file.peek().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").splitlines(keepends=True)[:50]
    sign = max(",;\t", key=functools.partial(_evenness, begin))
    meter = Metered(file, f"{path}, row")
    lines = (meter.take(line + "\n") for line in lines_of(file, path))
    reader = csv.reader(lines, delimiter=sign, strict=True)
    csv.field_size_limit(LONGEST_LINE)

    def rows() -> Iterator[tuple[int, list[str]]]:
        try:
            for row in reader:
                meter.begin()
                if row and (reader.line_num > 1 or row[0].lower() != "sep="):  # no blank line, nor Excel's first one
                    yield reader.line_num, list(map(unwrapped, row))
        except csv.Error as error:
            remedy = "check its quotes"
            raise PadirError(f"{path}, line {reader.line_num}: not CSV ({error})", remedy=remedy) from None

    return _columns(rows(), languages, path, "columns of CSV")


def _evenness(lines: Sequence[str], sign: str) -> tuple[int, bool]:
    """Number of lines with as many columns as possible, more than one, and whether these are two."""
    widths: list[int] = []
    with contextlib.suppress(csv.Error):  # at the cut last row of a block
        widths.extend(len(row) for row in csv.reader(lines, delimiter=sign) if row)
    most = max(widths, default=1)
    return (widths.count(most) if most > 1 else 0), most == 2


def _columns(rows: Iterator[tuple[int, list[str]]], languages: tuple[str, str], path: Path, how: str) -> Pairs:
    """Source and target of the rows of numbered lines; the first row may be a header."""
    first = next(rows, None)
    if first is None:
        return
    chosen = sides(first[1], languages)
    width = 2
    if chosen is None:
        begin = [first, *itertools.islice(rows, 1)]
        if len(begin) == 2 and _like_header(*(row for _, row in begin)):
            names = "name columns by codes of languages, or source and target"
            _log.warning("%s: the first line (%s) is read as a pair: %s", path, ", ".join(first[1]), names)
        chosen, rows = (0, 1), itertools.chain(begin, rows)
    else:
        width = len(first[1])
    for number, row in rows:
        if len(row) != width:
            remedy = "cut the file to source and target, give a header with their languages, or give two files"
            raise PadirError(f"{path}, line {number}: expected {width} {how}, got {len(row)}", remedy=remedy)
        yield row[chosen[0]], row[chosen[1]]


def _like_header(first: Sequence[str], second: Sequence[str]) -> bool:
    """True if the first row has single words, and the second one has spaces."""
    return all(re.fullmatch(r"[\w.-]*\w", name) for name in first) and any(" " in text.strip() for text in second)


def sides(names: Sequence[str], languages: tuple[str, str]) -> tuple[int, int] | None:
    """The places of source and target among the names of columns or keys; None if the names do not identify both.

    >>> [sides(names, ("de", "en")) for names in (["id", "en_XX", "German"], ["src", "tgt"], ["a", "b"])]
    [(2, 1), (0, 1), None]
    """
    if len(names) > _MOST_NAMES:
        return None
    names = [_bare(name[:_LONGEST_NAME].strip().lower()) for name in names]
    found = []
    codes = [_CODES.get(name, name.replace("_xx", "")) for name in names]
    for language, words in zip(languages, _SIDES, strict=True):
        words = [i for i, name in enumerate(names) if name in words]
        found.append(closest(names, language) or closest(codes, language) or words)
    if any(len(way) != 1 for way in found) or found[0] == found[1]:
        return None
    return found[0][0], found[1][0]


def _bare(name: str) -> str:
    """A column's name without words such as "text"; keeps "sentence_id" whole, because "id" alone means Indonesian."""
    bare = _FILLER.sub("", name).strip(" _-()[]")
    return name if bare == "id" else bare

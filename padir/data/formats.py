"""Reads parallel text; the content and the name of a file determine its format.

    two columns   a tab in nearly every line, or the name .tsv: each file is a corpus
    .csv          quoted fields, separated by commas, semicolons or tabs: each file is a corpus
    JSON lines    {"translation": {"de": ..., "en": ...}} or {"de": ..., "en": ...}: each file is a corpus
    TMX, Parquet  each file is a corpus; Parquet needs pyarrow
    XML of WMT    a file of a test set has both sides since 2021
    SGM of WMT    two files, paired by document and segment
    other text    two files, line by line

The names of columns and keys are language codes of any kind, or words such as "source". A first line of such names is a
header. Line breaks inside a sentence become spaces. Files may be compressed (`padir.text.lines`).
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from padir.data import markup
from padir.data.markup import Pairs, one_line
from padir.errors import PadirError, first_line
from padir.text.languages import primary, same
from padir.text.lines import Reader, byte_lines, open_bytes, readable

LONGEST_LINE = 1 << 24  # maximum length of a line in bytes; no sentence is longer
_NEARLY_ALL = 0.9  # share of lines with a tab from which a text has two columns
_ROOTS = {"srcset": "sgm", "refset": "sgm", "tstset": "sgm", "mteval": "sgm", "tmx": "tmx"}
_ROOTS |= {"dataset": "wmt", "collection": "wmt"}
_ROOT = re.compile(r"(?:\s|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>\[]*(?:\[.*?\])?\s*>)*<([A-Za-z][\w:.-]*)", re.DOTALL)
_SUFFIXES = {".sgm": "sgm", ".sgml": "sgm", ".xml": "wmt", ".tmx": "tmx", ".csv": "csv", ".tsv": "tsv"}
_SUFFIXES |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}
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


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A part of a split: its name, and its pairs, which can be read only once."""

    name: str
    pairs: Pairs


class _File:
    """A file that is read, its kind, and its first block.

    Attributes:
      kind: tsv, csv, json, tmx, wmt, sgm, parquet or lines.
      head: the first block of text; of a pipe, as much as is there.
    """

    def __init__(self, path: Path):
        self.path, self.head = path, b""
        self._open: Reader | None = None
        regular = stat.S_ISREG(path.stat().st_mode)
        if regular and _begins(path, b"PAR1"):
            self.kind = "parquet"
            return
        file = open_bytes(path)
        with readable(file, str(path)):
            self.head = file.peek()
        if regular:
            file.close()
        else:  # a pipe gives its text once
            self._open = file
        self.kind = self._kind()

    def open(self) -> Reader:
        return self._open or open_bytes(self.path)

    def lines(self) -> Iterator[str]:
        yield from lines_of(self.open(), self.path)

    def _kind(self) -> str:
        suffixes = [each.lower() for each in self.path.suffixes if each.lower() not in (".gz", ".bz2", ".xz", ".zst")]
        named = _SUFFIXES.get(suffixes[-1] if suffixes else "", "")
        text = self.head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").lstrip()
        root = _ROOT.match(text)
        if root and root[1].lower() in _ROOTS:
            return _ROOTS[root[1].lower()]
        if text and (named in ("sgm", "wmt", "tmx") or text.startswith(("<?xml", "<!DOCTYPE"))):
            what = f"XML of the kind <{root[1]}>" if root else "not SGM or XML, despite its name"
            raise PadirError(f"{self.path} is {what}", remedy="give plain text, SGM or XML of WMT, or TMX")
        if named == "json" or (
            not named and text.startswith(("{", "[")) and _parsed(text.partition("\n")[0]) is not None
        ):
            if text and not isinstance(_parsed(text.partition("\n")[0]), dict):
                remedy = "write one object a line, as with jq -c '.[]'"
                raise PadirError(f"{self.path} is JSON, but not one object a line", remedy=remedy)
            return "json"
        if named:
            return named
        lines = [line for line in text.split("\n")[: -1 if "\n" in text else None] if line.strip()]
        tabs = sum("\t" in line for line in lines)
        return "tsv" if lines and tabs >= _NEARLY_ALL * len(lines) else "lines"


def corpora(paths: Sequence[Path], languages: tuple[str, str]) -> list[Corpus]:
    """The corpora of files: a file with two sides is one corpus, and two successive files of one side are one."""
    files, groups = [_File(path) for path in paths], []
    while files:
        first = files.pop(0)
        if first.kind not in ("lines", "sgm") or (not files and not groups and first.kind == "lines"):
            groups.append([first])
        elif not files or files[0].kind != first.kind:
            raise PadirError(
                f"{first.path} has one side of a corpus ({'SGM' if first.kind == 'sgm' else 'lines without tabs'}),"
                " and no file of the other side follows it",
                remedy="name source and target one after the other",
            )
        else:
            groups.append([first, files.pop(0)])
    short = [_name(group) for group in groups]
    full = [" ".join(str(file.path) for file in group) for group in groups]
    names = [name if short.count(name) == 1 else whole for name, whole in zip(short, full, strict=True)]
    return [Corpus(name, _pairs(group, languages)) for name, group in zip(names, groups, strict=True)]


def _name(group: Sequence[_File]) -> str:
    """The beginning of the first file's name, up to the first dot."""
    name = group[0].path.name
    return name.split(".")[0] or name


def _pairs(group: Sequence[_File], languages: tuple[str, str]) -> Pairs:
    """The pairs of one corpus, which must have at least one pair."""
    kind, path, marked = group[0].kind, group[0].path, {"tmx": markup.tmx, "wmt": markup.wmt}
    if kind in marked:
        pairs = marked[kind](group[0].open(), path, languages)
    elif kind == "sgm":
        pairs = markup.sgm([(file.path, file.lines()) for file in group], languages)
    elif len(group) == 2:
        pairs = _aligned(*group)
    else:
        pairs = {"lines": _tsv, "tsv": _tsv, "csv": _csv, "json": _json, "parquet": _parquet}[kind](group[0], languages)
    first = next(pairs, None)
    if first is None:
        raise PadirError(f"{path} is empty", remedy="give a file with at least one sentence")
    return itertools.chain([first], pairs)


def lines_of(file: Reader, path: object) -> Iterator[str]:
    """Yields the lines of an open UTF-8 text file, which is closed at the end."""
    with file:
        for number, (line, cut) in enumerate(byte_lines(file, str(path), LONGEST_LINE), 1):
            if cut:
                what = f"{path}, line {number}: more than {LONGEST_LINE:,} bytes are too long for a sentence"
                raise PadirError(what, remedy="give a text file with one sentence a line")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                what = f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start} of the line)"
                raise PadirError(what, remedy="convert the file with iconv") from None


def _aligned(source: _File, target: _File) -> Pairs:
    sources, targets = source.lines(), target.lines()
    for number, pair in enumerate(itertools.zip_longest(sources, targets)):
        source_line, target_line = pair
        if source_line is None or target_line is None:
            rest = 1 + sum(1 for _ in sources) + sum(1 for _ in targets)
            counts = (number + rest, number) if target_line is None else (number, number + rest)
            remedy = "line N of one file must be the translation of line N of the other"
            raise PadirError(f"{source.path} has {counts[0]} lines but {target.path} has {counts[1]}", remedy=remedy)
        yield source_line, target_line


def _tsv(file: _File, languages: tuple[str, str]) -> Pairs:
    rows = ((number, line.split("\t")) for number, line in enumerate(file.lines(), 1))
    return _columns(rows, languages, file.path, "line", "columns separated by a tab")


def _csv(file: _File, languages: tuple[str, str]) -> Pairs:
    begin = file.head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").splitlines(keepends=True)[:50]
    widths = {sign: [len(row) for row in _rows(csv.reader(begin, delimiter=sign))] for sign in ",;\t"}
    # The separator that gives most lines the same number of columns, more than one.
    sign = max(widths, key=lambda each: sum(width == max(widths[each], default=1) > 1 for width in widths[each]))
    reader = csv.reader((line + "\n" for line in file.lines()), delimiter=sign, strict=True)
    csv.field_size_limit(LONGEST_LINE)

    def rows() -> Iterator[tuple[int, list[str]]]:
        try:
            for row in reader:
                if row:  # a blank line
                    yield reader.line_num, list(map(one_line, row))
        except csv.Error as error:
            remedy = "check its quotes"
            raise PadirError(f"{file.path}, line {reader.line_num}: not CSV ({error})", remedy=remedy) from None

    return _columns(rows(), languages, file.path, "line", "columns of CSV")


def _rows(reader: Iterable[list[str]]) -> Iterator[list[str]]:
    """The rows up to the first one that is no valid CSV, such as the cut last row of a block."""
    try:
        yield from (row for row in reader if row)
    except csv.Error:
        return


def _columns(
    rows: Iterator[tuple[int, list[str]]], languages: tuple[str, str], path: Path, unit: str, how: str
) -> Pairs:
    """Source and target of numbered rows; the first row may be a header."""
    first = next(rows, None)
    if first is None:
        return
    chosen, width = sides(first[1], languages), 2
    if chosen is None:
        chosen, rows = (0, 1), itertools.chain([first], rows)
    else:
        width = len(first[1])
    for number, row in rows:
        if len(row) != width:
            remedy = "cut the file to source and target, give a header with their languages, or give two files"
            raise PadirError(f"{path}, {unit} {number}: expected {width} {how}, got {len(row)}", remedy=remedy)
        yield row[chosen[0]], row[chosen[1]]


def sides(names: Sequence[str], languages: tuple[str, str]) -> tuple[int, int] | None:
    """The places of source and target among the names of columns or keys; None if the names do not identify both.

    >>> [sides(names, ("de", "en")) for names in (["id", "en_XX", "German"], ["src", "tgt"], ["a", "b"])]
    [(2, 1), (0, 1), None]
    """
    names, found = [name.strip().lower() for name in names], []
    codes = [_CODES.get(name, name.replace("_xx", "")) for name in names]
    for language, words in zip(languages, _SIDES, strict=True):
        ways = (
            [i for i, name in enumerate(names) if name == language.lower()],
            [i for i, code in enumerate(codes) if same(code, language)],
            [i for i, code in enumerate(codes) if primary(code) == primary(language)],
            [i for i, name in enumerate(names) if name in words],
        )
        found.append(next((way for way in ways if way), []))
    if any(len(way) != 1 for way in found) or found[0] == found[1]:
        return None
    return found[0][0], found[1][0]


def _json(file: _File, languages: tuple[str, str]) -> Pairs:
    for number, line in enumerate(file.lines(), 1):
        if line.strip():
            where = f"{file.path}, line {number}"
            record = _parsed(line)
            if not isinstance(record, dict):
                raise PadirError(f"{where}: not a JSON object", remedy="give one object a line, with both languages")
            yield _of_record(record, languages, where)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _of_record(record: dict[str, Any], languages: tuple[str, str], where: str) -> tuple[str, str]:
    """The two texts of a JSON object or of a row of Parquet."""
    if isinstance(record.get("translation"), dict):
        record = record["translation"]
    names = [str(name) for name in record]
    chosen = sides(names, languages)
    if chosen is None:
        has = f"one text in {languages[0]} and one in {languages[1]}"
        remedy = "rename its keys"
        raise PadirError(f"{where}: expected {has}, got the keys {', '.join(names) or 'none'}", remedy=remedy)
    values = list(record.values())
    pair = tuple("" if values[i] is None else values[i] for i in chosen)
    if not all(isinstance(text, str) for text in pair):
        raise PadirError(f"{where}: expected two texts", got=pair, remedy="give strings")
    return one_line(pair[0]), one_line(pair[1])


def _parquet(file: _File, languages: tuple[str, str]) -> Pairs:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        remedy = "pip install pyarrow, or write the pairs as JSON lines"
        raise PadirError(f"{file.path} is a Parquet file, which needs the package pyarrow", remedy=remedy) from None
    number = 0
    try:
        for batch in parquet.ParquetFile(file.path).iter_batches():
            for record in batch.to_pylist():
                number += 1
                yield _of_record(record, languages, f"{file.path}, row {number}")
    except (pyarrow.ArrowException, OSError) as error:
        remedy = "fetch it again"
        raise PadirError(f"{file.path} is a damaged Parquet file ({first_line(error)})", remedy=remedy) from None


def _begins(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False

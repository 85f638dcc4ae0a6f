"""Reads parallel text; the content and the name of a file determine its format.

    two columns   a tab in nearly every line, or the name .tsv: each file is a corpus
    .csv          quoted fields, separated by commas, semicolons or tabs: each file is a corpus
    JSON lines    {"translation": {"de": ..., "en": ...}} or {"de": ..., "en": ...}: each file is a corpus
    TMX, Parquet  each file is a corpus; Parquet needs pyarrow
    XML of WMT    a file of a test set has both sides since 2021
    SGM of WMT    two files, paired by document and segment
    other text    two files, line by line

The names of columns and keys are language codes of any kind, or words such as "source". A first line of such names is a
header; names may be longer, such as "German sentence". Line breaks inside a sentence become spaces. Files may be
compressed (`padir.text.lines`).
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
import logging
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from padir.data import markup
from padir.data.kinds import kind_of, parsed, suffix
from padir.data.markup import Pairs, one_line
from padir.errors import PadirError, first_line
from padir.text.languages import distant, primary, same
from padir.text.lines import Reader, byte_lines, open_bytes, readable

LONGEST_LINE = 1 << 24  # maximum length of a line in bytes; no sentence is longer
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

_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character of UTF-16

Text = tuple[str, Iterator[str]]  # the name of a text in messages, and its lines

_log = logging.getLogger("padir")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A part of a split: its name, and its pairs, which can be read only once."""

    name: str
    pairs: Pairs


class _File:
    """A file that is read, its kind, and its first block.

    Attributes:
      kind: tsv, csv, json, tmx, wmt, sgm, parquet or lines.
      head: the first block of text; for a pipe, the text that has arrived.
    """

    def __init__(self, path: Path):
        self.path, self.head = path, b""
        self._open: Reader | None = None
        regular = stat.S_ISREG(path.stat().st_mode)
        if regular and _is_parquet(path):
            self.kind = "parquet"
            return
        file = open_bytes(path)
        with readable(file, str(path)):
            self.head = file.peek()
        if regular:
            file.close()
        else:  # a pipe gives its text once
            self._open = file
        self.kind = kind_of(self.head, path)

    def open(self) -> Reader:
        return self._open or open_bytes(self.path)

    def lines(self) -> Iterator[str]:
        yield from lines_of(self.open(), self.path)


def corpora(paths: Sequence[Path], languages: tuple[str, str]) -> list[Corpus]:
    """The corpora of files: a file with both sides is a corpus, and so are two successive files with one side each."""
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
    _check_names(group, languages)
    kind, path, marked = group[0].kind, group[0].path, {"tmx": markup.tmx, "wmt": markup.wmt}
    if kind in marked:
        pairs = marked[kind](group[0].open(), path, languages)
    elif kind == "sgm":
        pairs = markup.sgm([(file.path, file.lines()) for file in group], languages)
    elif len(group) == 2:
        pairs = aligned(*((str(file.path), file.lines()) for file in group))
    else:
        pairs = {"lines": _tsv, "tsv": _tsv, "csv": _csv, "json": _json, "parquet": _parquet}[kind](group[0], languages)
    first = next(pairs, None)
    if first is None:
        raise PadirError(f"{path} is empty", remedy="give a file with at least one sentence")
    return itertools.chain([first], pairs)


def _check_names(group: Sequence[_File], languages: tuple[str, str]) -> None:
    """Refuses two files of which one is named for another language than its side's, such as a.fr for de."""
    codes = [suffix(file.path).lstrip(".") for file in group]
    if len(group) != 2 or [*map(primary, codes)] == [*map(primary, languages)]:
        return
    swapped = [*map(primary, codes)] == [*map(primary, reversed(languages))]
    for file, code, language in zip(group, codes, languages, strict=True):
        if swapped or (all(len(each) == 2 for each in codes) and distant(code, language)):
            expected, got = f"expected a file in {language}", f"got {file.path}, which is named for {code}"
            remedy = "name the source first, give the languages of the files, or rename the files"
            raise PadirError(f"languages {'-'.join(languages)}: {expected}, {got}", remedy=remedy)


def lines_of(file: Reader, path: object, *, verbatim: bool = False) -> Iterator[str]:
    """Yields the lines of an open UTF-8 text file, which is closed at the end; `verbatim` as in `byte_lines`."""
    with file:
        for number, (line, cut) in enumerate(byte_lines(file, str(path), LONGEST_LINE, verbatim=verbatim), 1):
            if cut:
                what = f"{path}, line {number}: more than {LONGEST_LINE:,} bytes are too long for a sentence"
                raise PadirError(what, remedy="give a text file with one sentence a line")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                what = f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start} of the line)"
                raise PadirError(what, remedy="convert the file with iconv") from None


def aligned(source: Text, target: Text) -> Pairs:
    """Yields the pairs of two texts, line by line.

    Raises:
      PadirError: one text has more lines than the other.
    """
    (source_name, sources), (target_name, targets) = source, target
    for number, (source_line, target_line) in enumerate(itertools.zip_longest(sources, targets)):
        if source_line is None or target_line is None:
            rest = 1 + sum(1 for _ in sources) + sum(1 for _ in targets)
            counts = (number + rest, number) if target_line is None else (number, number + rest)
            remedy = "line N of one file must be the translation of line N of the other"
            raise PadirError(f"{source_name} has {counts[0]} lines but {target_name} has {counts[1]}", remedy=remedy)
        yield source_line, target_line


def _tsv(file: _File, languages: tuple[str, str]) -> Pairs:
    rows = ((number, line.split("\t")) for number, line in enumerate(file.lines(), 1))
    return _columns(rows, languages, file.path, "columns separated by a tab")


def _csv(file: _File, languages: tuple[str, str]) -> Pairs:
    begin = file.head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").splitlines(keepends=True)[:50]
    widths = {sign: [len(row) for row in _rows(csv.reader(begin, delimiter=sign))] for sign in ",;\t"}
    # The separator that gives most lines the same number of columns, more than one, and if possible two.
    sign = max(widths, key=lambda each: _evenness(widths[each]))
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

    return _columns(rows(), languages, file.path, "columns of CSV")


def _evenness(widths: list[int]) -> tuple[int, bool]:
    most = max(widths, default=1)
    return (widths.count(most) if most > 1 else 0), most == 2


def _rows(reader: Iterable[list[str]]) -> Iterator[list[str]]:
    """The rows up to the first one that is no valid CSV, such as the cut last row of a block."""
    try:
        yield from (row for row in reader if row)
    except csv.Error:
        return


def _columns(rows: Iterator[tuple[int, list[str]]], languages: tuple[str, str], path: Path, how: str) -> Pairs:
    """Source and target of the rows of numbered lines; the first row may be a header."""
    first = next(rows, None)
    if first is None:
        return
    chosen, width = sides(first[1], languages), 2
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
    names, found = [_bare(name.strip().lower()) for name in names], []
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


def _bare(name: str) -> str:
    """A column's name without words such as "text"; keeps "sentence_id" whole, because "id" alone means Indonesian."""
    bare = _FILLER.sub("", name).strip(" _-()[]")
    return name if bare == "id" else bare


def _json(file: _File, languages: tuple[str, str]) -> Pairs:
    twice: list[str] = []
    for number, line in enumerate(file.lines(), 1):
        if line.strip():
            where = f"{file.path}, line {number}"
            record = parsed(line, functools.partial(_record, twice))
            if twice:
                raise PadirError(f"{where}: the key {twice[0]!r} stands twice in one object", remedy="leave one out")
            if not isinstance(record, dict):
                raise PadirError(f"{where}: not a JSON object", remedy="give one object a line, with both languages")
            yield _of_record(record, languages, where)


def _record(twice: list[str], items: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; adds keys that stand in it twice to `twice`."""
    record, names = dict(items), [name for name, _ in items]
    if len(record) < len(names):
        twice += [name for i, name in enumerate(names) if name in names[:i]]
    return record


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
    if _SURROGATE.search("".join(pair)):
        raise PadirError(f"{where}: expected text without surrogates", got=pair, remedy="write whole characters")
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


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError:
        return False

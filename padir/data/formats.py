"""Reads parallel text; the content and the name of a file determine its format.

    two columns   a tab in nearly every line, or the name .tsv: each file is a corpus; as .csv if all fields have quotes
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

import dataclasses
import itertools
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from padir.data import columns, markup, objects
from padir.data.kinds import kind_of, suffix
from padir.data.markup import Pairs
from padir.errors import PadirError
from padir.text.languages import distant, primary
from padir.text.lines import Reader, lines_of, open_bytes, readable

Text = tuple[str, Iterator[str]]  # the name of a text in messages, and its lines
# Formats whose files hold both sides, and that text can have.
_BOTH_SIDES: dict[str, Callable[[Reader, Path, tuple[str, str]], Pairs]] = {
    "tmx": markup.tmx,
    "wmt": markup.wmt,
    "lines": columns.tsv,
    "tsv": columns.tsv,
    "csv": columns.csv_text,
    "json": objects.json_lines,
}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A part of a split: its name, and its pairs, which can be read only once."""

    name: str
    pairs: Pairs


class _File:
    """A file that is read, and its kind: tsv, csv, json, tmx, wmt, sgm, parquet or lines."""

    def __init__(self, path: Path):
        self.path = path
        self._open: Reader | None = None
        regular = stat.S_ISREG(path.stat().st_mode)
        if regular and _is_parquet(path):
            self.kind = "parquet"
            return
        file = open_bytes(path)
        with readable(str(path), file.kind):
            head = file.peek()
        if regular:
            file.close()
        else:  # a pipe gives its text once
            self._open = file
        self.kind = kind_of(head, path)

    def open(self) -> Reader:
        return self._open or open_bytes(self.path)

    def lines(self) -> Iterator[str]:
        yield from lines_of(self.open(), self.path)


def corpora(paths: Sequence[Path], languages: tuple[str, str]) -> list[Corpus]:
    """The corpora of files: a file with both sides is a corpus, and so are two successive files with one side each."""
    files = [_File(path) for path in paths]
    groups = []
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
    kind = group[0].kind
    path = group[0].path
    if kind == "sgm":
        pairs = markup.sgm([(file.path, file.open) for file in group], languages)
    elif len(group) == 2:
        pairs = aligned(*((str(file.path), file.lines()) for file in group))
    elif kind == "parquet":
        pairs = objects.parquet(path, languages)
    else:
        pairs = _BOTH_SIDES[kind](group[0].open(), path, languages)
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
            expected = f"expected a file in {language}"
            got = f"got {file.path}, which is named for {code}"
            remedy = "name the source first, give the languages of the files, or rename the files"
            raise PadirError(f"languages {'-'.join(languages)}: {expected}, {got}", remedy=remedy)


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


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError:
        return False

"""The WMT sets of the paper's six directions, from files as WMT distributes them: archives, or what was in them.

The parts and the pairs are those of TensorFlow Datasets (TFDS): a pair without text on a side is left out, and the
entities of SGM files stay as they are. Nothing is downloaded. Archives are read member by member, and never unpacked.
In place of the parts of a split, a folder may hold the split as Hugging Face's `wmt` sets do (zh-en/train-*.parquet).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

from padir.data import markup
from padir.data.archives import matches, members
from padir.data.formats import Corpus, Text, aligned, corpora
from padir.data.markup import Pairs
from padir.data.sources import SPLITS, PathLike, check_split
from padir.errors import PadirError, nearest
from padir.text.lines import lines_of, open_bytes


class Part(NamedTuple):
    """A file that WMT distributes, with a part of a split.

    Attributes:
      name: the part's name, as in TFDS.
      size: the file's number of bytes, as published by TFDS.
      origin: the file's address, or where to ask for the file.
      texts: patterns for the names of the two texts, the foreign one first; or the name of one TMX file.
      about: what is known of the address.
    """

    name: str
    size: int
    origin: str
    texts: tuple[str, ...]
    about: str

    @property
    def file(self) -> str:
        return self.origin.rpartition("/")[2]


def _read_parts() -> dict[str, dict[str, list[Part]]]:
    """Reads the table of all parts, by year and split."""
    parts: dict[str, dict[str, list[Part]]] = {}
    table = Path(__file__).with_name("wmt_parts.tsv").read_text(encoding="utf-8")
    for line in table.splitlines()[1:]:
        year, split, name, size, _, origin, texts, about = line.split("\t")
        part = Part(name, int(size), origin, tuple(texts.split()), about.removeprefix("-"))
        parts.setdefault(year, {}).setdefault(split, []).append(part)
    return parts


_LANGUAGES = {"wmt14": "de", "wmt16": "ro", "wmt17": "zh"}  # the language beside English
PARTS = _read_parts()
# Numbers of pairs in TFDS's sets.
COUNTS = {
    "wmt14": {"train": 4_508_785, "validation": 3_000, "test": 3_003},
    "wmt16": {"train": 610_320, "validation": 1_999, "test": 1_999},
    "wmt17": {"train": 25_134_743, "validation": 2_002, "test": 2_001},
}
_log = logging.getLogger("padir")
RECIPES = tuple(f"{year}_{pair}" for year, code in _LANGUAGES.items() for pair in (f"{code}_en", f"en_{code}"))

_SEGMENT = re.compile(r'<seg id="\d+">(.*)</seg>')  # no XML parser: some of WMT's files are not well-formed


def _plain(path: PathLike) -> PurePath:
    """A path in lower case and without the suffix of a compression."""
    return PurePath(re.sub(r"\.(gz|bz2|xz|zst)$", "", str(path).lower().replace(".tgz", ".tar.gz")))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A WMT set as a `Source`, read from WMT's files in a folder and its subfolders.

    >>> Recipe("wmt16_ro_en", "downloads", without=("setimes_2",)).splits  # doctest: +SKIP
    ('train', 'validation', 'test')

    Attributes:
      name: one of `RECIPES`.
      downloads: the folder.
      without: parts that are left out of the training split, which is then not compared with `COUNTS`.
      checked: compare the sizes of files and the numbers of pairs with TFDS's.

    Raises:
      PadirError: there is no such recipe, part or folder; or files are missing or have another size, which the
        message lists.
    """

    name: str
    downloads: PathLike
    without: tuple[str, ...] = ()
    checked: bool = True

    def __post_init__(self):
        if self.name not in RECIPES:
            raise PadirError(f"there is no recipe {self.name!r}", remedy=nearest(self.name, RECIPES))
        if not Path(self.downloads).is_dir():
            raise PadirError(f"there is no folder {self.downloads}", remedy="give the folder that has WMT's files")
        names = [part.name for part in PARTS[self._year]["train"]]
        for name in self.without:
            if name not in names:
                raise PadirError(f"{self.name} has no part {name!r}", remedy=nearest(name, names))
        if not self._parts("train"):
            raise PadirError(f"{self.name} without {', '.join(self.without)} has no part", remedy="keep one")
        parts = [part for split in SPLITS if not self._parquet(split) for part in self._parts(split)]
        if missing := [part for part in parts if not self._paths(part)]:
            lacking = dict.fromkeys(
                f"{part.file} from {part.origin}{part.about and f' ({part.about})'}" for part in missing
            )
            remedy = "fetch them"
            stems = tuple(f"{_plain(part.file).stem}." for part in missing)
            if near := [str(path) for path in self._files if path.name.lower().startswith(stems)]:
                remedy += f", or join pieces with cat and unpack other archives ({', '.join(near)})"
            if left := [part.name for part in missing if part.name in names]:
                remedy += f", or go on without these parts: --set without='{' '.join([*self.without, *left])}'"
            raise PadirError(f"{self.name}: {self.downloads} lacks {'; '.join(lacking)}", remedy=remedy)
        if self.checked:
            self._check_sizes(parts)

    @property
    def _year(self) -> str:
        return self.name.split("_")[0]

    @property
    def source_language(self) -> str:
        return self.name.split("_")[1]

    @property
    def target_language(self) -> str:
        return self.name.split("_")[2]

    @property
    def splits(self) -> tuple[str, ...]:
        return SPLITS

    def _check_sizes(self, parts: list[Part]) -> None:
        """Refuses files of another size than the published one, and lists files without a published size."""
        unknown = [str(path) for split in SPLITS for path in self._parquet(split)]
        wrong = []
        for path, part in {self._paths(part)[0]: part for part in parts}.items():
            size = path.stat().st_size
            if path.name.lower() != part.file.lower():
                unknown.append(str(path))
            elif size != part.size:
                wrong.append(f"{path} has {size:,} bytes, not {part.size:,}")
        if wrong:
            remedy = "fetch them again, or use them as they are: --set checked=false"
            raise PadirError(f"{self.name}: {'; '.join(wrong)}", remedy=remedy)
        if unknown:
            _log.info("%s: the size of these files is not known: %s", self.name, ", ".join(unknown))

    @functools.cached_property
    def _files(self) -> list[Path]:
        found: list[Path] = []
        for name, folders, files in os.walk(self.downloads, followlinks=True):
            above = {parent.resolve() for parent in Path(name, "*").parents}
            folders[:] = [each for each in folders if Path(name, each).resolve() not in above]  # no circles of links
            found += [Path(name, each) for each in files]
        return sorted(filter(Path.is_file, found))

    def _parts(self, split: str) -> list[Part]:
        return [part for part in PARTS[self._year][split] if part.name not in self.without]

    def _paths(self, part: Part) -> list[Path]:
        """The unpacked texts of a part, or its archive; an empty list if neither is there."""
        texts = [self._find(pattern) for pattern in part.texts]
        unpacked = list(itertools.chain.from_iterable(texts))
        packed = self._find(part.file)
        if packed and unpacked and packed != unpacked:
            what = f"{part.name} is there twice: packed in {packed[0]}, and unpacked, whole or not, as {unpacked[0]}"
            raise PadirError(what, remedy="remove the archive, or the unpacked files")
        return unpacked if all(texts) else packed

    def _parquet(self, split: str) -> list[Path]:
        """The files of Hugging Face's set with a whole split."""
        return [path for path in self._files if path.match(f"{_LANGUAGES[self._year]}-en/{split}-*.parquet")]

    def _find(self, pattern: str) -> list[Path]:
        """The files of a name, plain or compressed, in any case, in the order of their names."""
        found: dict[str, Path] = {}
        for path in self._files:
            plain = _plain(path)
            if matches(plain, str(_plain(pattern))):
                other = found.setdefault(plain.name, path)
                if not path.samefile(other):  # as two links are
                    raise PadirError(f"{path} is there twice, also as {other}", remedy="remove one")
        return [found[name] for name in sorted(found)]

    def corpora(self, split: str) -> list[Corpus]:
        """The parts of a split, which must be read in their order: the last one checks the number of all pairs.

        Raises:
          PadirError: there is no such split. Reading raises it for damaged files, an archive without the texts, sides
            of different lengths, and another number of pairs than `COUNTS` has.
        """
        check_split(self, split)
        if split == "train":  # the others are small, so a wrong file is found now, and not after hours
            for other in ("validation", "test"):
                list(self.pairs(other))
        if parquet := self._parquet(split):
            found = corpora(parquet, (self.source_language, self.target_language))
        else:
            found = [Corpus(part.name, self._pairs(part)) for part in self._parts(split)]
        numbers = {corpus.name: 0 for corpus in found}

        def counted(corpus: Corpus) -> Pairs:
            for pair in corpus.pairs:
                numbers[corpus.name] += 1
                yield pair
            expected = COUNTS[self._year][split]
            got = sum(numbers.values())
            whole = self.checked and (split != "train" or not self.without)
            if whole and corpus is found[-1] and got != expected:
                parts = ", ".join(f"{name} {count:,}" for name, count in numbers.items())
                remedy = "fetch the files anew: one is another version, or not whole"
                raise PadirError(f"{self.name} {split} has {got:,} pairs ({parts}), not {expected:,}", remedy=remedy)

        return [Corpus(corpus.name, counted(corpus)) for corpus in found]

    def pairs(self, split: str) -> Pairs:
        """Sentence pairs of a split, part by part."""
        return itertools.chain.from_iterable(corpus.pairs for corpus in self.corpora(split))

    def _pairs(self, part: Part) -> Pairs:
        if len(part.texts) == 1:
            (path,) = self._find(part.texts[0])
            pairs = markup.tmx(open_bytes(path), path, (_LANGUAGES[self._year], "en"))
        else:
            pairs = self._aligned(part)
        for text, english in pairs:
            if text and english:
                yield (text, english) if self.target_language == "en" else (english, text)

    def _aligned(self, part: Part) -> Pairs:
        sides = [self._texts(part, pattern) for pattern in part.texts]
        for source, target in itertools.zip_longest(*sides, fillvalue=("no file", iter(()))):
            # A set's files have one name, which _cn, _ch or _en follows.
            if len({PurePath(name).name.rpartition("_")[0] for name, _ in (source, target)}) > 1:
                what = f"{part.name}: {source[0]} and {target[0]} are no pair by their names"
                raise PadirError(what, remedy=f"fetch {part.file} again")
            yield from aligned(source, target)

    def _texts(self, part: Part, pattern: str) -> Iterator[Text]:
        """The names and the sentences of one side's texts, which must be read one after the other."""
        if paths := self._find(pattern):
            opened = ((str(path), open_bytes(path)) for path in paths)
        else:
            opened = members(self._find(part.file)[0], pattern, part.origin)
        for name, file in opened:
            with file:
                if pattern.endswith(".sgm"):
                    yield name, (segment[1] for line in lines_of(file, name) if (segment := _SEGMENT.match(line)))
                else:
                    lines = lines_of(file, name, verbatim=True)
                    if paths and not re.search(rb"(?<!\r)\n", file.peek()):  # a copy from Windows, not WMT's own file
                        lines = (line.removesuffix("\r") for line in lines)
                    yield name, lines

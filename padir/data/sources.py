"""Sources of sentence pairs: parallel text files, Multi30k, and the built-in corpus."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from padir.data.formats import Corpus, corpora
from padir.errors import PadirError, nearest

SPLITS = ("train", "validation", "test")

PathLike = str | os.PathLike[str]
# Files of one corpus or of several, as `padir.data.formats` tells them apart.
SplitFiles = Sequence[PathLike] | PathLike


@runtime_checkable
class Source(Protocol):
    """A named parallel corpus; `pairs` gives the same (source, target) sentences each time it is called.

    Sentences hold no newline. Empty sentences are allowed: preparing drops their pairs and reports how many.
    """

    @property
    def name(self) -> str: ...

    @property
    def source_language(self) -> str: ...

    @property
    def target_language(self) -> str: ...

    @property
    def splits(self) -> tuple[str, ...]: ...

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields the pairs of a split; raises PadirError for an unknown split and for text that cannot be read."""
        ...

    def corpora(self, split: str) -> list[Corpus]:
        """The parts of a split in their order, which hold the same pairs; `prepare` checks and counts each part."""
        ...


def check_split(source: Source, split: str) -> None:
    """Refuses a split that a source does not have."""
    if split not in source.splits:
        raise PadirError(f"{source.name} has no split {split!r}", remedy=f"use one of {', '.join(source.splits)}")


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """Files of one language pair, plain or compressed, read as UTF-8 one sentence at a time.

    Each split is one corpus or several: pairs of files with one sentence a line, or files with both sides, in the
    formats of `padir.data.formats`. Only a newline ends a line (U+2028 and the like are text); a byte order mark at the
    start and a carriage return before the newline are removed.

    >>> ParallelText("mine", "de", "en", train=("a.de", "a.en"), test="b.tsv.gz").splits  # doctest: +SKIP
    ('train', 'test')

    Raises:
      PadirError: no split is given, or a file is missing.
    """

    name: str
    source_language: str
    target_language: str
    train: SplitFiles | None = None
    validation: SplitFiles | None = None
    test: SplitFiles | None = None

    def __post_init__(self):
        if not self.splits:
            raise PadirError(f"{self.name} has no files", remedy="give train, validation or test files")
        for split in self.splits:
            for path in self._paths(split):
                if path.is_dir():
                    raise PadirError(f"{self.name} {split}: {path} is a folder", remedy="give its files")
                if not path.exists():  # a pipe or /dev/stdin is read, too
                    raise PadirError(f"{self.name} {split}: no file {path}", remedy="check the path")

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split in SPLITS if getattr(self, split) is not None)

    def _paths(self, split: str) -> tuple[Path, ...]:
        files: SplitFiles = getattr(self, split)
        return (Path(files),) if isinstance(files, str | os.PathLike) else tuple(map(Path, files))

    def corpora(self, split: str) -> list[Corpus]:
        """The corpora of a split, with their names and pairs."""
        check_split(self, split)
        return corpora(self._paths(split), (self.source_language, self.target_language))

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Sentence pairs of a split, in the files' order.

        Raises:
          PadirError: the split is unknown, or a file has no partner, has another format than padir reads, is empty or
            damaged, or does not fit its partner.
        """
        return itertools.chain.from_iterable(corpus.pairs for corpus in self.corpora(split))


def multi30k(
    directory: PathLike | None = None, source_language: str = "de", target_language: str = "en"
) -> ParallelText:
    """Multi30k task 1 in a folder, by default the current one: {train,valid,test}.{language} with or without .gz.

    Raises:
      PadirError: a file is missing; the message says how to get Multi30k.
    """
    name = f"multi30k_{source_language}_{target_language}"

    def find(stem: str, language: str) -> Path:
        plain = Path(directory or ".") / f"{stem}.{language}"
        zipped = plain.with_name(plain.name + ".gz")
        for path in (zipped, plain):
            if path.is_file():
                return path
        raise PadirError(
            f"{name}: neither {zipped} nor {plain} exists",
            remedy="download the raw files of task 1 from github.com/multi30k/dataset and name them"
            f" {{train,valid,test}}.{{{source_language},{target_language}}}.gz (test is test_2016_flickr)",
        )

    def files(stem: str) -> tuple[Path, Path]:
        return find(stem, source_language), find(stem, target_language)

    return ParallelText(
        name, source_language, target_language, train=files("train"), validation=files("valid"), test=files("test")
    )


def sacrebleu_set(
    name: str, source_language: str, target_language: str, data_dir: PathLike | None = None
) -> ParallelText:
    """A test set of SacreBLEU, such as wmt20, with its first reference; it is read and never downloaded.

    Args:
      data_dir: the folder of SacreBLEU's sets; None for SacreBLEU's own.

    Raises:
      PadirError: SacreBLEU has no such set, or not in these languages, or its files are not on this machine.
    """
    from sacrebleu.dataset import DATASETS
    from sacrebleu.utils import SACREBLEU_DIR

    pair = f"{source_language}-{target_language}"
    if name not in DATASETS:
        raise PadirError(f"SacreBLEU has no set {name!r}", remedy=nearest(name, DATASETS))
    if pair not in DATASETS[name].langpairs:
        raise PadirError(f"languages of SacreBLEU's {name}", f"one of {', '.join(DATASETS[name].langpairs)}", pair)
    folder = Path(data_dir or SACREBLEU_DIR)
    begin = f"{name.replace('/', '_')}.{pair}"
    source = folder / name / f"{begin}.src"
    references = sorted((folder / name).glob(f"{begin}.ref*"))
    if not source.exists() or not references:
        remedy = f"run `sacrebleu -t {name} -l {pair} --echo ref`, which downloads it"
        raise PadirError(f"SacreBLEU's {name} is not in {folder} for {pair}", remedy=remedy)
    return ParallelText(name, source_language, target_language, test=(source, references[0]))


def _toy(data_dir: PathLike | None) -> Source:
    from padir.data.toy import ToyDeEn  # a corpus in files, read only when asked for

    return cast(Source, ToyDeEn())  # its ClassVars are no properties to a type checker


# Name -> function that makes the source from the folder of its data (None: the current folder).
SOURCES: dict[str, Callable[[PathLike | None], Source]] = {
    "toy_de_en": _toy,
    "multi30k_de_en": multi30k,
    "multi30k_en_de": lambda data_dir: multi30k(data_dir, "en", "de"),
}


def get_source(name: str, data_dir: PathLike | None = None) -> Source:
    """Makes the source of a given name, with the files of the corpus (if there are any) in `data_dir`.

    >>> get_source("toy_de_en").splits
    ('train', 'validation', 'test')

    Raises:
      PadirError: the name is unknown (the message lists the known ones), or files are missing.
    """
    if name not in SOURCES:
        raise PadirError(f"unknown source {name!r}", remedy=f"known are {', '.join(SOURCES)}; or give text files")
    return SOURCES[name](data_dir)

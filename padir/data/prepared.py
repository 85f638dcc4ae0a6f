"""Prepared folders, whose files `padir.data.prepare` lists, and mixtures of them.

The records of all folders of a mixture are numbered consecutively. So batches are planned in the same way for a mixture
and for a single folder, and the loader's state is always (epoch, batch).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from padir import checks
from padir.data.sources import PathLike
from padir.errors import PadirError, first_line
from padir.storage.files import parsed_json
from padir.storage.folders import check_no_others
from padir.storage.manifest import MANIFEST, Manifest, sha256
from padir.text.tokenizer import Tokenizer

VOCABULARY = "vocab.model"
FILTERS = ("duplicate", "equal", "script")  # `padir.data.audit.Audit` applies these filters to training pairs
REMEDY = "prepare the folder again, and set overwrite"


@dataclasses.dataclass(frozen=True)
class CorpusInfo:
    """The name and languages of the corpus that a folder was prepared from."""

    name: str
    source_language: str
    target_language: str

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_language, self.target_language


@dataclasses.dataclass(frozen=True)
class VocabularyInfo:
    """SHA-256 of the vocabulary file, the number of all ids (`size`), and the number of sentinels among them.

    `num_placeholders` is the number of sentinels that stand for spans (`padir.text.spans`); 0 without placeholders.
    """

    sha256: str
    size: int
    num_sentinels: int
    num_placeholders: int = 0

    def __str__(self) -> str:
        placeholders = f", {self.num_placeholders} placeholders" if self.num_placeholders else ""
        return f"{self.size} ids, {self.num_sentinels} sentinels{placeholders}, sha256 {self.sha256[:8]}..."


@dataclasses.dataclass(frozen=True)
class LengthLimits:
    """Limits on the lengths of sentence pairs, in tokens with EOS, and filters of training pairs.

    Attributes:
      max_source_tokens, max_target_tokens: pairs with more source or target tokens are dropped.
      max_length_ratio: pairs whose longer side has more than this number of times the tokens of the shorter side are
        dropped; None keeps them.
      drop: filters of training pairs: "duplicate" drops a pair that came before; "equal" drops two equal sides;
        "script" drops a side with fewer than half of its letters in the script of its language.

    Raises:
      PadirError: a limit is too small, or there is no such filter.
    """

    max_source_tokens: int = 256
    max_target_tokens: int = 256
    max_length_ratio: float | None = None
    drop: tuple[str, ...] = ()

    def __post_init__(self):
        checks.counts(
            2,
            "leave room for a token and EOS",
            max_source_tokens=self.max_source_tokens,
            max_target_tokens=self.max_target_tokens,
        )
        if self.max_length_ratio is not None:
            checks.at_least(1, "use None for no limit", max_length_ratio=self.max_length_ratio)
        for name in self.drop:
            checks.one_of(FILTERS, drop=name)

    def reason_to_drop(self, source_tokens: int, target_tokens: int) -> str | None:
        """The first of `records.REASONS` for a pair of so many tokens, EOS included; None for a pair that is kept."""
        if source_tokens <= 1:
            return "empty source"
        if target_tokens <= 1:
            return "empty target"
        if source_tokens > self.max_source_tokens:
            return "source too long"
        if target_tokens > self.max_target_tokens:
            return "target too long"
        shorter, longer = sorted((source_tokens, target_tokens))
        if self.max_length_ratio is not None and longer > self.max_length_ratio * shorter:
            return "length ratio"
        return None


@dataclasses.dataclass(frozen=True)
class SplitInfo:
    """Counts and files of one split of a prepared folder.

    Attributes:
      read: number of sentence pairs in the corpus.
      written: number of pairs that became records.
      dropped: number of dropped pairs for each reason.
      source_tokens, target_tokens: numbers of tokens in all records, EOS included.
      longest_source, longest_target: largest number of tokens of a record on either side, EOS included.
      shards: names of the ArrayRecord files, in order.
      sha256: SHA-256 of all pairs read (`records.pair_bytes`), hexadecimal.
      corpora: the numbers "read" and "written" of each corpus that the split is made of, by name.
      placeholders: number of pairs that got placeholders ("pairs"), and of their spans by kind ("tags", "urls",
        "numbers", "names"), dropped pairs included.
    """

    read: int
    written: int
    dropped: dict[str, int]
    source_tokens: int
    target_tokens: int
    longest_source: int
    longest_target: int
    shards: tuple[str, ...]
    sha256: str
    corpora: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    placeholders: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class PreparedManifest(Manifest):
    """The manifest of a folder that `padir prepare` or `padir distill` made.

    Attributes:
      source: name and languages of the corpus.
      vocabulary, limits: vocabulary and length limits that the corpus was prepared with.
      splits: counts and files of each split, by name.
      text_form: the form of the text that the records hold (`padir.text.normalise.FORMS`).
      distilled: in a distilled folder, the inputs of `padir distill` and the teacher's validation BLEU; else None.
      placeholders: share of the training pairs whose equal spans became placeholders.
    """

    source: CorpusInfo
    vocabulary: VocabularyInfo
    limits: LengthLimits
    splits: dict[str, SplitInfo]
    text_form: str
    distilled: dict[str, Any] | None = None
    placeholders: float = 0.0

    HEADER: ClassVar[dict[str, Any]] = {"format": "padir-prepared", "version": 3}
    REMEDY: ClassVar[str] = REMEDY

    def split(self, name: str, folder: PathLike) -> SplitInfo:
        """Looks up a split by its name."""
        if name not in self.splits:
            raise PadirError(f"{folder} has no split {name!r}", remedy=f"use one of {', '.join(self.splits)}")
        return self.splits[name]

    def needed_files(self) -> list[str]:
        """Names of all files that readers of the folder open: vocabulary, lengths, records and evaluation text."""
        needed = [VOCABULARY]
        for name, info in self.splits.items():
            needed += [lengths_name(name), *info.shards]
            if name != "train":
                needed += text_names(name, *self.source.languages)
        return needed


def lengths_name(split: str) -> str:
    """Name of the file with the lengths of a split's records."""
    return f"{split}.lengths.npy"


def text_names(split: str, source_language: str, target_language: str) -> tuple[str, str]:
    """Names of the two text files of an evaluation split.

    >>> text_names("test", "de", "en")
    ('test.de.txt', 'test.en.txt')
    """
    if source_language == target_language:  # text simplification, for example
        return f"{split}.{source_language}.source.txt", f"{split}.{target_language}.target.txt"
    return f"{split}.{source_language}.txt", f"{split}.{target_language}.txt"


def load_manifest(directory: PathLike, *, verify: bool = False) -> PreparedManifest:
    """Reads the manifest of a prepared folder and compares every file's size and, with `verify`, its SHA-256.

    Raises:
      PadirError: the folder does not exist, has no manifest or one of another format, or a file is changed, missing,
        not in the manifest or outside the folder.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise PadirError(
            f"the prepared folder {directory} does not exist", remedy="run `padir prepare` or `padir distill`"
        )
    manifest = PreparedManifest.read(directory)
    manifest.check(directory, manifest.needed_files(), sums=verify)
    return manifest


def is_prepared(directory: Path) -> bool:
    """True if `padir prepare` or `padir distill` made the folder."""
    try:
        contents = parsed_json((directory / MANIFEST).read_bytes())
        return contents["format"] == PreparedManifest.HEADER["format"] and isinstance(contents["files"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_replaceable(directory: Path) -> None:
    """Checks that padir made every file of a prepared folder, whose manifest may be of another version."""
    check_no_others(directory, json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["files"])


def read_lengths(directory: PathLike, split: str, count: int) -> np.ndarray:
    """Numbers of tokens of each record of a split, int32 [records, 2]: source and target, EOS included."""
    path = Path(directory, lengths_name(split))
    try:
        length_N2 = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise PadirError(f"{path} cannot be read ({first_line(error)})", remedy=REMEDY) from None
    if length_N2.shape != (count, 2) or length_N2.dtype != np.int32:
        raise PadirError(
            f"{directory} must have {count} pairs in {split}, got lengths of shape {length_N2.shape} and type"
            f" {length_N2.dtype}",
            remedy=REMEDY,
        )
    return length_N2


def load_tokenizer(directory: PathLike) -> Tokenizer:
    """Loads the vocabulary that a folder was prepared with."""
    vocabulary = load_manifest(directory).vocabulary
    path = Path(directory, VOCABULARY)
    if sha256(path) != vocabulary.sha256:
        raise PadirError(f"{path} is not the vocabulary of the manifest (its sha256 differs)", remedy=REMEDY)
    return Tokenizer.load(path, vocabulary.num_sentinels, vocabulary.num_placeholders)


def read_text(directory: PathLike, split: str) -> tuple[list[str], list[str]]:
    """Reads the original sentences of all pairs of an evaluation split, as (sources, targets).

    Raises:
      PadirError: as `load_manifest`, or the split's text is missing (no text of the training split is kept) or changed.
    """
    manifest = load_manifest(directory)
    known = [name for name in manifest.splits if name != "train"]
    if split not in known:
        raise PadirError(f"{directory} has the text of {', '.join(known) or 'no split'}, not of {split!r}")
    sides = []
    for name in text_names(split, *manifest.source.languages):
        content = Path(directory, name).read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest.files[name].sha256:
            raise PadirError(f"{Path(directory, name)} was changed or damaged (its sha256 differs)", remedy=REMEDY)
        sides.append(content.decode("utf-8").split("\n")[:-1])  # only a newline ends a line, and each line has one
    return sides[0], sides[1]


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Prepared folders that are read as one corpus, such as raw and distilled pairs.

    Attributes:
      folders: folders from `padir prepare` or `padir distill` with the same vocabulary and languages.
      weights: how often each pair of a folder occurs in an epoch; with 0.5, each epoch has half of the folder's pairs.
        () gives every folder the weight 1.

    Raises:
      PadirError: there is no folder, a weight is not above 0, or the numbers of folders and weights differ.
    """

    folders: tuple[str, ...]
    weights: tuple[int | float, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "folders", tuple(self.folders))
        if not self.folders:
            raise PadirError("a mixture needs at least one prepared folder")
        object.__setattr__(self, "weights", tuple(map(float, self.weights)) or (1.0,) * len(self.folders))
        if len(self.weights) != len(self.folders):
            raise PadirError(f"{len(self.folders)} folders need one weight each, got {len(self.weights)}")
        if not all(0 < weight < math.inf for weight in self.weights):
            raise PadirError("weights", "above 0", self.weights, "leave out a folder that is not to be read")

    @staticmethod
    def of(data: PathLike | Mixture) -> Mixture:
        """Makes a mixture of a single folder; a mixture is returned unchanged."""
        return data if isinstance(data, Mixture) else Mixture((str(data),))

    def __str__(self) -> str:
        return " and ".join(self.folders)

    def manifests(self, split: str, *, verify: bool = False) -> list[PreparedManifest]:
        """Reads the manifests of all folders and checks that the folders can be mixed.

        Raises:
          PadirError: a folder is not whole (see `load_manifest`), lacks the split, or has another vocabulary or other
            languages than the first.
        """
        manifests = [load_manifest(folder, verify=verify) for folder in self.folders]
        first = manifests[0]
        for folder, manifest in zip(self.folders, manifests, strict=True):
            manifest.split(split, folder)
            languages = ("-".join(each.source.languages) for each in (manifest, first))
            for what, got, expected in (
                ("another vocabulary", manifest.vocabulary, first.vocabulary),
                ("text of another form", manifest.text_form, first.text_form),
                ("other languages", *languages),
            ):
                if got != expected:
                    how = f"{folder} has {what} than {self.folders[0]} ({got}, not {expected})"
                    raise PadirError(how, remedy="mix folders of the same vocabulary and languages")
        return manifests

    def chosen(self, counts: list[int], epoch: int, seed: int) -> np.ndarray:
        """The record numbers of an epoch, folder by folder; the numbers of a folder of weight 2 come twice.

        A folder whose weight is a fraction is read in shuffled passes that continue in the next epoch. So over the
        epochs all pairs occur equally often.

        >>> Mixture(("a", "b"), (1, 2)).chosen([3, 2], epoch=0, seed=0).tolist()
        [0, 1, 2, 3, 4, 3, 4]
        """
        parts = []
        offset = 0
        for number, (count, weight) in enumerate(zip(counts, self.weights, strict=True)):
            if weight == int(weight):
                own = np.tile(np.arange(count), int(weight))
            else:
                first, last = (math.floor(e * weight * count) for e in (epoch, epoch + 1))
                passes = range(first // count, -(-last // count))
                orders = [np.random.RandomState([seed, number, one]).permutation(count) for one in passes]
                walk = np.concatenate(orders) if orders else np.arange(0)
                own = walk[first - passes.start * count :][: last - first]
            parts.append(own + offset)
            offset += count
        return np.concatenate(parts)

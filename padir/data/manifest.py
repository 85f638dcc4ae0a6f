"""The manifest of a prepared folder: its corpus, vocabulary, length limits and splits, and the names of its files."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from padir import checks
from padir.errors import PadirError
from padir.storage.manifest import Manifest

VOCABULARY = "vocab.model"
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
    """SHA-256 of the vocabulary file, the number of all ids (`size`), and the number of sentinels among them."""

    sha256: str
    size: int
    num_sentinels: int

    def __str__(self) -> str:
        return f"{self.size} ids, {self.num_sentinels} sentinels, sha256 {self.sha256[:8]}..."


@dataclasses.dataclass(frozen=True)
class LengthLimits:
    """Limits on the lengths of sentence pairs, in tokens with EOS; pairs beyond them are dropped.

    Attributes:
      max_source_tokens, max_target_tokens: pairs with more source or target tokens are dropped.
      max_length_ratio: pairs whose longer side has more than this many times the tokens of the shorter one are
        dropped; None keeps them.

    Raises:
      PadirError: a limit is too small.
    """

    max_source_tokens: int = 256
    max_target_tokens: int = 256
    max_length_ratio: float | None = None

    def __post_init__(self):
        counts = {"max_source_tokens": self.max_source_tokens, "max_target_tokens": self.max_target_tokens}
        checks.at_least(2, "leave room for a token and EOS", **counts)
        if self.max_length_ratio is not None:
            checks.at_least(1, "use None for no limit", max_length_ratio=self.max_length_ratio)

    def reason_to_drop(self, source: str, target: str, source_tokens: int, target_tokens: int) -> str | None:
        """The first of `records.REASONS` that applies to a pair, or None if the pair is kept."""
        if not source.strip():
            return "empty source"
        if not target.strip():
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


@dataclasses.dataclass(frozen=True)
class PreparedManifest(Manifest):
    """The manifest of a folder that `padir prepare` or `padir distill` made.

    Attributes:
      source: name and languages of the corpus.
      vocabulary, limits: vocabulary and length limits that the corpus was prepared with.
      records_per_shard: largest number of records in one file.
      splits: counts and files of each split, by name.
      distilled: in a distilled folder, the inputs of `padir distill` and the teacher's validation BLEU; else None.
    """

    source: CorpusInfo
    vocabulary: VocabularyInfo
    limits: LengthLimits
    records_per_shard: int
    splits: dict[str, SplitInfo]
    distilled: dict[str, Any] | None = None

    HEADER: ClassVar[dict[str, Any]] = {"format": "padir-prepared", "version": 2}
    UNSEALED: ClassVar[dict[str, Any]] = {"format": "padir-prepared", "version": 1}
    REMEDY: ClassVar[str] = REMEDY

    def split(self, name: str, folder: object) -> SplitInfo:
        """Looks up a split by its name.

        Raises:
          PadirError: the folder has no split of that name.
        """
        if name not in self.splits:
            raise PadirError(f"{folder} has the splits {', '.join(self.splits)}, got {name!r}")
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
    if source_language == target_language:  # such as text simplification
        return f"{split}.{source_language}.source.txt", f"{split}.{target_language}.target.txt"
    return f"{split}.{source_language}.txt", f"{split}.{target_language}.txt"

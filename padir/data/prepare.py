"""Prepares a corpus: tokenises its text into ArrayRecord files, with a manifest that accounts for every pair.

A prepared folder holds

    manifest.json                          the list of all files and the origin of the pairs; written last
    vocab.model                            the SentencePiece file
    {split}-00000-of-00001.arrayrecord     pairs as tokens
    {split}.lengths.npy                    int32 [pairs, 2]: source and target tokens of each record, EOS included
    dropped-{split}.jsonl                  {"line": 17, "reason": "..."} for each pair without a record; lines from 1
    {validation,test}.{language}.txt       the original text of *all* pairs, because evaluation drops none

`padir.data.records` describes the format of a record.
"""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import hashlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from padir import checks
from padir.data.formats import Corpus
from padir.data.prepared import (
    VOCABULARY,
    CorpusInfo,
    LengthLimits,
    PreparedManifest,
    SplitInfo,
    VocabularyInfo,
    check_replaceable,
    is_prepared,
    load_manifest,
    text_names,
)
from padir.data.recipes import Recipe
from padir.data.records import SplitWriter, pair_bytes
from padir.data.sources import ParallelText, PathLike, Source
from padir.errors import PadirError
from padir.reporting.patience import progress_bar
from padir.storage.folders import atomic_folder, remove_leftovers, vacant
from padir.storage.manifest import file_sums
from padir.text.ids import EOS
from padir.text.languages import UNSPACED, is_foreign, same, script
from padir.text.spans import NUM_PLACEHOLDERS, with_marks
from padir.text.tokenizer import Tokenizer

_ENCODE_BATCH = 1024  # maximum number of pairs whose tokens are in memory at once
_MOST_CHARACTERS = 1 << 22  # maximum number of characters of these pairs; long lines come in smaller batches
_WARN_SHARE = 0.05  # share of pairs that a filter would drop, from which a warning names the filter
_WARN_RATIO = 3.0  # ratio of the numbers of tokens of two sides
_WORD_PAIRS = 10_000  # pairs of a corpus whose words are counted
_ENOUGH_WORDS = 50  # words on each side that are enough to tell whether their language is the same
_ALIKE = 0.9  # cosine of the counts of words of two sides
_WORD = re.compile(r"[^\W\d_]+")

_log = logging.getLogger("padir")


def prepare(
    source: Source,
    tokenizer: Tokenizer,
    output_dir: PathLike,
    limits: LengthLimits = LengthLimits(),  # noqa: B008
    *,
    records_per_shard: int = 1_000_000,
    placeholders: float = 0.0,
    overwrite: bool = False,
    progress: bool = True,
) -> PreparedManifest:
    """Tokenises every split of `source`, writes the prepared folder `output_dir`, and returns its manifest.

    The folder appears complete or not at all. A folder that already holds the same pairs, vocabulary and limits is
    kept, unless `overwrite` is set. Leftovers of killed processes beside the folder are removed.

    Args:
      records_per_shard: a split with more records is cut into several files.
      placeholders: share of the training pairs in which spans that are equal on both sides become placeholders
        (`padir.text.spans`). A model trained on these pairs keeps such spans where `Decoding.keep` names them.
      overwrite: replace a prepared folder, whatever it was made from.

    Raises:
      PadirError: the folder holds something else or cannot be written, a number is out of range, or the source cannot
        be read.
    """
    checks.counts(1, records_per_shard=records_per_shard)
    checks.within(0, 1, placeholders=placeholders)
    if placeholders:
        tokenizer = tokenizer.with_placeholders()
    output_dir = Path(output_dir).absolute()
    remove_leftovers(output_dir.parent, output_dir.name)
    inputs = {
        "source": CorpusInfo(source.name, source.source_language, source.target_language),
        "vocabulary": VocabularyInfo(
            tokenizer.sha256,
            tokenizer.ids.vocab_size,
            tokenizer.ids.num_sentinels,
            tokenizer.ids.num_placeholders,
        ),
        "limits": limits,
        "records_per_shard": records_per_shard,
        "placeholders": float(placeholders),
    }
    kept = _check_output(output_dir, source, inputs, overwrite)
    if kept is not None:
        return kept
    with atomic_folder(output_dir) as partial:
        tokenizer.save(partial / VOCABULARY)
        splits, audit = {}, Audit((source.source_language, source.target_language), limits.drop)
        for split in sorted(source.splits, key="train".__ne__):  # the audit sees training first
            writer = SplitWriter(partial, split, limits, records_per_shard)
            audit.begin(split)
            marker = Marker(placeholders if split == "train" else 0.0)
            splits[split] = _write_split(source, split, tokenizer, writer, audit, marker, progress)
            audit.end(limits.max_length_ratio)
        if "train" in splits and not splits["train"].written:
            counts = splits["train"].dropped
            dropped = ", ".join(f"{count} {reason}" for reason, count in counts.items())
            blank = all(reason.startswith("empty") for reason in counts)
            remedy = "give files whose lines have text on both sides" if blank else "raise the limits"
            raise PadirError(f"{source.name}: every training pair was dropped ({dropped})", remedy=remedy)
        manifest = PreparedManifest(file_sums(partial), splits=splits, **inputs)
        manifest.write(partial)
    return manifest


def _check_output(
    output_dir: Path, source: Source, inputs: dict[str, object], overwrite: bool
) -> PreparedManifest | None:
    """Returns the manifest of a folder that already holds the same pairs; None if the folder must be written."""
    if vacant(output_dir):
        return None
    if not output_dir.is_dir():
        raise PadirError(f"{output_dir} is a file", remedy="give a folder")
    if not is_prepared(output_dir):
        raise PadirError(f"{output_dir} holds files that `padir prepare` did not make", remedy="give another folder")
    if overwrite:
        check_replaceable(output_dir)
        return None
    manifest = load_manifest(output_dir, verify=True)
    same = all(getattr(manifest, name) == value for name, value in inputs.items())
    if same and {name: info.sha256 for name, info in manifest.splits.items()} == _sums(source):
        return manifest
    remedy = "give another folder, or set overwrite (--overwrite)"
    raise PadirError(f"{output_dir} was prepared from other text, vocabulary or limits", remedy=remedy)


def _sums(source: Source) -> dict[str, str]:
    """SHA-256 of the pairs of every split."""
    sums = {}
    for split in source.splits:
        digest = hashlib.sha256()
        for pair in source.pairs(split):
            digest.update(pair_bytes(pair))
        sums[split] = digest.hexdigest()
    return sums


def _write_split(
    source: Source,
    split: str,
    tokenizer: Tokenizer,
    writer: SplitWriter,
    audit: Audit,
    marker: Marker,
    progress: bool,
) -> SplitInfo:
    parted = isinstance(source, ParallelText | Recipe)
    corpora = source.corpora(split) if parted else [Corpus(source.name, source.pairs(split))]
    with contextlib.ExitStack() as stack:
        names = () if split == "train" else text_names(split, source.source_language, source.target_language)
        paths = [writer.directory / name for name in names]
        texts = [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths]
        records = stack.enter_context(writer)
        advance = stack.enter_context(progress_bar(f"{source.name} {split}", None, "pairs", show=progress))
        for name, batch in ((corpus.name, batch) for corpus in corpora for batch in _batches(corpus.pairs)):
            records.corpus = name
            plain = [(tokenizer.normalised(source).text, tokenizer.normalised(target).text) for source, target in batch]
            sources, targets = zip(*map(marker, plain), strict=True)
            token_lists = zip(tokenizer.encode_batch(sources), tokenizer.encode_batch(targets), strict=True)
            for pair, read, tokens in zip(batch, plain, token_lists, strict=True):
                if "\n" in pair[0] or "\n" in pair[1]:
                    where = f"{source.name} {split}, pair {records.read + 1}"
                    raise PadirError(f"{where}: a sentence must be one line, got one with a newline")
                for file, text in zip(texts, pair, strict=False):
                    file.write(text + "\n")
                source_ids, target_ids = (ids + [EOS] for ids in tokens)
                reason = audit.reason_to_drop(name, read, (len(source_ids), len(target_ids)))
                records.write(pair, source_ids, target_ids, reason)
            advance(len(batch))
    return dataclasses.replace(records.info, placeholders=dict(marker.counts))


@dataclasses.dataclass
class Marker:
    """Puts placeholders into a share of the pairs, which a pair's text decides, and counts them (`SplitInfo`)."""

    share: float
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __call__(self, pair: tuple[str, str]) -> tuple[str, str]:
        """The pair with placeholders, or as it is."""
        draw = int.from_bytes(hashlib.blake2b(pair_bytes(pair), digest_size=8).digest()) if self.share else 0
        if draw >= self.share * 2**64:
            return pair
        # All placeholders are equally frequent.
        source, target, found = with_marks(*pair, first=draw % NUM_PLACEHOLDERS)
        if found:
            self.counts.update(pairs=1, **found)
        return source, target


def _batches(pairs: Iterator[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    batch, characters = [], 0
    for pair in pairs:
        batch.append(pair)
        characters += len(pair[0]) + len(pair[1])
        if len(batch) == _ENCODE_BATCH or characters >= _MOST_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class Audit:
    """Filters for the pairs of a training split, and counts for warnings about all splits."""

    def __init__(self, languages: tuple[str, str], drop: tuple[str, ...] = ()):
        self._scripts = tuple(script(language) for language in languages)
        self._by_character = tuple(each in UNSPACED for each in self._scripts)
        self._told_apart = not same(*languages)
        self._drop = drop
        self._seen: set[int] = set()  # filled only where duplicates are dropped
        self._train = np.zeros(0, np.int64)

    def begin(self, split: str) -> None:
        """Begins a split; training comes first."""
        self._split, self._read = split, 0
        self._hashes = array.array("q")
        self._found: collections.Counter[str] = collections.Counter()
        self._words: dict[str, tuple[collections.Counter[str], collections.Counter[str]]] = {}
        self._counted: collections.Counter[str] = collections.Counter()

    def reason_to_drop(self, corpus: str, pair: tuple[str, str], lengths: tuple[int, int]) -> str | None:
        """The first filter that drops a pair of a corpus, or None; `lengths` are numbers of tokens with EOS."""
        self._read += 1
        source, target = pair[0].strip(), pair[1].strip()
        hashed = int.from_bytes(hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest(), signed=True)
        self._hashes.append(hashed)
        if self._counted[corpus] < _WORD_PAIRS:
            self._counted[corpus] += 1
            for counts, text, by_character in zip(
                self._words.setdefault(corpus, (collections.Counter(), collections.Counter())),
                (source, target),
                self._by_character,
                strict=True,
            ):
                counts.update(text if by_character else _WORD.findall(text.lower()))
        if self._split != "train" or not source or not target:
            return None
        found = []
        if source == target:
            found.append("equal")
        if any(map(is_foreign, (source, target), self._scripts)):
            found.append("script")
        if max(lengths) > _WARN_RATIO * min(lengths):
            found.append("ratio")
        self._found.update(found)
        if "duplicate" in self._drop:
            if hashed in self._seen:
                return "duplicate"
            self._seen.add(hashed)
        return next((name for name in found if name in self._drop), None)

    def end(self, max_length_ratio: float | None) -> None:
        """Ends a split; warns of pairs that filters would have dropped, and of other problems with its pairs."""
        hash_N = np.frombuffer(self._hashes, np.int64)
        for corpus, counts in self._words.items():
            if self._told_apart and _alike(*counts):
                _log.warning("%s: both sides of %s look like one language: check its files", self._split, corpus)
        if self._split != "train":
            known = int(np.isin(hash_N, self._train).sum())
            if known:
                _log.warning("%s: %s of %s pairs are also in train", self._split, f"{known:,}", f"{self._read:,}")
            return
        self._train = np.unique(hash_N)
        self._found["duplicate"] = len(hash_N) - len(self._train)
        about = {
            "duplicate": ("come more than once", "--dedupe"),
            "equal": ("have equal sides", "--set drop=equal"),
            "script": ("are not in the script of their language", "--set drop=script"),
            "ratio": (f"have lengths with a ratio above {_WARN_RATIO:g}", "--set max_length_ratio=3"),
        }
        for name, (what, remedy) in about.items():
            active = name in self._drop or (name == "ratio" and max_length_ratio is not None)
            if not active and self._found[name] > _WARN_SHARE * self._read:
                share = f"{100 * self._found[name] / self._read:.0f} %"
                _log.warning("train: %s of the pairs %s: %s drops them", share, what, remedy)


def _alike(source: collections.Counter[str], target: collections.Counter[str]) -> bool:
    """True if two texts share so many words that they must be in one language."""
    if min(source.total(), target.total()) < _ENOUGH_WORDS:
        return False
    product = sum(count * target[word] for word, count in source.items())
    norms = [sum(count * count for count in counts.values()) for counts in (source, target)]
    return product > _ALIKE * (norms[0] * norms[1]) ** 0.5

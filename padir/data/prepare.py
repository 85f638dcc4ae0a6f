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

import collections
import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

from padir import checks
from padir.data.audit import Audit
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
from padir.data.records import NO_LETTERS, SplitWriter, pair_bytes
from padir.data.sources import PathLike, Source
from padir.errors import PadirError
from padir.reporting.patience import progress_bar
from padir.storage.folders import atomic_folder, remove_leftovers, vacant
from padir.storage.manifest import file_sums
from padir.text.ids import EOS
from padir.text.spans import NUM_PLACEHOLDERS, with_marks
from padir.text.tokenizer import Tokenizer

_ENCODE_BATCH = 1024  # maximum number of pairs whose tokens are in memory at once
_MOST_CHARACTERS = 1 << 22  # maximum number of characters of these pairs; long lines come in smaller batches


def prepare(
    source: Source,
    tokenizer: Tokenizer,
    output_dir: PathLike,
    limits: LengthLimits = LengthLimits(),  # noqa: B008
    *,
    placeholders: float = 0.0,
    overwrite: bool = False,
    progress: bool = True,
) -> PreparedManifest:
    """Tokenises every split of `source`, writes the prepared folder `output_dir`, and returns its manifest.

    The folder appears complete or not at all. A folder that already holds the same pairs, vocabulary and limits is
    kept, unless `overwrite` is set. Leftovers of killed processes beside the folder are removed.

    Args:
      placeholders: share of the training pairs in which spans that are equal on both sides become placeholders
        (`padir.text.spans`). A model trained on these pairs keeps such spans where `Decoding.placeholders` names them.
      overwrite: replace a prepared folder, whatever it was made from.

    Raises:
      PadirError: the folder holds something else or cannot be written, a number is out of range, or the source cannot
        be read.
    """
    checks.within(0, 1, placeholders=placeholders)
    if placeholders:
        tokenizer = tokenizer.with_placeholders()
    output_dir = Path(output_dir).absolute()
    remove_leftovers(output_dir.parent, output_dir.name)
    ids = tokenizer.ids
    empty = PreparedManifest(
        files={},
        source=CorpusInfo(source.name, source.source_language, source.target_language),
        vocabulary=VocabularyInfo(tokenizer.sha256, ids.vocab_size, ids.num_sentinels, ids.num_placeholders),
        limits=limits,
        splits={},
        text_form="plain",
        placeholders=float(placeholders),
    )
    kept = _check_output(output_dir, source, empty, overwrite)
    if kept is not None:
        return kept
    with atomic_folder(output_dir) as partial:
        tokenizer.save(partial / VOCABULARY)
        splits = {}
        audit = Audit((source.source_language, source.target_language), limits.drop)
        for split in sorted(source.splits, key="train".__ne__):  # the audit sees training first
            writer = SplitWriter(partial, split, limits)
            audit.begin(split)
            marker = Marker(placeholders if split == "train" else 0.0)
            splits[split] = _write_split(source, split, tokenizer, writer, audit, marker, progress)
            audit.end(limits.max_length_ratio)
        if "train" in splits and not splits["train"].written:
            raise _all_dropped(source.name, splits["train"].dropped)
        manifest = dataclasses.replace(empty, files=file_sums(partial), splits=splits)
        manifest.write(partial)
    return manifest


def _check_output(
    output_dir: Path, source: Source, empty: PreparedManifest, overwrite: bool
) -> PreparedManifest | None:
    """Returns the manifest of a folder that already holds the same pairs; None if the folder must be written.

    `empty` is the manifest to be written, without files and splits.
    """
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
    same = dataclasses.replace(manifest, files={}, splits={}) == empty
    if same and {name: info.sha256 for name, info in manifest.splits.items()} == _sums(source):
        return manifest
    remedy = "give another folder, or set overwrite"
    raise PadirError(f"{output_dir} was prepared from other text, vocabulary or limits", remedy=remedy)


def _all_dropped(name: str, counts: dict[str, int]) -> PadirError:
    dropped = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    blank = all(reason.startswith("empty") for reason in counts)
    remedy = "give files whose lines have text on both sides" if blank else "raise the limits"
    return PadirError(f"{name}: every training pair was dropped ({dropped})", remedy=remedy)


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
    with contextlib.ExitStack() as stack:
        names = () if split == "train" else text_names(split, source.source_language, source.target_language)
        paths = [writer.directory / name for name in names]
        texts = [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths]
        records = stack.enter_context(writer)
        advance = stack.enter_context(progress_bar(f"{source.name} {split}", None, "pairs", show=progress))
        for name, batch in (
            (corpus.name, batch) for corpus in source.corpora(split) for batch in _batches(corpus.pairs)
        ):
            records.corpus = name
            plain = [(tokenizer.normalised(source).text, tokenizer.normalised(target).text) for source, target in batch]
            sources, targets = zip(*map(marker, plain), strict=True)
            token_lists = zip(tokenizer.encode_batch(sources), tokenizer.encode_batch(targets), strict=True)
            for pair, read, tokens in zip(batch, plain, token_lists, strict=True):
                original = "\t".join(pair)
                if "\n" in original:
                    where = f"{source.name} {split}, pair {records.read + 1}"
                    raise PadirError(f"{where}: a sentence must be one line, got one with a newline")
                for file, text in zip(texts, pair, strict=False):
                    file.write(text + "\n")
                source_ids, target_ids = (ids + [EOS] for ids in tokens)
                reason = audit.reason_to_drop(name, read, (len(source_ids), len(target_ids)), original)
                if any(text.strip() and not plain for text, plain in zip(pair, read, strict=True)):
                    reason = NO_LETTERS
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
    batch = []
    characters = 0
    for pair in pairs:
        batch.append(pair)
        characters += len(pair[0]) + len(pair[1])
        if len(batch) == _ENCODE_BATCH or characters >= _MOST_CHARACTERS:
            yield batch
            batch = []
            characters = 0
    if batch:
        yield batch

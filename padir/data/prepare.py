"""Preparing a corpus: source text to tokenised ArrayRecord shards with a manifest that accounts for every pair.

A prepared folder holds

    manifest.json                          what is here and where it came from; written last
    vocab.model                            the SentencePiece file
    {split}-00000-of-00001.arrayrecord     pairs as tokens
    {split}.lengths.npy                    int32 [pairs, 2]: source and target tokens of each record, EOS included
    dropped-{split}.jsonl                  {"line": 17, "reason": "..."} of each pair that has no record, from line 1
    {validation,test}.{language}.txt       the untouched text of *all* pairs: evaluation drops none

A record is little-endian int32: the number of source tokens, the source tokens, the target tokens. Both end in EOS;
the length token is the loader's business.
"""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rich.console
import rich.progress
from array_record.python.array_record_module import ArrayRecordWriter

from padir.data.prepared import FORMAT, MANIFEST, VERSION, VOCABULARY, file_sha256, load_manifest, text_names
from padir.data.sources import PathLike, Source
from padir.errors import PadirError
from padir.tokenizer import Tokenizer
from padir.tokens import EOS

REASONS = ("empty source", "empty target", "source too long", "target too long", "length ratio")

# One record a group: the loader reads single records in shuffled order.
_WRITER_OPTIONS = "group_size:1"
_ENCODE_BATCH = 1024


@dataclasses.dataclass(frozen=True)
class Limits:
    """Which pairs become records. Tokens are counted with EOS.

    Attributes:
      max_source_tokens, max_target_tokens: longer pairs are dropped.
      max_length_ratio: pairs whose longer side has more than this many times the tokens of the shorter one are
        dropped; None keeps them.
    """

    max_source_tokens: int = 256
    max_target_tokens: int = 256
    max_length_ratio: float | None = None

    def __post_init__(self):
        for name in ("max_source_tokens", "max_target_tokens"):
            if getattr(self, name) < 2:
                raise PadirError(f"{name} must be at least 2 (a token and EOS), got {getattr(self, name)}")
        if self.max_length_ratio is not None and self.max_length_ratio < 1:
            raise PadirError(f"max_length_ratio must be at least 1, or None for no limit, got {self.max_length_ratio}")

    def reason_to_drop(self, source: str, target: str, source_tokens: int, target_tokens: int) -> str | None:
        """The first of `REASONS` that speaks against a pair, or None."""
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


def prepare(
    source: Source,
    tokenizer: Tokenizer,
    output_dir: PathLike,
    *,
    max_source_tokens: int = 256,
    max_target_tokens: int = 256,
    max_length_ratio: float | None = None,
    records_per_shard: int = 1_000_000,
    overwrite: bool = False,
    progress: bool = True,
) -> dict[str, Any]:
    """Tokenises every split of `source` into `output_dir` and returns the manifest.

    The folder appears whole or not at all. One that already holds the same pairs, vocabulary and limits is kept, unless
    `overwrite` is set.

    Args:
      max_source_tokens, max_target_tokens, max_length_ratio: see `Limits`.
      records_per_shard: a split with more records is cut into several files.
      overwrite: make a prepared folder anew, whatever it was made from.
      progress: show progress on stderr.

    Raises:
      PadirError: the folder holds something else, a limit makes no sense, or the source cannot be read.
    """
    limits = Limits(max_source_tokens, max_target_tokens, max_length_ratio)
    if records_per_shard < 1:
        raise PadirError(f"records_per_shard must be at least 1, got {records_per_shard}")
    output_dir = Path(output_dir).absolute()
    inputs = {
        "source": {
            "name": source.name,
            "source_language": source.source_language,
            "target_language": source.target_language,
        },
        "vocabulary": {
            "sha256": tokenizer.sha256,
            "size": tokenizer.ids.vocab_size,
            "num_sentinels": tokenizer.ids.num_sentinels,
        },
        "limits": dataclasses.asdict(limits),
        "records_per_shard": records_per_shard,
    }
    replaces = _check_output(output_dir, source, inputs, overwrite)
    if isinstance(replaces, dict):
        return replaces

    # A sibling, so that the final rename stays on one file system.
    partial = output_dir.with_name(f".{output_dir.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        tokenizer.save(partial / VOCABULARY)
        splits = {
            split: _write_split(source, split, tokenizer, partial, limits, records_per_shard, progress)
            for split in source.splits
        }
        if "train" in splits and not splits["train"]["written"]:
            dropped = ", ".join(f"{count} {reason}" for reason, count in splits["train"]["dropped"].items())
            raise PadirError(f"{source.name}: every training pair was dropped ({dropped}): raise the limits")
        paths = sorted(partial.iterdir())
        files = {path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in paths}
        manifest = {"format": FORMAT, "version": VERSION, **inputs, "splits": splits, "files": files}
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if replaces:
            shutil.rmtree(output_dir)
        os.replace(partial, output_dir)
    except BaseException:  # Ctrl-C too
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def _check_output(output_dir: Path, source: Source, inputs: dict, overwrite: bool) -> dict | bool:
    """The manifest if `output_dir` holds the same already; True if it must be replaced, False if there is nothing."""
    if not output_dir.exists():
        return False
    if not output_dir.is_dir():
        raise PadirError(f"{output_dir} is a file: give a folder")
    if not any(output_dir.iterdir()):
        return False
    if not _is_ours(output_dir):
        raise PadirError(f"{output_dir} holds files that `padir prepare` did not make: give another folder")
    if overwrite:
        return True
    manifest = load_manifest(output_dir, verify=True)
    same = {key: manifest.get(key) for key in inputs} == inputs and set(manifest["splits"]) == set(source.splits)
    if same and all(manifest["splits"][split]["sha256"] == _pairs_sha256(source, split) for split in source.splits):
        return manifest
    raise PadirError(
        f"{output_dir} was prepared from other text, vocabulary or limits: give another folder, or --overwrite"
    )


def _is_ours(directory: Path) -> bool:
    """Whether a manifest says that `padir prepare` made the folder, so that replacing it deletes nobody's work."""
    try:
        return json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_split(
    source: Source, split: str, tokenizer: Tokenizer, directory: Path, limits: Limits, per_shard: int, progress: bool
) -> dict[str, Any]:
    dropped: collections.Counter[str] = collections.Counter()
    digest = hashlib.sha256()
    lengths = array.array("i")  # source and target tokens of each record in turn
    with contextlib.ExitStack() as stack:
        drops = stack.enter_context((directory / f"dropped-{split}.jsonl").open("w", encoding="utf-8"))
        names = () if split == "train" else text_names(split, source.source_language, source.target_language)
        texts = [stack.enter_context((directory / n).open("w", encoding="utf-8", newline="\n")) for n in names]
        shards = stack.enter_context(_Shards(directory, split, per_shard))
        console = rich.console.Console(stderr=True)
        bar = stack.enter_context(
            rich.progress.Progress(
                rich.progress.TextColumn("{task.description}"),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TimeElapsedColumn(),
                console=console,
                disable=not (progress and console.is_terminal),
            )
        )
        task = bar.add_task(f"{source.name} {split}: pairs", total=None)
        line = 0
        for batch in _batches(source.pairs(split)):
            sources, targets = zip(*batch, strict=True)
            token_lists = zip(tokenizer.encode_batch(sources), tokenizer.encode_batch(targets), strict=True)
            for pair, tokens in zip(batch, token_lists, strict=True):
                line += 1
                if "\n" in pair[0] or "\n" in pair[1]:
                    raise PadirError(
                        f"{source.name} {split}, pair {line}: a sentence must be one line, got a newline in it"
                    )
                _update(digest, pair)
                for file, text in zip(texts, pair, strict=False):
                    file.write(text + "\n")
                source_ids, target_ids = (ids + [EOS] for ids in tokens)
                if reason := limits.reason_to_drop(*pair, len(source_ids), len(target_ids)):
                    dropped[reason] += 1
                    drops.write(json.dumps({"line": line, "reason": reason}) + "\n")
                    continue
                shards.write(np.array([len(source_ids), *source_ids, *target_ids], "<i4").tobytes())
                lengths.extend((len(source_ids), len(target_ids)))
            bar.update(task, completed=line)
    length_N2 = np.array(lengths, "<i4").reshape(-1, 2)
    np.save(directory / f"{split}.lengths.npy", length_N2, allow_pickle=False)
    totals = length_N2.sum(0, dtype=np.int64)
    longest = length_N2.max(0, initial=0)
    return {
        "read": line,
        "written": len(length_N2),
        "dropped": {reason: dropped[reason] for reason in REASONS if dropped[reason]},
        "source_tokens": int(totals[0]),
        "target_tokens": int(totals[1]),
        "longest_source": int(longest[0]),
        "longest_target": int(longest[1]),
        "shards": shards.names,
        "sha256": digest.hexdigest(),
    }


class _Shards:
    """ArrayRecord files of at most `per_shard` records, named with their total once that is known."""

    def __init__(self, directory: Path, split: str, per_shard: int):
        self._directory, self._split, self._per_shard = directory, split, per_shard
        self._paths: list[Path] = []
        self._count = 0
        self._writer: ArrayRecordWriter | None = None
        self.names: list[str] = []

    def __enter__(self) -> _Shards:
        self._next()
        return self

    def _next(self) -> ArrayRecordWriter:
        self._close()
        self._paths.append(self._directory / f"{self._split}-{len(self._paths):05d}.partial")
        self._writer = ArrayRecordWriter(str(self._paths[-1]), _WRITER_OPTIONS)
        return self._writer

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, record: bytes) -> None:
        writer = self._writer
        if writer is None or (self._count and self._count % self._per_shard == 0):
            writer = self._next()
        writer.write(record)
        self._count += 1

    def __exit__(self, *exception: object) -> None:
        self._close()
        for number, path in enumerate(self._paths):
            name = f"{self._split}-{number:05d}-of-{len(self._paths):05d}.arrayrecord"
            path.rename(path.with_name(name))
            self.names.append(name)


def _batches(pairs: Iterator[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    while batch := list(itertools.islice(pairs, _ENCODE_BATCH)):
        yield batch


def _update(digest: Any, pair: tuple[str, str]) -> None:
    # A newline cannot occur in a sentence, so the pairs can be told apart.
    digest.update(f"{pair[0]}\n{pair[1]}\n".encode())


def _pairs_sha256(source: Source, split: str) -> str:
    digest = hashlib.sha256()
    for pair in source.pairs(split):
        _update(digest, pair)
    return digest.hexdigest()

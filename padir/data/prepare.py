"""Preparing a corpus: source text to tokenised ArrayRecord shards with a manifest that accounts for every pair.

A prepared folder holds

    manifest.json                          what is here and where it came from; written last
    vocab.model                            the SentencePiece file
    {split}-00000-of-00001.arrayrecord     pairs as tokens
    {split}.lengths.npy                    int32 [pairs, 2]: source and target tokens of each record, EOS included
    dropped-{split}.jsonl                  {"line": 17, "reason": "..."} of each pair that has no record, from line 1
    {validation,test}.{language}.txt       the untouched text of *all* pairs: evaluation drops none

`padir.data.records` says what a record is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich.console
import rich.progress

from padir.data.prepared import (
    FORMAT,
    MANIFEST,
    VERSION,
    VOCABULARY,
    file_sha256,
    is_prepared,
    load_manifest,
    text_names,
)
from padir.data.records import Limits, SplitWriter, pair_bytes
from padir.data.sources import PathLike, Source
from padir.errors import PadirError
from padir.storage.files import writing
from padir.storage.manifest import sealed
from padir.text.ids import EOS
from padir.text.tokenizer import Tokenizer

_ENCODE_BATCH = 1024  # pairs, of which all tokens are in memory
_MOST_CHARACTERS = 1 << 22  # in them: long lines come in smaller batches


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
    `overwrite` is set. What killed processes have left half-written beside it is removed.

    Args:
      max_source_tokens, max_target_tokens, max_length_ratio: see `Limits`.
      records_per_shard: a split with more records is cut into several files.
      overwrite: make a prepared folder anew, whatever it was made from.
      progress: show progress on stderr.

    Raises:
      PadirError: the folder holds something else or cannot be written, a limit makes no sense, or the source cannot be
        read.
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
    _remove_leftovers(output_dir)
    replaces = _check_output(output_dir, source, inputs, overwrite)
    if isinstance(replaces, dict):
        return replaces

    # A sibling, so that the final rename stays on one file system.
    partial = output_dir.with_name(f".{output_dir.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with writing(output_dir):
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
            manifest = sealed({"format": FORMAT, "version": VERSION, **inputs, "splits": splits, "files": files})
            (partial / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            if replaces:
                shutil.rmtree(output_dir)
            os.replace(partial, output_dir)
    except BaseException:  # Ctrl-C too
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def _remove_leftovers(output_dir: Path) -> None:
    """Removes what processes that were killed had half-written of this folder."""
    pattern = re.compile(rf"\.{re.escape(output_dir.name)}\.(\d{{1,9}})\.partial")
    for path in output_dir.parent.iterdir() if output_dir.parent.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match and not _is_running(int(match.group(1))):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _check_output(output_dir: Path, source: Source, inputs: dict, overwrite: bool) -> dict | bool:
    """The manifest if `output_dir` holds the same already; True if it must be replaced, False if there is nothing."""
    if not output_dir.exists():
        return False
    if not output_dir.is_dir():
        raise PadirError(f"{output_dir} is a file: give a folder")
    if not any(output_dir.iterdir()):
        return False
    if not is_prepared(output_dir):
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


def _write_split(
    source: Source, split: str, tokenizer: Tokenizer, directory: Path, limits: Limits, per_shard: int, progress: bool
) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        names = () if split == "train" else text_names(split, source.source_language, source.target_language)
        texts = [stack.enter_context((directory / n).open("w", encoding="utf-8", newline="\n")) for n in names]
        records = stack.enter_context(SplitWriter(directory, split, limits, per_shard))
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
        for batch in _batches(source.pairs(split)):
            sources, targets = zip(*batch, strict=True)
            token_lists = zip(tokenizer.encode_batch(sources), tokenizer.encode_batch(targets), strict=True)
            for pair, tokens in zip(batch, token_lists, strict=True):
                if "\n" in pair[0] or "\n" in pair[1]:
                    raise PadirError(
                        f"{source.name} {split}, pair {records.read + 1}: a sentence must be one line, got a newline"
                        " in it"
                    )
                for file, text in zip(texts, pair, strict=False):
                    file.write(text + "\n")
                source_ids, target_ids = (ids + [EOS] for ids in tokens)
                records.write(pair, source_ids, target_ids)
            bar.update(task, completed=records.read)
    return records.info


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


def _pairs_sha256(source: Source, split: str) -> str:
    digest = hashlib.sha256()
    for pair in source.pairs(split):
        digest.update(pair_bytes(pair))
    return digest.hexdigest()

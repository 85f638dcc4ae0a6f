"""Corpora, prepared folders and test sets that the options of a command name."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from padir.data.sources import ParallelText, Source
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.interop.tfds_sets import get_source


def files_of(args: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Files of --train, --validation and --test, by split."""
    named = {split: getattr(args, split, None) for split in ("train", "validation", "test")}
    return {split: tuple(paths) for split, paths in named.items() if paths}


def source_of(args: argparse.Namespace) -> Source:
    """Corpus of --task or of files, or the `ParallelText` that gin binds.

    Raises:
      PadirError: there is no corpus, or more than one; or files are missing or of unknown languages.
    """
    files = files_of(args)
    if args.task and files:
        raise PadirError("give either --task or files, not both")
    if args.task:
        return get_source(args.task, args.data_dir)
    if files:
        return _parallel_text(args.languages, files)
    if args.gin:
        from padir import config

        with contextlib.suppress(TypeError):  # gin's error if it binds no names and languages
            return config.configured(ParallelText)()
    raise PadirError(
        "no corpus: give --task NAME, or --languages SRC-TGT with --train, --validation or --test files"
        + (", or --data DIR, a prepared folder" if hasattr(args, "data") else "")
    )


def _parallel_text(languages: str | None, files: dict[str, tuple[str, ...]]) -> ParallelText:
    source_language, separator, target_language = (languages or "").partition("-")
    if not separator or not source_language or not target_language:
        raise PadirError(f"files need --languages SRC-TGT, such as de-en, got {languages!r}")
    for split, paths in files.items():
        if len(paths) > 2:
            raise PadirError(f"--{split} takes one .tsv file or two text files, got {len(paths)}")
    single: dict[str, Any] = {split: paths[0] if len(paths) == 1 else paths for split, paths in files.items()}
    return ParallelText(f"{source_language}_{target_language}", source_language, target_language, **single)


def folders_of(args: argparse.Namespace) -> tuple[str, ...]:
    """Prepared folders of --data, or of gin's DATASET.

    Raises:
      PadirError: neither names a folder.
    """
    from padir import config

    folders = args.data or config.macro("DATASET")
    if not folders:
        raise PadirError("no data: give --data DIR, or --gin.DATASET=DIR")
    return (folders,) if isinstance(folders, str) else tuple(folders)


def test_set_of(args: argparse.Namespace) -> TestSet:
    """Test set of --data or of a corpus; a test set from files has the files' name.

    Raises:
      PadirError: there is no test set, or more than one.
    """
    files = files_of(args)
    if args.data and (args.task or files):
        raise PadirError("give either --data, or --task or files, not both")
    if args.data:
        return TestSet.of_prepared(args.data, args.split)
    test_set = TestSet.of_source(source_of(args), args.split)
    if files:
        test_set = dataclasses.replace(test_set, task=Path(files[args.split][0]).name.split(".")[0])
    return test_set

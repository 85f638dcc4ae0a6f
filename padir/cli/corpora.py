"""Corpora, prepared folders and test sets that the options of a command name."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from pathlib import Path

from padir.data.sources import SOURCES, ParallelText, Source, sacrebleu_set
from padir.distributed.processes import agreed
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.interop.seqio_tasks import TFDS_SETS, get_source
from padir.storage.remote import fetched
from padir.text.languages import pair_of


def files_of(args: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Files of --train, --validation and --test, by split."""
    named = {split: getattr(args, split, None) for split in ("train", "validation", "test")}
    return {split: tuple(paths) for split, paths in named.items() if paths}


def source_of(args: argparse.Namespace) -> Source:
    """Corpus of --task or of files, or the `ParallelText` that gin binds."""
    files = files_of(args)
    if args.task and files:
        raise PadirError("give either --task or files, not both")
    if not files and args.languages:
        if not args.task or args.task in (*SOURCES, *TFDS_SETS):
            raise PadirError("--languages applies only to files", remedy="give files, or leave --languages out")
        return sacrebleu_set(args.task, *pair_of(args.languages), args.data_dir)
    if args.data_dir and not args.task:
        raise PadirError("--data_dir applies only to a task", remedy="give --task, or leave --data_dir out")
    if args.task:
        return get_source(args.task, args.data_dir)
    if files:
        if args.languages is None:
            raise PadirError("files need --languages SRC-TGT, such as de-en")
        source_language, target_language = pair_of(args.languages)
        return ParallelText(f"{source_language}_{target_language}", source_language, target_language, **files)
    if args.gin:
        from padir import config

        with contextlib.suppress(TypeError):  # gin's error if it binds no names and languages
            return config.configured(ParallelText)()
    raise PadirError(
        "no corpus: give --task NAME, or --languages SRC-TGT with --train, --validation or --test files"
        + (", or --data DIR, a prepared folder" if hasattr(args, "data") else "")
    )


def folders_of(args: argparse.Namespace) -> tuple[str, ...]:
    """Prepared folders of --data, or of gin's DATASET, which each process fetches from an address."""
    from padir import config

    folders = args.data or config.macro("DATASET")
    if not folders:
        raise PadirError("no data: give --data DIR, or --gin.DATASET=DIR")
    names = [folders] if isinstance(folders, str) else folders
    return agreed("the data", lambda: tuple(str(fetched(name)) for name in names), lambda _: "")


def test_set_of(args: argparse.Namespace) -> TestSet:
    """Test set of --data or of a corpus; a test set from files is named after the files."""
    files = files_of(args)
    if args.data and (args.task or files):
        raise PadirError("give either --data, or --task or files, not both")
    if others := sorted(files.keys() - {args.split}):
        raise PadirError(f"--split {args.split} does not read --{others[0]}", remedy=f"give only --{args.split}")
    if args.data:
        if args.languages or args.data_dir:
            raise PadirError("--data already has languages and files", remedy="leave out --languages and --data_dir")
        return TestSet.of_prepared(args.data, args.split)
    test_set = TestSet.of_source(source_of(args), args.split)
    if files:
        names = dict.fromkeys(Path(path).name.split(".")[0] for path in files[args.split])
        task = "+".join(names) if len(files[args.split]) > 2 else next(iter(names))
        test_set = dataclasses.replace(test_set, task=task)
    return test_set

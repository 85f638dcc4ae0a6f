"""Corpora, prepared folders and test sets that command-line options name."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from padir.cli.arguments import chosen
from padir.data.recipes import Recipe
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
    """Corpus of --task, of --recipe or of files."""
    files = files_of(args)
    if getattr(args, "recipe", None):
        if args.task or files or args.languages or args.data_dir:
            raise PadirError("--recipe names all files and languages", remedy="give --recipe and --downloads alone")
        if args.downloads is None:
            raise PadirError("--recipe needs --downloads DIR, the folder that has WMT's files")
        return Recipe(args.recipe, args.downloads, **chosen(args, "padir.data.recipes:Recipe"))
    if hasattr(args, "recipe") and (args.downloads or chosen(args, "padir.data.recipes:Recipe")):
        what = "--downloads, --set without=PARTS and --set checked=false apply only to a recipe"
        raise PadirError(what, remedy="give --recipe, or leave them out")
    if args.task and files:
        raise PadirError("give either --task or files, not both")
    if args.task:
        return _task_of(args)
    if args.data_dir:
        raise PadirError("--data_dir applies only to a task", remedy="give --task, or leave --data_dir out")
    if files:
        if args.languages is None:
            raise PadirError("files need --languages SRC-TGT, such as de-en")
        source_language, target_language = pair_of(args.languages)
        return ParallelText(f"{source_language}_{target_language}", source_language, target_language, **files)
    if args.languages:
        raise _languages_of_no_file()
    recipe = ", --recipe NAME" if hasattr(args, "recipe") else ""
    data = ", or --data DIR, a prepared folder" if hasattr(args, "data") else ""
    files = "--languages SRC-TGT with --train, --validation or --test files"
    raise PadirError(f"no corpus: give --task NAME{recipe}, or {files}{data}")


def _task_of(args: argparse.Namespace) -> Source:
    """The corpus that --task names: a known one, or with --languages a test set of SacreBLEU."""
    if not args.languages:
        return get_source(args.task, args.data_dir)
    if args.task in (*SOURCES, *TFDS_SETS):
        raise _languages_of_no_file()
    return sacrebleu_set(args.task, *pair_of(args.languages), args.data_dir)


def _languages_of_no_file() -> PadirError:
    return PadirError("--languages applies only to files", remedy="give files, or leave --languages out")


def folders_of(args: argparse.Namespace) -> tuple[str, ...]:
    """Prepared folders of --data, or of gin's DATASET, which each process fetches from an address."""
    names = named_folders(args)
    return agreed("the data", lambda: tuple(str(fetched(name)) for name in names), lambda _: "")


def named_folders(args: argparse.Namespace) -> tuple[str, ...]:
    """Names of prepared folders, which may be addresses or not be here, of --data or of gin's DATASET."""
    from padir import config

    folders = args.data or config.macro("DATASET")
    if not folders:
        raise PadirError("no data: give --data DIR, or --gin.DATASET=DIR")
    return (folders,) if isinstance(folders, str) else tuple(folders)


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
        test_set = dataclasses.replace(test_set, task="+".join(names))
    return test_set

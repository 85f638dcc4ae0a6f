"""Conversion of parsed command-line options to `Decoding` options, loaded models, corpora and test sets."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import itertools
import pkgutil
import typing
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from padir.checks import fits, words
from padir.cli.options import SEVERAL
from padir.data.recipes import Recipe
from padir.data.sources import SOURCES, ParallelText, Source, sacrebleu_set
from padir.decoding.options import Decoding, check_n_best, foreign_option, mode_of, option_table
from padir.decoding.translator import Translator
from padir.distributed.processes import agreed
from padir.distributed.sharding import Sharding
from padir.errors import PadirError, nearest
from padir.evaluation import TestSet
from padir.interop.seqio_tasks import TFDS_SETS, get_source
from padir.models.config import ModelConfig
from padir.pretrained import model_folder
from padir.reporting.patience import told
from padir.storage.files import is_address, parsed_json
from padir.storage.remote import fetched
from padir.text.languages import pair_of


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Values of the options that are on the command line, lists as tuples; options that are not given are left out."""
    values = {name: getattr(args, name) for name in names}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if v is not None}


def named_value(word: str, option: str) -> tuple[str, Any]:
    """Split NAME=VALUE; a JSON value is parsed, and any other value is text.

    >>> named_value("num_lengths=3", "--set"), named_value("strategy=padir", "--set")
    (('num_lengths', 3), ('strategy', 'padir'))
    """
    name, separator, value = word.partition("=")
    if not separator:
        raise PadirError(option, "a list of NAME=VALUE", word)
    with contextlib.suppress(ValueError):
        return name, parsed_json(value)
    return name, value


def named_values(words: Iterable[str], option: str) -> dict[str, Any]:
    """The values of words NAME=VALUE, by name."""
    values: dict[str, Any] = {}
    for name, value in (named_value(word, option) for word in words):
        if name in values:
            raise PadirError(f"{option} has {name} twice", remedy="give it one value")
        values[name] = value
    return values


def chosen(args: argparse.Namespace, owner: str) -> dict[str, Any]:
    """Values that --set gives to the parameters of a function or dataclass.

    Args:
      owner: the owner as the command's parser names it, such as "padir.data.prepared:LengthLimits".
    """
    values = {}
    for name, value in named_values(args.set, "--set").items():
        if name not in args.settings:
            raise PadirError(f"there is no setting {name!r}", remedy=nearest(name, args.settings))
        if args.settings[name] == owner:
            parameters = inspect.signature(pkgutil.resolve_name(owner), eval_str=True).parameters
            values[name] = _typed(name, value, parameters[name].annotation) if name in parameters else value
    return values


def _typed(name: str, value: Any, hint: Any) -> Any:
    """A value of the annotated type: for a sequence, text is split at blanks, or at commas between numbers."""
    several = [
        each for each in (hint, *typing.get_args(hint)) if typing.get_origin(each) in (tuple, Sequence, Collection)
    ]
    if several and isinstance(value, str):  # strategies have commas of their own
        of_numbers = typing.get_args(several[0])[0] in (int, float)
        value = [named_value(f"={word}", name)[1] for word in value.split(",")] if of_numbers else value.split()
    elif several and not isinstance(value, list):
        value = [value]
    if not fits(value, hint):
        raise PadirError(name, words(hint), value)
    return tuple(value) if isinstance(value, list) else value


def decoding_of(args: argparse.Namespace, default: Decoding = Decoding(), **chosen: Any) -> Decoding:
    """Apply gin's bindings of `Decoding` to the model's own options, and the command line's options to the result.

    Args:
      default: the model's own options (`Translator.decoding`).
      chosen: values that replace the command line's, for options that may have several values.
    """
    changes: dict[str, Any] = {}
    if args.gin:
        from padir import config

        changes = bound_by_gin()
        config.check_overrides()
    said = vars(args) | chosen
    changes |= {name: said[name] for name in option_table() if said.get(name) is not None}
    if changes.get("shortlist") == "none":
        changes["shortlist"] = None
    return default.changed(**changes)  # at once, because another mode takes up options of the card


def bound_by_gin() -> Any:
    """The decoding options that gin binds, by name."""
    from padir import config

    configured = config.configured(Decoding)()
    return {name: getattr(configured, name) for name in config.bound(Decoding)}


def decodings_of(args: argparse.Namespace, default: Decoding = Decoding(), **chosen: Any) -> list[Decoding]:
    """Decoding options for every combination of values, for options that take several values."""
    axes = [getattr(args, name, None) or [None] for name in SEVERAL]
    return [
        decoding_of(args, default, **dict(zip(SEVERAL, values, strict=True)), **chosen)
        for values in itertools.product(*axes)
    ]


def check_options(
    args: argparse.Namespace, *models: tuple[ModelConfig, Sequence[Decoding]], counted: bool = True
) -> None:
    """Check that each option applies to a mode of a model, and that --rerank has hypotheses to choose from.

    Args:
      models: each model's sizes and the options that it decodes with.
      counted: False if the number of hypotheses is chosen later.
    """
    given = [name for name in option_table() if getattr(args, name, None) is not None]
    found: set[str] = set()
    errors = []
    for model, decodings in models:
        for decoding in decodings:
            try:
                found.add(mode_of(decoding, model))
            except PadirError as error:
                errors.append(error)
    if errors and not found:
        raise errors[0]
    for name in given:
        if found and not found & {*option_table()[name].modes}:
            raise foreign_option(f"--{name}", next(iter(found)), models[0][0])
    drafts = [decoding.num_hypotheses for _, decodings in models for decoding in decodings]
    most = max(drafts, default=None) if counted else None
    if most == 1 and any(how != "own" for how in _words(getattr(args, "rerank", None))):
        remedy = "raise --num_lengths, --prefix_beam or --num_drafts"
        raise PadirError("--rerank needs several hypotheses of a sentence", got=1, remedy=remedy)
    if most is not None:
        check_n_best(getattr(args, "n_best", None) or 0, most)


def _words(value: Any) -> list[Any]:
    """The values of an option that takes one value, several or none."""
    return [] if value is None else value if isinstance(value, list) else [value]


def named_model(model: str) -> tuple[str, str]:
    """Split NAME=DIR; a directory without a name is its own name.

    >>> named_model("teacher=runs/teacher")
    ('teacher', 'runs/teacher')
    """
    name, separator, folder = model.partition("=")
    return (model, model) if not separator or is_address(model) or Path(model).exists() else (name, folder)


def load_model(args: argparse.Namespace, sharding: Sharding | None = None, folder: str = "") -> Translator:
    """Load a folder's model, by default that of --model, at --step."""
    folder = folder or args.model
    with told(f"loading {folder}"):
        return Translator.load(folder, step=args.step, sharding=sharding)


def load_models(
    args: argparse.Namespace, models: Iterable[str], sharding: Sharding | None = None
) -> list[tuple[str, Translator]]:
    """Load every model, as DIR or NAME=DIR, at --step."""
    return [(name, load_model(args, sharding, folder)) for name, folder in map(named_model, models)]


def sharding_of(args: argparse.Namespace) -> Sharding:
    """gin's `Sharding`; call before `decoding_of`, which checks that every binding is used."""
    if not args.gin:
        return Sharding()
    from padir import config

    return config.configured(Sharding)()


def vocabulary_file(vocab: str) -> Path:
    """The file that --vocab names: itself, or the vocabulary of a model that is named or whose directory is given."""
    folder = model_folder(vocab)
    return folder / "vocab.model" if folder.is_dir() else Path(vocab)


def files_of(args: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """Files of --train, --validation and --test, by split."""
    named = {split: getattr(args, split, None) for split in ("train", "validation", "test")}
    return {split: tuple(paths) for split, paths in named.items() if paths}


def source_of(args: argparse.Namespace) -> Source:
    """Corpus of --task, of --recipe or of files, or the `ParallelText` that gin binds."""
    files = files_of(args)
    if getattr(args, "recipe", None):
        if args.task or files or args.languages or args.data_dir:
            raise PadirError("--recipe names all files and languages", remedy="give --recipe and --downloads alone")
        if args.downloads is None:
            raise PadirError("--recipe needs --downloads DIR, the folder that has WMT's files")
        return Recipe(args.recipe, args.downloads, **chosen(args, "padir.data.recipes:Recipe"))
    if hasattr(args, "recipe") and (args.downloads or chosen(args, "padir.data.recipes:Recipe")):
        what = "--downloads and --set without=PARTS apply only to a recipe"
        raise PadirError(what, remedy="give --recipe, or leave them out")
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
        "no corpus: give --task NAME, --recipe NAME, or --languages SRC-TGT with --train, --validation or --test files"
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

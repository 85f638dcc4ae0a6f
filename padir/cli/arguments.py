"""Conversion of parsed command-line options to values, `Decoding` options and loaded models."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import inspect
import itertools
import pkgutil
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from padir.checks import fits, words
from padir.cli.console import warn
from padir.decoding.fit import (
    check_n_best,
    foreign_option,
    mode_of,
    modes_of,
    options_of_hypotheses,
    reads_fusion,
    unread_fusion,
)
from padir.decoding.options import Decoding
from padir.distributed.sharding import Sharding
from padir.errors import PadirError, first_line, nearest
from padir.from_text import module_of, own_object
from padir.models.config import ModelConfig
from padir.options import OF_OBJECTS, OPTIONS, choosing, foreign
from padir.pretrained import model_folder
from padir.reporting.patience import told
from padir.storage.files import is_address, parsed_json
from padir.translator import Translator


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Values of the options that are on the command line, lists as tuples; options that are not given are left out."""
    values = {name: getattr(args, name) for name in names}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if v is not None}


def named_value(word: str, option: str) -> tuple[str, Any]:
    """Split NAME=VALUE; a JSON value is parsed, as are Python's True, False and None; any other value is text.

    >>> named_value("num_lengths=3", "--set"), named_value("strategy=padir", "--set")
    (('num_lengths', 3), ('strategy', 'padir'))
    """
    name, separator, value = word.partition("=")
    if not separator:
        raise PadirError(option, "a list of NAME=VALUE", word)
    with contextlib.suppress(ValueError):
        return name, parsed_json({"True": "true", "False": "false", "None": "null"}.get(value, value))
    return name, value


def named_values(assignments: Iterable[str], option: str) -> dict[str, Any]:
    """The values of words NAME=VALUE, by name."""
    values: dict[str, Any] = {}
    for name, value in (named_value(word, option) for word in assignments):
        if name in values:
            raise PadirError(f"{option} has {name} twice", remedy="give it one value")
        values[name] = value
    return values


def decoding_values(assignments: Iterable[str], option: str) -> dict[str, Any]:
    """Decoding options as words NAME=VALUE, by name; imports the modules of the classes that they name."""
    values = named_values(assignments, option)
    _import_owns(values)
    return values


def _import_owns(options: Mapping[str, Any]) -> None:
    """Import the modules of the classes of one's own that decoding options name."""
    for name in OF_OBJECTS:
        if isinstance(text := options.get(name), str):
            import_own(text)


def chosen(args: argparse.Namespace, owner: str) -> dict[str, Any]:
    """Values that --set gives to the parameters of a function or dataclass.

    Args:
      owner: the owner as the command's parser names it, such as "padir.data.prepared:LengthLimits".
    """
    assert owner in args.settings.values(), f"no setting of the command is of {owner}"
    values = {}
    for name, value in named_values(args.set, "--set").items():
        if name not in args.settings:
            raise PadirError(f"there is no setting {name!r}", remedy=nearest(name, args.settings))
        if args.settings[name] == owner:
            parameters = inspect.signature(pkgutil.resolve_name(owner), eval_str=True).parameters
            values[name] = typed(name, value, parameters[name].annotation) if name in parameters else value
    return values


def refuse(args: argparse.Namespace, reader: str, *names: str) -> None:
    """Refuse options and settings of --set that are given, and that the `reader`, a branch of a command, ignores."""
    settings = named_values(args.set, "--set") if "set" in args else {}
    for name in names:
        if name in settings or getattr(args, name, None) not in (None, []):
            shown = f"--set {name}" if name in settings else f"--{name}"
            raise PadirError(f"{reader} does not read {shown}: leave one of them out")


def typed(name: str, value: Any, hint: Any) -> Any:
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
    if several and typing.get_args(several[0])[0] is float:
        return tuple(map(float, value))
    return tuple(value) if isinstance(value, list) else value


def decoding_of(args: argparse.Namespace, default: Decoding = Decoding(), **values: Any) -> Decoding:
    """Apply gin's bindings of `Decoding` to the model's own options, and the command line's options to the result.

    Args:
      default: the model's own options (`Translator.decoding`).
      values: they replace the command line's, for options that may have several values.
    """
    if args.gin:
        from padir import config

        default = configured(default)
        config.check_overrides()
    said = {name: getattr(args, name) for name in options_given(args)} | values
    changes: Any = {name: value for name, value in said.items() if value is not None}
    _import_owns(changes)
    return default.changed(**changes)


def options_given(args: argparse.Namespace) -> list[str]:
    """The decoding options that the command line gives; an option of a command that has the same name is none."""
    return [name for name in args.decoding_names if getattr(args, name) is not None]


def import_own(text: str) -> None:
    """Import the module of a class of one's own, MODULE:NAME, that the command line names; other texts name none."""
    if module := module_of(text):
        import_module(module, text)


def import_module(module: str, owner: str) -> None:
    """Import a module that the command line names as the `owner` or in it, which messages show."""
    try:
        importlib.import_module(module)
    except Exception as error:  # of somebody else's module
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        remedy = "set PYTHONPATH to the folder of its module" if absent else "mend this module"
        raise PadirError(f"{module} of {owner} cannot be imported ({first_line(error)})", remedy=remedy) from None


def configured(default: Decoding) -> Decoding:
    """The options with the values that gin binds: those of files, and then those of the command line."""
    from padir import config

    for layer in config.layers(Decoding):
        default = default.changed(**layer)
    return default


def decodings_of(args: argparse.Namespace, default: Decoding = Decoding(), **values: Any) -> list[Decoding]:
    """Decoding options for every combination of values, for options that take several; `values` as in `decoding_of`."""
    by_mode = choosing(options_given(args))
    if len(by_mode) > 1 and not getattr(args, "mode", None):
        what = f"{' and '.join(f'--{name}' for name in by_mode.values())} belong to different modes"
        raise PadirError(what, remedy="ask for both (--mode refine causal), or leave one of them out")
    several = [name for name, option in OPTIONS.items() if option.several]
    axes = [getattr(args, name, None) or [None] for name in several]
    found = []
    for combination in itertools.product(*axes):
        own = dict(zip(several, combination, strict=True)) | values
        if mode := own["mode"]:  # each option goes to the modes that read it
            own |= dict.fromkeys(foreign(mode))
        made = decoding_of(args, default, **own)
        if mode == "causal" and len(args.mode) > 1 and not made.temperature:
            made = made.without("num_drafts")  # of drafts; a search has none
        found.append(made)
    return list(dict.fromkeys(found))  # values that a mode does not read make no further ones


def check_options(
    args: argparse.Namespace, *models: tuple[str, ModelConfig, Sequence[Decoding]], counted: bool = True
) -> None:
    """Refuse modes that no model has, options that no mode reads, and --rerank or --n_best beyond the hypotheses.

    A message names the bindings of gin that no mode reads.

    Args:
      models: each model's name, its sizes and the options that it decodes with.
      counted: False if the number of hypotheses is chosen later.
    """
    asked = _asked_options(args)
    used = [(each, model[1]) for model in models for each in _in_own_modes(*model, asked, several=len(models) > 1)]
    _check_all_are_read(asked, used)
    if counted:
        _check_choice(args, used)


def _asked_options(args: argparse.Namespace) -> dict[str, str]:
    """The decoding options that gin binds and the command line gives, as they are written there, with their names."""
    bound: list[str] = []
    if args.gin:
        from padir import config

        bound = sorted(config.bound(Decoding))
    named = options_given(args)
    return {f"Decoding.{name}": name for name in bound} | {f"--{name}": name for name in named}


def _in_own_modes(
    name: str, sizes: ModelConfig, decodings: Sequence[Decoding], asked: Mapping[str, str], several: bool
) -> list[Decoding]:
    """The options in the modes that a model has; with several models, refuses one that none of their modes fits."""
    own = [each for each in decodings if each.mode in (None, *modes_of(sizes))]
    if not own:
        (only,) = modes_of(sizes)
        unread = [written for written, option in asked.items() if only not in OPTIONS[option].modes]
        if several:
            what, got = f"the model {name} has only the mode {only}", " and ".join(unread) or decodings[0].mode
            raise PadirError(what, got=got, remedy="ask for both (--mode refine causal), or leave the model out")
        if unread:
            raise foreign_option(asked[unread[0]], unread[0], only, sizes)
    return [dataclasses.replace(each, mode=mode_of(each, sizes)) for each in own or decodings]


def _check_all_are_read(asked: Mapping[str, str], used: Sequence[tuple[Decoding, ModelConfig]]) -> None:
    """Refuse options of the command line that no mode in use reads, and name such bindings of gin in a message.

    Args:
      used: decoding options, each with the sizes of the model that decodes with them.
    """
    first, sizes = used[0]
    modes = {each.mode for each, _ in used}
    unread = [written for written, name in asked.items() if modes.isdisjoint(OPTIONS[name].modes)]
    for written in unread:
        if written.startswith("--"):
            raise foreign_option(asked[written], written, str(first.mode), sizes)
    if "fusion" in asked.values() and not any(each.fusion is None or reads_fusion(each, of) for each, of in used):
        raise unread_fusion(sizes)
    if unread:
        warn(f"the mode {first.mode!r} does not read {' and '.join(unread)} of the configuration")


def _check_choice(args: argparse.Namespace, used: Sequence[tuple[Decoding, ModelConfig]]) -> None:
    """Refuse --rerank of a single hypothesis, and an --n_best above the number of hypotheses.

    The gaps of a --template make several hypotheses, too, and so may a --writer: the library checks those.
    """
    if getattr(args, "template", None) or getattr(args, "writer", None):
        return
    most, sizes = max(used, key=lambda each: each[0].num_hypotheses)
    rerank = getattr(args, "rerank", None) or "own"
    chooses = {*(rerank if isinstance(rerank, list) else [rerank])} != {"own"}
    if chooses and most.num_hypotheses == 1:
        remedy = f"raise {options_of_hypotheses(most, sizes)}"
        raise PadirError("--rerank needs several hypotheses of a sentence", got=1, remedy=remedy)
    check_n_best(getattr(args, "n_best", None) or 0, most, sizes)


def named_model(model: str) -> tuple[str, str]:
    """Split NAME=DIR; a directory without a name is its own name.

    >>> named_model("teacher=runs/teacher")
    ('teacher', 'runs/teacher')
    """
    name, separator, folder = model.partition("=")
    return (model, model) if not separator or is_address(model) or Path(model).exists() else (name, folder)


def load_model(args: argparse.Namespace, sharding: Sharding | None = None, folder: str = "") -> Translator:
    """Load a folder's model, by default that of --model, at --step, with the engine of --writer."""
    folder = folder or args.model
    with told(f"loading {folder}"):
        translator = Translator.load(folder, step=args.step, sharding=sharding)
    if writer := getattr(args, "writer", None):
        if not module_of(writer) or writer.count(":") > 1:
            raise PadirError("--writer", "MODULE:NAME, a function that makes a writer", writer)
        import_own(writer)
        translator = translator.with_writer(own_object(writer, "writer"))
    return translator


def load_with_options(
    args: argparse.Namespace, sharding: Sharding | None = None, *, counted: bool = True
) -> tuple[Translator, Decoding]:
    """Load the model of --model, and its options of decoding; `counted` as in `check_options`."""
    decoding_of(args)  # wrong numbers are refused before the model is loaded
    translator = load_model(args, sharding)
    decoding = decoding_of(args, translator.decoding)
    check_options(args, (args.model, translator.card.config, [decoding]), counted=counted)
    return translator, decoding


def load_models(
    args: argparse.Namespace, models: Iterable[str], sharding: Sharding | None = None
) -> list[tuple[str, Translator]]:
    """Load every model, as DIR or NAME=DIR, at --step; an engine of one's own belongs to its name."""
    engine = f", {writer}" if (writer := getattr(args, "writer", None)) else ""
    return [(f"{name}{engine}", load_model(args, sharding, folder)) for name, folder in map(named_model, models)]


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

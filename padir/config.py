"""Configuration by gin: padir's configurable names, gin files and bindings of the command line.

    padir train --gin_file=configs/run/toy_cpu.gin --gin.train.num_steps=1000

Everything in `CONFIGURABLES` is bound by its bare name (`ModelConfig.width = 256`), whichever module defines it.
Nothing in padir carries `@gin.configurable`, and no other module imports gin. To configure a class of your own, begin
the gin file with `from __gin__ import dynamic_registration` and import every module that the file names, padir's too
(CONTRIBUTING.md has an example). Imports run code, so they are refused unless `--allow_imports` names the module.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import gin.config
from gin.config import ConfigurableReference
from gin.config_parser import ImportStatement

from padir.data.plan import Batching
from padir.data.prepared import Mixture
from padir.decoding.options import Decoding
from padir.distributed.sharding import Sharding
from padir.errors import PadirError, nearest
from padir.models.config import ModelConfig
from padir.options import OPTIONS
from padir.refinement.corruption import CORRUPTIONS, RandomVisible
from padir.refinement.strategies import STRATEGIES
from padir.refinement.transitions import FromStrategy, Glat, SampledUnroll, Smart
from padir.training.averaging import Averaging
from padir.training.causal import Causal, Sum
from padir.training.config import Intervals, TrainConfig
from padir.training.not_finite import NotFinite
from padir.training.objective import Objective
from padir.training.optimizer import Adafactor, Adam, Cosine
from padir.training.start_from import StartFrom

CONFIGURABLES: tuple[Callable[..., Any], ...] = (
    *(Mixture, Batching, ModelConfig, Sharding),
    *(*CORRUPTIONS.values(), RandomVisible, *STRATEGIES.values(), FromStrategy, Smart, Glat, SampledUnroll),
    *(TrainConfig, Objective, Causal, Sum, Adafactor, Adam, Cosine),
    *(Averaging, Intervals, NotFinite, StartFrom, Decoding),
)


def _name(item: Callable[..., Any]) -> str:
    """The name that gin binds: the item's own, or `train` for the settings of a training run."""
    return "train" if item is TrainConfig else item.__name__


_REGISTERED = {_name(item): gin.external_configurable(item, _name(item), module="padir") for item in CONFIGURABLES}
_ITEMS = {f"padir.{_name(item)}": item for item in CONFIGURABLES}
_UNBOUND = object()
_MOST_BYTES = 32_768  # of a gin file
_MOST_VALUES = 1_000  # of a macro with the macros in it
_MOST_LEVELS = 100  # of lists in lists, of macros and of scopes; gin calls itself for each
_MOST_FILES = 100
_IMPORT = "import its module below `from __gin__ import dynamic_registration`, and give --allow_imports MODULE"
_overrides: list[str] = []  # names of the bindings that the command line gave
_files: list[str] = []  # that were read, included ones, too
_asked: set[str] = set()  # parameters that `argument` was asked for, and macros that `macro` was asked for


def configured(item: Callable[..., Any]) -> Callable[..., Any]:
    """Function or class of `CONFIGURABLES` that takes its arguments from the parsed configuration.

    If an argument has no binding and its default is configurable, it is also made from the configuration. So
    `--gin.ModelConfig.width=256` is enough, without `--gin.train.model=@ModelConfig()`.

    >>> parse([], ["Decoding.num_lengths=3"])
    >>> configured(Decoding)().num_lengths
    3
    >>> clear()
    """

    def call(**given: Any) -> Any:
        with _called_by_gin():
            _bind_defaults(item)
            return _REGISTERED[_name(item)](**given)

    return call


@contextlib.contextmanager
def _called_by_gin() -> Iterator[None]:
    """Raises a PadirError for bindings in a circle and for missing values; gin's lines about its calls are left out."""
    try:
        yield
    except RecursionError:  # through scopes or defaults: `_check_references` refused all others
        raise PadirError("bindings of gin refer to each other in a circle: set one of them to a value") from None
    except PadirError as error:
        raise PadirError(error.what, error.expected, error.got, error.remedy) from None
    except TypeError as error:
        name = re.search(r"missing \d+ required .*?arguments?: '(\w+)'", str(error))
        owner = re.search(r"In call to configurable '([\w.]+)'", str(error))
        if name is None or owner is None:  # of a class's own code
            raise
        raise PadirError(f"{owner[1]} needs a {name[1]}", remedy=f"bind {owner[1]}.{name[1]} in gin") from None


def argument(item: Callable[..., Any], name: str) -> Any:
    """Value that `configured(item)` will get for an argument whose default is configurable."""
    _asked.add(f"{_name(item)}.{name}")
    with _called_by_gin():
        _bind_defaults(item)
        bound = _bound(item, name)
        return bound.scoped_configurable_fn() if isinstance(bound, ConfigurableReference) else bound


def bound(item: Callable[..., Any]) -> set[str]:
    """The parameters of a configurable that a gin file or --gin. binds."""
    return {name for name in inspect.signature(item).parameters if _bound(item, name) is not _UNBOUND}


def layers(item: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values that gin binds to parameters of a configurable: those of files, and those of the command line."""
    with contextlib.suppress(PadirError):  # the layers may exclude each other; the later one wins
        configured(item)()  # so that the operative configuration has the values
    given = {_names(name)[-1] for name in _overrides}
    files, line = {}, {}
    for name in sorted(bound(item)):
        layer = line if f"{_name(item)}.{name}" in given else files
        layer[name] = argument(item, name)
    return files, line


def _bound(item: Callable[..., Any], parameter: str) -> Any:
    """Value that a parameter is bound to, or `_UNBOUND`."""
    try:
        return gin.query_parameter(f"padir.{_name(item)}.{parameter}")
    except ValueError:
        return _UNBOUND


def parse(files: Sequence[str] = (), bindings: Sequence[str] = (), allow_imports: Sequence[str] = ()) -> None:
    """Read gin files, then bindings, which take precedence; earlier configuration is forgotten.

    Args:
      files: paths, also relative to the repository; an included file may lie beside the file that includes it.
      bindings: each is "name.parameter=value", as after `--gin.` on the command line.
      allow_imports: modules that files may import, with submodules; if at least one is named, files may import padir's
        modules, too.

    Raises:
      PadirError: a file is missing, a name is unknown (the message has the nearest known name), bindings refer to each
        other in a circle or stand for too many values, or an import is not allowed.
    """
    clear()
    package = Path(__file__).resolve().parent  # configs/ is beside it in the repository, inside it when installed
    folders = (".", *(str(Path(file).parent) for file in files), str(package.parent), str(package))
    gin.config._LOCATION_PREFIXES[1:] = folders  # gin only adds folders, and an earlier call's would stay
    with _guarded(allow_imports):
        for file in files:
            _parse(f"the gin file {file}", [file], [])
        _parse("", [], [_quoted(binding) for binding in bindings])
    _check_references()
    try:
        gin.finalize()
    except ValueError as error:  # a macro or %gin.REQUIRED that nothing sets
        raise PadirError(_explain(str(error))) from None
    _overrides[:] = [binding.partition("=")[0] for binding in bindings]


def _bind_defaults(item: Callable[..., Any]) -> None:
    """Binds each argument without a binding whose default is configurable to the default's class; then in that class.

    Values of its own that such a default has (the peak of Adafactor's learning rate) are bound, too, unless they are.
    """
    for name, parameter in inspect.signature(item).parameters.items():
        value = _bound(item, name)
        made = type(parameter.default)
        if value is _UNBOUND and made in CONFIGURABLES:
            value = ConfigurableReference(_name(made), evaluate=True)
            own = {key: each for key, each in vars(parameter.default).items() if each != getattr(made(), key)}
            with gin.unlock_config():
                gin.bind_parameter(f"{_name(item)}.{name}", value)
                for key in own.keys() - bound(made):
                    gin.bind_parameter(f"{_name(made)}.{key}", own[key])
        if isinstance(value, ConfigurableReference) and (inner := _ITEMS.get(value.config_key[1])):
            _bind_defaults(inner)


def _check_references() -> None:
    """Refuses bindings that refer to each other in a circle, or that stand for too many values or levels of them."""
    bound = gin.config._CONFIG
    for key, values in bound.items():
        for count, (_, level) in enumerate(_inside(values.values(), bound)):
            if count >= _MOST_VALUES or level + key[0].count("/") > _MOST_LEVELS:
                most = f"are more than {_MOST_VALUES:,}, or deeper than {_MOST_LEVELS} levels"
                what = f"the values of {key[0] or key[1]} refer to each other in a circle, {most}"
                raise PadirError(what, remedy="set one of them to a value, or make it shorter")


def _inside(values: Iterable[Any], bound: Mapping[Any, Mapping[str, Any]]) -> Iterator[tuple[Any, int]]:
    """The values, those in their containers, and those that `bound` has for their references, each with its level."""
    waiting = [(each, 1) for each in values]
    while waiting:
        value, level = waiting.pop()
        further: Iterable[Any] = ()
        if isinstance(value, ConfigurableReference):
            level += value.config_key[0].count("/")  # scopes in scopes
            further = bound.get(value.config_key, {}).values()
        elif isinstance(value, dict | list | tuple):
            further = value.values() if isinstance(value, dict) else value
        yield value, level
        waiting += [(each, level + 1) for each in further]


def _read(path: str) -> Any:
    """Opens a gin file; larger ones than any configuration, or more, would keep the parser busy for minutes."""
    _files.append(path)
    if Path(path).stat().st_size > _MOST_BYTES:
        raise PadirError(f"the gin file {path}", f"at most {_MOST_BYTES:,} bytes", remedy="give a smaller file")
    if len(_files) > _MOST_FILES:
        raise PadirError(f"{_files[0]} includes itself, or more than {_MOST_FILES} files: leave some out")
    return open(path, encoding="utf-8-sig")


def _parse(name: str, files: list[str], bindings: list[str]) -> None:
    """Read one file, or the bindings of the command line; messages call it `name`."""
    try:
        gin.parse_config_files_and_bindings(files, bindings, finalize_config=False)
    except OSError as error:
        raise PadirError(f"a gin file is missing: {_explain(str(error)).partition('. Searched')[0]}") from error
    except UnicodeDecodeError as error:
        raise PadirError(f"{name} is not UTF-8", remedy="convert it with iconv") from error
    except (SyntaxError, tokenize.TokenError) as error:
        # Of the two errors only SyntaxError has a line number, and it has the text of the line, too.
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        if isinstance(error, SyntaxError) and error.filename in files:  # an included file may be none of the user's
            line += f": {(error.text or '').strip()!r}"
        reason = f"{name} cannot be read as gin configuration{line}" if name else _explain(str(error))
        remedy = "write NAME.PARAMETER = VALUE, where VALUE is a number, a quoted text, a list, @NAME() or %MACRO"
        raise PadirError(reason, remedy=remedy) from error
    except RecursionError:
        raise PadirError(f"{name or 'a value'} is nested too deeply: make it shorter") from None
    except (ValueError, TypeError, ImportError, AttributeError, NameError) as error:
        message = _explain(str(error))
        told = isinstance(error, PadirError) or "In file" in str(error) or not name
        raise PadirError(message if told else f"{name}: {message}") from error


@contextlib.contextmanager
def _guarded(allowed: Sequence[str]) -> Iterator[None]:
    """Let gin import the allowed modules only, and read plain files only.

    Every import statement, however it is spelled and whichever file includes it, reaches `ParseContext.process_import`.
    gin's other readers of files look a path up as a package, and looking up `a/b/c.gin` imports the package `a`.
    """
    process_import = gin.config.ParseContext.process_import
    readers = list(gin.config._FILE_READERS)

    def checked(self: gin.config.ParseContext, statement: ImportStatement) -> None:
        trusted = (*allowed, "padir", "__gin__") if allowed else ()
        if not any(f"{statement.module}.".startswith(f"{module}.") for module in trusted):
            remedy = f"if you trust the file and the module as programs, add --allow_imports {statement.module}"
            if statement.module.startswith("__gin__."):  # the modules are named below this line
                remedy = "if you trust the file as a program, add --allow_imports and the modules that it imports"
            raise PadirError(f"`{statement.format()}` runs code, which a gin file may not do: {remedy}")
        process_import(self, statement)

    gin.config.ParseContext.process_import = checked  # pyright: ignore[reportAttributeAccessIssue]
    gin.config._FILE_READERS[:] = [(cast(Any, _read), readers[0][1])]  # the first is `open`
    try:
        yield
    finally:
        gin.config.ParseContext.process_import = process_import
        gin.config._FILE_READERS[:] = readers


def macro(name: str) -> Any:
    """Value of a macro such as `DATASET = "data/toy"`; None if nothing sets it."""
    _asked.add(name)
    try:
        return gin.query_parameter(f"{name}/gin.macro.value")
    except ValueError:
        return None


def operative() -> str:
    """Operative configuration as gin text: every parameter that a configured function used.

    Raises:
      PadirError: a binding of the command line had no effect.
    """
    check_overrides()
    return gin.operative_config_str()


def check_overrides() -> None:
    """Check, after everything is configured, that each binding of the command line was used.

    Raises:
      PadirError: a binding had no effect.
    """
    # By registered names: in `gin.operative_config_str` a file's imports decide how names are written.
    operative = ((key, name) for key, values in gin.config._OPERATIVE_CONFIG.items() for name in values)
    used = {each for (scope, item), name in operative for each in _names(f"{scope}/{item}.{name}".lstrip("/"))}
    references = (each for values in gin.config._CONFIG.values() for each, _ in _inside(values.values(), {}))
    used |= {each.config_key[0] for each in references if isinstance(each, ConfigurableReference)}
    for name in _overrides:
        full = _names(name)[-1]
        if full not in used | _asked:
            if "." not in full:
                what = f"{name} has no effect, because nothing here refers to it, or an option overrides it"
                remedy = f"write Decoding.{full}, or leave it out" if full in OPTIONS else "leave it out"
                raise PadirError(what, remedy=remedy)
            owner = full.split("/")[-1].partition(".")[0]
            what = f"{name} has no effect, because nothing here uses {owner}"
            corruption = owner in {_name(item) for item in CORRUPTIONS.values()}
            example = f"bind an instance of it, such as Objective.corruption=@{owner}(), or " if corruption else ""
            raise PadirError(what, remedy=f"{example}leave it out")


def _names(name: str) -> list[str]:
    """Owner and parameter of a binding without modules, alone and in each of its scopes, the whole one last.

    >>> _names("a/b/x.Decoding.seed")
    ['Decoding.seed', 'a/Decoding.seed', 'a/b/Decoding.seed']
    """
    *scopes, last = name.strip().split("/")
    bare = ".".join(last.split(".")[-2:])
    return ["/".join([*scopes[:n], bare]) for n in range(len(scopes) + 1)]


def clear() -> None:
    """Forget all bindings, so that every default is the library's own."""
    gin.clear_config()
    _files.clear()
    _overrides.clear()
    _asked.clear()


def _quoted(binding: str) -> str:
    """Quote the value of a binding if it is a bare path, as in `DATASET=data/toy`, because gin needs a string."""
    name, separator, value = binding.partition("=")
    if not separator:
        raise PadirError(f"--gin.{binding} lacks a value: write --gin.name.parameter=value")
    bare = re.fullmatch(r"[\w./~+-]+", value) and re.search(r"[A-Za-z]", value)
    if bare and value not in ("True", "False", "None") and not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", value):
        value = repr(value)
    return f"{name}={value}"


def _with_import(name: str) -> str:
    """The remedy for a name that a file with imports has not imported: padir's own, or somebody else's."""
    if name not in _REGISTERED:
        return _IMPORT
    item = _ITEMS[f"padir.{name}"]
    package, _, module = item.__module__.rpartition(".")
    return f"in a file with imports, add `from {package} import {module}` and write {module}.{item.__name__}"


def _explain(message: str) -> str:
    """Message of gin in one line: its file and line, what is wrong, and the nearest known name."""
    what = " ".join(re.split(r"\s+In (?:file|bindings string) ", message)[0].split()).rstrip(".")
    place = re.search(r'In file "(.*)", line (\d+)', message)  # the files that include this one follow
    first = f"{place[1]}, line {place[2]}: {what}" if place else what
    if match := re.search(r"No configurable matching (?:reference )?'@?([\w./]+)", message):
        module, _, name = match.group(1).split("/")[-1].rpartition(".")
        if module and name in _REGISTERED:
            return f"{first}: write {name}, without {module} in front"
        return f"{first}: {_IMPORT if module else nearest(name, list(_REGISTERED))}"
    if match := re.search(r"'(\w+)' was not provided by an import statement", what):
        return f"{first}: {_with_import(match[1])}"
    if "No module named" in what:
        return f"{first}: put the module's folder on PYTHONPATH"
    if match := re.search(r"No bindings specified for '([^']+)/gin.macro'", message):
        return f"%{match[1]} is used, but nothing sets {match[1]}: add --gin.{match[1]}=VALUE"
    if match := re.search(r"Configurable '([^']+)' doesn't have a parameter named '([^']+)'", message):
        names = (match[1], match[1].rpartition(".")[2])  # a file's import may give a module another name
        found = [each for each in map(gin.config._REGISTRY.get_match, names) if each is not None]
        parameters = inspect.signature(cast(Any, found[0]).wrapped).parameters if found else ()
        return f"{first}: {nearest(match[2], parameters)}"
    return first

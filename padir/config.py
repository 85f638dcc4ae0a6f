"""gin: the only file that imports it. Names padir's configurable classes and functions; parses files and overrides.

    padir train --gin_file=configs/run/toy_cpu.gin --gin.train.num_steps=1000

Everything in `CONFIGURABLES` is bound by its bare name (`ModelConfig.width = 256`), whichever file it lies in. Classes
of your own need `from __gin__ import dynamic_registration` and an import in the gin file, as gin documents; nothing in
padir carries a decorator.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import re
import tokenize
import typing
from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import gin
from gin.config import ConfigurableReference

from padir.data import mixture, plan, sources
from padir.decoding import lengths, rerank, rescoring
from padir.decoding import options as decoding
from padir.decoding import search as searches
from padir.distributed import sharding
from padir.errors import PadirError
from padir.models import config as model_config
from padir.refinement import corruption, strategies
from padir.refinement import transitions as between
from padir.storage.typecheck import fits
from padir.training import averaging, optimizer, start_from, teacher_forcing
from padir.training import loop as trainer
from padir.training import nonfinite as finite
from padir.training import objective as loss

CONFIGURABLES: tuple[Callable[..., Any], ...] = (
    *corruption.CORRUPTIONS.values(),
    corruption.RandomVisible,
    *strategies.STRATEGIES.values(),
    *searches.SEARCHES.values(),
    between.Lifted,
    averaging.Averaging,
    finite.NotFinite,
    between.Smart,
    between.Glat,
    between.SampledUnroll,
    lengths.LengthSearch,
    loss.Objective,
    teacher_forcing.TeacherForcing,
    model_config.ModelConfig,
    rerank.OwnScore,
    rerank.MinimumBayesRisk,
    optimizer.Cosine,
    optimizer.Adafactor,
    optimizer.Adam,
    mixture.Mixture,
    plan.Batching,
    sharding.Sharding,
    sources.ParallelText,
    start_from.StartFrom,
    trainer.Intervals,
    trainer.train,
    decoding.Decoding,
    rescoring.rescorer,
)


_REGISTERED = {
    item.__name__: gin.external_configurable(
        item,
        module="padir",
        denylist=["evaluate_fn", "describe_config"] if item is trainer.train else None,
    )
    for item in CONFIGURABLES
}


def configured(item: Callable[..., Any]) -> Callable[..., Any]:
    """A function or class of `CONFIGURABLES` that takes its arguments from the parsed configuration.

    An argument that nothing binds and whose default is configurable is made of the configuration, too:
    `--gin.ModelConfig.width=256` is enough, without `--gin.train.model=@ModelConfig()`.
    """

    def call(**given: Any) -> Any:
        unbound = {name: parameter.default for name, parameter in signature(item).parameters.items()}
        for name, default in unbound.items():
            if name not in given and type(default) in CONFIGURABLES and _bound(item, name) is _UNBOUND:
                given[name] = configured(type(default))()
        return _REGISTERED[item.__name__](**given)

    return call


def argument(item: Callable[..., Any], name: str) -> Any:
    """What `configured(item)` is going to get as that argument, whose default is configurable."""
    _asked.add(f"{item.__name__}.{name}")
    bound = _bound(item, name)
    if isinstance(bound, ConfigurableReference):
        return bound.scoped_configurable_fn()
    return configured(type(signature(item).parameters[name].default))() if bound is _UNBOUND else bound


def _bound(item: Callable[..., Any], parameter: str) -> Any:
    """What a parameter is bound to, or `_UNBOUND`."""
    try:
        return gin.query_parameter(f"padir.{item.__name__}.{parameter}")
    except ValueError:
        return _UNBOUND


def parse(files: Sequence[str] = (), bindings: Sequence[str] = (), search_paths: Sequence[str] = ()) -> None:
    """Reads gin files, then bindings, which win.

    Args:
      files: found as they are, or in `search_paths`, or in the repository.
      bindings: "name.parameter=value", as after --gin. on the command line.

    Raises:
      PadirError: a file that is not there, a name that does not exist, with the nearest that does, or a value of the
        wrong type.
    """
    package = Path(__file__).resolve().parent  # configs/ stands beside it in the repository, inside it when installed
    for folder in (".", *search_paths, str(package.parent), str(package)):
        gin.add_config_file_search_path(folder)
    with _quiet():
        for file in files:
            _parse(f"--gin_file {file}", [file], [])
        _parse("", [], [_quoted(binding) for binding in bindings])
    gin.finalize()
    _overrides[:] = [binding.partition("=")[0] for binding in bindings]
    for item in CONFIGURABLES:
        for parameter, hint in typing.get_type_hints(item).items():
            value = _bound(item, parameter)
            # References (@Mask(), %SIZE) are gin's to resolve.
            if value is not _UNBOUND and not fits(value, hint, unresolved=(ConfigurableReference,)):
                expected = hint.__name__ if isinstance(hint, type) else str(hint)
                remedy = ": write an instance as @Name()" if "padir." in f"{hint}" else ""
                raise PadirError(f"{item.__name__}.{parameter} must be of type {expected}, got {value!r}{remedy}")


_UNBOUND = object()
_overrides: list[str] = []  # names of the bindings that the command line gave
_asked: set[str] = set()  # parameters that `argument` was asked for


def _parse(name: str, files: list[str], bindings: list[str]) -> None:
    """Reads one file, or the bindings of the command line; `name` is what messages call it."""
    try:
        gin.parse_config_files_and_bindings(files, bindings, finalize_config=False)
    except OSError as error:
        raise PadirError(f"{name}: a gin file is missing: {str(error).splitlines()[0]}") from error
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError) as error:
        # The only one of the three that knows a line has its text, too.
        line = f", line {error.lineno}: {(error.text or '').strip()!r}" if isinstance(error, SyntaxError) else ""
        reason = f"{name} cannot be read as gin configuration{line}" if name else _explain(str(error))
        raise PadirError(f"{reason}: write NAME.PARAMETER = VALUE") from error
    except (ValueError, TypeError, ImportError, AttributeError, RecursionError) as error:
        raise PadirError(_explain(str(error))) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps gin from logging every folder where a file is not."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def macro(name: str) -> Any:
    """The value of a macro such as `DATASET = "data/toy"`, or None."""
    try:
        return gin.query_parameter(f"{name}/gin.macro.value")
    except ValueError:
        return None


def operative() -> str:
    """What the configuration came to: every parameter that a configured function used.

    Raises:
      PadirError: a binding of the command line is not among them.
    """
    check_overrides()
    return gin.operative_config_str()


def check_overrides() -> None:
    """Checks, once everything is configured, that each binding of the command line was of use.

    Raises:
      PadirError: one had no effect.
    """
    used = {line.partition(" =")[0].split("/")[-1] for line in gin.operative_config_str().splitlines()}
    used |= _asked
    for name in _overrides:
        owner, dot, parameter = name.split("/")[-1].strip().rpartition(".")
        short = f"{owner.rpartition('.')[2]}.{parameter}"
        if dot and short not in used:
            raise PadirError(
                f"--gin.{name} has no effect, because nothing here uses {short.partition('.')[0]}: bind an instance of"
                f" it, such as --gin.Objective.corruption=@{short.partition('.')[0]}(), or leave it out"
            )


def clear() -> None:
    """Forgets all bindings, for tests that parse several configurations."""
    gin.clear_config()
    _overrides.clear()
    _asked.clear()


def _quoted(binding: str) -> str:
    """`DATASET=data/toy` as gin wants it: a bare path becomes a string."""
    name, separator, value = binding.partition("=")
    if not separator:
        raise PadirError(f"--gin.{binding} lacks a value: write --gin.name.parameter=value")
    bare = re.fullmatch(r"[\w./~+-]+", value) and re.search(r"[A-Za-z]", value)
    if bare and value not in ("True", "False", "None") and not re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", value):
        value = repr(value)
    return f"{name}={value}"


def _explain(message: str) -> str:
    """gin's message in one line, with the nearest known name."""
    first = " ".join(line.strip() for line in message.splitlines() if line.strip())
    if match := re.search(r"No configurable matching (?:reference )?'@?([\w./]+)", message):
        module, _, name = match.group(1).split("/")[-1].rpartition(".")
        if module and name in _REGISTERED:
            return f"{first}: write {name}, without {module} in front"
        return f"{first}: {_nearest(name, list(_REGISTERED))}"
    if match := re.search(r"Configurable '([^']+)' doesn't have a parameter named '([^']+)'", message):
        name = match.group(1).split(".")[-1]
        known = [
            parameter for item in CONFIGURABLES if item.__name__ == name for parameter in signature(item).parameters
        ]
        return f"{first}: {_nearest(match.group(2), known)}"
    return first


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"

"""gin: the only file that imports it. Names padir's configurable classes and functions; parses files and overrides.

    padir train --gin_file=configs/run/toy_cpu.gin --gin.train.num_steps=1000

Everything in `CONFIGURABLES` can be bound by its name alone (`ModelConfig.width = 256`) or with its module
(`model.ModelConfig.width`). Classes of your own need `from __gin__ import dynamic_registration` and an import in the
gin file, as gin documents; nothing in padir carries a decorator.
"""

from __future__ import annotations

import difflib
import re
import tokenize
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import gin

from padir import corruption, length, loss, model, optimizer, rerank, strategies, trainer, translate
from padir.data import sources
from padir.errors import PadirError

CONFIGURABLES: tuple[Callable[..., Any], ...] = (
    *corruption.CORRUPTIONS.values(),
    *strategies.STRATEGIES.values(),
    strategies.Lifted,
    length.LengthSearch,
    loss.Objective,
    model.ModelConfig,
    rerank.OwnScore,
    rerank.MinimumBayesRisk,
    optimizer.Cosine,
    optimizer.Adafactor,
    optimizer.Adam,
    sources.ParallelText,
    trainer.Batching,
    trainer.Intervals,
    trainer.train,
    translate.Decoding,
    translate.rescorer,
)
_REGISTERED = {
    item.__name__: gin.external_configurable(item, module=item.__module__, denylist=["evaluate_fn", "describe_config"])
    if item is trainer.train
    else gin.external_configurable(item, module=item.__module__)
    for item in CONFIGURABLES
}


def configured(item: Callable[..., Any]) -> Callable[..., Any]:
    """A function or class of `CONFIGURABLES` that takes its arguments from the parsed configuration."""
    return _REGISTERED[item.__name__]


def parse(files: Sequence[str] = (), bindings: Sequence[str] = (), search_paths: Sequence[str] = ()) -> None:
    """Reads gin files, then bindings, which win.

    Args:
      files: found as they are, or in `search_paths`, or in the repository.
      bindings: "name.parameter=value", as after --gin. on the command line.

    Raises:
      PadirError: a file that is not there, or a name that does not exist, with the nearest that does.
    """
    for folder in (".", *search_paths, str(Path(__file__).resolve().parents[1])):
        gin.add_config_file_search_path(folder)
    try:
        gin.parse_config_files_and_bindings(list(files), [_quoted(binding) for binding in bindings])
    except OSError as error:
        raise PadirError(f"a gin file is missing: {str(error).splitlines()[0]}") from error
    except (ValueError, TypeError, SyntaxError, ImportError, AttributeError, tokenize.TokenError) as error:
        raise PadirError(_explain(str(error))) from error


def macro(name: str) -> Any:
    """The value of a macro such as `DATASET = "data/toy"`, or None."""
    try:
        return gin.query_parameter(f"{name}/gin.macro.value")
    except ValueError:
        return None


def operative() -> str:
    """What the configuration came to: every parameter that a configured function used."""
    return gin.operative_config_str()


def clear() -> None:
    """Forgets all bindings, for tests that parse several configurations."""
    gin.clear_config()


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
        return f"{first}: {_nearest(re.split('[./]', match.group(1))[-1], list(_REGISTERED))}"
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

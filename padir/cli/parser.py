"""`Parser`, the one argument parser of the command line: help pages, and messages about wrong words.

Nothing here imports JAX. The library's defaults are looked up for help pages only (`setting`).
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import pkgutil
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from padir.errors import cut, nearest

Options = argparse._ActionsContainer  # a parser or a group of options


class HelpFormatter(argparse.HelpFormatter):
    """Fills every line of a description or an example by itself; adds the library's defaults to the help of options."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text
        return "\n".join(
            line if line.startswith(" ") or not line else filled(line, width, indent) for line in text.splitlines()
        )

    def _expand_help(self, action: argparse.Action) -> str:
        about = action.help or ""
        if owner := vars(action).get("owner"):
            about += shown(default_of(owner, vars(action)["parameter"]))
        if settings := vars(action).get("settings"):
            lines = [f"{name}: {text}{shown(default_of(owner, name))}" for name, (owner, text) in settings.items()]
            about = "\n".join([about, *lines])
        return about

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [part for line in text.splitlines() for part in super(HelpFormatter, self)._split_lines(line, width)]


class _Several(argparse.Action):
    """Stores several values; an option that is given again adds its values, the first time they replace the default."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*([] if before is self.default else before), *values])


def _stored(**settings: Any) -> argparse.Action:
    """The action of an option that stores one value or several, or of a positional argument."""
    several = settings.get("nargs") == "+" and settings["option_strings"]
    return (_Several if several else argparse._StoreAction)(**settings)


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviated options and ends with one line about a wrong word.

    An option that takes several values adds them up if it is given again; any other option must be given once. The
    line has the nearest right spelling and the command that prints the help. Commands have parsers of this class, too.
    """

    # Remedies for options of other programs and commands, by name.
    meanings: dict[str, str] = dict.fromkeys(
        ("--source_language", "--target_language"), "a model knows its languages, --languages names those of a corpus"
    )

    def __init__(self, **settings: Any):
        super().__init__(**{"allow_abbrev": False, "formatter_class": HelpFormatter} | settings)
        for name in (None, "store"):  # groups of options share the registry
            self.register("action", name, _stored)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # pyright: ignore
        """Parse words; refuse the words that argparse would leave to the parent parser, unknown options first."""
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:  # otherwise the words belong to another parser, too
            self._refuse_options(itertools.takewhile(lambda word: word != "--", words))
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self._refuse_options(unknown)
            self.error(f"{unknown[0]!r} is one word too many: quote a value that has spaces")
        return found, unknown

    def _refuse_options(self, words: Iterable[str]) -> None:
        """Refuse options that this parser does not have, and options of one value that are given twice."""
        given: list[argparse.Action] = []
        for word in words:
            name = word.partition("=")[0]
            short = re.fullmatch(r"-[A-Za-z]\w*", name)
            if (short or (name.startswith("--") and " " not in name)) and name not in self._option_string_actions:
                self.error(f"there is no option {name}{self._remedy(name)}")
            action = self._option_string_actions.get(name)
            if action in given and not isinstance(action, _Several | argparse._AppendAction):
                self.error(f"{name} is given twice")
            given += [action] if action else []

    def _remedy(self, name: str) -> str:
        """The likely meaning of an unknown option, after a colon; "" if there is none."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        if meaning := self.meanings.get(name, ""):
            return f": {meaning}"
        if not name.startswith("--") and (begun := [each for each in known if each.startswith(f"-{name}")]):
            return f": options have two hyphens, as {' or '.join(begun[:3])}"
        guess = nearest(name, known)
        return "" if guess.startswith("known") else f": {guess}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"there is no value {value!r}: {nearest(value, action.choices)}")

    def error(self, message: str) -> NoReturn:
        """Print a message and where help is, and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {cut(message, 1_500)} (`{self.prog} --help` explains)\n")


def setting(options: Options, owner: str, name: str, about: str, **settings: Any) -> None:
    """Add an option for a field of a dataclass, or for a parameter of a function; the help ends with its default.

    Args:
      owner: the dataclass or function, as "module:name", which is imported for a help page only.
      name: the field or parameter; the option is called --NAME unless `settings` have another `option`.
      about: help text without the default.
      settings: further arguments of `add_argument`; the type is int if they name neither a type nor an action.

    >>> parser = Parser()
    >>> setting(parser, "padir.decoding:Decoding", "num_steps", "decoder passes")
    >>> parser.parse_args(["--num_steps", "2"]).num_steps
    2
    """
    kinds: dict[str, Any] = {} if "action" in settings else {"type": int}
    option = settings.pop("option", name)
    action = options.add_argument(f"--{option}", **(kinds | settings), help=about)
    vars(action).update(owner=owner, parameter=name)


def default_of(owner: str, name: str) -> Any:
    """Default of a dataclass's field or of a function's parameter; None without one, or without the owner's extra."""
    try:
        parameter = inspect.signature(pkgutil.resolve_name(owner)).parameters.get(name)
    except ModuleNotFoundError:
        return None
    return None if parameter is None else parameter.default


def shown(default: Any) -> str:
    """A default in parentheses, or "" for None."""
    if default in (None, (), inspect.Parameter.empty):
        return ""
    if isinstance(default, bool):
        return f" ({'yes' if default else 'no'})"
    if isinstance(default, tuple):
        return f" ({' '.join(map(str, default))})"
    number = "," if isinstance(default, int) else "g" if isinstance(default, float) else ""
    return f" ({default:{number}})"

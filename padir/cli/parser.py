"""`Parser`, the one argument parser of the command line: its help pages and its messages about wrong words."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from padir.errors import nearest


class HelpFormatter(argparse.HelpFormatter):
    """Fills every line of a description or an example by itself; indented lines stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = super()._fill_text
        return "\n".join(
            line if line.startswith(" ") or not line else filled(line, width, indent) for line in text.splitlines()
        )


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviated options and ends with one line about a wrong word.

    The line has the nearest right spelling and the command that prints the help. Parsers of commands are of this class,
    too.
    """

    def __init__(self, **settings: Any):
        super().__init__(**{"allow_abbrev": False, "formatter_class": HelpFormatter} | settings)

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
        """Refuse options that this parser does not have."""
        for word in words:
            name = word.partition("=")[0]
            if name.startswith("--") and " " not in name and name not in self._option_string_actions:
                guess = nearest(name, self._option_string_actions)
                self.error(f"there is no option {name}" + (f": {guess}" if guess.startswith("did") else ""))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"{value!r} is none of its values: {nearest(value, action.choices)}")

    def error(self, message: str) -> NoReturn:
        """Print a message and where help is, and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message} (`{self.prog} --help` explains)\n")

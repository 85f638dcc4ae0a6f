"""`padir --print_completion SHELL`: a script with which a shell completes commands, options and file names."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "tcsh")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script that shtab makes of a parser with the options of all commands."""
    import shtab

    for each in _parsers(parser):
        for action in each._actions:  # shtab reads these, too
            places = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
            if isinstance(action.metavar, str) and action.metavar.rpartition("]")[2] in places:
                action.complete = places[action.metavar.rpartition("]")[2]]  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(action, argparse._SubParsersAction):
                action.help = "command"  # shtab leaves out what is hidden from the help
    return shtab.complete(parser, shell=shell)


def _parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser and the parsers of its commands, at every depth."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [one for child in action.choices.values() for one in _parsers(child)]
    return found

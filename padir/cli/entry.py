"""All commands of `padir`, in groups; `main` parses the words of a command, then runs it.

Nothing here imports JAX, so help, the version and messages about wrong words appear at once. The module of a command,
which holds its `run_NAME`, is imported when the command runs. Every command takes gin configuration (--gin_file FILE,
--gin.NAME=VALUE) and --json FILE for its results.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import logging
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from padir import __version__
from padir.cli.options import data, exchange, measure, study, train, use
from padir.cli.options.shared import common_options
from padir.cli.parser import Parser

_GIN = "--gin."
INTERRUPTED = 130  # exit status after Ctrl-C, as in shells


def command() -> NoReturn:
    """Run the command of this process, and exit with its status.

    An interrupted process exits at once, because a program that XLA is compiling would delay the exit and then crash.
    Several processes exit in the ordinary way, which lets them leave each other in order.
    """
    for name in ("padir", "sacrebleu"):  # padir prints their messages, and Orbax gives the root logger a handler
        logging.getLogger(name).propagate = False
    sys.unraisablehook = _unraisable
    status = main()
    jax = sys.modules.get("jax")
    if status == INTERRUPTED and not (jax and jax.distributed.is_initialized()):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)
    sys.exit(status)


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Prints an error that no code can catch, except those of TensorStore's threads after a failed write.

    Orbax raises the error of the write and closes its event loop, which these threads still call.
    """
    if str(found.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
      argv: words after `padir`; None for the words of this process.

    Returns:
      The exit status: 0, 1 if `padir compile` found a program that does not fit or an address cannot be reached, 2 for
      bad input (with a message on stderr), 130 after Ctrl-C, 141 if the reader of standard output is gone.

    Raises:
      SystemExit: the words are wrong (status 2), or ask for help or the version (status 0).

    >>> main(["vocab", "--task", "toy_de_en", "--size", "-5", "--output", "x.model"])
    2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    bindings = [word.removeprefix(_GIN) for word in words if word.startswith(_GIN)]
    words = [word for word in words if not word.startswith(_GIN)]
    parser = build_parser(words[:1])
    names = [binding.partition("=")[0] for binding in bindings]
    if twice := [name for name in names if names.count(name) > 1]:
        parser.error(f"{_GIN}{twice[0]} is given twice")
    args = parser.parse_args(words)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        from padir.cli.running import run  # imports JAX

        return run(args, bindings)
    except KeyboardInterrupt as interrupt:
        saved = str(interrupt).partition("\n")[0]  # gin adds lines about its calls
        with contextlib.suppress(OSError):  # the terminal is gone
            print(f"padir: stopped{saved and ': '}{saved}", file=sys.stderr)
        return INTERRUPTED


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line, which the docstring of the function that adds its options describes.

    The docstring has a sentence that says what the command does, further help, and an example.

    Attributes:
      add: adds the command's options to its parser; the command NAME has the function `NAME_options`.
      module: the module of `padir.cli` that has the command's `run_NAME`.
      sends: True if --output is a folder that may be at an address (`padir.storage.remote.sent_folder`).
    """

    add: Callable[[Parser], None]
    module: str
    sends: bool = False

    @property
    def name(self) -> str:
        return self.add.__name__.removesuffix("_options")

    @property
    def paragraphs(self) -> list[str]:
        """The sentence, further help, and the example, each in one line."""
        return [" ".join(each.split()) for each in (inspect.getdoc(self.add) or "").split("\n\n")]

    @property
    def sentence(self) -> str:
        return self.paragraphs[0]


GROUPS = {
    "data": (
        Command(data.vocab_options, "making"),
        Command(data.prepare_options, "making", sends=True),
        Command(data.shortlist_options, "making"),
        Command(data.bigrams_options, "making", sends=True),
    ),
    "train": (
        Command(train.train_options, "making"),
        Command(train.average_options, "making", sends=True),
        Command(train.distill_options, "making", sends=True),
    ),
    "use": (
        Command(use.translate_options, "translating"),
        Command(use.score_options, "translating"),
        Command(use.list_options, "listing"),
        Command(use.serve_options, "translating"),
    ),
    "measure": (
        Command(measure.evaluate_options, "evaluating"),
        Command(measure.tables_options, "evaluating"),
        Command(measure.compare_options, "evaluating"),
        Command(measure.benchmark_options, "measuring"),
        Command(measure.compile_options, "measuring"),
    ),
    "exchange": (Command(exchange.export_options, "exchanging"), Command(exchange.t5x_options, "exchanging")),
    "study": tuple(
        Command(each, "measuring") for each in (study.ising_options, study.analyse_options, study.audit_options)
    ),
}


def build_parser(names: Collection[str] | None = None) -> argparse.ArgumentParser:
    """Build the parser of the command line.

    Args:
      names: commands that get their options, or None for all.
    """
    parser = Parser(
        prog="padir",
        usage="padir [-h] [--version] COMMAND ...",
        description="Generative-masked translation: draft a whole sentence, then refine it.",
        epilog=_overview(),
    )
    parser.add_argument("--version", action="version", version=f"padir {__version__}")
    commands = parser.add_subparsers(dest="command", prog="padir", metavar="COMMAND", help=argparse.SUPPRESS)
    for command in (command for group in GROUPS.values() for command in group):
        *about, example = command.paragraphs
        texts = {"help": command.sentence, "description": " ".join(about), "epilog": f"example:\n  {example}"}
        one = commands.add_parser(command.name, **texts)
        if names is None or command.name in names:
            command.add(one)
            if command.name != "t5x":  # whose two actions have parsers of their own
                common_options(one)
        one.set_defaults(module=command.module, sends=command.sends)
    return parser


def _overview() -> str:
    """Every command with its sentence, by group."""
    lines = []
    for title, group in GROUPS.items():
        lines += [f"{title}:", *(f"  {command.name:<11}{command.sentence}" for command in group), ""]
    begin = GROUPS["use"][0].paragraphs[-1]
    return "\n".join([*lines, "`padir COMMAND --help` lists the options of a command. To begin:", f"  {begin}"])

"""All commands of `padir`, in groups; `main` parses the words of a command, then runs it.

Nothing here imports JAX, so help, the version and messages about wrong words appear at once. The module of a command,
which holds its `run_NAME`, is imported when the command runs. Every command takes gin configuration (--gin_file FILE,
--gin.NAME=VALUE) and --json FILE for its results.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from padir import __version__
from padir.cli import options as use
from padir.cli import options_of_study as study
from padir.cli.options import common_options
from padir.cli.parser import Parser

_GIN = "--gin."
_INTERRUPTED = 130  # exit status, as of shells


def command() -> NoReturn:
    """Run the command of this process, and exit with its status.

    An interrupted process exits at once, because a program that XLA is compiling would delay the exit and then crash.
    Several processes exit in the ordinary way, which lets them leave each other in order.
    """
    status = main()
    jax = sys.modules.get("jax")
    if status == _INTERRUPTED and not (jax and jax.distributed.is_initialized()):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)
    sys.exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
      argv: words after `padir`; None for the words of this process.

    Returns:
      The exit status: 0, 1 if `padir compile` found a program that does not fit or an address cannot be reached, 2 for
      bad input (with a message on stderr), 130 after Ctrl-C, 141 if the reader of standard output is gone.

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
        return _INTERRUPTED


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes:
      name: the word after `padir`; "t5x" has two actions, each with its own parser.
      module: the module of `padir.cli` that has the command's `run_NAME`.
      sentence: one sentence that says what the command does.
      example: words that follow the name in the example of its help.
      options: adds its options to its parser.
    """

    name: str
    module: str
    sentence: str
    example: str
    add: Callable[[Parser], None]

    def options(self, parser: Parser) -> None:
        """Add the command's options, and those that every command has."""
        self.add(parser)
        if self.name != "t5x":
            common_options(parser)


GROUPS = {
    "data": (
        Command(
            "vocab",
            "data",
            "Train a vocabulary on both sides of a corpus.",
            "--task toy_de_en --size 2400 --output data/vocab.model",
            use.vocab_options,
        ),
        Command(
            "prepare",
            "data",
            "Tokenise a corpus into records.",
            "--task toy_de_en --vocab data/vocab.model --output data/toy",
            use.prepare_options,
        ),
        Command(
            "shortlist",
            "data",
            "Learn which pieces each source piece is translated to, for --shortlist.",
            "--data data/toy --output data/shortlist.npz",
            use.shortlist_options,
        ),
    ),
    "train": (
        Command(
            "train",
            "training",
            "Train a model, or resume a training run.",
            "toy_cpu --data data/toy --model_dir runs/toy --steps 5000",
            use.train_options,
        ),
        Command(
            "average",
            "training",
            "Average checkpoints of a training run into one model.",
            "--model_dir runs/toy --last 3 --output runs/toy_average",
            use.average_options,
        ),
        Command(
            "distill",
            "training",
            "Write a teacher's translations as a training set.",
            "--model runs/teacher --data data/toy --output data/toy_distilled",
            use.distill_options,
        ),
    ),
    "use": (
        Command(
            "translate",
            "translating",
            "Translate sentences or the lines of a file, one line out for each.",
            '--trace "Wo ist der Bahnhof?"',
            use.translate_options,
        ),
        Command(
            "score",
            "translating",
            "Compute log-probabilities of given translations.",
            "--model runs/toy --input de.txt --target en.txt",
            use.score_options,
        ),
        Command(
            "list",
            "listing",
            "List the configurations, models, strategies and corpora that come with padir.",
            "strategies",
            use.list_options,
        ),
        Command(
            "serve",
            "translating",
            "Serve a model over HTTP, with a page that shows the refinement steps.",
            "--port 8000",
            use.serve_options,
        ),
    ),
    "measure": (
        Command(
            "evaluate",
            "evaluating",
            "Translate and score a test set with one model or several.",
            "--model runs/toy --data data/toy --num_steps 1 4 --output results/toy",
            study.evaluate_options,
        ),
        Command(
            "tables",
            "evaluating",
            "Make tables in the paper's layout from JSON files of `padir evaluate`.",
            "results/toy.json",
            study.tables_options,
        ),
        Command(
            "compare",
            "evaluating",
            "Compare translations by a paired bootstrap test.",
            "--languages de-en --target en.txt baseline.txt mine.txt",
            study.compare_options,
        ),
        Command(
            "benchmark",
            "measuring",
            "Time several ways of translating, side by side.",
            "--task toy_de_en --num_steps 1 4 --set sentences=16",
            study.benchmark_options,
        ),
        Command(
            "compile",
            "measuring",
            "Compile a configuration's programs for TPUs that this machine lacks.",
            "--topology v3:2x2 --gin_file=configs/run/wmt14_de_en.gin --what train",
            study.compile_options,
        ),
    ),
    "exchange": (
        Command(
            "export",
            "exchanging",
            "Write a model as StableHLO programs, or its weights for other frameworks.",
            "--model runs/toy --output exported/toy",
            study.export_options,
        ),
        Command(
            "t5x",
            "exchanging",
            "Read and write T5X checkpoints; T5X itself is not needed.",
            "export --model runs/toy --output t5x/toy",
            study.t5x_options,
        ),
    ),
    "study": (
        Command(
            "ising",
            "measuring",
            "Run the paper's Ising experiments and check its theorems exactly.",
            "fig1 --set samples=1000 --output results/fig1",
            study.ising_options,
        ),
        Command(
            "analyse",
            "measuring",
            "Analyse a model: attention, dependency between positions, refinement.",
            "attention --task toy_de_en --output results/attention",
            study.analyse_options,
        ),
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
        one = commands.add_parser(command.name, help=command.sentence)
        if names is None or command.name in names:
            command.options(one)
        one.epilog = f"example:\n{_example(command)}"
        one.description = " ".join(filter(None, [command.sentence, one.description]))
        one.set_defaults(module=command.module)
    return parser


def _overview() -> str:
    """Every command with its sentence, by group."""
    lines = []
    for title, group in GROUPS.items():
        lines += [f"{title}:", *(f"  {command.name:<11}{command.sentence}" for command in group), ""]
    begin = next(command for command in GROUPS["use"] if command.name == "translate")
    return "\n".join([*lines, "`padir COMMAND --help` lists the options of a command. To begin:", _example(begin)])


def _example(command: Command) -> str:
    return f"  padir {command.name} {command.example}"

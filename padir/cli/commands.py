"""All commands of `padir`, in groups, and the parser of the command line."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Collection

from padir import __version__
from padir.cli.completion import SHELLS
from padir.cli.parser import Parser


@dataclasses.dataclass(frozen=True)
class Command:
    """A command: its name, the module of `padir.cli` whose `add_NAME` adds its options, and one sentence about it."""

    name: str
    module: str
    sentence: str


GROUPS = {
    "data": (
        Command("vocab", "data", "Train a vocabulary on both sides of a corpus."),
        Command("prepare", "data", "Tokenise a corpus into records."),
        Command("shortlist", "data", "Learn which pieces each source piece is translated to, for --shortlist."),
    ),
    "train": (
        Command("train", "training", "Train a model, or resume a training run."),
        Command("average", "training", "Average checkpoints of a training run into one model."),
        Command("distill", "training", "Write a teacher's translations as a training set."),
    ),
    "use": (
        Command("translate", "translating", "Translate sentences or the lines of a file, one line out for each."),
        Command("score", "translating", "Compute log-probabilities of given translations."),
        Command("list", "listing", "List the configurations, models, strategies and corpora that come with padir."),
        Command("serve", "serving", "Serve a model over HTTP, with a page that shows the refinement steps."),
    ),
    "measure": (
        Command("evaluate", "evaluating", "Translate and score a test set with one model or several."),
        Command("tables", "evaluating", "Make tables in the paper's layout from JSON files of `padir evaluate`."),
        Command("compare", "evaluating", "Compare translations by a paired bootstrap test."),
        Command("benchmark", "benchmarking", "Time several ways of translating, side by side."),
        Command("compile", "compiling", "Compile a configuration's programs for TPUs that need not be here."),
    ),
    "exchange": (
        Command("export", "exchanging", "Write a model as StableHLO programs, or its weights for other frameworks."),
        Command("t5x", "exchanging", "Read and write T5X checkpoints; T5X itself is not needed."),
    ),
    "study": (
        Command("ising", "analysing", "Run the paper's Ising experiments and check its theorems exactly."),
        Command("analyse", "analysing", "Analyse a model: attention, dependency between positions, refinement."),
    ),
}

EXAMPLES = {
    "vocab": "--task toy_de_en --size 2400 --output data/vocab.model",
    "prepare": "--task toy_de_en --vocab data/vocab.model --output data/toy",
    "shortlist": "--data data/toy --output data/shortlist.npz",
    "train": "--gin_file=configs/run/toy_cpu.gin --data data/toy --model_dir runs/toy",
    "average": "--checkpoints runs/toy --last 3 --output runs/toy_average",
    "distill": "--model runs/teacher --data data/toy --output data/toy_distilled",
    "translate": '--trace "Wo ist der Bahnhof?"',
    "score": "--model runs/toy --source de.txt --target en.txt",
    "list": "strategies",
    "serve": "--port 8000",
    "evaluate": "--model runs/toy --data data/toy --num_steps 1 4 --output results/toy",
    "tables": "results/toy.json",
    "compare": "--references en.txt --hypotheses baseline.txt mine.txt --target_language en",
    "benchmark": "--task toy_de_en --num_steps 1 4 --quick",
    "compile": "--topology v3:2x2 --gin_file=configs/run/wmt14_de_en.gin --what train",
    "export": "--model runs/toy --output exported/toy",
    "t5x": "export --model runs/toy --output t5x/toy",
    "ising": "fig1 --samples 1000 --output results/fig1",
    "analyse": "attention --task toy_de_en --output results/attention",
}


def build_parser(names: Collection[str] | None = None) -> argparse.ArgumentParser:
    """Build the parser of the command line.

    Args:
      names: commands that get their options, or None for all. The modules of other commands are not imported.
    """
    parser = Parser(
        prog="padir",
        usage="padir [-h] [--version] COMMAND ...",
        description="Generative-masked translation: draft a whole sentence, then refine it.",
        epilog=_overview(),
    )
    parser.add_argument("--version", action="version", version=f"padir {__version__}")
    parser.add_argument(
        "--print_completion", choices=SHELLS, help="print a script with which this shell completes padir's words"
    )
    commands = parser.add_subparsers(dest="command", prog="padir", metavar="COMMAND", help=argparse.SUPPRESS)
    for command in (command for group in GROUPS.values() for command in group):
        one = commands.add_parser(command.name, help=command.sentence)
        if names is None or command.name in names:
            module = importlib.import_module(f"padir.cli.{command.module}")
            getattr(module, f"add_{command.name}")(one)
        one.epilog = f"example:\n{_example(command.name)}"
        one.description = " ".join(filter(None, [command.sentence, one.description]))
    return parser


def _example(name: str) -> str:
    return f"  padir {name} {EXAMPLES[name]}"


def _overview() -> str:
    """Every command with its sentence, by group."""
    lines = []
    for title, group in GROUPS.items():
        lines += [f"{title}:", *(f"  {command.name:<11}{command.sentence}" for command in group), ""]
    return "\n".join(
        [*lines, "`padir COMMAND --help` lists the options of a command. To begin:", _example("translate")]
    )

"""Options that several commands share.

Most options that are not given are None, and are left out of the call (`padir.cli.arguments.given`). So gin's value or
the library's default holds. Nothing in `padir.cli.options` imports JAX.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from padir.cli.parser import shown
from padir.options import FILE_SHAPES, OPTIONS

MODEL = "de_en"  # `padir.pretrained.DEFAULT`, whose module imports NumPy
CTRANSLATE2 = ("float32", "int8")
_PATHS = (*FILE_SHAPES, "[NAME=]DIR", "CONFIG")  # forms of options that name files or folders
SENTINELS = {"num_sentinels": "number of sentinel ids on top of the pieces"}


def settings_option(parser: argparse.ArgumentParser, owners: dict[str, dict[str, str]]) -> None:
    """Add --set NAME=VALUE for parameters that few commands have.

    Args:
      owners: help texts by parameter, for each function or dataclass of `padir`, such as "text.tokenizer:train".
    """
    settings = {name: (f"padir.{owner}", text) for owner, texts in owners.items() for name, text in texts.items()}
    assert len(settings) == sum(map(len, owners.values())), "two owners have a setting of the same name"
    action = parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="further settings:")
    vars(action)["settings"] = settings
    parser.set_defaults(settings={name: owner for name, (owner, _) in settings.items()})


def common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command has, after its own: gin files, bindings and --json."""
    group = parser.add_argument_group("configuration")
    group.add_argument("--gin_file", action="append", default=[], metavar="FILE", help="read a gin file; repeatable")
    about = "import this module, for classes that a gin file or a card names; repeatable"
    group.add_argument("--allow_imports", action="append", default=[], metavar="MODULE", help=about)
    about = "bind one parameter, as in --gin.train.num_steps=1000; repeatable"  # `main` takes these words out
    group.add_argument("--gin.NAME=VALUE", dest="_", action="store_true", help=about)
    group.add_argument("--json", metavar="FILE", help="write the command's results as JSON")
    shapes = {each.dest: each.metavar for each in parser._actions if each.metavar in _PATHS or each.dest == "output"}
    parser.set_defaults(paths=shapes)


def processes_option(parser: argparse.ArgumentParser) -> None:
    """Add the option by which several processes of the command find each other."""
    about = (
        "work together with other processes that run this command (docs/devices.md): address of the first process,"
        " number of processes, and number of this process, from 0; auto: take all three from TPU, Slurm or MPI"
    )
    parser.add_argument("--coordinator", metavar="HOST:PORT,N,I", help=about)


def corpus_options(parser: argparse.ArgumentParser, *splits: str) -> None:
    """Add the options that name parallel text, with files for these splits."""
    group = parser.add_argument_group(
        "parallel text: a known task, or files: two of plain text, or any number of .tsv, .csv, .jsonl, .tmx, SGM, XML"
        " (WMT's) or .parquet, plain or compressed"
    )
    group.add_argument("--task", help="a known corpus, such as toy_de_en, or a test set of SacreBLEU, such as wmt20")
    group.add_argument("--data_dir", metavar="DIR", help="folder of the task's files")
    group.add_argument("--languages", metavar="SRC-TGT", help="languages of files or of SacreBLEU's set, such as de-en")
    for split in splits:
        group.add_argument(f"--{split}", nargs="+", metavar="FILE", help=f"{split} files")


def recipe_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name WMT's own files as a corpus."""
    group = parser.add_argument_group("or a WMT set from the files that WMT distributes (docs/running.md lists them)")
    group.add_argument("--recipe", metavar="NAME", help="wmt14_de_en, wmt16_ro_en, wmt17_zh_en, or the other direction")
    group.add_argument("--downloads", metavar="DIR", help="folder of the files, packed or unpacked")


def test_set_options(parser: argparse.ArgumentParser, *splits: str) -> None:
    """Add the options that name a test set: a prepared folder, or parallel text with files for these splits."""
    parser.add_argument("--data", metavar="DIR", help="a prepared folder to take the split from")
    parser.add_argument("--split", default="test", help="split of --data or --task (test)")
    corpus_options(parser, *splits)


def model_option(parser: argparse.ArgumentParser) -> None:
    """Add --model with the default model that comes with padir."""
    about = f"a model directory from `padir train`, or the name of a model that comes with padir ({MODEL})"
    parser.add_argument("--model", default=MODEL, metavar="DIR", help=about)


def writer_option(parser: argparse.ArgumentParser) -> None:
    """Add --writer, which names an engine of one's own."""
    about = "write with an engine of your own, which this function makes (docs/cookbook.md)"
    parser.add_argument("--writer", metavar="MODULE:NAME", help=about)


def step_option(parser: argparse.ArgumentParser) -> None:
    """Add --step, which chooses a checkpoint of a training run."""
    about = "step of a training run's checkpoint to use (default: the finished model, else the newest checkpoint)"
    parser.add_argument("--step", type=int, metavar="N", help=about)


def stored_precision_option(parser: argparse.ArgumentParser) -> None:
    """Add --precision, here the precision in which weights are stored."""
    about = "precision of the stored weights (float32)"
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help=about)


def decoding_options(
    parser: argparse.ArgumentParser,
    several: bool = False,
    without: Sequence[str] = (),
    defaults: str = "gin's Decoding, else the model's card, else as shown",
) -> None:
    """Add an option for every row of `padir.options`; `args.decoding_names` lists them.

    Args:
      several: let options take several values, where their rows say so.
      without: options that are left out.
      defaults: what holds for options that are not given.
    """
    group = parser.add_argument_group(f"decoding (defaults: {defaults})")
    names = [name for name in OPTIONS if name not in without]
    parser.set_defaults(decoding_names=names)
    for name in names:
        option = OPTIONS[name]
        settings: dict[str, Any] = {"type": option.kind, "metavar": option.shape, "choices": option.choices or None}
        if option.kind is bool:
            settings = {"action": argparse.BooleanOptionalAction}
        if several and option.several:
            settings["nargs"] = "+"
        if isinstance(option.default, tuple):
            settings["action"] = "append"
        group.add_argument(f"--{name}", help=option.help + shown(option.default), **settings)

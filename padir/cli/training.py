"""`padir train`, `padir average` and `padir distill`: making models, and training sets from their translations."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from typing import Any

from padir import config
from padir.cli.arguments import check_options, decoding_of, sharding_of
from padir.cli.console import print_splits, tell
from padir.cli.corpora import folders_of
from padir.cli.options import (
    common_options,
    decoding_options,
    dtype_option,
    processes_options,
    setting,
    steps_options,
)
from padir.data.mixture import Mixture
from padir.data.prepared import load_tokenizer
from padir.decoding.lengths import LengthSearch
from padir.decoding.options import resolve
from padir.distributed.processes import agreed, from_first, is_first
from padir.errors import PadirError
from padir.evaluation import validation_fn
from padir.interop.ctranslate2 import CTranslate2Translator
from padir.interop.ctranslate2_conversion import COMPUTE_TYPES
from padir.jobs.average import average_run
from padir.jobs.distillation import distill
from padir.jobs.teacher import Teacher
from padir.reporting.patience import told
from padir.storage.copies import sent_folder
from padir.training.config import TrainConfig
from padir.training.loop import train


def add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        nargs="+",
        metavar="DIR",
        help="prepared folders, also at addresses such as gs://BUCKET/DATA; gin's DATASET",
    )
    parser.add_argument(
        "--weights", type=float, nargs="+", help="how often each folder of --data comes in an epoch (1 each)"
    )
    parser.add_argument(
        "--model_dir", metavar="DIR", help="directory of the training run, or its address; gin's MODEL_DIR"
    )
    setting(parser, LengthSearch, "top_k", "number of most likely lengths to try in validation")
    parser.add_argument("--num_steps", type=int, help=argparse.SUPPRESS)  # would be the decoder passes of validation
    parser.add_argument("--yes", action="store_true", help="train without a configuration, with every default")
    parser.add_argument("--print_config", action="store_true", help="print every setting as gin, and train nothing")
    processes_options(parser)
    decoding_options(parser)
    common_options(parser)
    parser.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> dict[str, Any] | None:
    folders = folders_of(args)
    model_dir = args.model_dir or config.macro("MODEL_DIR")
    if not model_dir:
        raise PadirError("no model_dir: give --model_dir DIR, or --gin.MODEL_DIR=DIR")
    _check_configured(args)
    weights = {"weights": tuple(args.weights)} if args.weights else {}
    if not weights and args.data and len(folders) == 1:
        weights = {"weights": ()}  # weights in a gin file belong to the folders that the file names

    def validation() -> tuple[Any, TrainConfig, Any]:
        """Validation's decoding options, the training settings, and the validation function; raises if one is wrong."""
        settings, decoding = config.configured(TrainConfig)(), decoding_of(args)
        check_options(args, settings.model, decodings=[decoding])
        resolve(decoding, settings.model, settings.objective.corruption, settings.objective.strategy)
        if decoding.shortlist is not None:
            decoding.shortlist.check(load_tokenizer(folders[0]))
        if decoding.draft is not None:
            decoding.draft.check(load_tokenizer(folders[0]))
        options = (decoding.num_steps, decoding.batch_size, decoding.seed, decoding.strategy, decoding.lengths)
        return options, settings, validation_fn(folders[0], decoding)

    _, settings, evaluate_fn = agreed("the options of the validation", validation, lambda made: repr(made[0]))
    mixture = config.configured(Mixture)(folders=folders, **weights)
    if args.print_config:
        print(config.operative())
        return None
    return train(mixture, model_dir, settings, evaluate_fn=evaluate_fn, config_text=config.operative())


def _check_configured(args: argparse.Namespace) -> None:
    """Refuse a run without any configuration, and the option --num_steps, which could mean two things."""
    if args.num_steps is not None:
        raise PadirError(
            "--num_steps could mean the steps of training or the decoder passes of validation: give"
            " --gin.train.num_steps=N for the former, --gin.Decoding.num_steps=N for the latter"
        )
    if not (args.yes or args.gin_file or any("." in binding.partition("=")[0] for binding in args.bindings)):
        raise PadirError(
            f"there is no configuration: give one, such as --gin_file=configs/run/toy_cpu.gin, or --yes for a model of"
            f" the paper's size and {TrainConfig().num_steps:,} steps"
        )


def add_average(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoints", required=True, metavar="DIR", help="--model_dir of a training run")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="K", help="average the last K checkpoints")
    which.add_argument("--best", type=int, metavar="K", help="average the K kept checkpoints of highest BLEU")
    parser.add_argument("--step", type=int, metavar="N", help="average checkpoints up to this step (the newest)")
    dtype_option(parser)
    parser.add_argument(
        "--decoding",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="options that the model is decoded with if nothing else is said, such as top_k=5 brevity=1.5",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="the model directory to write")
    common_options(parser)
    parser.set_defaults(run=_average)


def _average(args: argparse.Namespace) -> dict[str, Any]:
    kind = "last" if args.last is not None else "best"
    options = {"kind": kind, "count": getattr(args, kind), "dtype": args.dtype, "step": args.step}
    decoding = dict(map(_named_value, args.decoding))
    with told("averaging"):
        with sent_folder(args.output) as output:
            card = average_run(args.checkpoints, output, decoding=decoding, **options)
    tell(f"{args.output}: {card.weights}")
    return card.to_json()["weights"]


def _named_value(word: str) -> tuple[str, Any]:
    """Split NAME=VALUE; a value that is JSON is read as such, and others are text."""
    name, separator, value = word.partition("=")
    if not separator:
        raise PadirError("--decoding", "of words NAME=VALUE", word)
    with contextlib.suppress(ValueError):
        return name, json.loads(value)
    return name, value


def add_distill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="DIR", help="the teacher, a model from `padir train`")
    parser.add_argument("--data", required=True, metavar="DIR", help="a prepared folder")
    parser.add_argument("--output", required=True, metavar="DIR", help="the prepared folder to write")
    steps_options(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace the pairs that the folder holds")
    parser.add_argument(
        "--ctranslate2",
        choices=COMPUTE_TYPES,
        help="search in CTranslate2, which is several times as fast on a CPU (autoregressive teachers, extra peers)",
    )
    processes_options(parser)
    decoding_options(parser)
    common_options(parser)
    parser.set_defaults(run=_distill)


def _distill(args: argparse.Namespace) -> dict[str, Any] | None:
    sharding, decoding = sharding_of(args), decoding_of(args)
    teacher = Teacher.load(args.model, sharding)
    if args.ctranslate2:
        engine = CTranslate2Translator(teacher.translator, args.ctranslate2)
        teacher = dataclasses.replace(teacher, translator=engine, engine=engine.name)
    check_options(args, teacher.translator.card.config, decodings=[decoding])
    with contextlib.ExitStack() as stack:
        output = from_first(lambda: str(stack.enter_context(sent_folder(args.output))))
        manifest = distill(teacher, args.data, output, decoding, overwrite=args.overwrite)
    if not is_first():
        return None
    print_splits(args.output, manifest)
    if validation := (manifest.distilled or {}).get("validation"):
        print(f"the teacher's BLEU on the validation split: {validation['bleu']:.2f} ({validation['signature']})")
    return manifest.to_json()

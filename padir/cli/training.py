"""`padir train | average | distill`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from padir.cli.arguments import (
    check_kind,
    decoding_of,
    folders_of,
    sharding_of,
)
from padir.cli.console import print_splits
from padir.cli.options import common_options, decoding_options, steps_options
from padir.errors import PadirError


def add(commands: Any) -> None:
    """Adds these commands to the parser's."""
    _add_train(commands)
    _add_average(commands)
    _add_distill(commands)


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train", parents=[decoding_options(), common_options()], help="train a model, or go on training it"
    )
    train.add_argument("--data", nargs="+", metavar="DIR", help="from `padir prepare`, or several; as gin: DATASET")
    train.add_argument("--weights", type=float, nargs="+", help="how often each --data comes in an epoch (1 each)")
    train.add_argument("--model_dir", metavar="DIR", help="the directory to train in; as gin: MODEL_DIR")
    train.add_argument("--num_steps", type=int, help="decoder passes when validating (4)")
    train.add_argument("--top_k", type=int, help="how many of the most likely lengths are tried when validating (1)")
    hosts = train.add_argument_group("several processes, each running this command (docs/devices.md)")
    hosts.add_argument(
        "--coordinator", metavar="HOST:PORT", help="of the first one; auto: as TPU, SLURM or MPI tell (one process)"
    )
    hosts.add_argument("--num_processes", type=int, metavar="N", help="how many there are")
    hosts.add_argument("--process_id", type=int, metavar="I", help="which of them this one is, from 0")
    train.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> dict[str, Any]:
    from padir import config
    from padir.data.mixture import Mixture
    from padir.data.prepared import load_tokenizer
    from padir.decoding.options import resolve
    from padir.distributed.processes import agreed
    from padir.evaluation import validation_fn
    from padir.training.config import TrainConfig
    from padir.training.loop import train

    folders = folders_of(args)
    model_dir = args.model_dir or config.macro("MODEL_DIR")
    if not model_dir:
        raise PadirError("no model_dir: give --model_dir DIR, or --gin.MODEL_DIR=DIR")
    weights = {"weights": tuple(args.weights)} if args.weights else {}

    settings = config.configured(TrainConfig)()

    def validation() -> tuple[Any, Any]:
        """How, and the function that does; what is wrong with it is found now, and not when the first one comes."""
        decoding = decoding_of(args)
        check_kind(args, settings.model, decodings=[decoding])
        resolve(decoding, settings.model, settings.objective.corruption, settings.objective.strategy)
        if decoding.shortlist is not None:
            decoding.shortlist.check(load_tokenizer(folders[0]))
        how = (decoding.num_steps, decoding.batch_size, decoding.seed, decoding.strategy, decoding.lengths)
        return how, validation_fn(folders[0], decoding)

    _, evaluate_fn = agreed("the options of the validation", validation, lambda made: repr(made[0]))
    mixture = config.configured(Mixture)(folders=folders, **weights)
    return train(mixture, model_dir, settings, evaluate_fn=evaluate_fn, config_text=config.operative())


def _add_average(commands: Any) -> None:
    average = commands.add_parser(
        "average", parents=[common_options()], help="make a model of the mean of a run's checkpoints"
    )
    average.add_argument("--checkpoints", required=True, metavar="DIR", help="the --model_dir of a finished training")
    which = average.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="K", help="the last K checkpoints")
    which.add_argument("--best", type=int, metavar="K", help="the K of highest BLEU that Intervals.keep has left")
    average.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the file (float32)")
    average.add_argument("--output", required=True, metavar="DIR", help="the model directory to write")
    average.set_defaults(run=_average)


def _average(args: argparse.Namespace) -> dict[str, Any]:
    from padir.jobs.average import average_run

    kind = "last" if args.last is not None else "best"
    card = average_run(args.checkpoints, args.output, kind=kind, count=getattr(args, kind), dtype=args.dtype)
    print(f"{args.output}: {card.weights}", file=sys.stderr)
    return card.to_json()["weights"]


def _add_distill(commands: Any) -> None:
    distill = commands.add_parser(
        "distill",
        parents=[decoding_options(), common_options()],
        help="write a teacher's translations as a training set",
    )
    distill.add_argument("--model", required=True, metavar="DIR", help="the teacher, from `padir train`")
    distill.add_argument("--data", required=True, metavar="DIR", help="from `padir prepare`")
    distill.add_argument("--output", required=True, metavar="DIR", help="the prepared folder to write")
    steps_options(distill)
    distill.add_argument("--overwrite", action="store_true", help="replace other pairs in the folder")
    distill.set_defaults(run=_distill)


def _distill(args: argparse.Namespace) -> dict[str, Any]:
    from padir.jobs.distill import Teacher, distill

    sharding, decoding = sharding_of(args), decoding_of(args)
    teacher = Teacher.load(args.model, sharding)
    check_kind(args, teacher.translator.card.config, decodings=[decoding])
    manifest = distill(teacher, args.data, args.output, decoding, overwrite=args.overwrite)
    print_splits(args.output, manifest)
    if validation := (manifest.distilled or {}).get("validation"):
        print(f"the teacher's BLEU on the validation split: {validation['bleu']:.2f} ({validation['signature']})")
    return manifest.to_json()

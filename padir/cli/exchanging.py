"""`padir export | t5x`: models for other programs, and theirs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from padir.cli.arguments import (
    check_kind,
    decoding_of,
    translators_of,
)
from padir.cli.options import common_options, decoding_options, model_option, precision_option, steps_options
from padir.errors import PadirError


def add(commands: Any) -> None:
    """Adds these commands to the parser's."""
    _add_export(commands)
    _add_t5x(commands)


def _add_export(commands: Any) -> None:
    export = commands.add_parser(
        "export",
        parents=[decoding_options(), common_options()],
        help="write a model as StableHLO programs that run without padir, or its weights for other frameworks",
        description="Writes programs for rows of each length (jax.export: any number of sentences, CPU, CUDA and TPU at"
        " once), weights, vocabulary and a loader, exported.py, which needs JAX, flatbuffers, NumPy, SentencePiece and"
        " safetensors. The strategy, or an autoregressive model's search, becomes part of the programs; the numbers of"
        " steps, lengths and so on are the loader's defaults.",
    )
    model_option(export)
    precision_option(export)
    export.add_argument("--output", required=True, metavar="DIR", help="the folder to write")
    steps_options(export)
    export.add_argument("--step", type=int, help="programs for lengths of multiples of it (8)")
    export.add_argument("--source_lengths", type=int, nargs="+", help="instead: these; the last limits the sources")
    export.add_argument("--target_lengths", type=int, nargs="+", help="instead: these, and the model's longest")
    export.add_argument("--platforms", nargs="+", help="that every program is for (cpu cuda tpu)")
    export.add_argument(
        "--weights", action="store_true", help="instead of programs, the weights under the names of Hugging Face's T5"
    )
    export.add_argument("--overwrite", action="store_true", help="replace an earlier export in the folder")
    export.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> dict[str, Any]:
    from padir.interop.huggingface import write_weights
    from padir.interop.stablehlo import PLATFORMS, Lengths, export_model

    given = {name: value for name, value in vars(args).items() if value is not None}
    decoding = decoding_of(args)
    ((_, translator),) = translators_of([("", args.model)], [args.precision])
    check_kind(args, translator.card.config)
    if args.weights:
        of_programs = {"step", "source_lengths", "target_lengths", "platforms", "strategy", "num_steps", "top_k"}
        if wrong := sorted(of_programs & set(given)):
            raise PadirError(f"--{wrong[0]} is of programs, and --weights writes none: leave one of them out")
        figures = write_weights(translator, args.output, overwrite=args.overwrite)
        print(f"{args.output}: {figures['arrays']} arrays, {figures['named_as_t5']} named as T5's", file=sys.stderr)
        return figures
    named: dict[str, Any] = {name: getattr(args, f"{name}_lengths") for name in ("source", "target")}
    named = {name: tuple(lengths) for name, lengths in named.items() if lengths}
    lengths = Lengths(**named) if args.step is None else Lengths(**named, step=args.step)
    figures = export_model(
        translator,
        args.output,
        decoding,
        lengths=lengths,
        platforms=args.platforms or PLATFORMS,
        overwrite=args.overwrite,
        progress=lambda name: print(name, file=sys.stderr),
    )
    print(
        f"{args.output}: {figures['programs']} programs of {figures['program_bytes']:,} bytes for"
        f" {', '.join(figures['platforms'])}; {figures['weight_bytes']:,} bytes of weights",
        file=sys.stderr,
    )
    return figures


def _add_t5x(commands: Any) -> None:
    t5x = commands.add_parser("t5x", help="read and write T5X checkpoints, without T5X")
    actions = t5x.add_subparsers(dest="action", required=True, metavar="ACTION")
    importing = actions.add_parser(
        "import",
        parents=[common_options()],
        help="make a model directory of a T5X checkpoint",
        description="Makes a model directory of a T5X checkpoint. What model it is says the padir.json beside a run's"
        " checkpoints; of other checkpoints --vocab, --languages and gin's ModelConfig and Objective say it.",
    )
    importing.add_argument("checkpoint", metavar="DIR", help="checkpoint_<step>, or a model_dir with several")
    importing.add_argument("--output", required=True, metavar="DIR", help="the model directory to write")
    importing.add_argument("--step", type=int, help="which checkpoint of a model_dir (the last)")
    importing.add_argument("--vocab", metavar="FILE", help="the SentencePiece file")
    importing.add_argument("--num_sentinels", type=int, default=100, help="ids on top of the pieces (100)")
    importing.add_argument("--languages", metavar="SRC-TGT", help="such as de-en")
    importing.add_argument("--partial", action="store_true", help="take what fits, initialise the rest, and say which")
    importing.add_argument("--seed", type=int, default=0, help="of what is initialised (0)")
    importing.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the file (float32)")
    importing.set_defaults(run=_t5x_import)
    exporting = actions.add_parser(
        "export", parents=[common_options()], help="write a model directory as a T5X checkpoint"
    )
    exporting.add_argument("--model", required=True, metavar="DIR", help="from `padir train`, or one that comes along")
    exporting.add_argument("--output", required=True, metavar="DIR", help="the model_dir to write checkpoint_<step> in")
    exporting.set_defaults(run=_t5x_export)


def _t5x_import(args: argparse.Namespace) -> dict[str, Any]:
    from padir.interop.t5x import exchange as t5x_exchange

    described = t5x_exchange.described(args.checkpoint, args.step)
    if args.vocab is None and described is not None:
        if args.gin or args.languages:
            raise PadirError(
                "padir.json beside the checkpoint says what model it is: leave --languages and gin's bindings out, or"
                " give --vocab and with it all of them"
            )
        card, tokenizer = described
    elif args.vocab is None or not args.languages or not args.gin:
        raise PadirError(
            "no padir.json beside the checkpoint says what model it is: give --vocab FILE, --languages such as de-en,"
            " and the configuration (--gin_file or --gin.ModelConfig.width=512)"
        )
    else:
        card, tokenizer = _t5x_card(args)
    report = t5x_exchange.import_model(
        args.checkpoint,
        args.output,
        card,
        tokenizer,
        step=args.step,
        partial=args.partial,
        seed=args.seed,
        dtype=args.dtype,
    )
    print(f"{args.output}: {report}", file=sys.stderr)
    return report.to_json()


def _t5x_card(args: argparse.Namespace) -> tuple[Any, Any]:
    """What model the arguments say that a checkpoint is of."""
    from padir import config
    from padir.models.card import ModelCard
    from padir.text.tokenizer import Tokenizer
    from padir.training.config import TrainConfig

    source, _, target = args.languages.partition("-")
    if not source or not target or "-" in target:
        raise PadirError(f"--languages takes two codes with a hyphen, such as de-en, got {args.languages!r}")
    model, objective = (config.argument(TrainConfig, name) for name in ("model", "objective"))
    tokenizer = Tokenizer.load(args.vocab, args.num_sentinels)
    return ModelCard(model, tokenizer.ids, objective.corruption, objective.strategy, source, target, ""), tokenizer


def _t5x_export(args: argparse.Namespace) -> dict[str, Any]:
    from padir.interop.t5x.exchange import export_model

    folder = export_model(args.model, args.output)
    print(folder, file=sys.stderr)
    return {"checkpoint": str(folder)}

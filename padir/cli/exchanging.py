"""`padir export` and `padir t5x`: export of models to other programs, and import from T5X."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from padir.cli.arguments import check_options, decoding_of, load_model
from padir.cli.console import tell
from padir.cli.options import (
    common_options,
    decoding_options,
    dtype_option,
    given,
    model_option,
    precision_option,
    sentinels_option,
    setting,
    step_option,
    steps_options,
)
from padir.decoding.rerank import OwnScore
from padir.errors import PadirError
from padir.interop.huggingface import write_weights
from padir.interop.stablehlo import PLATFORMS, Lengths, export_model
from padir.interop.t5x import exchange
from padir.models.card import ModelCard
from padir.text.tokenizer import Tokenizer

_OF_PROGRAMS = ("num_steps", "platforms", "source_lengths", "multiple", "strategy", "target_lengths", "top_k")


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Each program, made by jax.export, is for one padded length; it takes any number of sentences and runs on CPU,"
        " CUDA and TPU. The folder also has the weights, the vocabulary and a loader, exported.py, which needs JAX,"
        " flatbuffers, NumPy, SentencePiece and safetensors. The strategy, or an autoregressive model's search, becomes"
        " part of the programs; the numbers of steps, lengths and other decoding options are the loader's defaults."
    )
    model_option(parser)
    step_option(parser)
    precision_option(parser)
    parser.add_argument("--output", required=True, metavar="DIR", help="the folder to write")
    steps_options(parser)
    setting(
        parser, Lengths, "step", option="multiple", about="write programs for lengths that are multiples of this number"
    )
    parser.add_argument(
        "--source_lengths",
        type=int,
        nargs="+",
        help="source lengths, in place of --multiple's; longer sources are refused",
    )
    parser.add_argument(
        "--target_lengths",
        type=int,
        nargs="+",
        help="target lengths, in place of --multiple's; the model's maximum is added",
    )
    parser.add_argument("--platforms", nargs="+", help=f"platforms of every program ({' '.join(PLATFORMS)})")
    parser.add_argument(
        "--weights", action="store_true", help="instead of programs, the weights under the names of Hugging Face's T5"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export in the folder")
    decoding_options(parser)
    common_options(parser)
    parser.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> dict[str, Any]:
    decoding_of(args)  # wrong numbers are refused before the model is loaded
    translator = load_model(args, step=args.step)
    decoding = decoding_of(args, translator.decoding)
    check_options(args, translator.card.config)
    if args.weights:
        if wrong := [name for name in _OF_PROGRAMS if getattr(args, name) is not None]:
            raise PadirError(f"--{wrong[0]} applies to programs, and --weights writes none: leave one of them out")
        written = write_weights(translator, args.output, overwrite=args.overwrite)
        tell(f"{args.output}: {written['arrays']} arrays, {written['named_as_t5']} named as T5's")
        return written
    if args.rerank is None and not isinstance(decoding.rerank, OwnScore):  # the model's card says so
        tell(f"the card's {decoding.rerank} cannot be exported: programs choose by --rerank own")
        decoding = dataclasses.replace(decoding, rerank=OwnScore())
    lengths = {"source": args.source_lengths, "target": args.target_lengths}
    lengths: dict[str, Any] = {name: tuple(values) for name, values in lengths.items() if values}
    if args.multiple is not None:
        lengths["step"] = args.multiple
    written = export_model(
        translator,
        args.output,
        decoding,
        lengths=Lengths(**lengths),
        platforms=args.platforms or PLATFORMS,
        overwrite=args.overwrite,
        progress=tell,
    )
    tell(
        f"{args.output}: {written['programs']} programs of {written['program_bytes']:,} bytes for"
        f" {', '.join(written['platforms'])}; {written['weight_bytes']:,} bytes of weights"
    )
    return written


def add_t5x(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_t5x_import(actions)
    _add_t5x_export(actions)


def _add_t5x_import(actions: Any) -> None:
    sentence = "Make a model directory of a T5X checkpoint."
    parser: argparse.ArgumentParser = actions.add_parser(
        "import",
        help=sentence,
        description=f"{sentence} The file padir.json beside a run's checkpoints describes the model; for other"
        " checkpoints, --vocab, --languages and gin's ModelConfig and Objective describe it.",
        epilog="example:\n  padir t5x import t5x/toy --output runs/from_t5x",
    )
    parser.add_argument("checkpoint", metavar="DIR", help="checkpoint_<step>, or a model_dir with several checkpoints")
    parser.add_argument("--output", required=True, metavar="DIR", help="the model directory to write")
    parser.add_argument("--step", type=int, help="step of the checkpoint in a model_dir (the last)")
    parser.add_argument("--vocab", metavar="FILE", help="the SentencePiece file")
    sentinels_option(parser)
    parser.add_argument("--languages", metavar="SRC-TGT", help="languages of the model, such as de-en")
    parser.add_argument(
        "--partial", action="store_true", help="take the arrays that match, initialise the others, and report on both"
    )
    setting(parser, exchange.import_model, "seed", "seed of initialised arrays")
    dtype_option(parser)
    common_options(parser)
    parser.set_defaults(run=_t5x_import)


def _add_t5x_export(actions: Any) -> None:
    sentence = "Write a model directory as a T5X checkpoint."
    parser: argparse.ArgumentParser = actions.add_parser(
        "export",
        help=sentence,
        description=sentence,
        epilog="example:\n  padir t5x export --model runs/toy --output t5x/toy",
    )
    parser.add_argument(
        "--model", required=True, metavar="DIR", help="a model from `padir train`, or one that comes with padir"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="the model_dir to write checkpoint_<step> in")
    common_options(parser)
    parser.set_defaults(run=_t5x_export)


def _t5x_import(args: argparse.Namespace) -> dict[str, Any]:
    described = exchange.read_description(args.checkpoint, args.step)
    if args.vocab is None and described is not None:
        if args.gin or args.languages:
            raise PadirError(
                "padir.json beside the checkpoint says what model it is: leave --languages and gin's bindings out, or"
                " give all three: --vocab, --languages and gin's bindings"
            )
        card, tokenizer = described
    elif args.vocab is None or not args.languages or not args.gin:
        raise PadirError(
            "no padir.json beside the checkpoint says what model it is: give --vocab FILE, --languages such as de-en,"
            " and the configuration (--gin_file or --gin.ModelConfig.width=512)"
        )
    else:
        card, tokenizer = _t5x_card(args)
    report = exchange.import_model(
        args.checkpoint,
        args.output,
        card,
        tokenizer,
        partial=args.partial,
        dtype=args.dtype,
        **given(args, "step", "seed"),
    )
    tell(f"{args.output}: {report}")
    return report.to_json()


def _t5x_card(args: argparse.Namespace) -> tuple[ModelCard, Tokenizer]:
    """Card and tokenizer of the model that --vocab, --languages and gin describe."""
    from padir import config
    from padir.training.config import TrainConfig

    source, _, target = args.languages.partition("-")
    if not source or not target or "-" in target:
        raise PadirError(f"--languages takes two codes with a hyphen, such as de-en, got {args.languages!r}")
    model, objective = (config.argument(TrainConfig, name) for name in ("model", "objective"))
    tokenizer = Tokenizer.load(args.vocab, **given(args, "num_sentinels"))
    return ModelCard(model, tokenizer.ids, objective.corruption, objective.strategy, source, target, ""), tokenizer


def _t5x_export(args: argparse.Namespace) -> dict[str, Any]:
    folder = exchange.export_checkpoint(args.model, args.output)
    tell(str(folder))
    return {"checkpoint": str(folder)}

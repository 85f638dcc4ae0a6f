"""`padir export` and `padir t5x`: export of models to other programs, and import from T5X."""

from __future__ import annotations

import argparse
from typing import Any

from padir.cli.arguments import chosen, given, load_with_options, options_given, refuse, vocabulary_file
from padir.cli.console import tell
from padir.errors import PadirError
from padir.interop.huggingface import write_weights
from padir.interop.onnx import export_onnx
from padir.interop.t5x import exchange
from padir.models.directory import ModelCard
from padir.text.languages import pair_of
from padir.text.tokenizer import Tokenizer


def run_export(args: argparse.Namespace) -> dict[str, Any]:
    if args.what == "weights" and (wrong := options_given(args)):
        raise PadirError(f"--{wrong[0]} applies only to programs: leave it out, or leave --what weights out")
    translator, decoding = load_with_options(args, counted=False)
    if args.what == "weights":
        written = write_weights(translator, args.output, overwrite=args.overwrite)
        tell(f"{args.output}: {written['arrays']} arrays, {written['named_as_t5']} named as T5's")
        return written
    written = export_onnx(translator, args.output, decoding, overwrite=args.overwrite)
    tell(f"{args.output}: {written['programs']} programs, {written['bytes']:,} bytes with the weights")
    return written


def run_t5x(args: argparse.Namespace) -> dict[str, Any]:
    if args.action == "export":
        folder = exchange.export_checkpoint(args.model, args.output)
        tell(str(folder))
        return {"checkpoint": str(folder)}
    described = exchange.read_description(args.checkpoint, args.step)
    if args.vocab is None and described is not None:
        if args.gin or args.languages:
            raise PadirError(
                "padir.json beside the checkpoint describes the model: leave --languages and gin's bindings out, or"
                " describe it yourself with --vocab, --languages and gin's bindings"
            )
        refuse(args, "a model that padir.json describes", "num_sentinels")
        card, tokenizer = described
    elif args.vocab is None or not args.languages or not args.gin:
        configuration = "a configuration (--gin_file or --gin.ModelConfig.width=512)"
        parts = {"--vocab FILE": args.vocab, "--languages such as de-en": args.languages, configuration: args.gin}
        missing = " and ".join(part for part, value in parts.items() if not value)
        what = "no padir.json describes the model" if described is None else "--vocab takes the place of padir.json"
        raise PadirError(what, remedy=f"give {missing}")
    else:
        card, tokenizer = _t5x_card(args)
    options = given(args, "step", "seed") | chosen(args, "padir.interop.t5x.exchange:import_model")
    report = exchange.import_model(args.checkpoint, args.output, card, tokenizer, dtype=args.precision, **options)
    tell(f"{args.output}: {report}")
    return report.to_json()


def _t5x_card(args: argparse.Namespace) -> tuple[ModelCard, Tokenizer]:
    """Card and tokenizer of the model that --vocab, --languages and gin describe."""
    from padir import config
    from padir.training.config import TrainConfig

    source, target = pair_of(args.languages)
    model, objective = (config.argument(TrainConfig, name) for name in ("model", "objective"))
    settings = chosen(args, "padir.text.tokenizer:Tokenizer.load")
    tokenizer = Tokenizer.load(vocabulary_file(args.vocab), renumber=False, **settings)
    strategy = objective.decoded_with(model)
    return ModelCard(
        model, tokenizer.ids, objective.corruption, strategy, source, target, "", text_form="raw"
    ), tokenizer

"""`padir train`, `padir average` and `padir distill`: making models, and training sets from their translations."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from typing import Any

from padir import config
from padir.cli.arguments import check_options, decoding_of, named_values, sharding_of, with_gin
from padir.cli.console import print_splits, tell
from padir.cli.corpora import folders_of
from padir.data.prepared import Mixture, load_tokenizer
from padir.decoding.options import Decoding, resolve
from padir.distributed.processes import agreed, from_first, is_first
from padir.errors import PadirError
from padir.evaluation import validation_fn
from padir.interop.ctranslate2 import CTranslate2Translator
from padir.jobs.average import average_run
from padir.jobs.distillation import Teacher, distill
from padir.reporting.patience import told
from padir.storage.remote import sent_folder
from padir.training.config import TrainConfig
from padir.training.loop import train


def run_train(args: argparse.Namespace) -> dict[str, Any] | None:
    if not (args.gin_file or any("." in binding.partition("=")[0] for binding in args.bindings)):
        remedy = "name one, as in `padir train toy_cpu` (`padir list configs`)"
        raise PadirError("there is no configuration", remedy=remedy)
    folders = folders_of(args)
    model_dir = args.model_dir or config.macro("MODEL_DIR")
    if not model_dir:
        raise PadirError("no model_dir: give --model_dir DIR, or --gin.MODEL_DIR=DIR")
    options = named_values(args.validate, "--validate")
    # Weights in a gin file belong to the folders that the file names.
    weights = {"weights": ()} if args.data and len(folders) == 1 else {}

    def validation() -> tuple[Any, TrainConfig, Any]:
        """Validation's decoding options, the training settings, and the validation function; raises if one is wrong."""
        settings, decoding = config.configured(TrainConfig)(), with_gin(Decoding()).changed(**options)
        model, objective = settings.model, settings.objective
        resolve(decoding, model, objective.corruption, objective.decoded_with(model))
        if decoding.shortlist is not None:
            decoding.shortlist.check(load_tokenizer(folders[0]))
        return decoding, settings, validation_fn(folders[0], decoding)

    _, settings, evaluate_fn = agreed("the options of the validation", validation, lambda made: repr(made[0]))
    mixture = config.configured(Mixture)(folders=folders, **weights)
    if args.print_config:
        print(config.operative())
        return None
    return train(mixture, model_dir, settings, evaluate_fn=evaluate_fn, config_text=config.operative())


def run_average(args: argparse.Namespace) -> dict[str, Any]:
    kind, count = ("last", args.last) if args.last is not None else ("best", args.best)
    options = {"kind": kind, "count": count, "dtype": args.precision, "step": args.step}
    decoding = named_values(args.decoding, "--decoding")
    with told("averaging"):
        with sent_folder(args.output) as output:
            card = average_run(args.model_dir, output, decoding=decoding, **options)
    tell(f"{args.output}: {card.weights}")
    return card.to_json()["weights"]


def run_distill(args: argparse.Namespace) -> dict[str, Any] | None:
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

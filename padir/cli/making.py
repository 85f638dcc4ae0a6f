"""Commands from text to records, and to models: vocab, prepare, shortlist, bigrams, train, average, distill."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from padir import config
from padir.cli.arguments import (
    check_options,
    chosen,
    configured,
    decoding_of,
    decoding_values,
    given,
    sharding_of,
    vocabulary_file,
)
from padir.cli.console import print_splits, tell, warn
from padir.cli.corpora import folders_of, named_folders, source_of
from padir.data.prepare import prepare
from padir.data.prepared import LengthLimits, Mixture, load_manifest, load_tokenizer
from padir.decoding.fit import asked, from_left, of_card, of_config, resolve
from padir.decoding.shortlist import Shortlist
from padir.distributed.processes import agreed, from_first, is_first
from padir.errors import PadirError
from padir.evaluation import validation_fn
from padir.interop.ctranslate2 import in_ctranslate2, version
from padir.jobs import learn_bigrams, learn_shortlist
from padir.jobs.average import average_run
from padir.jobs.distillation import UNFINISHED, Teacher, distill
from padir.reporting import tables
from padir.reporting.patience import told
from padir.storage.files import is_address
from padir.storage.remote import RemoteFolder, sent_folder
from padir.text import tokenizer
from padir.text.normalise import normalised
from padir.text.tokenizer import Tokenizer
from padir.training.config import TrainConfig
from padir.training.loop import train

_DECIDED = "languages, size of the vocabulary, placeholders; the folder is not here"


def run_vocab(args: argparse.Namespace) -> dict[str, Any]:
    source = source_of(args)
    split = "train" if "train" in source.splits else source.splits[0]
    texts = (normalised(text).text for pair in source.pairs(split) for text in pair)
    settings = given(args, "size") | chosen(args, "padir.text.tokenizer:train")
    with told("training a vocabulary, which reads the whole split"):
        trained = tokenizer.train(texts, args.output, **settings)
    tell(f"{args.output}: {trained.num_pieces:,} pieces and {trained.ids.num_sentinels} sentinels")
    return {"file": args.output, "pieces": trained.num_pieces, "sha256": trained.sha256}


def run_prepare(args: argparse.Namespace) -> dict[str, Any]:
    source = source_of(args)
    vocabulary = Tokenizer.load(vocabulary_file(args.vocab), **chosen(args, "padir.text.tokenizer:Tokenizer.load"))
    limits = LengthLimits(**chosen(args, "padir.data.prepared:LengthLimits"))
    if args.dedupe:
        limits = dataclasses.replace(limits, drop=tuple(dict.fromkeys((*limits.drop, "duplicate"))))
    settings = given(args, "placeholders")
    with sent_folder(args.output) as output:
        manifest = prepare(source, vocabulary, output, limits, overwrite=args.overwrite, **settings)
    print_splits(args.output, manifest)
    if counts := manifest.splits.get("train") and manifest.splits["train"].placeholders:
        of_kind = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()) if kind != "pairs")
        tell(f"placeholders in {counts['pairs']:,} training pairs: {of_kind}")
    return manifest.to_json()


def run_shortlist(args: argparse.Namespace) -> dict[str, Any]:
    settings = chosen(args, "padir.jobs.learn_shortlist:learn")
    learned = learn_shortlist.learn(Mixture(tuple(args.data)), **settings)
    learned.save(args.output)
    kept = learned.describe()
    tell(f"{args.output}: {kept['candidates']} candidates of each piece, and the {kept['frequent']:,} most frequent")
    return {"file": args.output, **kept, "vocabulary": learned.vocabulary, "recall": _recall(learned, args.data)}


def run_bigrams(args: argparse.Namespace) -> dict[str, Any]:
    settings = chosen(args, "padir.jobs.learn_bigrams:learn")
    options = decoding_values(args.decoding, "--decoding")
    with sent_folder(args.output) as output:
        learned = learn_bigrams.add_to_model(args.model, Mixture(tuple(args.data)), output, options, **settings)
    kept = learned.describe()
    counts = f"{kept['bigrams']:,} bigrams ({kept['share']:.1%} of those in the text) and {kept['words']:,} words"
    tell(f"{args.output}: {counts}")
    return {"model": args.output, **kept, "vocabulary": learned.vocabulary}


def _recall(learned: Shortlist, folders: list[str]) -> list[dict[str, Any]]:
    """Measure and print the recall on the validation split; empty if no folder has that split."""
    held_out = tuple(folder for folder in folders if "validation" in load_manifest(folder).splits)
    if not held_out:
        warn("the shortlist's recall was not measured: the data have no validation split")
        return []
    ids = load_tokenizer(held_out[0]).ids
    pairs = learn_shortlist.read(Mixture(held_out), "validation")
    found = [learn_shortlist.recall(learned, *pairs, ids, batch_size) for batch_size in (1, 32)]
    lines = [
        [str(r.batch_size), f"{100 * r.tokens:.2f} %", f"{100 * r.sentences:.2f} %"]
        + [f"{r.ids:,.1f}", f"{r.vocabulary:,.1f}", f"{ids.vocab_size:,}"]
        for r in found
    ]
    columns = ["batch", "target tokens", "whole targets", "mean size", "filled up", "of"]
    tables.show(f"validation, {len(pairs[0].length_B):,} sentences", columns, lines)
    return [r._asdict() for r in found]


def run_train(args: argparse.Namespace) -> dict[str, Any] | None:
    if not (args.gin_file or any("." in binding.partition("=")[0] for binding in args.bindings)):
        remedy = "name one, as in `padir train toy_cpu` (`padir list configs`)"
        raise PadirError("there is no configuration", remedy=remedy)
    folders = named_folders(args) if args.print_config else folders_of(args)
    read = not args.print_config or all(Path(folder).is_dir() for folder in folders)
    model_dir = args.model_dir or config.macro("MODEL_DIR")
    if not model_dir:
        raise PadirError("no model_dir: give --model_dir DIR, or --gin.MODEL_DIR=DIR")
    options = decoding_values(args.validate, "--validate")
    # With a single folder, weights bound in a gin file are dropped: they belong to the file's own folders.
    weights = {"weights": ()} if args.data and len(args.data) == 1 else {}
    if args.data and not weights and "weights" in config.bound(Mixture):
        tell("padir: Mixture.weights apply to the folders of --data, in their order")

    def validation() -> tuple[Any, TrainConfig, Any]:
        """Validation's decoding options, the training settings, and the validation function; raises if one is wrong."""
        settings = config.configured(TrainConfig)()
        model, objective = settings.model, settings.objective
        decoding = asked(configured(of_card(of_config(model))), None, model, options)
        resolve(decoding, model, objective.corruption, objective.decoded_with(model))
        if not read:
            return decoding, settings, None
        if decoding.shortlist is not None:
            decoding.shortlist.check(load_tokenizer(folders[0]))
        return decoding, settings, validation_fn(folders[0], decoding)

    _, settings, evaluate_fn = agreed("the options of the validation", validation, lambda made: repr(made[0]))
    mixture = config.configured(Mixture)(folders=folders, **weights)
    if args.print_config:
        print(config.operative())
        for folder in folders:
            print(f"# from the data's manifest ({folder}): {_decided(folder) if read else _DECIDED}")
        return None
    return train(mixture, model_dir, settings, evaluate_fn=evaluate_fn, config_text=config.operative())


def _decided(folder: str) -> str:
    """Languages, vocabulary and placeholders of a prepared folder."""
    manifest = load_manifest(folder)
    share = f", placeholders in {manifest.placeholders:.0%} of the pairs" if manifest.placeholders else ""
    return f"{'-'.join(manifest.source.languages)}, {manifest.vocabulary}{share}"


def run_average(args: argparse.Namespace) -> dict[str, Any]:
    kind, count = ("last", args.last) if args.last is not None else ("best", args.best)
    options = {"kind": kind, "count": count, "dtype": args.precision, "step": args.step}
    decoding = decoding_values(args.decoding, "--decoding")
    with told("averaging"):
        with sent_folder(args.output) as output:
            card = average_run(args.model_dir, output, decoding=decoding, **options)
    tell(f"{args.output}: {card.weights}")
    return card.to_json()["weights"]


def run_distill(args: argparse.Namespace) -> dict[str, Any] | None:
    sharding, _ = sharding_of(args), decoding_of(args)  # wrong numbers are refused before the model is loaded
    teacher = Teacher.load(args.model, sharding)
    if args.ctranslate2:
        translator = in_ctranslate2(teacher.translator, args.ctranslate2)
        teacher = dataclasses.replace(teacher, translator=translator, engine=version(args.ctranslate2))
    sizes = teacher.translator.card.config
    decoding = from_left(decoding_of(args, teacher.translator.decoding), sizes)
    check_options(args, (args.model, sizes, [decoding]))
    kept_at = RemoteFolder.at(args.output) if is_address(args.output) else None
    with contextlib.ExitStack() as stack:
        output = from_first(lambda: str(stack.enter_context(sent_folder(args.output))))
        manifest = distill(teacher, args.data, output, decoding, overwrite=args.overwrite, kept_at=kept_at)
    if not is_first():
        return None
    if kept_at is not None:  # not before the folder was sent
        kept_at.remove(UNFINISHED)
    print_splits(args.output, manifest)
    if validation := (manifest.distilled or {}).get("validation"):
        print(f"the teacher's BLEU on the validation split: {validation['bleu']:.2f} ({validation['signature']})")
    return manifest.to_json()

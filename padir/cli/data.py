"""`padir vocab`, `padir prepare` and `padir shortlist`: from text to records."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from padir.cli.arguments import chosen, given
from padir.cli.console import print_splits, tell, warn
from padir.cli.corpora import source_of
from padir.data.prepare import prepare
from padir.data.prepared import LengthLimits, Mixture, load_manifest, load_tokenizer
from padir.decoding.shortlist import Shortlist
from padir.jobs import learn_shortlist
from padir.reporting import tables
from padir.reporting.patience import told
from padir.storage.remote import sent_folder
from padir.text import tokenizer
from padir.text.tokenizer import Tokenizer


def run_vocab(args: argparse.Namespace) -> dict[str, Any]:
    source = source_of(args)
    split = "train" if "train" in source.splits else source.splits[0]
    texts = (text for pair in source.pairs(split) for text in pair)
    settings = given(args, "size") | chosen(args, "padir.text.tokenizer:train")
    with told("training a vocabulary, which reads the whole split"):
        trained = tokenizer.train(texts, args.output, **settings)
    tell(f"{args.output}: {trained.num_pieces:,} pieces and {trained.ids.num_sentinels} sentinels")
    return {"file": args.output, "pieces": trained.num_pieces, "sha256": trained.sha256}


def run_prepare(args: argparse.Namespace) -> dict[str, Any]:
    source = source_of(args)
    vocabulary = Tokenizer.load(args.vocab, **chosen(args, "padir.text.tokenizer:Tokenizer.load"))
    limits = LengthLimits(**chosen(args, "padir.data.prepared:LengthLimits"))
    if args.dedupe:
        limits = dataclasses.replace(limits, drop=tuple(dict.fromkeys((*limits.drop, "duplicate"))))
    shards = chosen(args, "padir.data.prepare:prepare")
    with sent_folder(args.output) as output:
        manifest = prepare(source, vocabulary, output, limits, overwrite=args.overwrite, **shards)
    print_splits(args.output, manifest)
    return manifest.to_json()


def run_shortlist(args: argparse.Namespace) -> dict[str, Any]:
    settings = chosen(args, "padir.jobs.learn_shortlist:learn")
    learned = learn_shortlist.learn(Mixture(tuple(args.data)), **settings)
    learned.save(args.output)
    kept = learned.describe()
    tell(f"{args.output}: {kept['candidates']} candidates of each piece, and the {kept['frequent']:,} most frequent")
    return {"file": args.output, **kept, "vocabulary": learned.vocabulary, "recall": _recall(learned, args.data)}


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

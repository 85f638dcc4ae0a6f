"""`padir vocab`, `padir prepare` and `padir shortlist`: from text to records."""

from __future__ import annotations

import argparse
from typing import Any

from padir.cli.console import print_splits, tell, warn
from padir.cli.corpora import source_of
from padir.cli.options import common_options, corpus_options, given, sentinels_option, setting
from padir.data.manifest import LengthLimits
from padir.data.mixture import Mixture
from padir.data.prepare import prepare
from padir.data.prepared import load_manifest, load_tokenizer
from padir.decoding.shortlist import Shortlist
from padir.jobs import learn_shortlist
from padir.reporting import tables
from padir.storage.copies import sent_folder
from padir.text import tokenizer
from padir.text.tokenizer import Tokenizer


def add_vocab(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", required=True, metavar="FILE", help="the SentencePiece model to write")
    setting(parser, tokenizer.train, "size", "number of pieces, without sentinels")
    sentinels_option(parser)
    setting(parser, tokenizer.train, "max_lines", "sample a larger corpus down to this number of lines")
    setting(
        parser,
        tokenizer.train,
        "character_coverage",
        "share of the corpus's characters that get a piece; other characters are spelt in bytes",
    )
    corpus_options(parser, "train", "validation", "test")
    common_options(parser)
    parser.set_defaults(run=_vocab)


def _vocab(args: argparse.Namespace) -> dict[str, Any]:
    source = source_of(args)
    split = "train" if "train" in source.splits else source.splits[0]
    texts = (text for pair in source.pairs(split) for text in pair)
    settings = given(args, "size", "num_sentinels", "max_lines", "character_coverage")
    trained = tokenizer.train(texts, args.output, **settings)
    tell(f"{args.output}: {trained.num_pieces:,} pieces and {trained.ids.num_sentinels} sentinels")
    return {"file": args.output, "pieces": trained.num_pieces, "sha256": trained.sha256}


def add_prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vocab", required=True, metavar="FILE", help="the vocabulary, from `padir vocab`")
    sentinels_option(parser)
    parser.add_argument("--output", required=True, metavar="DIR", help="the folder to write")
    setting(parser, LengthLimits, "max_source_tokens", "drop pairs with longer sources")
    setting(parser, LengthLimits, "max_target_tokens", "drop pairs with longer targets")
    setting(parser, LengthLimits, "max_length_ratio", "drop pairs whose lengths have a larger ratio", type=float)
    setting(parser, prepare, "records_per_shard", "number of records in one file")
    parser.add_argument("--overwrite", action="store_true", help="replace the content of the folder")
    corpus_options(parser, "train", "validation", "test")
    common_options(parser)
    parser.set_defaults(run=_prepare)


def _prepare(args: argparse.Namespace) -> dict[str, Any]:
    source, vocabulary = source_of(args), Tokenizer.load(args.vocab, **given(args, "num_sentinels"))
    limits = LengthLimits(**given(args, "max_source_tokens", "max_target_tokens", "max_length_ratio"))
    shards = given(args, "records_per_shard")
    with sent_folder(args.output) as output:
        manifest = prepare(source, vocabulary, output, limits, overwrite=args.overwrite, **shards)
    print_splits(args.output, manifest)
    return manifest.to_json()


def add_shortlist(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The lists are learned by IBM Model 1 on the training split; decoding with --shortlist then computes logits for"
        " listed pieces only. Recall is measured on the validation split: the share of target tokens (EOS included),"
        " and of whole targets, that the lists of their batches contain."
    )
    parser.add_argument(
        "--data", required=True, nargs="+", metavar="DIR", help="prepared folders that share one vocabulary"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="the shortlist to write (.npz)")
    setting(parser, learn_shortlist.learn, "candidates", "maximum number of target pieces per source piece")
    setting(parser, learn_shortlist.learn, "frequent", "number of most frequent pieces that belong to every list")
    setting(parser, learn_shortlist.learn, "iterations", "iterations of expectation maximisation")
    setting(parser, learn_shortlist.learn, "most_pairs", "maximum number of pairs to learn from", option="pairs")
    common_options(parser)
    parser.set_defaults(run=_shortlist)


def _shortlist(args: argparse.Namespace) -> dict[str, Any]:
    settings = given(args, "candidates", "frequent", "iterations")
    if args.pairs is not None:
        settings["most_pairs"] = args.pairs
    learned = learn_shortlist.learn(Mixture(tuple(args.data)), **settings)
    learned.save(args.output)
    kept = learned.describe()
    tell(f"{args.output}: {kept['candidates']} candidates of each piece, and the {kept['frequent']:,} most frequent")
    return {"file": args.output, **kept, "vocabulary": learned.vocabulary, "recall": _recall(learned, args.data)}


def _recall(learned: Shortlist, folders: list[str]) -> list[dict[str, Any]]:
    """Measure and print the recall on the validation split; empty if no folder has that split."""
    held_out = tuple(folder for folder in folders if "validation" in load_manifest(folder).splits)
    if not held_out:
        warn("no recall: the data have no validation split")
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

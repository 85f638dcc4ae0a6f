"""`padir vocab | prepare | shortlist`: from text to records."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from padir.cli.arguments import (
    source_of,
)
from padir.cli.console import print_splits, warn
from padir.cli.options import common_options, corpus_options


def add(commands: Any) -> None:
    """Adds these commands to the parser's."""
    _add_vocab(commands)
    _add_prepare(commands)
    _add_shortlist(commands)


def _add_vocab(commands: Any) -> None:
    vocab = commands.add_parser(
        "vocab", parents=[corpus_options(), common_options()], help="train a vocabulary on both sides of a corpus"
    )
    vocab.add_argument("--output", required=True, metavar="FILE", help="the SentencePiece model to write")
    vocab.add_argument("--size", type=int, default=32_000, help="pieces, sentinels not counted (32,000)")
    vocab.add_argument("--num_sentinels", type=int, default=100, help="ids on top of the pieces (100)")
    vocab.add_argument(
        "--max_lines", type=int, default=5_000_000, help="a larger corpus is sampled down to that many (5,000,000)"
    )
    vocab.add_argument(
        "--character_coverage",
        type=float,
        default=0.9995,
        help="share of the corpus's characters that get a piece; the rest is spelt in bytes (0.9995)",
    )
    vocab.set_defaults(run=_vocab)


def _vocab(args: argparse.Namespace) -> dict[str, Any]:
    from padir.text import tokenizer

    source = source_of(args)
    split = "train" if "train" in source.splits else source.splits[0]
    texts = (text for pair in source.pairs(split) for text in pair)
    trained = tokenizer.train(
        texts,
        args.output,
        size=args.size,
        num_sentinels=args.num_sentinels,
        max_lines=args.max_lines,
        character_coverage=args.character_coverage,
    )
    print(f"{args.output}: {trained.num_pieces:,} pieces and {args.num_sentinels} sentinels", file=sys.stderr)
    return {"file": args.output, "pieces": trained.num_pieces, "sha256": trained.sha256}


def _add_prepare(commands: Any) -> None:
    prepare = commands.add_parser(
        "prepare", parents=[corpus_options(), common_options()], help="tokenise a corpus into records"
    )
    prepare.add_argument("--vocab", required=True, metavar="FILE", help="from `padir vocab`")
    prepare.add_argument("--num_sentinels", type=int, default=100, help="as given to `padir vocab` (100)")
    prepare.add_argument("--output", required=True, metavar="DIR", help="the folder to write")
    prepare.add_argument("--max_source_tokens", type=int, default=256, help="longer pairs are dropped (256)")
    prepare.add_argument("--max_target_tokens", type=int, default=256, help="longer pairs are dropped (256)")
    prepare.add_argument("--max_length_ratio", type=float, help="drop pairs of more unequal lengths")
    prepare.add_argument("--records_per_shard", type=int, default=1_000_000, help="of one file (1,000,000)")
    prepare.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    prepare.set_defaults(run=_prepare)


def _prepare(args: argparse.Namespace) -> dict[str, Any]:
    from padir.data.manifest import LengthLimits
    from padir.data.prepare import prepare
    from padir.text.tokenizer import Tokenizer

    manifest = prepare(
        source_of(args),
        Tokenizer.load(args.vocab, num_sentinels=args.num_sentinels),
        args.output,
        LengthLimits(args.max_source_tokens, args.max_target_tokens, args.max_length_ratio),
        records_per_shard=args.records_per_shard,
        overwrite=args.overwrite,
    )
    print_splits(args.output, manifest)
    return manifest.to_json()


def _add_shortlist(commands: Any) -> None:
    shortlist = commands.add_parser(
        "shortlist",
        parents=[common_options()],
        help="learn which pieces each source piece is translated to, for --shortlist",
        description="Learns which pieces each source piece is translated to (IBM Model 1 on the training split), so"
        " that decoding with --shortlist need not look at the whole vocabulary. The recall is of the validation split:"
        " the share of target tokens (EOS included), and of whole targets, that the lists of their batches hold.",
    )
    shortlist.add_argument(
        "--data", required=True, nargs="+", metavar="DIR", help="from `padir prepare`, or several of one vocabulary"
    )
    shortlist.add_argument("--output", required=True, metavar="FILE", help="the shortlist to write (.npz)")
    shortlist.add_argument("--candidates", type=int, default=32, help="most target pieces of a source piece (32)")
    shortlist.add_argument(
        "--frequent", type=int, default=1_000, help="pieces that belong to every sentence, the most frequent (1,000)"
    )
    shortlist.add_argument("--iterations", type=int, default=5, help="of expectation maximisation (5)")
    shortlist.add_argument("--pairs", type=int, default=1_000_000, help="to learn from, at most (1,000,000)")
    shortlist.set_defaults(run=_shortlist)


def _shortlist(args: argparse.Namespace) -> dict[str, Any]:
    from padir.data.mixture import Mixture
    from padir.data.prepared import load_manifest, load_tokenizer
    from padir.jobs import learn_shortlist as lexicon
    from padir.reporting import tables

    settings = {"candidates": args.candidates, "frequent": args.frequent, "iterations": args.iterations}
    learned = lexicon.learn(Mixture(tuple(args.data)), **settings, most_pairs=args.pairs)
    learned.save(args.output)
    kept = learned.describe()
    print(
        f"{args.output}: {kept['candidates']} candidates of each piece, and the {kept['frequent']:,} most frequent",
        file=sys.stderr,
    )
    found: list[Any] = []
    held_out = tuple(folder for folder in args.data if "validation" in load_manifest(folder).splits)
    if held_out:
        ids = load_tokenizer(held_out[0]).ids
        pairs = lexicon.read(Mixture(held_out), "validation")
        found = [lexicon.recall(learned, *pairs, ids, batch_size) for batch_size in (1, 32)]
        lines = [
            [str(r.batch_size), f"{100 * r.tokens:.2f} %", f"{100 * r.sentences:.2f} %"]
            + [f"{r.ids:,.1f}", f"{r.vocabulary:,.1f}", f"{ids.vocab_size:,}"]
            for r in found
        ]
        columns = ["batch", "target tokens", "whole targets", "mean size", "filled up", "of"]
        tables.show(f"validation, {len(pairs[0].length_B):,} sentences", columns, lines)
    else:
        warn("no recall: the data have no validation split")
    return {"file": args.output, **kept, "vocabulary": learned.vocabulary, "recall": [r._asdict() for r in found]}

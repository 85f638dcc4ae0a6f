"""Options of the commands that make data: `padir vocab`, `prepare`, `shortlist` and `bigrams`."""

from __future__ import annotations

from padir.cli.options.shared import SENTINELS, corpus_options, recipe_options, settings_option
from padir.cli.parser import Parser, setting

_CHECKED = "compare a recipe's files with their published sizes, and its pairs with their published number"
RECIPE = {"data.recipes:Recipe": {"without": "parts that a recipe's training split leaves out", "checked": _CHECKED}}


def vocab_options(parser: Parser) -> None:
    """Train a vocabulary on both sides of a corpus.

    padir vocab --task toy_de_en --size 2400 --output data/vocab.model
    """
    parser.add_argument("--output", required=True, metavar="FILE", help="the SentencePiece model to write")
    owner = "text.tokenizer:train"
    setting(parser, f"padir.{owner}", "size", "number of pieces, without sentinels")
    coverage = "share of the corpus's characters that get a piece; other characters are spelt in bytes"
    lines = "sample a larger corpus down to this number of lines"
    settings_option(parser, {owner: SENTINELS | {"max_lines": lines, "character_coverage": coverage}} | RECIPE)
    corpus_options(parser, "train", "validation", "test")
    recipe_options(parser)


def prepare_options(parser: Parser) -> None:
    """Tokenise a corpus into records.

    padir prepare --task toy_de_en --vocab data/vocab.model --output data/toy
    """
    about = "the vocabulary, from `padir vocab`, or a model that has it, such as de_en"
    parser.add_argument("--vocab", required=True, metavar="FILE", help=about)
    parser.add_argument("--output", required=True, metavar="DIR", help="the folder to write")
    limits = {
        "max_source_tokens": "drop pairs with longer sources",
        "max_target_tokens": "drop pairs with longer targets",
        "max_length_ratio": "drop pairs whose lengths have a larger ratio",
        "drop": "training pairs to drop: equal (both sides are equal), script (a side is in the wrong script)",
    }
    owners = {"data.prepared:LengthLimits": limits, "text.tokenizer:Tokenizer.load": SENTINELS}
    settings_option(parser, owners | RECIPE)
    about = "share of the training pairs in which tags, URLs, numbers and names that are equal on both sides become"
    about += " placeholders, for --placeholders of `padir translate`; 0.5 is usual"
    setting(parser, "padir.data.prepare:prepare", "placeholders", about, type=float, metavar="SHARE")
    parser.add_argument("--dedupe", action="store_true", help="drop repeated training pairs")
    parser.add_argument("--overwrite", action="store_true", help="replace the content of the folder")
    corpus_options(parser, "train", "validation", "test")
    recipe_options(parser)


def shortlist_options(parser: Parser) -> None:
    """Learn which pieces each source piece is translated to, for --shortlist.

    The lists are learned by IBM Model 1 on the training split; decoding with --shortlist then computes logits for
    listed pieces only. Recall is measured on the validation split: the share of target tokens (EOS included), and of
    whole targets, that the lists of their batches contain.

    padir shortlist --data data/toy --output data/shortlist.npz
    """
    about = "prepared folders that share one vocabulary"
    parser.add_argument("--data", required=True, nargs="+", metavar="DIR", help=about)
    parser.add_argument("--output", required=True, metavar="FILE", help="the shortlist to write (.npz)")
    learning = {
        "candidates": "maximum number of target pieces per source piece",
        "frequent": "number of most frequent pieces that belong to every list",
        "iterations": "iterations of expectation maximisation",
        "most_pairs": "maximum number of pairs to learn from",
    }
    settings_option(parser, {"jobs.learn_shortlist:learn": learning})


def bigrams_options(parser: Parser) -> None:
    """Give a model a table of what follows what in its target language, for --fusion.

    Bigrams of pieces and known words are counted on the training split. The output is a copy of the model with the
    table. Prefix beam search, the passes of refining and greedy search then weigh it in.

    padir bigrams --data data/toy --model runs/toy --output models/toy --decoding fusion=bigrams prefix_beam=8
    """
    about = "prepared folders that share the model's vocabulary"
    parser.add_argument("--data", required=True, nargs="+", metavar="DIR", help=about)
    parser.add_argument("--model", required=True, metavar="DIR", help="the model")
    parser.add_argument("--output", required=True, metavar="DIR", help="the model directory to write")
    about = "default decoding options beside the model's own, such as fusion=bigrams prefix_beam=8"
    parser.add_argument("--decoding", nargs="+", default=[], metavar="NAME=VALUE", help=about)
    counting = {
        "most_bigrams": "maximum number of bigrams, the most frequent ones",
        "most_words": "maximum number of known words, the most frequent ones",
        "least": "smallest count of a known word",
    }
    settings_option(parser, {"jobs.learn_bigrams:learn": counting})

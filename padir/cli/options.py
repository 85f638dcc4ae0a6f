"""Options that several commands share, and options of the commands that make models and translate.

An option that is not given is None, and is left out of the call (`padir.cli.arguments.given`). So gin's value or the
library's default holds. Nothing here imports JAX.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from padir.cli.parser import Parser, setting, shown
from padir.options import OPTIONS

MODEL = "de_en"  # the default of --model


def settings_option(parser: argparse.ArgumentParser, owners: dict[str, dict[str, str]]) -> None:
    """Add --set NAME=VALUE for parameters that few commands have.

    Args:
      owners: help texts by parameter, for each function or dataclass of `padir`, such as "text.tokenizer:train".
    """
    settings = {name: (f"padir.{owner}", text) for owner, texts in owners.items() for name, text in texts.items()}
    action = parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="further settings:"
    )
    vars(action)["settings"] = settings
    parser.set_defaults(settings={name: owner for name, (owner, _) in settings.items()})


def common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command has: gin files, bindings and --json."""
    group = parser.add_argument_group("configuration")
    group.add_argument("--gin_file", action="append", default=[], metavar="FILE", help="read a gin file; repeatable")
    about = "let gin files import this module; both can then run code; repeatable"
    group.add_argument("--allow_imports", action="append", default=[], metavar="MODULE", help=about)
    about = "bind one parameter, as in --gin.train.num_steps=1000; repeatable"  # `main` takes these words out
    group.add_argument("--gin.NAME=VALUE", dest="_", action="store_true", help=about)
    group.add_argument("--json", metavar="FILE", help="write the command's results as JSON")


def processes_option(parser: argparse.ArgumentParser) -> None:
    """Add the option by which several processes of the command find each other."""
    about = (
        "work together with other processes that run this command (docs/devices.md): address of the first process,"
        " number of processes, and number of this process, from 0; auto: take all three from TPU, Slurm or MPI"
    )
    parser.add_argument("--coordinator", metavar="HOST:PORT,N,I", help=about)


def corpus_options(parser: argparse.ArgumentParser, *splits: str) -> None:
    """Add the options that name parallel text, with files for these splits."""
    group = parser.add_argument_group(
        "parallel text: a known task, or files: two of plain text, or any number of .tsv, .csv, .jsonl, .tmx, SGM, XML"
        " (WMT's) or .parquet, plain or compressed"
    )
    group.add_argument("--task", help="a known corpus, such as toy_de_en, or a test set of SacreBLEU, such as wmt20")
    group.add_argument("--data_dir", metavar="DIR", help="folder of the task's files")
    group.add_argument("--languages", metavar="SRC-TGT", help="languages of files or of SacreBLEU's set, such as de-en")
    for split in splits:
        group.add_argument(f"--{split}", nargs="+", metavar="FILE", help=f"{split} files")


def recipe_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name WMT's own files as a corpus."""
    group = parser.add_argument_group("or a WMT set from the files that WMT distributes (docs/running.md lists them)")
    group.add_argument("--recipe", metavar="NAME", help="wmt14_de_en, wmt16_ro_en, wmt17_zh_en, or the other direction")
    group.add_argument("--downloads", metavar="DIR", help="folder of the files, packed or unpacked")


def test_set_options(parser: argparse.ArgumentParser, *splits: str) -> None:
    """Add the options that name a test set: a prepared folder, or parallel text with files for these splits."""
    parser.add_argument("--data", metavar="DIR", help="a prepared folder to take the split from")
    parser.add_argument("--split", default="test", help="split of --data or --task (test)")
    corpus_options(parser, *splits)


def model_option(parser: argparse.ArgumentParser) -> None:
    """Add --model with the default model that comes with padir."""
    about = f"a model directory from `padir train`, or the name of a model that comes with padir ({MODEL})"
    parser.add_argument("--model", default=MODEL, metavar="DIR", help=about)


def step_option(parser: argparse.ArgumentParser) -> None:
    """Add --step, which chooses a checkpoint of a training run."""
    about = "step of a training run's checkpoint to use (default: the finished model, else the newest checkpoint)"
    parser.add_argument("--step", type=int, metavar="N", help=about)


def stored_precision_option(parser: argparse.ArgumentParser) -> None:
    """Add --precision, here the precision in which weights are stored."""
    about = "precision of the stored weights (float32)"
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help=about)


def decoding_options(parser: argparse.ArgumentParser, several: bool = False, without: Sequence[str] = ()) -> None:
    """Add an option for every row of `padir.options`.

    Args:
      several: let options take several values, where their rows say so.
      without: options that are left out.
    """
    group = parser.add_argument_group("decoding (defaults: gin's Decoding, else the model's card, else as shown)")
    for name, option in OPTIONS.items():
        settings: dict[str, Any] = {"type": option.kind, "metavar": option.shape, "choices": option.choices or None}
        if option.kind is bool:
            settings = {"action": argparse.BooleanOptionalAction}
        if several and option.several:
            settings["nargs"] = "+"
        if isinstance(option.default, tuple):
            settings["action"] = "append"
        if name not in without:
            group.add_argument(f"--{name}", help=option.help + shown(option.default), **settings)


CTRANSLATE2 = ("float32", "int8")
SENTINELS = {"num_sentinels": "number of sentinel ids on top of the pieces"}
WITHOUT = {"data.recipes:Recipe": {"without": "parts that a recipe's training split leaves out"}}


def vocab_options(parser: Parser) -> None:
    """Train a vocabulary on both sides of a corpus.

    padir vocab --task toy_de_en --size 2400 --output data/vocab.model
    """
    parser.add_argument("--output", required=True, metavar="FILE", help="the SentencePiece model to write")
    owner = "text.tokenizer:train"
    setting(parser, f"padir.{owner}", "size", "number of pieces, without sentinels")
    coverage = "share of the corpus's characters that get a piece; other characters are spelt in bytes"
    lines = "sample a larger corpus down to this number of lines"
    settings_option(parser, {owner: SENTINELS | {"max_lines": lines, "character_coverage": coverage}} | WITHOUT)
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
    shards = {"records_per_shard": "number of records in one file"}
    owners = {"data.prepared:LengthLimits": limits, "data.prepare:prepare": shards}
    settings_option(parser, owners | {"text.tokenizer:Tokenizer.load": SENTINELS} | WITHOUT)
    about = "share of the training pairs in which tags, URLs, numbers and names that are equal on both sides become"
    about += " placeholders, for --placeholders of `padir translate`; 0.5 is usual (0)"
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
    table. Prefix beam search of CTC models and greedy search then weigh it in.

    padir bigrams --data data/toy --model runs/toy_ctc --output models/toy --decoding fusion=bigrams prefix_beam=8
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


# Options of `padir train`, each the short name of a gin binding: the binding, its owner, its type and its help.
_TRAINING = {
    "steps": ("train.num_steps", "training.config:TrainConfig", int, "optimizer steps in all"),
    "seed": ("train.seed", "training.config:TrainConfig", int, "seed of parameters, order of the data and noise"),
    "rows": ("Batching.rows", "data.plan:Batching", int, "packed rows of a batch"),
    "learning_rate": ("Cosine.peak", "training.optimizer:Cosine", float, "highest learning rate"),
    "warmup": ("Cosine.warmup_steps", "training.optimizer:Cosine", int, "steps until the highest learning rate"),
    "dropout": ("ModelConfig.dropout_rate", "models.config:ModelConfig", float, "share of activations dropped"),
    "start_from": ("train.start_from", "training.config:TrainConfig", str, "model to take fitting parameters from"),
    "evaluate_every": ("Intervals.evaluate", "training.config:Intervals", int, "steps between validations; 0: none"),
}


def train_options(parser: Parser) -> None:
    """Train a model, or resume a training run.

    An option wins over --gin.NAME=VALUE, which wins over the files; of several files the last one wins. `padir list
    configs` shows the configurations that come with padir.

    padir train toy_cpu --data data/toy --model_dir runs/toy --steps 5000
    """
    about = "configurations, such as toy_cpu or ablation/stages_1, or gin files, read in this order"
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help=about)
    data = "prepared folders, also at addresses such as gs://BUCKET/DATA; gin's DATASET"
    parser.add_argument("--data", nargs="+", metavar="DIR", help=data)
    model_dir = "directory of the training run, or its address; gin's MODEL_DIR"
    parser.add_argument("--model_dir", metavar="DIR", help=model_dir)
    group = parser.add_argument_group("training; each option binds a parameter of the configuration")
    for option, (binding, owner, kind, about) in _TRAINING.items():
        name = binding.partition(".")[2]
        setting(group, f"padir.{owner}", name, f"{about}; gin's {binding}", option=option, type=kind)
    parser.set_defaults(binds={option: binding for option, (binding, *_) in _TRAINING.items()})
    about = "decoding options of validation, such as num_steps=4 num_lengths=3 batch_size=64; gin's Decoding"
    parser.add_argument("--validate", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=about)
    parser.add_argument("--print_config", action="store_true", help="print every setting as gin, and train nothing")
    processes_option(parser)
    parser.meanings = {
        **parser.meanings,
        "--num_steps": "--steps trains, --validate num_steps=N sets the decoder passes of validation",
        "--batch_size": "--rows trains, --validate batch_size=N sets validation",
        **dict.fromkeys(
            ("--strategy", "--num_lengths", "--beam", "--rerank", "--num_drafts"), "it decodes: give it to --validate"
        ),
        **dict.fromkeys(("--model", "--output"), "--model_dir names the run's directory"),
        **dict.fromkeys(("--config", "--name"), "name the configuration without an option: padir train toy_cpu"),
        "--epochs": "--steps counts batches",
    }


def average_options(parser: Parser) -> None:
    """Average checkpoints of a training run into one model.

    padir average --model_dir runs/toy --last 3 --output runs/toy_average
    """
    parser.add_argument("--model_dir", required=True, metavar="DIR", help="directory of a training run")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="K", help="average the last K checkpoints")
    which.add_argument("--best", type=int, metavar="K", help="average the K kept checkpoints of highest BLEU")
    parser.add_argument("--step", type=int, metavar="N", help="average checkpoints up to this step (the newest)")
    stored_precision_option(parser)
    about = "the model's default decoding options, such as num_lengths=5 length_normalization=1.5"
    parser.add_argument("--decoding", nargs="+", default=[], metavar="NAME=VALUE", help=about)
    parser.add_argument("--output", required=True, metavar="DIR", help="the model directory to write")


def distill_options(parser: Parser) -> None:
    """Write a teacher's translations as a training set.

    padir distill --model runs/teacher --data data/toy --output data/toy_distilled
    """
    parser.add_argument("--model", required=True, metavar="DIR", help="the teacher, a model from `padir train`")
    parser.add_argument("--data", required=True, metavar="DIR", help="a prepared folder")
    parser.add_argument("--output", required=True, metavar="DIR", help="the prepared folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the pairs that the folder holds")
    about = "search in CTranslate2, several times faster on a CPU (autoregressive teachers; needs the extra peers)"
    parser.add_argument("--ctranslate2", choices=CTRANSLATE2, help=about)
    processes_option(parser)
    decoding_options(parser, without=("n_best",))


def translate_options(parser: Parser) -> None:
    """Translate sentences or the lines of a file, one line out for each.

    A model that can refine refines; an option that only one mode reads chooses that mode. On an idle AMD EPYC, the
    model that comes with padir refines 600 sentences of Tatoeba in 7.2 s (48.1 BLEU). From left to right (--beam 1) it
    takes 1.0 s (48.4 BLEU).

    padir translate --trace "Wo ist der Bahnhof?"
    """
    about = "sentences to translate (default: standard input; a terminal gets a prompt)"
    parser.add_argument("texts", nargs="*", metavar="TEXT", help=about)
    model_option(parser)
    step_option(parser)
    parser.add_argument("--input", metavar="FILE", help="file to translate, plain or .gz")
    parser.add_argument("--output", metavar="FILE", help="file of translations (default: standard output)")
    about = "write each translation as a line of JSON: source, text, score, length, passes, hypotheses, truncated"
    parser.add_argument("--jsonl", action="store_true", help=about)
    parser.add_argument("--split", action="store_true", help="translate each sentence of a line by itself")
    about = "link the words of both sides in JSON: 0-0 1-2, source and target words from 0"
    parser.add_argument("--align", action="store_true", help=about)
    about = "file of terms, SOURCE tab TARGET in each line: where the source stands, the target must stand"
    parser.add_argument("--terms", metavar="FILE", help=about)
    about = "text of every translation, with gaps to write: ___ of any length, __3__ of three tokens"
    parser.add_argument("--template", metavar="TEXT", help=about)
    parser.add_argument("--trace", action="store_true", help="show every refinement step on stderr")
    parser.add_argument("--html", metavar="FILE", help="write a page with every step of the first 1,000 lines")
    decoding_options(parser)


def score_options(parser: Parser) -> None:
    """Compute log-probabilities of given translations.

    padir score --model runs/toy --input de.txt --target en.txt
    """
    parser.add_argument("--model", required=True, metavar="DIR", help="a model from `padir train`")
    step_option(parser)
    parser.add_argument("--input", required=True, metavar="FILE", help="sources, one sentence a line")
    parser.add_argument("--target", required=True, metavar="FILE", help="translations of the sources")
    setting(parser, "padir.decoding:Decoding", "batch_size", "pairs scored at once")
    output = "file for each pair's log-probability, tokens and mean (default: standard output)"
    parser.add_argument("--output", metavar="FILE", help=output)


def list_options(parser: Parser) -> None:
    """List the configurations, models, strategies and corpora that come with padir.

    padir list strategies
    """
    kinds = ("configs", "models", "strategies", "tasks")
    parser.add_argument("kind", nargs="?", choices=kinds, help="what to list (all)")


def serve_options(parser: Parser) -> None:
    """Serve a model over HTTP, with a page that shows the refinement steps.

    Serves POST /translate, GET /health, /metrics and /openapi.json, and a page at / (needs the extra serve). Decoding
    options are the defaults of all requests. A request may set its own mode, strategy, num_steps and num_lengths.

    padir serve --port 8000
    """
    model_option(parser)
    step_option(parser)
    about = "address to listen at (127.0.0.1: reachable from this machine only)"
    parser.add_argument("--host", default="127.0.0.1", help=about)
    parser.add_argument("--port", type=int, default=8000, help="port to listen at; 0 takes a free one (8000)")
    limits = {
        "max_body": "largest body of a request, in bytes",
        "max_sentences": "maximum number of sentences in a request",
        "max_characters": "maximum number of characters in a sentence",
        "max_steps": "largest num_steps of a request",
        "max_lengths": "largest num_lengths (or prefix_beam) and n_best of a request",
        "max_queue": "maximum number of sentences in the queue, of all clients; a single client gets half of them",
        "timeout": "seconds that a request may take, without the time for compiling",
    }
    engine = {"warm_up": "at start, compile for sources up to this number of tokens"}
    names = {
        "allowed_hosts": "host names under which clients reach the server, beside --host and localhost",
        "allowed_origins": "origins of web pages that may read answers, such as https://mine.example, or *",
    }
    settings_option(
        parser, {"serve.messages:Limits": limits, "serve.engine:Engine": engine, "serve.server:serve": names}
    )
    decoding_options(parser, without=("n_best",))

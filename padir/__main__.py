"""The command line: `padir vocab | prepare | train | average | distill | translate | evaluate | tables | ...`.

It parses, calls and prints. Every command takes gin configuration (--gin_file FILE, --gin.NAME=VALUE,
--gin_search_paths DIR) and --json FILE for its figures. Bad input ends with a short message on stderr and status 2.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from padir import __version__
from padir.errors import PadirError
from padir.files import whole, write_json, write_text
from padir.pretrained import DEFAULT

_GIN = "--gin."
_SHOWN = 1_000  # translations that --html shows: browsers do not take many more, and all are in memory


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    group = common.add_argument_group("configuration")
    group.add_argument("--gin_file", action="append", default=[], metavar="FILE", help="a gin file; repeatable")
    group.add_argument("--gin_search_paths", action="append", default=[], metavar="DIR", help="where gin files are")
    group.add_argument("--gin.NAME", dest="_", metavar="VALUE", help="--gin.train.num_steps=1000 binds one parameter")
    group.add_argument("--json", metavar="FILE", help="write the command's figures as JSON")

    corpus = _corpus_options()
    decoding, decodings = _decoding_options(), _decoding_options(nargs="+")

    parser = argparse.ArgumentParser(prog="padir", description="Generative-masked translation: draft, then refine.")
    parser.add_argument("--version", action="version", version=f"padir {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    vocab = commands.add_parser("vocab", parents=[corpus, common], help="train a vocabulary on both sides of a corpus")
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

    prepare = commands.add_parser("prepare", parents=[corpus, common], help="tokenise a corpus into records")
    prepare.add_argument("--vocab", required=True, metavar="FILE", help="from `padir vocab`")
    prepare.add_argument("--num_sentinels", type=int, default=100, help="as given to `padir vocab` (100)")
    prepare.add_argument("--output", required=True, metavar="DIR", help="the folder to write")
    prepare.add_argument("--max_source_tokens", type=int, default=256, help="longer pairs are dropped (256)")
    prepare.add_argument("--max_target_tokens", type=int, default=256, help="longer pairs are dropped (256)")
    prepare.add_argument("--max_length_ratio", type=float, help="drop pairs of more unequal lengths")
    prepare.add_argument("--records_per_shard", type=int, default=1_000_000, help="of one file (1,000,000)")
    prepare.add_argument("--overwrite", action="store_true", help="replace what is in the folder")
    prepare.set_defaults(run=_prepare)

    train = commands.add_parser("train", parents=[decoding, common], help="train a model, or go on training it")
    train.add_argument("--data", nargs="+", metavar="DIR", help="from `padir prepare`, or several; as gin: DATASET")
    train.add_argument("--weights", type=float, nargs="+", help="how often each --data comes in an epoch (1 each)")
    train.add_argument("--model_dir", metavar="DIR", help="the directory to train in; as gin: MODEL_DIR")
    train.add_argument("--num_steps", type=int, help="decoder passes when validating (4)")
    train.add_argument("--top_k", type=int, help="how many of the most likely lengths are tried when validating (1)")
    hosts = train.add_argument_group("several processes, each running this command (docs/devices.md)")
    hosts.add_argument(
        "--coordinator", metavar="HOST:PORT", help="of the first one; auto: as TPU, SLURM or MPI tell (one process)"
    )
    hosts.add_argument("--num_processes", type=int, metavar="N", help="how many there are")
    hosts.add_argument("--process_id", type=int, metavar="I", help="which of them this one is, from 0")
    train.set_defaults(run=_train)

    average = commands.add_parser("average", parents=[common], help="make a model of the mean of a run's checkpoints")
    average.add_argument("--checkpoints", required=True, metavar="DIR", help="the --model_dir of a finished training")
    which = average.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="K", help="the last K checkpoints")
    which.add_argument("--best", type=int, metavar="K", help="the K of highest BLEU that Intervals.keep has left")
    average.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="of the file (float32)")
    average.add_argument("--output", required=True, metavar="DIR", help="the model directory to write")
    average.set_defaults(run=_average)

    distill = commands.add_parser(
        "distill", parents=[decoding, common], help="write a teacher's translations as a training set"
    )
    distill.add_argument("--model", required=True, metavar="DIR", help="the teacher, from `padir train`")
    distill.add_argument("--data", required=True, metavar="DIR", help="from `padir prepare`")
    distill.add_argument("--output", required=True, metavar="DIR", help="the prepared folder to write")
    distill.add_argument("--num_steps", type=int, help="decoder passes (4)")
    distill.add_argument("--top_k", type=int, help="how many of the most likely lengths are tried (1)")
    distill.add_argument("--overwrite", action="store_true", help="replace other pairs in the folder")
    distill.set_defaults(run=_distill)

    shortlist = commands.add_parser(
        "shortlist",
        parents=[common],
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

    translate = commands.add_parser("translate", parents=[decoding, common], help="translate lines, one out for one in")
    translate.add_argument(
        "--model", default=DEFAULT, metavar="DIR", help="from `padir train`, or one that comes with padir (de_en)"
    )
    _precision_option(translate)
    translate.add_argument("--input", metavar="FILE", help="plain or .gz; default: standard input")
    translate.add_argument("--output", metavar="FILE", help="default: standard output")
    translate.add_argument("--num_steps", type=int, help="decoder passes (4)")
    translate.add_argument("--top_k", type=int, help="how many of the most likely lengths are tried (1)")
    translate.add_argument("--trace", action="store_true", help="show every step on stderr")
    translate.add_argument("--html", metavar="FILE", help="write every step as a page, of the first 1,000 lines")
    translate.set_defaults(run=_translate)

    evaluate = commands.add_parser(
        "evaluate",
        parents=[decodings, corpus, common],
        help="translate and score a test set, with one model or several",
        description="Translates and scores a test set: a row for every model, strategy, number of steps, of lengths,"
        " way of reranking, and shortlist. Seconds are of the whole test set, text to text, after a first call that"
        " compiles.",
    )
    evaluate.add_argument(
        "--model", required=True, nargs="+", metavar="[NAME=]DIR", help="from `padir train`; NAME is for the table"
    )
    _precision_option(evaluate, nargs="+")
    evaluate.add_argument("--data", metavar="DIR", help="a prepared folder to take the split from")
    evaluate.add_argument("--split", default="test", help="of --data or --task (test)")
    evaluate.add_argument("--num_steps", type=int, nargs="+", help="decoder passes; several make several rows (4)")
    evaluate.add_argument("--top_k", type=int, nargs="+", help="lengths tried; several make several rows (1)")
    evaluate.add_argument("--oracle_lengths", action="store_true", help="add rows with the references' lengths")
    evaluate.add_argument("--bleurt", metavar="DIR", help="score with this BLEURT checkpoint, too (needs TensorFlow)")
    evaluate.add_argument(
        "--hypotheses", metavar="FILE", help="write what the last row translated that was given no lengths"
    )
    evaluate.add_argument(
        "--output", metavar="NAME", help="write NAME.md, .csv, .json, .png (curves by source length) and NAME.rows/"
    )
    evaluate.set_defaults(run=_evaluate)

    benchmark = commands.add_parser(
        "benchmark",
        # Its own copies, as it takes --batch_size and --train for other things, and so takes them out of these.
        parents=[_decoding_options(nargs="+"), _corpus_options(), common],
        conflict_handler="resolve",
        help="time several ways of translating, in turns",
        description="Times every model, strategy, number of steps and of hypotheses, in turns in one run, text to text;"
        " ratios are to the first row. Sentences are drawn from a test set and batched as they come. Models of random"
        " weights get numbers for words, and are made to write as many tokens as they read.",
    )
    benchmark.add_argument(
        "--model", nargs="+", metavar="[NAME=]DIR", help="from `padir train` (the models that come with padir)"
    )
    benchmark.add_argument("--random", nargs="+", metavar="NAME=GIN", help="random weights; a gin file of ModelConfig")
    benchmark.add_argument(
        "--vocab_size",
        type=int,
        help="rows of the embedding table: of --random, sentinels included (32,100), of --train (the data's)",
    )
    benchmark.add_argument("--tokens", type=int, default=30, help="of each sentence of --random, EOS included (30)")
    benchmark.add_argument(
        "--ctranslate2",
        nargs="+",
        choices=["float32", "int8"],
        default=[],
        help="add rows of CTranslate2 with the autoregressive models converted (needs the extra peers)",
    )
    _precision_option(benchmark, nargs="+")
    benchmark.add_argument("--data", metavar="DIR", help="a prepared folder; --random takes its lengths")
    benchmark.add_argument("--split", default="test", help="of --data or --task (test)")
    benchmark.add_argument("--num_steps", type=int, nargs="+", help="decoder passes; several make several rows (4)")
    benchmark.add_argument("--top_k", type=int, nargs="+", help="lengths tried; several make several rows (1)")
    benchmark.add_argument(
        "--batch_size", type=int, nargs="+", default=[1, 8, 32], help="several make several (1 8 32)"
    )
    benchmark.add_argument("--sentences", type=int, default=64, help="that are drawn (64)")
    benchmark.add_argument("--repeats", type=int, default=5, help="of all sentences (5)")
    benchmark.add_argument(
        "--train", type=int, metavar="STEPS", help="instead: time so many training steps of --gin_file on --data"
    )
    benchmark.add_argument("--quick", action="store_true", help="16 sentences, 3 repeats")
    benchmark.add_argument("--output", metavar="NAME", help="write NAME.md, .json and .png (quality over speed)")
    benchmark.set_defaults(run=_benchmark)

    serve = commands.add_parser(
        "serve",
        parents=[decoding, common],
        help="serve a model over HTTP, with a page that shows its steps",
        description="Serves POST /translate, GET /health, GET /metrics and a page at / (needs the extra serve). What is"
        " said of decoding is for requests that do not say.",
    )
    serve.add_argument(
        "--model", default=DEFAULT, metavar="DIR", help="from `padir train`, or one that comes with padir (de_en)"
    )
    _precision_option(serve)
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen at (127.0.0.1: this machine alone)")
    serve.add_argument("--port", type=int, default=8000, help="0 takes a free one (8000)")
    serve.add_argument("--num_steps", type=int, help="decoder passes (4)")
    serve.add_argument("--top_k", type=int, help="how many of the most likely lengths are tried (1)")
    serve.add_argument("--max_wait", type=float, default=5.0, help="milliseconds to wait for others of a length (5)")
    serve.add_argument(
        "--warm_up", type=int, default=32, metavar="TOKENS", help="compile for sources up to so long at start (32)"
    )
    serve.add_argument("--max_body", type=int, default=65_536, help="bytes of a request (65,536)")
    serve.add_argument("--max_sentences", type=int, default=64, help="of a request (64)")
    serve.add_argument("--max_characters", type=int, default=2_000, help="of a sentence (2,000)")
    serve.add_argument("--max_steps", type=int, default=16, help="that a request may ask for (16)")
    serve.add_argument("--max_lengths", type=int, default=8, help="that a request may ask for (8)")
    serve.add_argument("--max_queue", type=int, default=1_024, help="sentences that wait, of all clients (1,024)")
    serve.add_argument("--timeout", type=float, default=30.0, help="seconds that a request may take (30)")
    serve.set_defaults(run=_serve)

    tables = commands.add_parser("tables", parents=[common], help="tables of the paper's layout from `evaluate`'s JSON")
    tables.add_argument("files", nargs="+", metavar="FILE", help="from `padir evaluate --output` or --json")
    tables.add_argument("--metrics", nargs="+", help="a table each (of bleu, bleurt, stutter those there are)")
    tables.add_argument("--across", choices=["test_set", "steps"], default="test_set", help="the columns (test_set)")
    tables.add_argument("--output", metavar="FILE", help="the Markdown file to write; default: standard output")
    tables.set_defaults(run=_tables)

    compare = commands.add_parser("compare", parents=[common], help="paired bootstrap test between translations")
    compare.add_argument("--references", required=True, metavar="FILE")
    compare.add_argument(
        "--hypotheses", required=True, nargs="+", metavar="FILE", help="two or more; the first is the baseline"
    )
    compare.add_argument("--target_language", required=True, metavar="LANG", help="chooses BLEU's tokenizer")
    compare.add_argument("--samples", type=int, default=1_000, help="resamples of the test set (1,000)")
    compare.set_defaults(run=_compare)

    score = commands.add_parser("score", parents=[common], help="log-probabilities of given pairs")
    score.add_argument("--model", required=True, metavar="DIR", help="from `padir train`")
    score.add_argument("--source", required=True, metavar="FILE", help="one sentence a line")
    score.add_argument("--target", required=True, metavar="FILE", help="their translations")
    score.add_argument("--num_steps", type=int, help="stages of refinement before the target is scored (4)")
    score.add_argument("--strategy", metavar="NAME[:FIELD=VALUE,...]", help="between the stages; default: its own")
    score.add_argument("--batch_size", type=int, help="pairs scored at once (32)")
    score.add_argument("--seed", type=int, help="of the first stage's noise (0)")
    score.add_argument("--output", metavar="FILE", help="log-probability, tokens, mean; default: standard output")
    score.set_defaults(run=_score)

    export = commands.add_parser(
        "export",
        parents=[decoding, common],
        help="write a model as StableHLO programs that run without padir, or its weights for other frameworks",
        description="Writes programs for rows of each length (jax.export: any number of sentences, CPU, CUDA and TPU at"
        " once), weights, vocabulary and a loader, exported.py, which needs JAX, NumPy, SentencePiece and safetensors."
        " The strategy, or an autoregressive model's search, becomes part of the programs; the numbers of steps,"
        " lengths and so on are the loader's defaults.",
    )
    export.add_argument(
        "--model", default=DEFAULT, metavar="DIR", help="from `padir train`, or one that comes with padir (de_en)"
    )
    _precision_option(export)
    export.add_argument("--output", required=True, metavar="DIR", help="the folder to write")
    export.add_argument("--num_steps", type=int, help="decoder passes (4)")
    export.add_argument("--top_k", type=int, help="how many of the most likely lengths are tried (1)")
    export.add_argument("--step", type=int, help="programs for lengths of multiples of it (8)")
    export.add_argument("--source_lengths", type=int, nargs="+", help="instead: these; the last limits the sources")
    export.add_argument("--target_lengths", type=int, nargs="+", help="instead: these, and the model's longest")
    export.add_argument("--platforms", nargs="+", help="that every program is for (cpu cuda tpu)")
    export.add_argument(
        "--weights", action="store_true", help="instead of programs, the weights under the names of Hugging Face's T5"
    )
    export.add_argument("--overwrite", action="store_true", help="replace an earlier export in the folder")
    export.set_defaults(run=_export)

    ising = commands.add_parser(
        "ising",
        parents=[common],
        help="the paper's Ising experiments and its theorems, checked exactly",
        description="Figures 1 and 2: error of k-pseudolikelihood against samples, from a flat and a two-mode truth."
        " Figure 3: steps of k-Gibbs and independent parallel between two modes. theorems: every statement of sections"
        " 2.2 to 2.4 on random small models, with the smallest margin. Sizes: the defaults take minutes on 2 cores.",
    )
    ising.add_argument("subject", choices=["fig1", "fig2", "fig3", "theorems"])
    ising.add_argument("--output", metavar="NAME", help="write NAME.csv, .json and, of figures, .png and .svg")
    ising.add_argument("--seed", type=int, default=0, help="of all that is drawn (0)")
    ising.add_argument("--num_spins", type=int, help="fig1, fig2: of the model (6); fig3 (10); theorems: at most (7)")
    ising.add_argument("--samples", type=int, nargs="+", help="fig1, fig2: data set sizes")
    ising.add_argument("--seeds", type=int, help="fig1, fig2: data sets of each size (100)")
    ising.add_argument("--clique", type=int, help="fig3: coupled spins (6)")
    ising.add_argument("--couplings", type=float, nargs="+", help="fig3: values of J")
    ising.add_argument("--fields", type=float, nargs="+", help="fig3: values of h")
    ising.add_argument("--chains", type=int, help="fig3: that are simulated (400)")
    ising.add_argument("--budget", type=int, help="fig3: most steps of a chain (10,000)")
    ising.add_argument("--models", type=int, help="theorems: random models of each statement (40)")
    ising.add_argument("--only", nargs="+", metavar="STATEMENT", help="theorems: check these")
    ising.set_defaults(run=_ising)

    analyse = commands.add_parser(
        "analyse",
        parents=[decoding, corpus, common],
        help="look into a model: attention, dependency between positions, refinement",
        description="attention: the paper's Tables 4 and 5 and attention maps. dependency: which measure finds the"
        " positions that depend on each other (known on toy_de_en), and whether the model's conditionals fit together."
        " refinement: what changes from step to step, calibration, and every strategy. docs/analysis.md reads them.",
    )
    analyse.add_argument("subject", choices=["attention", "dependency", "refinement"])
    analyse.add_argument("--model", default=DEFAULT, metavar="DIR", help=f"of a model that refines drafts ({DEFAULT})")
    analyse.add_argument("--data", metavar="DIR", help="a prepared folder to take the split from")
    analyse.add_argument("--split", default="test", help="of --data or --task (test)")
    analyse.add_argument("--output", metavar="DIR", help="write figures, pictures and a page there")
    analyse.add_argument("--sentences", type=int, help="how many, from the first on (200)")
    analyse.add_argument("--examples", type=int, help="sentences that are shown (3)")
    analyse.add_argument(
        "--num_steps", type=int, help="attention, dependency: the pass that is looked at (1); refinement: steps (4)"
    )
    analyse.add_argument("--values", type=int, help="dependency: tokens tried at a position (4)")
    analyse.add_argument("--canvases", type=int, help="dependency: starts that the model's is the mean of (1)")
    analyse.add_argument("--given", choices=["source", "draft"], help="dependency: what is held (source)")
    analyse.add_argument("--strategies", nargs="+", metavar="NAME[:FIELD=VALUE,...]", help="refinement: these (all)")
    analyse.add_argument("--passes", type=int, nargs="+", help="refinement: steps that each gets (1 2 4 10)")
    analyse.set_defaults(run=_analyse)

    _add_t5x(commands, common)
    return parser


def _add_t5x(commands: Any, common: argparse.ArgumentParser) -> None:
    t5x = commands.add_parser("t5x", help="read and write T5X checkpoints, without T5X")
    actions = t5x.add_subparsers(dest="action", required=True, metavar="ACTION")
    importing = actions.add_parser(
        "import",
        parents=[common],
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
    exporting = actions.add_parser("export", parents=[common], help="write a model directory as a T5X checkpoint")
    exporting.add_argument("--model", required=True, metavar="DIR", help="from `padir train`, or one that comes along")
    exporting.add_argument("--output", required=True, metavar="DIR", help="the model_dir to write checkpoint_<step> in")
    exporting.set_defaults(run=_t5x_export)


def _corpus_options() -> argparse.ArgumentParser:
    """The options that name parallel text."""
    corpus = argparse.ArgumentParser(add_help=False)
    group = corpus.add_argument_group("parallel text: a known task, or files (plain or .gz; one .tsv, or two files)")
    group.add_argument("--task", help="a known corpus, such as toy_de_en or wmt14_de_en")
    group.add_argument("--data_dir", help="where the task's files are")
    group.add_argument("--languages", metavar="SRC-TGT", help="of the files, such as de-en")
    for split in ("train", "validation", "test"):
        group.add_argument(f"--{split}", nargs="+", metavar="FILE", help=f"{split} files")
    return corpus


def _precision_option(command: argparse.ArgumentParser, **several: Any) -> None:
    command.add_argument(
        "--precision",
        **several,
        choices=["float32", "bfloat16", "int8"],
        help="of weights and products: int8 is faster on a CPU, bfloat16 on a GPU or TPU; both write not quite the same"
        " words (float32)",
    )


def _decoding_options(**several: Any) -> argparse.ArgumentParser:
    """The options that say how translations are made; `several` lets some of them take more than one value."""
    decoding = argparse.ArgumentParser(add_help=False)
    group = decoding.add_argument_group("decoding (defaults from gin's Decoding and LengthSearch, else as shown)")
    group.add_argument(
        "--strategy",
        **several,
        metavar="NAME[:FIELD=VALUE,...]",
        help="how drafts are refined, such as threshold:tau=0.9; default: the model's own",
    )
    group.add_argument("--offsets", type=int, nargs="+", help="added to each predicted length (0)")
    group.add_argument("--draws", type=int, help="random drafts of each length (1)")
    group.add_argument("--keep", type=int, help="how many of a sentence's hypotheses go on after the first step (all)")
    group.add_argument(
        "--rerank", **several, metavar="HOW", help="own | mbr | mbr_bleu | an autoregressive MODEL_DIR (own)"
    )
    group.add_argument("--brevity", type=float, help="own and MODEL_DIR: log-probability / tokens^BREVITY (1)")
    group.add_argument("--length_weight", type=float, help="own: weight of the length's log-probability (0)")
    group.add_argument(
        "--beam", type=int, **several, metavar="N", help="rows of an autoregressive model's beam search (5)"
    )
    group.add_argument("--length_penalty", type=float, metavar="A", help="its exponent; 0: none (0.6)")
    group.add_argument("--sample", type=float, metavar="TEMPERATURE", help="sample an autoregressive model's tokens")
    group.add_argument(
        "--shortlist",
        **several,
        metavar="FILE",
        help="write only what this file of `padir shortlist` has for a batch's sources; none: anything (none)",
    )
    group.add_argument("--batch_size", type=int, help="sentences decoded at once (32)")
    group.add_argument("--seed", type=int, help="of the random drafts, or of sampling (0)")
    return decoding


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    bindings = [a.removeprefix(_GIN) for a in arguments if a.startswith(_GIN)]
    args = _parser().parse_args([a for a in arguments if not a.startswith(_GIN)])
    _keep_compiled_programs()
    with contextlib.suppress(ValueError):  # not the main thread: whoever runs us handles signals
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what is half-written is taken away
    try:
        args.gin = bool(args.gin_file or bindings or args.command == "train")
        if args.gin:
            from padir import config

            config.clear()
            config.parse(args.gin_file, bindings, args.gin_search_paths)
        if args.command == "train":
            _join(args)
        figures = args.run(args)
        if args.json and figures is not None and _is_first(args):  # else a command or a process has written them
            write_json(args.json, figures)
        _flush()
    except PadirError as error:
        return _fail(str(error))
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:
        _discard_output()
        return _fail(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    except KeyboardInterrupt as interrupt:
        saved = _own_words(str(interrupt))
        print(f"padir: stopped{': ' + saved if saved else ''}", file=sys.stderr)
        return 130
    return 0


def _join(args: argparse.Namespace) -> None:
    """Joins the other processes of a training, if it has several; before anything asks for a device."""
    if args.coordinator:
        from padir.processes import join

        join(args.coordinator, args.num_processes, args.process_id)
    elif args.num_processes is not None or args.process_id is not None:
        raise PadirError("--num_processes and --process_id need --coordinator HOST:PORT, at which processes meet")


def _is_first(args: argparse.Namespace) -> bool:
    """Whether this process is the one that writes files."""
    if not getattr(args, "coordinator", None):
        return True
    from padir.processes import is_first

    return is_first()


def _flush() -> None:
    """Writes what is left for standard output: at the end of the process, a failure would be a traceback."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard_output() -> None:
    """Lets nothing more be written to a standard output that takes nothing more, as the exit would try."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _keep_compiled_programs() -> None:
    """Lets JAX keep what it compiles, so that the next command need not; JAX_COMPILATION_CACHE_DIR says where else."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # an empty one keeps nothing
        return
    import jax

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(cache / "padir" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _fail(message: str) -> int:
    print(f"padir: error: {_own_words(message)}", file=sys.stderr)
    return 2


def _own_words(message: str) -> str:
    """A message without the calls that gin appends to it."""
    return message.split("\n  In call to configurable")[0]


def _warn(message: str) -> None:
    print(f"padir: warning: {message}", file=sys.stderr)


def _files(args: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    """The files that the arguments name, by split."""
    named = {split: getattr(args, split) for split in ("train", "validation", "test")}
    return {split: tuple(paths) for split, paths in named.items() if paths}


def _source(args: argparse.Namespace) -> Any:
    """The corpus that the arguments name, or the one that gin binds."""
    from padir.data.sources import ParallelText
    from padir.data.tasks import get_source

    files = _files(args)
    if args.task and files:
        raise PadirError("give either --task or files, not both")
    if args.task:
        return get_source(args.task, args.data_dir)
    if not files:
        if args.gin:
            from padir import config

            with contextlib.suppress(TypeError):  # gin's word for arguments that nothing binds
                return config.configured(ParallelText)()
        raise PadirError(
            "no corpus: give --task NAME, or --languages SRC-TGT with --train, --validation or --test files"
            + (", or --data DIR, a prepared folder" if hasattr(args, "data") else "")
        )
    source_language, separator, target_language = (args.languages or "").partition("-")
    if not separator or not source_language or not target_language:
        raise PadirError(f"files need --languages SRC-TGT, such as de-en, got {args.languages!r}")
    for split, paths in files.items():
        if len(paths) > 2:
            raise PadirError(f"--{split} takes one .tsv file or two text files, got {len(paths)}")
    single: dict[str, Any] = {split: paths[0] if len(paths) == 1 else paths for split, paths in files.items()}
    return ParallelText(f"{source_language}_{target_language}", source_language, target_language, **single)


def _vocab(args: argparse.Namespace) -> dict[str, Any]:
    from padir import tokenizer

    source = _source(args)
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


def _prepare(args: argparse.Namespace) -> dict[str, Any]:
    from padir.data.prepare import prepare
    from padir.tokenizer import Tokenizer

    manifest = prepare(
        _source(args),
        Tokenizer.load(args.vocab, num_sentinels=args.num_sentinels),
        args.output,
        max_source_tokens=args.max_source_tokens,
        max_target_tokens=args.max_target_tokens,
        max_length_ratio=args.max_length_ratio,
        records_per_shard=args.records_per_shard,
        overwrite=args.overwrite,
    )
    _print_splits(args.output, manifest)
    return manifest


def _print_splits(title: str, manifest: dict[str, Any]) -> None:
    from padir.evaluation import tables

    rows = [
        [split, f"{s['read']:,}", f"{s['written']:,}", f"{s['target_tokens']:,}", _counts(s["dropped"])]
        for split, s in manifest["splits"].items()
    ]
    tables.show(title, ["split", "pairs read", "written", "target tokens", "dropped"], rows)


def _counts(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count) or "none"


def _folders(args: argparse.Namespace) -> tuple[str, ...]:
    """The prepared folders to train on, of the arguments or of gin."""
    from padir import config

    folders = args.data or config.macro("DATASET")
    if not folders:
        raise PadirError("no data: give --data DIR, or --gin.DATASET=DIR")
    return (folders,) if isinstance(folders, str) else tuple(folders)


def _train(args: argparse.Namespace) -> dict[str, Any]:
    from padir import config, trainer
    from padir.data.mixture import Mixture
    from padir.data.prepared import load_tokenizer
    from padir.decoding import resolve
    from padir.evaluation.evaluate import validation_fn

    folders = _folders(args)
    model_dir = args.model_dir or config.macro("MODEL_DIR")
    if not model_dir:
        raise PadirError("no model_dir: give --model_dir DIR, or --gin.MODEL_DIR=DIR")
    weights = {"weights": tuple(args.weights)} if args.weights else {}
    decoding = _decoding(args)
    model, objective = (config.argument(trainer.train, name) for name in ("model", "objective"))
    _check_kind(args, model, decodings=[decoding])
    resolve(decoding, model, objective.corruption, objective.strategy)  # now, and not when the first validation comes
    if decoding.shortlist is not None:
        decoding.shortlist.check(load_tokenizer(folders[0]))
    return config.configured(trainer.train)(
        data=config.configured(Mixture)(folders=folders, **weights),
        model_dir=model_dir,
        evaluate_fn=validation_fn(folders[0], decoding),
        describe_config=config.operative,
    )


def _average(args: argparse.Namespace) -> dict[str, Any]:
    from padir.averaging import average_run

    kind = "last" if args.last is not None else "best"
    card = average_run(args.checkpoints, args.output, kind=kind, count=getattr(args, kind), dtype=args.dtype)
    print(f"{args.output}: {card.weights}", file=sys.stderr)
    return card.to_json()["weights"]


def _distill(args: argparse.Namespace) -> dict[str, Any]:
    from padir.distill import Teacher, distill

    sharding, decoding = _sharding(args), _decoding(args)
    teacher = Teacher.load(args.model, sharding)
    _check_kind(args, teacher.translator.card.config, decodings=[decoding])
    manifest = distill(teacher, args.data, args.output, decoding, overwrite=args.overwrite)
    _print_splits(args.output, manifest)
    if validation := manifest["distilled"]["validation"]:
        print(f"the teacher's BLEU on the validation split: {validation['bleu']:.2f} ({validation['signature']})")
    return manifest


def _shortlist(args: argparse.Namespace) -> dict[str, Any]:
    from padir import lexicon
    from padir.data.mixture import Mixture
    from padir.data.prepared import load_manifest, load_tokenizer
    from padir.evaluation import tables

    settings = {"candidates": args.candidates, "frequent": args.frequent, "iterations": args.iterations}
    learned = lexicon.learn(Mixture(tuple(args.data)), **settings, most_pairs=args.pairs)
    learned.save(args.output)
    kept = learned.describe()
    print(
        f"{args.output}: {kept['candidates']} candidates of each piece, and the {kept['frequent']:,} most frequent",
        file=sys.stderr,
    )
    found: list[Any] = []
    held_out = tuple(folder for folder in args.data if "validation" in load_manifest(folder)["splits"])
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
        _warn("no recall: the data have no validation split")
    return {"file": args.output, **kept, "vocabulary": learned.vocabulary, "recall": [r._asdict() for r in found]}


def _decoding(args: argparse.Namespace, **chosen: Any) -> Any:
    """gin's `Decoding`, with what the command line says of it; `chosen` is one value where it may say several."""
    import dataclasses

    from padir import strategies
    from padir.decoding import Decoding, Prune
    from padir.length import LengthSearch
    from padir.shortlist import Shortlist

    if args.gin:
        from padir import config

        base = config.configured(Decoding)()
        if args.command != "train":  # which uses more than that
            config.check_overrides()
    else:
        base = Decoding()
    given = {name: value for name, value in (vars(args) | chosen).items() if value is not None}
    lengths = {name: given[name] for name in ("top_k", "draws") if name in given}
    if "offsets" in given:
        lengths["offsets"] = tuple(given["offsets"])
    changes = {name: given[name] for name in ("num_steps", "batch_size", "seed") if name in given}
    if "strategy" in given:
        changes["strategy"] = strategies.parse_strategy(given["strategy"])
    if "keep" in given:
        with _naming("keep"):
            changes["prune"] = Prune(given["keep"])
    if "shortlist" in given:
        changes["shortlist"] = None if given["shortlist"] == "none" else Shortlist.load(given["shortlist"])
    if {"rerank", "brevity", "length_weight"} & set(given):
        rule = (given.get("rerank"), given.get("brevity"), given.get("length_weight"))
        with _naming("brevity", "length_weight"):
            changes["rerank"] = _rerank(*rule, base.rerank)
    if {"beam", "length_penalty", "sample"} & set(given):
        search = (given.get("beam"), given.get("length_penalty"), given.get("sample"))
        with _naming(size="beam", alpha="length_penalty", temperature="sample"):
            changes["search"] = _search(*search, base.search)
    base_lengths: LengthSearch = base.lengths
    with _naming("top_k", "draws", "num_steps", "batch_size", "seed"):
        return dataclasses.replace(base, lengths=dataclasses.replace(base_lengths, **lengths), **changes)


@contextlib.contextmanager
def _naming(*alike: str, **options: str) -> Iterator[None]:
    """Lets what is refused of a field be told of the option that set it, which may have another name."""
    try:
        yield
    except PadirError as error:
        message = str(error)
        for field, option in (dict(zip(alike, alike, strict=True)) | options).items():
            message = re.sub(rf"(?<![\w.-])(?:a beam's )?{field}\b", f"--{option}", message, count=1)
        raise PadirError(message) from None


def _search(beam: int | None, length_penalty: float | None, temperature: float | None, base: Any) -> Any:
    """The search that the arguments ask for, with gin's word on what they leave open."""
    import dataclasses

    from padir.searches import Beam, Sampling

    if temperature is not None:
        if beam is not None or length_penalty is not None:
            raise PadirError("give either --sample or --beam with its --length_penalty, not both")
        base = base if isinstance(base, Sampling) else Sampling()
        return dataclasses.replace(base, temperature=temperature)
    changes = {"size": beam, "alpha": length_penalty}
    base = base if isinstance(base, Beam) else Beam()
    return dataclasses.replace(base, **{name: value for name, value in changes.items() if value is not None})


def _rerank(how: str | None, brevity: float | None, length_weight: float | None, base: Any) -> Any:
    """The rule that the arguments ask for, with gin's word on what they leave open."""
    import dataclasses

    from padir.rerank import MinimumBayesRisk, OwnScore
    from padir.translate import rescorer

    settings = {} if brevity is None else {"brevity": brevity}
    if how == "own" or (how is None and isinstance(base, OwnScore)):
        settings |= {} if length_weight is None else {"length_weight": length_weight}
        return dataclasses.replace(base if isinstance(base, OwnScore) else OwnScore(), **settings)
    if length_weight is not None:
        raise PadirError(f"--length_weight belongs to --rerank own, got {how or base}")
    if how is None:
        raise PadirError(f"--brevity belongs to --rerank own or MODEL_DIR, got {base}: name one of them")
    if how in ("mbr", "mbr_bleu"):
        if settings:
            raise PadirError("--brevity belongs to --rerank own or MODEL_DIR: minimum Bayes risk knows no length")
        return MinimumBayesRisk("bleu" if how == "mbr_bleu" else "chrf")
    return rescorer(how, **settings)


def _check_kind(args: argparse.Namespace, *models: Any, decodings: Sequence[Any] = ()) -> None:
    """Refuses options that mean nothing to any model, whatever their values, or to the decodings.

    Options of drafts do so where all models are autoregressive, and the other way round; --rerank where no decoding has
    hypotheses to choose from.
    """
    from padir.decoding import foreign_option

    of_refining = ("num_steps", "strategy", "top_k", "offsets", "draws", "keep", "rerank", "brevity", "length_weight")
    of_causal = ("beam", "length_penalty", "sample")
    if len({model.causal for model in models}) == 1:
        for name in of_refining if models[0].causal else of_causal:
            if getattr(args, name, None) is not None:
                raise foreign_option(f"--{name}", models[0].causal)
    search = [decoding.lengths for decoding in decodings]
    alone = all(each.top_k * len(set(each.offsets)) * each.draws == 1 for each in search)
    if search and alone and any(how != "own" for how in _listed(getattr(args, "rerank", None))):
        raise PadirError(
            "--rerank chooses among several hypotheses of a sentence, got one: give it more (--top_k, --offsets or"
            " --draws)"
        )


def _listed(value: Any) -> list[Any]:
    """An option's values, of which some commands take several."""
    return [] if value is None else value if isinstance(value, list) else [value]


def _evaluate(args: argparse.Namespace) -> list[dict[str, Any]]:
    from padir.evaluation import report, tables
    from padir.evaluation.systems import Row, evaluate_all

    # Wrong numbers are refused before anything is decoded.
    sharding, decodings = _sharding(args), _decodings(args)
    test_set = _test_set(args)
    metrics, skipped = _bleurt(args.bleurt)
    models = _translators(map(_named, args.model), args.precision, sharding=sharding)
    _check_kind(args, *(translator.card.config for _, translator in models), decodings=decodings)
    done: list[dict[str, Any]] = []
    figures = args.json or (args.output and f"{args.output}.json")

    def progress(row: Row) -> None:
        """Tells of a row, and keeps it: a long table that is interrupted leaves what it has."""
        done.append(tables.describe_row(row, test_set))
        print(f"{len(done)}. {tables.summary(done[-1])}", file=sys.stderr)
        if figures:
            write_json(figures, done)

    rows = evaluate_all(
        models, test_set, decodings, oracle_lengths=args.oracle_lengths, metrics=metrics, progress=progress
    )
    described = report.show(rows, test_set, _warn)
    if args.output:
        report.write(args.output, rows, test_set, described, _warn, skipped)
    if args.hypotheses:
        found = [row for row in rows if row.evaluation]
        last = next((row for row in reversed(found) if not row.oracle_lengths), found[-1]).evaluation
        assert last is not None
        write_text(args.hypotheses, "".join(line + "\n" for line in last.hypotheses))
    return described


def _sharding(args: argparse.Namespace) -> Any:
    """gin's `Sharding`; to be asked for before `_decoding`, which checks that every binding is of use."""
    from padir.sharding import Sharding

    if not args.gin:
        return Sharding()
    from padir import config

    return config.configured(Sharding)()


def _translators(
    named: Any, precisions: Sequence[str | None] | None, load: Any = None, sharding: Any = None
) -> list[Any]:
    """(name, translator) of every model in every precision."""
    from padir.translate import Translator

    translators = []
    for name, where in named:
        translator = (load or functools.partial(Translator.load, sharding=sharding))(where)
        for precision in precisions or [None]:
            if precision == "int8":
                translators.append((f"{name}, int8", translator.quantised()))
            elif precision == "bfloat16":
                translators.append((f"{name}, bfloat16", translator.in_bfloat16()))
            else:
                translators.append((name, translator))
    return translators


def _decodings(args: argparse.Namespace, **chosen: Any) -> list[Any]:
    """Every combination of what options with several values say."""
    import itertools

    several = ("strategy", "top_k", "rerank", "num_steps", "beam", "shortlist")
    axes = {name: getattr(args, name) or [None] for name in several}
    combinations = itertools.product(*axes.values())
    return [_decoding(args, **dict(zip(axes, values, strict=True)), **chosen) for values in combinations]


def _test_set(args: argparse.Namespace) -> Any:
    """The test set that the arguments name."""
    import dataclasses

    from padir.evaluation.evaluate import TestSet

    files = _files(args)
    if args.data and (args.task or files):
        raise PadirError("give either --data, or --task or files, not both")
    if args.data:
        return TestSet.of_prepared(args.data, args.split)
    test_set = TestSet.of_source(_source(args), args.split)
    if files:  # which have no name but theirs
        test_set = dataclasses.replace(test_set, task=Path(files[args.split][0]).name.split(".")[0])
    return test_set


def _benchmark(args: argparse.Namespace) -> dict[str, Any]:
    from padir.benchmark import decoding as benchmark
    from padir.benchmark import report
    from padir.benchmark.peers import peers
    from padir.evaluation import tables
    from padir.pretrained import PRETRAINED

    if args.train is not None:
        return _benchmark_training(args)
    if args.random and (args.model or args.task or _files(args)):
        raise PadirError("give either --random, or models and a test set: random weights translate numbers only")
    if args.quick:
        args.sentences, args.repeats = 16, 3
    if args.random:
        configs = [(name, _model_config(path)) for name, path in map(_named_file, args.random)]
        vocab_size = 32_100 if args.vocab_size is None else args.vocab_size
        translators = _translators(configs, args.precision, lambda c: benchmark.random_translator(c, vocab_size))
        test_set = benchmark.numbers(f"lengths of {args.data}" if args.data else f"{args.tokens} tokens")
    else:
        translators = _translators(map(_named, args.model or PRETRAINED), args.precision)
        test_set = _test_set(args)
    decodings = _decodings(args, batch_size=None)  # every system takes a whole batch
    _check_kind(args, *(translator.card.config for _, translator in translators), decodings=decodings)
    systems = benchmark.systems(translators, decodings, given_lengths=bool(args.random))
    systems += peers(systems, args.ctranslate2)
    rows = []
    for size in args.batch_size:
        sentences = max(size, args.sentences) if args.sentences > 0 else args.sentences
        if args.random:
            length_N2 = (
                benchmark.drawn_lengths(args.data, args.split, sentences)
                if args.data
                else benchmark.equal_lengths(args.tokens, sentences)
            )
            batches = benchmark.batches_of_numbers(length_N2, size, translators[0][1].card.ids)
        else:
            batches = benchmark.batches_of(test_set, size, sentences)
        for row, details in benchmark.measure(systems, batches, repeats=args.repeats):
            rows.append(tables.describe_row(row, test_set) | {"details": details})
            print(f"{len(rows)}. {tables.label(rows[-1], rows)}: {report.summary(rows[-1])}", file=sys.stderr)
    where = report.environment()
    report.show(rows, where)
    figures = {"environment": where, "rows": rows}
    if args.output:
        write_text(f"{args.output}.md", report.to_markdown(rows, where))
        write_json(f"{args.output}.json", figures)
        try:
            report.plot(rows, f"{args.output}.png", report.describe(where))
        except PadirError as error:
            _warn(f"no {args.output}.png: {error}")
    return figures


def _benchmark_training(args: argparse.Namespace) -> dict[str, Any]:
    from padir import config, trainer
    from padir.benchmark import report, training
    from padir.evaluation import tables

    if not args.gin:
        raise PadirError("--train times a configuration: give its --gin_file")
    folders = _folders(args)
    arguments = ("model", "objective", "optimizer", "batching", "sharding")
    named = {name: config.argument(trainer.train, name) for name in arguments}
    config.check_overrides()
    measured = training.measure(folders, steps=args.train, num_embeddings=args.vocab_size or 0, **named)
    where = report.environment()
    tables.show(
        f"training, measured on {report.describe(where)}",
        ["figure", "value"],
        [[name, _figure(value)] for name, value in measured.figures.items()],
    )
    figures = {"environment": where, "figures": measured.figures, "step_seconds": measured.step_seconds}
    if args.output:
        write_json(f"{args.output}.json", figures)
    return figures


def _figure(value: float | None) -> str:
    """Four digits, or all before the point."""
    if value is None:
        return "not known"
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _named_file(argument: str) -> tuple[str, str]:
    """NAME=FILE."""
    name, separator, path = argument.partition("=")
    if not separator or not name or not path:
        raise PadirError(f"--random takes NAME=GIN, a name and a gin file of ModelConfig, got {argument!r}")
    return name, path


def _model_config(path: str) -> Any:
    """The ModelConfig that a gin file binds."""
    from padir import config
    from padir.model import ModelConfig

    config.clear()
    config.parse([path], [], [])
    return config.configured(ModelConfig)()


def _named(model: str) -> tuple[str, str]:
    """NAME=DIR, or DIR, which then is the name."""
    name, separator, folder = model.partition("=")
    return (model, model) if not separator or Path(model).exists() else (name, folder)


def _bleurt(folder: str | None) -> tuple[list[Any], list[str]]:
    """The metrics of --bleurt, and what of them is skipped."""
    if not folder:
        return [], []
    from padir.evaluation.bleurt import Bleurt, MissingPackage

    try:
        return [Bleurt.load(folder)], []
    except MissingPackage as error:
        _warn(f"BLEURT is skipped: {error}")
        return [], [f"BLEURT is skipped: {error}"]


def _tables(args: argparse.Namespace) -> dict[str, Any]:
    from padir.evaluation.tables import paper_tables, read_rows

    rows = read_rows(args.files)
    known = {name for row in rows for name in row["scores"]}
    if missing := [name for name in args.metrics or () if name not in known]:
        raise PadirError(f"no row has {missing[0]!r}: name figures that the files have ({', '.join(sorted(known))})")
    metrics = args.metrics or [name for name in ("bleu", "bleurt", "stutter") if name in known]
    if not args.metrics and "bleurt" not in known:
        _warn("no row has BLEURT: it needs `padir evaluate --bleurt DIR`")
    text = paper_tables(rows, metrics, args.across)
    if args.output:
        write_text(args.output, text)
    else:
        print(text, end="")
    return {"rows": len(rows)}


def _compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    import dataclasses

    from padir.evaluation import significance, tables

    systems = [(path, _lines(path)) for path in args.hypotheses]
    results = significance.compare(_lines(args.references), systems, args.target_language, args.samples)
    lines = [
        [r.system, r.metric, f"{r.score:.2f}", f"{r.mean:.2f} ± {r.interval:.2f}"]
        + [f"{r.p_value:.4f}" if r.p_value is not None else "baseline"]
        for r in results
    ]
    tables.show(args.references, ["system", "metric", "score", "mean ± 95 % interval", "p-value"], lines)
    for signature in dict.fromkeys(f"{r.metric}: {r.signature}" for r in results):
        print(signature)
    return [dataclasses.asdict(result) for result in results]


def _lines(path: str) -> list[str]:
    from padir.lines import open_bytes
    from padir.stream import lines

    with open_bytes(path) as file:
        return list(lines(file, _warn, path))


def _score(args: argparse.Namespace) -> dict[str, Any]:
    from padir.score import score_pairs, summary
    from padir.translate import Translator

    sharding, decoding = _sharding(args), _decoding(args)
    translator = Translator.load(args.model, sharding=sharding)
    _check_kind(args, translator.card.config)
    results = score_pairs(translator, _lines(args.source), _lines(args.target), decoding)
    text = "".join(f"{r.log_prob:.4f}\t{r.tokens}\t{r.mean:.4f}\n" for r in results)
    if args.output:
        write_text(args.output, text)
    else:
        print(text, end="")
    return summary(results)


def _export(args: argparse.Namespace) -> dict[str, Any]:
    from padir.export import PLATFORMS, Lengths, export_model
    from padir.names import write_weights

    given = {name: value for name, value in vars(args).items() if value is not None}
    decoding = _decoding(args)
    ((_, translator),) = _translators([("", args.model)], [args.precision])
    _check_kind(args, translator.card.config)
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


def _ising(args: argparse.Namespace) -> dict[str, Any]:
    from padir.evaluation import tables
    from padir.ising import commands

    names = ("num_spins", "samples", "seeds", "clique", "couplings", "fields", "chains", "budget", "models", "only")
    sizes = {name: getattr(args, name) for name in names}
    sizes |= {name: tuple(value) for name, value in sizes.items() if isinstance(value, list)}
    figures = commands.run(
        args.subject, seed=args.seed, output=args.output, tell=functools.partial(print, file=sys.stderr), **sizes
    )
    columns = [name.replace("_", " ") for name in commands.COLUMNS[args.subject]]
    tables.show(args.subject, columns, [commands.cells(args.subject, row) for row in figures["rows"]])
    commands.verify(figures)
    return figures


def _analyse(args: argparse.Namespace) -> dict[str, Any]:
    import dataclasses

    from padir.analysis import commands
    from padir.evaluation import tables
    from padir.translate import Translator

    names = [field.name for field in dataclasses.fields(commands.Options)]
    given: dict[str, Any] = {name: getattr(args, name) for name in names}
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if v is not None}
    if args.num_steps is None and args.subject != "refinement":
        args.num_steps = 1
    decoding = _decoding(args)
    figures = commands.run(
        args.subject,
        Translator.load(args.model),
        _test_set(args),
        decoding,
        commands.Options(**given),
        name=str(args.model),
        output=args.output,
        tell=functools.partial(print, file=sys.stderr),
    )
    columns = [name.replace("_", " ") for name in commands.COLUMNS[args.subject]]
    tables.show(args.subject, columns, [commands.cells(args.subject, row) for row in figures["rows"]])
    return figures


def _t5x_import(args: argparse.Namespace) -> dict[str, Any]:
    from padir import t5x_exchange

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
    from padir import config, trainer
    from padir.checkpoint import ModelCard
    from padir.tokenizer import Tokenizer

    source, _, target = args.languages.partition("-")
    if not source or not target or "-" in target:
        raise PadirError(f"--languages takes two codes with a hyphen, such as de-en, got {args.languages!r}")
    model, objective = (config.argument(trainer.train, name) for name in ("model", "objective"))
    tokenizer = Tokenizer.load(args.vocab, args.num_sentinels)
    return ModelCard(model, tokenizer.ids, objective.corruption, objective.strategy, source, target, ""), tokenizer


def _t5x_export(args: argparse.Namespace) -> dict[str, Any]:
    from padir.t5x_exchange import export_model

    folder = export_model(args.model, args.output)
    print(folder, file=sys.stderr)
    return {"checkpoint": str(folder)}


def _translate(args: argparse.Namespace) -> None:
    from padir.analysis.trace import Step, Trace, render_html, render_text
    from padir.lines import open_bytes
    from padir.stream import lines, translate_lines, translations_json
    from padir.translate import Translation

    sharding, decoding = _sharding(args), _decoding(args)
    ((_, translator),) = _translators([("", args.model)], [args.precision], sharding=sharding)
    _check_kind(args, translator.card.config, decodings=[decoding])
    if (sys.stdin is None and not args.input) or (sys.stdout is None and not args.output):
        raise PadirError("standard input or output is closed: give --input FILE and --output FILE")
    traces: list[Trace] = []
    add: Any = None

    def each(source: str, result: Translation) -> None:
        if result.trace and (args.trace or len(traces) < _SHOWN):
            steps = tuple(Step(pieces, log_probs) for pieces, log_probs in result.trace)
            one = Trace(source, steps, result.text)
            if args.trace:
                print(render_text(one), file=sys.stderr)
            if args.html and len(traces) < _SHOWN:
                traces.append(one)
        if add is not None:
            add(source, result)

    with contextlib.ExitStack() as stack:
        source: Any = sys.stdin
        if args.input:
            source = stack.enter_context(open_bytes(args.input, f"--input {args.input}"))
        out: Any = sys.stdout
        if args.output:
            out = stack.enter_context(whole(args.output))
        else:
            out.reconfigure(encoding="utf-8", newline="\n")
        figures: dict[str, Any] = {}
        if args.json:
            add, figures = stack.enter_context(translations_json(args.json))
        bar = stack.enter_context(_counter("translate"))
        written = translate_lines(
            translator,
            lines(source if args.input else source.buffer, _warn),
            out,
            decoding,
            warn=_warn,
            progress=bar,
            each=each,
            trace=bool(args.trace or args.html),
        )
        figures |= {"lines": written.lines, "passes": written.passes}
    if args.html:
        if written.lines > len(traces) == _SHOWN:
            _warn(f"{args.html} shows the first {_SHOWN:,} translations")
        write_text(args.html, render_html(traces))


def _serve(args: argparse.Namespace) -> dict[str, Any]:
    import dataclasses

    try:
        from padir.serve.engine import Engine
        from padir.serve.request import Limits
        from padir.serve.server import serve
    except ModuleNotFoundError as error:
        raise PadirError(
            f"serving needs the package {error.name}: install the extra (pip install 'padir[serve]')"
        ) from None

    limits = Limits(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Limits)})
    decoding = _decoding(args)
    ((_, translator),) = _translators([("", args.model)], [args.precision])
    _check_kind(args, translator.card.config)
    engine = Engine(translator, decoding, limits, max_wait=args.max_wait / 1000, warm_up=args.warm_up)
    return serve(
        engine,
        Path(args.model).name,
        host=args.host,
        port=args.port,
        tell=lambda message: print(f"padir: {message}", file=sys.stderr, flush=True),
    )


def _counter(label: str) -> Any:
    """A context that gives a function which counts lines on stderr, where that is a terminal."""
    import rich.console
    import rich.progress

    @contextlib.contextmanager
    def counting():
        console = rich.console.Console(stderr=True)
        with rich.progress.Progress(
            rich.progress.TextColumn(label),
            rich.progress.TextColumn("{task.completed:,} lines"),
            rich.progress.TextColumn("{task.speed}"),
            console=console,
            disable=not console.is_terminal or sys.stdout.isatty(),
            transient=True,
        ) as bar:
            task = bar.add_task(label, total=None)
            yield lambda count: bar.advance(task, count)

    return counting()


if __name__ == "__main__":
    sys.exit(main())

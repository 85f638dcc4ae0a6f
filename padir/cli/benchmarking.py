"""`padir benchmark`: how fast they are made."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from padir.cli.arguments import (
    check_kind,
    decodings_of,
    files_of,
    folders_of,
    named_model,
    test_set_of,
    translators_of,
)
from padir.cli.console import warn
from padir.cli.options import common_options, corpus_options, decoding_options, precision_option
from padir.errors import PadirError
from padir.storage.files import write_json, write_text


def add(commands: Any) -> None:
    """Adds these commands to the parser's."""
    _add_benchmark(commands)


def _add_benchmark(commands: Any) -> None:
    benchmark = commands.add_parser(
        "benchmark",
        # Its own copies, as it takes --batch_size and --train for other things, and so takes them out of these.
        parents=[decoding_options(nargs="+"), corpus_options(), common_options()],
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
    precision_option(benchmark, nargs="+")
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


def _benchmark(args: argparse.Namespace) -> dict[str, Any]:
    from padir.benchmark import decoding as benchmark
    from padir.benchmark import report
    from padir.benchmark.peers import peers
    from padir.evaluation import describe_row
    from padir.evaluation.columns import label
    from padir.pretrained import PRETRAINED

    if args.train is not None:
        return _benchmark_training(args)
    if args.random and (args.model or args.task or files_of(args)):
        raise PadirError("give either --random, or models and a test set: random weights translate numbers only")
    if args.quick:
        args.sentences, args.repeats = 16, 3
    if args.random:
        configs = [(name, _model_config(path)) for name, path in map(_named_file, args.random)]
        vocab_size = 32_100 if args.vocab_size is None else args.vocab_size
        translators = translators_of(configs, args.precision, lambda c: benchmark.random_translator(c, vocab_size))
        test_set = benchmark.numbers(f"lengths of {args.data}" if args.data else f"{args.tokens} tokens")
    else:
        translators = translators_of(map(named_model, args.model or PRETRAINED), args.precision)
        test_set = test_set_of(args)
    decodings = decodings_of(args, batch_size=None)  # every system takes a whole batch
    check_kind(args, *(translator.card.config for _, translator in translators), decodings=decodings)
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
            rows.append(describe_row(row, test_set) | {"details": details})
            print(f"{len(rows)}. {label(rows[-1], rows)}: {report.summary(rows[-1])}", file=sys.stderr)
    where = report.environment()
    report.show(rows, where)
    figures = {"environment": where, "rows": rows}
    if args.output:
        write_text(f"{args.output}.md", report.to_markdown(rows, where))
        write_json(f"{args.output}.json", figures)
        try:
            report.plot(rows, f"{args.output}.png", report.describe(where))
        except PadirError as error:
            warn(f"no {args.output}.png: {error}")
    return figures


def _benchmark_training(args: argparse.Namespace) -> dict[str, Any]:
    from padir import config
    from padir.benchmark import report, training
    from padir.reporting import tables
    from padir.training.config import TrainConfig

    if not args.gin:
        raise PadirError("--train times a configuration: give its --gin_file")
    folders = folders_of(args)
    arguments = ("model", "objective", "optimizer", "batching", "sharding")
    named = {name: config.argument(TrainConfig, name) for name in arguments}
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
    from padir.models.config import ModelConfig

    config.clear()
    config.parse([path], [], [])
    return config.configured(ModelConfig)()

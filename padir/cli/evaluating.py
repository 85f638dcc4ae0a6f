"""`padir evaluate`, `padir tables` and `padir compare`: quality of translations."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any

import jax

from padir.cli.arguments import check_options, chosen, decodings_of, import_own, load_models, sharding_of
from padir.cli.console import read_lines, tell, warn
from padir.cli.corpora import test_set_of
from padir.distributed.processes import agreed, is_first
from padir.errors import PadirError, first_line
from padir.evaluation import Metric, Row, describe_row, evaluate_all, paper_tables, read_rows, report
from padir.evaluation.paper import claims, differences, paper_rows
from padir.evaluation.rows import summary
from padir.from_text import own_object
from padir.metrics import Bleurt, significance
from padir.metrics.scores import bleu_metric, non_words
from padir.models.params import params_sum
from padir.reporting import tables
from padir.storage.files import write_json, write_text
from padir.text.languages import pair_of
from padir.translator import Translator, shared


def run_evaluate(args: argparse.Namespace) -> list[dict[str, Any]] | None:
    sharding, _ = sharding_of(args), decodings_of(args)  # wrong numbers are refused before any work
    test_set = agreed("the test sets", lambda: test_set_of(args), lambda made: made.sha256)
    test_set = dataclasses.replace(test_set, tokenize=args.tokenize)
    bleu_metric(test_set.target_language, args.tokenize, references=test_set.references)  # refused before any work
    metrics = _metrics(args.metric, test_set.target_language)

    def described(models: list[tuple[str, Translator]]) -> str:
        return json.dumps([(name, each.card.to_json(), params_sum(each.params)) for name, each in models])

    models = agreed("the models", lambda: load_models(args, args.model, sharding), described)
    if jax.process_count() > 1:
        models = [(name, shared(translator)) for name, translator in models]
    decodings = functools.partial(decodings_of, args)
    every = [(name, translator.card.config, decodings(translator.decoding)) for name, translator in models]
    check_options(args, *every)
    agreed("the decoding options", lambda: every)
    done: list[dict[str, Any]] = []
    path = args.json or (args.output and f"{args.output}.json")

    def progress(row: Row) -> None:
        """Print and save a row, so that an interrupted evaluation keeps its finished rows."""
        if not is_first():
            return
        done.append(describe_row(row, test_set))
        tell(f"{len(done)}. {summary(done[-1])}")
        if path:
            write_json(path, done)

    rows = evaluate_all(models, test_set, decodings, metrics=metrics, progress=progress)
    if not is_first():
        return None
    report.show(done, warn)
    if args.output:
        report.write(args.output, rows, test_set, done)
    return done


def _metrics(names: Sequence[str], language: str) -> list[Metric]:
    """The metrics of --metric."""
    metrics: list[Metric] = []
    texts = [name.partition("=")[2] for name in names if name.startswith("known_words=")]
    if texts:
        metrics += non_words((line for path in texts for line in read_lines(path)), language)
    for name in names:
        if name.startswith("bleurt="):
            metrics.append(Bleurt.load(name.partition("=")[2]))
        elif ":" in name.partition("=")[0]:
            import_own(name)
            made = own_object(name, "metric")
            try:
                metrics.append(made())
            except Exception as error:  # of a class of somebody else
                remedy = "name a class without arguments"
                raise PadirError(f"no metric {name} ({first_line(error)})", remedy=remedy) from None
            if not callable(metrics[-1]):
                raise PadirError(f"{name} is no metric", remedy="name a class whose instances can be called")
        elif not name.startswith("known_words="):
            raise PadirError("metric", "bleurt=DIR, known_words=FILE or MODULE:NAME", name)
    return metrics


def run_tables(args: argparse.Namespace) -> dict[str, Any]:
    rows = read_rows(args.files)
    paper = paper_rows(rows) if args.paper else []
    told = [*differences(rows, paper), *claims()] if args.paper else []
    rows += paper
    known = {name for row in rows for name in row["scores"]}
    if missing := [name for name in args.metric or () if name not in known]:
        raise PadirError(f"no row has {missing[0]!r}: name metrics that the files have ({', '.join(sorted(known))})")
    metrics = args.metric or [name for name in ("bleu", "bleurt", "stutter") if name in known]
    if not args.metric and "bleurt" not in known:
        warn("no row has BLEURT: it needs `padir evaluate --metric bleurt=DIR`")
    text = paper_tables(rows, metrics)
    text += "".join(f"{line}\n" for line in told)
    if args.output:
        write_text(args.output, text)
    else:
        print(text, end="")
    return {"rows": len(rows)}


def run_compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    systems = [(path, read_lines(path)) for path in args.files]
    references, settings = read_lines(args.target), chosen(args, "padir.metrics.significance:compare")
    if len(references) < 100:
        warn(f"{len(references)} lines are too few for intervals and p-values: give a hundred and more")
    results = significance.compare(references, systems, pair_of(args.languages)[1], tokenize=args.tokenize, **settings)
    lines = []
    for r in results:
        p_value = "baseline" if r.p_value is None else f"{r.p_value:.4f}"
        difference = "" if r.difference is None else "{:+.2f} to {:+.2f}".format(*r.difference)
        lines.append([r.system, r.metric, f"{r.score:.2f}", f"{r.mean:.2f} ± {r.interval:.2f}", difference, p_value])
    columns = ["system", "metric", "score", "mean ± 95 % interval", "difference, 95 %", "p-value"]
    tables.show(args.target, columns, lines)
    for signature in dict.fromkeys(f"{r.metric}: {r.signature}" for r in results):
        print(signature)
    return [dataclasses.asdict(result) for result in results]

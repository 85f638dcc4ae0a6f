"""`padir translate` and `padir score`: translate text, or score given translations."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

from padir.cli.arguments import check_options, decoding_of, load_model, sharding_of
from padir.cli.console import counter, read_lines, warn
from padir.cli.options import (
    common_options,
    decoding_options,
    model_option,
    precision_option,
    setting,
    steps_options,
)
from padir.decoding.options import Decoding
from padir.decoding.scoring import score_pairs, summary
from padir.decoding.streaming import lines, translate_lines, translations_json
from padir.decoding.translation import Translation
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.reporting.trace import Step, Trace, render_html, render_text
from padir.storage.files import atomic_file, write_text
from padir.text.lines import open_bytes

_SHOWN = 1_000  # translations on the page of --html: browsers do not take many more, and all are in memory


def add_translate(parser: argparse.ArgumentParser) -> None:
    model_option(parser)
    precision_option(parser)
    parser.add_argument("--input", metavar="FILE", help="file to translate, plain or .gz (default: standard input)")
    parser.add_argument("--output", metavar="FILE", help="file of translations (default: standard output)")
    steps_options(parser)
    parser.add_argument("--trace", action="store_true", help="show every refinement step on stderr")
    parser.add_argument("--html", metavar="FILE", help="write a page with every step of the first 1,000 lines")
    decoding_options(parser)
    common_options(parser)
    parser.set_defaults(run=_translate)


def _translate(args: argparse.Namespace) -> None:
    sharding, decoding = sharding_of(args), decoding_of(args)
    translator = load_model(args, sharding)
    check_options(args, translator.card.config, decodings=[decoding])
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
            out = stack.enter_context(atomic_file(args.output))
        else:
            out.reconfigure(encoding="utf-8", newline="\n")
        results: dict[str, Any] = {}
        if args.json:
            add, results = stack.enter_context(translations_json(args.json))
        written = translate_lines(
            translator,
            lines(source if args.input else source.buffer, warn),
            out,
            decoding,
            warn=warn,
            progress=stack.enter_context(counter("translate")),
            each=each,
            trace=bool(args.trace or args.html),
        )
        results |= {"lines": written.lines, "passes": written.passes}
    if args.html:
        if written.lines > len(traces) == _SHOWN:
            warn(f"{args.html} shows the first {_SHOWN:,} translations")
        write_text(args.html, render_html(traces))


def add_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="DIR", help="a model from `padir train`")
    parser.add_argument("--source", required=True, metavar="FILE", help="sources, one sentence a line")
    parser.add_argument("--target", required=True, metavar="FILE", help="translations of the sources")
    setting(parser, Decoding, "num_steps", "refinement stages before the target is scored")
    parser.add_argument(
        "--strategy",
        metavar="NAME[:FIELD=VALUE,...]",
        help="refinement strategy between the stages (default: the model's own)",
    )
    setting(parser, Decoding, "batch_size", "pairs scored at once")
    setting(parser, Decoding, "seed", "seed of the first stage's noise; equal pairs get equal scores")
    parser.add_argument(
        "--output", metavar="FILE", help="file of log-probability, tokens and mean (default: standard output)"
    )
    common_options(parser)
    parser.set_defaults(run=_score)


def _score(args: argparse.Namespace) -> dict[str, Any]:
    sharding, decoding = sharding_of(args), decoding_of(args)
    translator = Translator.load(args.model, sharding=sharding)
    check_options(args, translator.card.config)
    results = score_pairs(translator, read_lines(args.source), read_lines(args.target), decoding)
    text = "".join(f"{r.log_prob:.4f}\t{r.tokens}\t{r.mean:.4f}\n" for r in results)
    if args.output:
        write_text(args.output, text)
    else:
        print(text, end="")
    return summary(results)

"""`padir translate | score | serve`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

from padir.cli.arguments import (
    check_kind,
    decoding_of,
    sharding_of,
    translators_of,
)
from padir.cli.console import counter, lines_of, warn
from padir.cli.options import common_options, decoding_options, model_option, precision_option, steps_options
from padir.errors import PadirError
from padir.storage.files import atomic_file, write_text

_SHOWN = 1_000  # translations that --html shows: browsers do not take many more, and all are in memory


def add(commands: Any) -> None:
    """Adds these commands to the parser's."""
    _add_translate(commands)
    _add_score(commands)
    _add_serve(commands)


def _add_translate(commands: Any) -> None:
    translate = commands.add_parser(
        "translate", parents=[decoding_options(), common_options()], help="translate lines, one out for one in"
    )
    model_option(translate)
    precision_option(translate)
    translate.add_argument("--input", metavar="FILE", help="plain or .gz; default: standard input")
    translate.add_argument("--output", metavar="FILE", help="default: standard output")
    steps_options(translate)
    translate.add_argument("--trace", action="store_true", help="show every step on stderr")
    translate.add_argument("--html", metavar="FILE", help="write every step as a page, of the first 1,000 lines")
    translate.set_defaults(run=_translate)


def _translate(args: argparse.Namespace) -> None:
    from padir.decoding.streaming import lines, translate_lines, translations_json
    from padir.decoding.translator import Translation
    from padir.reporting.trace import Step, Trace, render_html, render_text
    from padir.text.lines import open_bytes

    sharding, decoding = sharding_of(args), decoding_of(args)
    ((_, translator),) = translators_of([("", args.model)], [args.precision], sharding=sharding)
    check_kind(args, translator.card.config, decodings=[decoding])
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
        figures: dict[str, Any] = {}
        if args.json:
            add, figures = stack.enter_context(translations_json(args.json))
        bar = stack.enter_context(counter("translate"))
        written = translate_lines(
            translator,
            lines(source if args.input else source.buffer, warn),
            out,
            decoding,
            warn=warn,
            progress=bar,
            each=each,
            trace=bool(args.trace or args.html),
        )
        figures |= {"lines": written.lines, "passes": written.passes}
    if args.html:
        if written.lines > len(traces) == _SHOWN:
            warn(f"{args.html} shows the first {_SHOWN:,} translations")
        write_text(args.html, render_html(traces))


def _add_score(commands: Any) -> None:
    score = commands.add_parser("score", parents=[common_options()], help="log-probabilities of given pairs")
    score.add_argument("--model", required=True, metavar="DIR", help="from `padir train`")
    score.add_argument("--source", required=True, metavar="FILE", help="one sentence a line")
    score.add_argument("--target", required=True, metavar="FILE", help="their translations")
    score.add_argument("--num_steps", type=int, help="stages of refinement before the target is scored (4)")
    score.add_argument("--strategy", metavar="NAME[:FIELD=VALUE,...]", help="between the stages; default: its own")
    score.add_argument("--batch_size", type=int, help="pairs scored at once (32)")
    score.add_argument("--seed", type=int, help="of the first stage's noise (0)")
    score.add_argument("--output", metavar="FILE", help="log-probability, tokens, mean; default: standard output")
    score.set_defaults(run=_score)


def _score(args: argparse.Namespace) -> dict[str, Any]:
    from padir.decoding.scoring import score_pairs, summary
    from padir.decoding.translator import Translator

    sharding, decoding = sharding_of(args), decoding_of(args)
    translator = Translator.load(args.model, sharding=sharding)
    check_kind(args, translator.card.config)
    results = score_pairs(translator, lines_of(args.source), lines_of(args.target), decoding)
    text = "".join(f"{r.log_prob:.4f}\t{r.tokens}\t{r.mean:.4f}\n" for r in results)
    if args.output:
        write_text(args.output, text)
    else:
        print(text, end="")
    return summary(results)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        parents=[decoding_options(), common_options()],
        help="serve a model over HTTP, with a page that shows its steps",
        description="Serves POST /translate, GET /health, GET /metrics and a page at / (needs the extra serve). What is"
        " said of decoding is for requests that do not say.",
    )
    model_option(serve)
    precision_option(serve)
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen at (127.0.0.1: this machine alone)")
    serve.add_argument("--port", type=int, default=8000, help="0 takes a free one (8000)")
    steps_options(serve)
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
    decoding = decoding_of(args)
    ((_, translator),) = translators_of([("", args.model)], [args.precision])
    check_kind(args, translator.card.config)
    engine = Engine(translator, decoding, limits, max_wait=args.max_wait / 1000, warm_up=args.warm_up)
    return serve(
        engine,
        Path(args.model).name,
        host=args.host,
        port=args.port,
        tell=lambda message: print(f"padir: {message}", file=sys.stderr, flush=True),
    )

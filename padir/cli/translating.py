"""`padir translate` and `padir score`: translate text, or score given translations."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from padir.cli.arguments import check_options, decoding_of, load_model, sharding_of
from padir.cli.console import counter, read_lines, tell, warn, without_controls
from padir.cli.options import (
    common_options,
    decoding_options,
    mode_option,
    model_option,
    precision_option,
    setting,
    step_option,
    steps_options,
)
from padir.decoding.options import Decoding
from padir.decoding.scoring import score_pairs, summary
from padir.decoding.streaming import lines, translate_lines, translation_row, translations_json
from padir.decoding.translation import Translation
from padir.errors import PadirError
from padir.reporting.trace import Step, Trace, render_html, render_text
from padir.storage.files import atomic_file, write_text
from padir.text.lines import TimedReader, open_bytes

_SHOWN = 1_000  # maximum number of translations on the page of --html, for the sake of browsers and of memory
_IDLE = 0.1  # seconds without a further line after which the lines read so far are translated


def add_translate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="sentences to translate (default: standard input)")
    model_option(parser)
    step_option(parser)
    precision_option(parser)
    mode_option(parser)
    parser.add_argument("--input", metavar="FILE", help="file to translate, plain or .gz")
    parser.add_argument("--output", metavar="FILE", help="file of translations (default: standard output)")
    parser.add_argument(
        "--interactive", action="store_true", help="prompt for each sentence on the terminal; Ctrl-D ends"
    )
    parser.add_argument(
        "--jsonl",
        action="store_true",
        help="write each translation as a line of JSON: source, text, score, length, passes, hypotheses, truncated",
    )
    parser.add_argument("--split", action="store_true", help="translate each sentence of a line by itself")
    setting(parser, Decoding, "n_best", "--json, --jsonl: list this number of candidates, best first")
    steps_options(parser)
    parser.add_argument("--trace", action="store_true", help="show every refinement step on stderr")
    parser.add_argument("--html", metavar="FILE", help="write a page with every step of the first 1,000 lines")
    decoding_options(parser)
    common_options(parser)
    parser.set_defaults(run=_translate)


def _translate(args: argparse.Namespace) -> None:
    sharding, _ = sharding_of(args), decoding_of(args)  # wrong numbers are refused before the model is loaded
    _check_streams(args)
    translator = load_model(args, sharding, step=args.step)
    decoding = decoding_of(args, translator.decoding)
    check_options(args, translator.card.config, decodings=[decoding])
    traces: list[Trace] = []
    with contextlib.ExitStack() as stack:
        source, ready = _source(args, stack, translator.card.source_language)
        out = stack.enter_context(atomic_file(args.output)) if args.output else _standard_output()
        add, results = stack.enter_context(translations_json(args.json)) if args.json else (None, {})
        on_terminal = not args.output and out.isatty()
        chunks = translate_lines(
            translator,
            source,
            decoding,
            warn=warn,
            ready=ready,
            progress=stack.enter_context(counter("translate", shown=not on_terminal)),
            trace=bool(args.trace or args.html),
            split=args.split,
        )
        number = passes = 0
        for chunk in chunks:
            for line in chunk:
                for text, result in line.sentences:
                    _show_steps(args, text, result, traces)
                if add is not None:
                    add(line)
                text = line.translation.text.replace("\n", " ")  # one line for each text, also for a TEXT of several
                row = json.dumps(translation_row(line), ensure_ascii=False) if args.jsonl else text
                out.write((without_controls(row) if on_terminal else row) + "\n")
                number, passes = number + 1, passes + line.translation.passes
            out.flush()
        results |= {"lines": number, "passes": passes / max(1, number)}
    if args.html:
        if number > len(traces) == _SHOWN:
            warn(f"{args.html} shows the first {_SHOWN:,} translations")
        write_text(args.html, render_html(traces))


def _check_streams(args: argparse.Namespace) -> None:
    """Check that there is one source of text and a place for the results."""
    ways = {"TEXT": args.texts, "--input": args.input, "--interactive": args.interactive}
    given = [name for name, value in ways.items() if value]
    if len(given) > 1:
        raise PadirError(f"give one of {' and '.join(given)}: sentences come from one place")
    for name in filter(os.path.isfile, args.texts):
        warn(f"{name!r} is translated as a sentence, and there is a file of this name: --input translates its lines")
    if (sys.stdin is None and not args.input and not args.texts) or (sys.stdout is None and not args.output):
        raise PadirError("standard input or output is closed: give --input FILE and --output FILE")
    if "" in (args.input, args.output):
        raise PadirError('--input and --output take the name of a file, got ""')
    files = [path for path in (args.input, args.output) if path and os.path.isfile(path)]
    if len(files) == 2 and os.path.samefile(*files):
        raise PadirError(f"--output {args.output} would replace the file of --input: give another file")
    if args.n_best and not (args.json or args.jsonl):
        raise PadirError("--n_best lists candidates in JSON: give --jsonl, or --json FILE")


def _source(
    args: argparse.Namespace, stack: contextlib.ExitStack, language: str
) -> tuple[Iterable[str], Callable[[], bool]]:
    """The lines to translate, and a function that tells whether the next one is there."""
    if args.texts:
        return args.texts, lambda: True
    if args.interactive:
        return _typed(language), lambda: False
    if args.input:
        file: Any = stack.enter_context(open_bytes(args.input, f"--input {args.input}"))
    else:
        file = sys.stdin.buffer
        if file.isatty():
            tell("padir: type sentences, one a line; Ctrl-D ends")
    if isinstance(file, gzip.GzipFile) or stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return lines(file, warn), lambda: True
    timed = TimedReader(file)
    return lines(timed, warn), lambda: timed.ready(_IDLE)


def _typed(language: str) -> Iterator[str]:
    """Lines that a user types after a prompt, with the line editing of the terminal."""
    with contextlib.suppress(ImportError):  # not on every system
        import readline  # noqa: F401
    sys.stdin.reconfigure(errors="replace")  # pyright: ignore
    prompt, on_terminal = f"{language}> ", sys.stdout is not None and sys.stdout.isatty()
    try:
        while True:
            if not on_terminal:  # translations go elsewhere, and without the prompt
                print(prompt, end="", file=sys.stderr, flush=True)
            yield input(prompt if on_terminal else "")
    except EOFError:
        print(file=sys.stderr)  # what follows begins a line


def _standard_output() -> Any:
    out: Any = sys.stdout
    out.reconfigure(encoding="utf-8", newline="\n")
    return out


def _show_steps(args: argparse.Namespace, source: str, result: Translation, traces: list[Trace]) -> None:
    """Print a translation's steps for --trace, and keep the first translations for --html."""
    if not result.trace or not (args.trace or len(traces) < _SHOWN):
        return
    trace = Trace(source, tuple(Step(pieces, log_probs) for pieces, log_probs in result.trace), result.text)
    if args.trace:
        print(render_text(trace), file=sys.stderr)
    if args.html and len(traces) < _SHOWN:
        traces.append(trace)


def add_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="DIR", help="a model from `padir train`")
    step_option(parser)
    mode_option(parser)
    parser.add_argument("--source", required=True, metavar="FILE", help="sources, one sentence a line")
    parser.add_argument("--target", required=True, metavar="FILE", help="translations of the sources")
    parser.set_defaults(precision=None)
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
    translator = load_model(args, sharding, step=args.step)
    check_options(args, translator.card.config)
    results = score_pairs(translator, read_lines(args.source), read_lines(args.target), decoding)
    text = "".join(f"{r.log_prob:.4f}\t{r.tokens}\t{r.mean:.4f}\n" for r in results)
    if args.output:
        write_text(args.output, text)
    else:
        print(text, end="")
    return summary(results)

"""`padir translate`, `padir score` and `padir serve`: translate text, score given translations, serve a model."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from padir.cli.arguments import (
    chosen,
    given,
    load_model,
    load_with_options,
    sharding_of,
)
from padir.cli.console import read_lines, tell, warn, without_controls
from padir.constrained.terms import read_terms
from padir.data.kinds import check_lines
from padir.decoding.translation import Translation
from padir.errors import PadirError
from padir.reporting.patience import progress_bar
from padir.reporting.trace import Trace, render_html, render_text
from padir.storage.files import atomic_file, write_text
from padir.streaming import lines, translate_lines, translation_row, translations_json
from padir.text.lines import TimedReader, open_bytes

_SHOWN = 1_000  # maximum number of translations on the page of --html, for the sake of browsers and of memory
_IDLE = 0.1  # seconds without a further line after which the lines read so far are translated


def run_translate(args: argparse.Namespace) -> None:
    _check_streams(args)
    translator, decoding = load_with_options(args, sharding_of(args))
    traces: list[Trace] = []
    with contextlib.ExitStack() as stack:
        source, ready = _source(args, stack, translator.card.source_language)
        if args.output:
            out: Any = stack.enter_context(atomic_file(args.output))
        else:
            out = sys.stdout
            out.reconfigure(encoding="utf-8", newline="\n")
        add, results = stack.enter_context(translations_json(args.json)) if args.json else (None, {})
        on_terminal = not args.output and out.isatty()
        chunks = translate_lines(
            translator,
            source,
            decoding,
            warn=warn,
            ready=ready,
            progress=stack.enter_context(progress_bar("translate", None, "lines", show=not on_terminal)),
            split=args.split,
            trace=bool(args.trace or args.html),
            template=args.template,
            terms=read_terms(args.terms) if args.terms else None,
            align=args.align,
        )
        number = passes = traced = 0
        for chunk in chunks:
            for line in chunk:
                for text, result in line.sentences:
                    traced += bool(result.trace)
                    _show_steps(args, text, result, traces)
                if add is not None:
                    add(line)
                text = line.translation.text.replace("\n", " ")  # one line for each text, also for a TEXT of several
                row = json.dumps(translation_row(line), ensure_ascii=False) if args.jsonl else text
                out.write((without_controls(row) if on_terminal else row) + "\n")
                number, passes = number + 1, passes + line.translation.passes
            out.flush()
        results |= {"lines": number, "passes": passes / max(1, number)}
    if (args.trace or args.html) and not traced:
        warn("no translation has steps: the lines are empty, or the writer keeps none")
    if args.html:
        if traced > len(traces):
            warn(f"{args.html} shows the first {_SHOWN:,} translations")
        write_text(args.html, render_html(traces))


def _check_streams(args: argparse.Namespace) -> None:
    """Check that there is one source of text and a place for the results."""
    if args.texts and args.input:
        raise PadirError("give TEXT or --input, not both")
    for name in filter(os.path.isfile, args.texts):
        warn(f"{name!r} is translated as a sentence, and there is a file of this name: --input translates its lines")
    if (sys.stdin is None and not args.input and not args.texts) or (sys.stdout is None and not args.output):
        raise PadirError("standard input or output is closed: give --input FILE and --output FILE")
    if "" in (args.input, args.output):
        raise PadirError('--input and --output take the name of a file, got ""')
    if not (args.json or args.jsonl):
        for name, what in {"align": "writes the links of words", "n_best": "lists candidates"}.items():
            if getattr(args, name):
                raise PadirError(f"--{name} {what} in JSON: give --jsonl, or --json FILE")


def _source(
    args: argparse.Namespace, stack: contextlib.ExitStack, language: str
) -> tuple[Iterable[str], Callable[[], bool]]:
    """The lines to translate, and a function that says whether the next line is there."""
    if args.texts:
        return args.texts, lambda: True
    if args.input:
        file: Any = stack.enter_context(open_bytes(args.input, f"--input {args.input}"))
    else:
        file = sys.stdin.buffer
        if file.isatty():
            tell("padir: type sentences, one a line; Ctrl-D ends")
            return _typed(language), lambda: False
    if (args.input and file.kind) or stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        check_lines(file, Path(args.input or ""), f"--input {args.input}" if args.input else "standard input")
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


def _show_steps(args: argparse.Namespace, source: str, result: Translation, traces: list[Trace]) -> None:
    """Print a translation's steps for --trace, and keep the first translations for --html."""
    if not result.trace or not (args.trace or len(traces) < _SHOWN):
        return
    trace = Trace(source, result.trace, result.text)
    if args.trace:
        left_out = f"\nleft out: {result.broken} characters whose bytes are no text" if result.broken else ""
        print(render_text(trace) + left_out, file=sys.stderr)
    if args.html and len(traces) < _SHOWN:
        traces.append(trace)


def run_score(args: argparse.Namespace) -> dict[str, Any]:
    translator = load_model(args, sharding_of(args))
    results = translator.score(read_lines(args.input), read_lines(args.target), **given(args, "batch_size"))
    text = "".join(f"{r.log_prob:.4f}\t{r.tokens}\t{r.mean:.4f}\n" for r in results)
    if args.output:
        write_text(args.output, text)
    else:
        print(text, end="")
    log_prob, tokens = sum(r.log_prob for r in results), sum(r.tokens for r in results)
    return {"pairs": len(results), "tokens": tokens, "mean": log_prob / max(1, tokens)}


def run_serve(args: argparse.Namespace) -> dict[str, Any]:
    try:
        from padir.serve.engine import Engine
        from padir.serve.messages import Limits
        from padir.serve.server import serve
    except ModuleNotFoundError as error:
        raise PadirError(
            f"serving needs the package {error.name}: install the extra (pip install 'padir[serve]')"
        ) from None

    limits = Limits(**chosen(args, "padir.serve.messages:Limits"))
    translator, decoding = load_with_options(args, counted=False)
    return serve(
        Engine(translator, decoding, limits, **chosen(args, "padir.serve.engine:Engine")),
        Path(args.model).name,
        host=args.host,
        port=args.port,
        tell=lambda text: tell(f"padir: {text}"),
        **chosen(args, "padir.serve.server:serve"),
    )

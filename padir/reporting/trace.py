"""Traces of decoding runs: the canvas after every step, as text for a terminal or as an HTML page."""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from padir.reporting.page import STYLE, page

SPACE = "\u2581"  # SentencePiece's sign for a space; it stands at the beginning of a piece


class Step(NamedTuple):
    """The canvas after one step.

    Attributes:
      pieces: L SentencePiece pieces, with U+2581 for a space.
      log_probs: natural log-probability of each piece when it was last written; None where nothing was written, as for
        EOS and hidden positions; not shown for step 0.
    """

    pieces: tuple[str, ...]
    log_probs: tuple[float | None, ...]


def step_of(pieces: Sequence[str], tokens: Iterable[Any], scores: Iterable[Any]) -> Step:
    """The step of a canvas, whose scores are NaN where nothing was written; `pieces` are those of all ids."""
    log_probs = (None if math.isnan(score) else float(score) for score in scores)
    return Step(tuple(pieces[int(i)] for i in tokens), tuple(log_probs))


@dataclasses.dataclass(frozen=True)
class Trace:
    """The translation of one sentence, step by step.

    Attributes:
      source: the source text; "" omits it from the page.
      steps: the first canvas (step 0, noise) and the canvas after each step, all of L pieces.
      output: the text of the last canvas.
    """

    source: str
    steps: tuple[Step, ...]
    output: str

    def changed(self, step: int) -> tuple[bool, ...]:
        """True for each of the L pieces that differs from the step before; all False at step 0."""
        before = self.steps[max(step - 1, 0)].pieces
        after = self.steps[step].pieces
        return tuple(old != new for old, new in zip(before, after, strict=True))

    def _repr_html_(self) -> str:
        """The page of `render_html` in a frame for notebooks, which isolates its style sheet."""
        height = 220 + 40 * len(self.steps)  # pixels
        return (
            f'<iframe srcdoc="{html.escape(render_html([self]), quote=True)}" title="every step"'
            f' style="width: 100%; height: {height}px; border: 0"></iframe>'
        )


def render_text(trace: Trace) -> str:
    """The trace as lines for a terminal, with brackets around changes since the step before.

    >>> steps = Step(("▁cup", "the", "▁is"), (0.0,) * 3), Step(("▁A", "▁cat", "▁sat"), (-0.1,) * 3)
    >>> steps += (Step(("▁The", "▁cat", "▁sat"), (-0.1,) * 3),)
    >>> print(render_text(Trace("Die Katze saß", steps, "The cat sat")))
    source  Die Katze saß
    step 0  cupthe is
    step 1  [A cat sat]
    step 2  [The] cat sat
    output  The cat sat
    """
    lines = [("source", printable(trace.source))]
    for step, canvas in enumerate(trace.steps):
        lines.append((f"step {step}", _bracketed(canvas.pieces, trace.changed(step))))
    lines.append(("output", printable(trace.output)))
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"{label:<{width}}  {text}".rstrip() for label, text in lines)


def render_html(traces: Sequence[Trace]) -> str:
    """An HTML page of traces in one file without script or network; light or dark by the system's setting.

    Pieces that changed since the step before are shaded. Pieces of low probability are underlined, more strongly for
    lower probabilities. Hovering over a piece shows its probability and the piece that it replaced.
    """
    count = "1 sentence" if len(traces) == 1 else f"{len(traces)} sentences"
    articles = "\n".join(_article(number, trace) for number, trace in enumerate(traces, start=1))
    header = f"""<h1>{count}, step by step</h1>
<p>Each line is the whole draft after one step; step 0 is the noise that decoding starts from.</p>
<p><span class="legend"><span class="piece changed">shaded</span> changed in this step</span>
<span class="legend"><span class="piece" style="--doubt:90%">underlined</span> the model was unsure</span></p>"""
    return page(f"padir: {count}, step by step", f"{STYLE}\n", header, articles)


def _article(number: int, trace: Trace) -> str:
    rows = [_row("source", "source", _escape(trace.source))] if trace.source else []
    rows += [_step_row(trace, step) for step in range(len(trace.steps))]
    rows.append(_row("output", "output", _escape(trace.output)))
    return f'<article id="sentence-{number}">\n<h2>{number}</h2>\n<dl>\n' + "\n".join(rows) + "\n</dl>\n</article>"


def _row(kind: str, label: str, content: str, note: str = "") -> str:
    # dir="auto" lays out Arabic or Hebrew from right to left and keeps its marks from reordering the rest of the page.
    aside = f'<dd class="note">{note}</dd>' if note else ""
    return f'<div class="{kind}"><dt>{label}</dt><dd dir="auto">{content}</dd>{aside}</div>'


def _step_row(trace: Trace, step: int) -> str:
    canvas = trace.steps[step]
    changed = trace.changed(step)
    if step == 0:
        spans = [_span(piece, "", "") for piece in canvas.pieces]
        return _row("canvas", "step 0", _joined(spans), "start")
    before = trace.steps[step - 1].pieces
    spans = []
    for piece, log_prob, is_new, old in zip(canvas.pieces, canvas.log_probs, changed, before, strict=True):
        notes = [f"was {_visible(old)}"] if is_new else []
        probability = 1.0
        if log_prob is not None:
            probability = math.exp(min(0.0, log_prob))  # a log-softmax in low precision may round above 0
            notes.insert(0, f"probability {probability:.2f}")
        # Probabilities above 0.9 leave no line: a faint mark under every word would carry no information.
        doubt = round(100 * max(0.0, 0.9 - probability) / 0.9)
        spans.append(_span(piece, ", ".join(notes), f"--doubt:{doubt}%" if doubt else "", is_new))
    note = f"{sum(changed)} of {len(changed)} changed" if any(changed) else "no change"
    return _row("step", f"step {step}", _joined(spans), note)


def _span(piece: str, title: str, style: str, is_new: bool = False) -> tuple[str, str]:
    """(space before a piece, HTML of the piece). A piece that is only a space shows U+2581."""
    shown = piece.removeprefix(SPACE)
    attributes = f' class="piece{" changed" if is_new else ""}"'
    attributes += f' title="{_escape(title)}"' if title else ""
    attributes += f' style="{style}"' if style else ""
    space = " " if piece.startswith(SPACE) else ""
    return space, f"<span{attributes}>{_escape(shown.replace(SPACE, ' ')) or SPACE}</span>"


def _joined(spans: list[tuple[str, str]]) -> str:
    return "".join(space + span for space, span in spans).strip()


def _bracketed(pieces: Sequence[str], changed: Sequence[bool]) -> str:
    out = []
    for is_new, run in itertools.groupby(zip(pieces, changed, strict=True), key=lambda pair: pair[1]):
        text = "".join(piece for piece, _ in run)
        if is_new:
            bare = text.removeprefix(SPACE)
            space = " " if text.startswith(SPACE) else ""
            out.append(f"{space}[{bare.replace(SPACE, ' ') or SPACE}]")
        else:
            out.append(text.replace(SPACE, " "))
    return printable("".join(out).strip())


def _visible(piece: str) -> str:
    return f"“{piece.replace(SPACE, ' ').strip() or SPACE}”"


def printable(text: str) -> str:
    """Text for a terminal: control characters (which a terminal would obey), line ends and surrogates become U+FFFD.

    >>> printable("a\\tb\\x1b[2J")
    'a b�[2J'
    """
    return "".join(
        " " if sign == "\t" else "\ufffd" if unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") else sign
        for sign in text
    )


def _escape(text: str) -> str:
    return html.escape(printable(text), quote=True)

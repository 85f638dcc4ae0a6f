"""Draws how the shipped model refines a sentence: docs/steps.svg, the picture of the README.

python scripts/steps_picture.py "Wenn es morgen regnet, bleiben wir zu Hause."
"""

import argparse
import html
from pathlib import Path

import padir
from padir.reporting.trace import SPACE

ROOT = Path(__file__).resolve().parent.parent
CHARACTER, LINE, LEFT = 9.03, 30, 112  # pixels: a character of 15-pixel monospace, a line, where the text begins
STYLE = """
text { font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328;
  white-space: pre; }
.label, .noise { fill: #6a7078; } .output { fill: #1d6f5c; font-weight: 600; }
.paper { fill: #fbfaf7; stroke: #e4e1d9; } .new { fill: #ffe6a6; }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e6ea; } .label, .noise { fill: #949ba6; } .output { fill: #6fd3b8; }
  .paper { fill: #14161a; stroke: #2d323b; } .new { fill: #5a4410; }
}
"""


def picture(source: str, translation: padir.Translation) -> str:
    """The source, the draft after each step with its new pieces shaded, and the translation, as SVG."""
    steps = [pieces[:-1] for pieces, _ in translation.trace or ()]  # without EOS
    steps = steps[: translation.passes + 1]
    parts = [_line(0, "source", source, "")]
    for step, pieces in enumerate(steps):
        y, x = (step + 1) * LINE, LEFT
        before = steps[max(step - 1, 0)]
        for i, (old, new) in enumerate(zip(before, pieces, strict=True)):
            shown = new.replace(SPACE, " ") if i else new.replace(SPACE, "")
            width = CHARACTER * len(shown)
            space = CHARACTER * (len(shown) - len(shown.lstrip()))
            if old != new:
                box = f'x="{x + space:.1f}" y="{y + 9}" width="{width - space:.1f}" height="{LINE - 6}" rx="3"'
                parts.append(f'<rect class="new" {box}/>')
            x += width
        text = "".join(pieces).replace(SPACE, " ").strip()
        parts.append(_line(y, f"step {step}" if step else "noise", text, "" if step else "noise"))
    parts.append(_line((len(steps) + 1) * LINE, "output", translation.text, "output"))
    longest = max(len("".join(pieces)) for pieces in [*steps, (source,)])
    width, height = LEFT + CHARACTER * longest + 24, (len(steps) + 2) * LINE + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}"'
        f' height="{height}" role="img"><title>How padir translates “{html.escape(source)}”</title>'
        f"<style>{STYLE}</style>"
        f'<rect class="paper" x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1}" rx="9"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )


def _line(y: float, label: str, text: str, kind: str) -> str:
    """A line of text with its label; textLength holds it to the width that the shades are drawn for."""
    length = f'textLength="{CHARACTER * len(text):.1f}"'
    return (
        f'<text class="label" x="20" y="{y + 26}">{label}</text>'
        f'<text class="{kind}" x="{LEFT}" y="{y + 26}" {length}>{html.escape(text)}</text>'
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="a German sentence")
    parser.add_argument("--output", default=ROOT / "docs" / "steps.svg", type=Path, help="where the picture goes")
    args = parser.parse_args()
    five = padir.Decoding(mode="refine", num_steps=4, top_k=5, adjacent=True)
    (result,) = padir.Translator.load().translate([args.source], five, trace=True)
    args.output.write_text(picture(args.source, result))
    print(result.text)

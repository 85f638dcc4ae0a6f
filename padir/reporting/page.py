"""HTML pages that are complete in one file, with system fonts only: their style sheet, and tables and pictures."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any

STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #fbfaf7; --card: #ffffff; --ink: #1f2328; --quiet: #6a7078; --rule: #e4e1d9;
  --shade: #ffe6a6; --shade-ink: #3d2c00; --doubt-line: #d1453b; --accent: #1d6f5c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14161a; --card: #1c1f25; --ink: #e4e6ea; --quiet: #949ba6; --rule: #2d323b;
    --shade: #5a4410; --shade-ink: #ffe9b8; --doubt-line: #ff7a6e; --accent: #6fd3b8;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 62rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.65 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { color: var(--ink); margin: 0 0 .25rem; font-size: 1.5rem; line-height: 1.25; letter-spacing: -.01em; }
header { margin-bottom: 2rem; color: var(--quiet); }
header p { margin: 0; }
.legend { white-space: nowrap; margin-right: .9rem; }
.legend .piece { color: var(--ink); }
article {
  position: relative; margin: 0 0 1.5rem; padding: .5rem 0;
  background: var(--card); border: 1px solid var(--rule); border-radius: .6rem;
}
h2 {
  position: absolute; top: .95rem; left: -2.4rem; width: 1.8rem; margin: 0;
  color: var(--quiet); font-size: .85rem; font-weight: 500; text-align: right; font-variant-numeric: tabular-nums;
}
dl { margin: 0; }
dl > div { display: grid; grid-template-columns: 5rem 1fr 7.5rem; gap: 0 1rem; padding: .3rem 1.25rem; }
dt, .note { color: var(--quiet); font-size: .8rem; line-height: 1.65rem; font-variant-numeric: tabular-nums; }
dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
dl > div > dd:only-of-type { grid-column: 2 / -1; }
.note { text-align: right; white-space: nowrap; }
.source dd, .output dd { font-size: 1.08rem; }
.source { padding-bottom: .6rem; margin-bottom: .35rem; border-bottom: 1px solid var(--rule); }
.output { padding-top: .6rem; margin-top: .35rem; border-top: 1px solid var(--rule); }
.output dt, .output dd:not(.note) { color: var(--accent); font-weight: 600; }
.canvas dd:not(.note) { color: var(--quiet); font-size: .85rem; }
.reference dd { color: var(--quiet); }
.piece {
  padding: .1em 0; border-radius: .2em;
  text-decoration: underline solid color-mix(in srgb, var(--doubt-line) var(--doubt, 0%), transparent) 2px;
  text-underline-offset: .22em; text-decoration-skip-ink: none;
}
.changed { background: var(--shade); color: var(--shade-ink); padding: .1em .12em; margin: 0 -.06em; }
@media (max-width: 68rem) { h2 { position: static; padding: 0 1.25rem; text-align: left; } }
@media (max-width: 40rem) {
  dl > div { grid-template-columns: 1fr auto; }
  dl > div > dd:first-of-type { grid-row: 2; grid-column: 1 / -1; }
}
@media print { body { background: none; } article { break-inside: avoid; } .changed { print-color-adjust: exact; } }
"""

_MORE = """\
main { display: block; }
section { margin: 0 0 2.5rem; }
section h2 { position: static; width: auto; text-align: left; font-size: 1.15rem; font-weight: 600; color: var(--ink); }
section p { margin: .4rem 0 1rem; max-width: 46rem; }
figure { margin: 1rem 0; padding: .75rem; background: #ffffff; border: 1px solid var(--rule); border-radius: .6rem; }
figure img { display: block; max-width: 100%; margin: 0 auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--quiet); font-weight: 500; }
"""


@dataclasses.dataclass(frozen=True)
class Section:
    """A titled part of a page.

    Attributes:
      title: the heading.
      text: a paragraph on how to read the pictures and the table.
      pictures: PNG files by name; the names are also their alternative texts.
      rows: the rows of a table, by column name; None for no table.
    """

    title: str
    text: str
    pictures: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    rows: Sequence[Mapping[str, Any]] | None = None


def render(title: str, about: Mapping[str, Any], sections: Sequence[Section]) -> str:
    """An HTML page with a title, a line of facts about it, and the sections.

    >>> "<h2>Steps</h2>" in render("A run", {"seed": 0}, [Section("Steps", "One row a step.", rows=[{"step": 1}])])
    True
    """
    facts = ", ".join(f"{_escape(name.replace('_', ' '))}: {_escape(cell(value))}" for name, value in about.items())
    body = "\n".join(_section(section) for section in sections)
    header = f"<h1>{_escape(title)}</h1>\n<p>{facts}</p>"
    return page(_escape(title), STYLE + _MORE, header, body)


def cell(value: Any) -> str:
    """The text of a table's cell: numbers with three digits, "-" for None and NaN.

    >>> cell(0.12345), cell(12.345), cell(None)
    ('0.123', '12.35', '-')
    """
    if isinstance(value, float):
        return "-" if value != value else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {cell(each)}" for name, each in value.items())
    return "-" if value is None else str(value)


def page(title: str, style: str, header: str, main: str) -> str:
    """A complete HTML page; `title`, `header` and `main` are HTML already."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
{header}
</header>
<main>
{main}
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    parts = [f"<h2>{_escape(section.title)}</h2>", f"<p>{_escape(section.text)}</p>"]
    for name, picture in section.pictures.items():
        data = base64.b64encode(picture).decode()
        parts.append(f'<figure><img alt="{_escape(name)}" src="data:image/png;base64,{data}"></figure>')
    if section.rows:
        names = list(dict.fromkeys(name for row in section.rows for name in row))
        head = "".join(f"<th>{_escape(name.replace('_', ' '))}</th>" for name in names)
        lines = "\n".join(
            f"<tr>{''.join(f'<td>{_escape(cell(row.get(name)))}</td>' for name in names)}</tr>" for row in section.rows
        )
        parts.append(f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{lines}</tbody></table></div>')
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def _escape(text: str) -> str:
    return html.escape(text, quote=True)

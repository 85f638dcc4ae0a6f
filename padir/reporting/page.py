"""HTML pages of tables and pictures, complete in one file: no script, no network."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any

from padir.reporting.trace_style import STYLE, page

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

"""HTML pages that are complete in one file, with system fonts only: their style sheet, and tables and pictures."""

from __future__ import annotations

import base64
import dataclasses
import html
import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Any

_FILES = importlib.resources.files("padir.reporting")
STYLE = (_FILES / "page.css").read_text(encoding="utf-8")
_TABLES = (_FILES / "tables.css").read_text(encoding="utf-8")


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
    return page(_escape(title), STYLE + _TABLES, header, body)


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

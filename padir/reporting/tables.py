"""Tables in Markdown and on the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import rich.console
import rich.table
import rich.text

from padir.reporting.trace import printable


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]], words: Collection[str]) -> str:
    """Format a table in Markdown; columns named in `words` are aligned to the left, all others (numbers) to the right.

    >>> print(markdown(["model", "BLEU"], [["a|b", "31.2"]], words=["model"]), end="")
    | model | BLEU |
    | --- | ---: |
    | a\\|b | 31.2 |
    """
    rule = ["---" if column in words else "---:" for column in columns]
    return "".join("| " + " | ".join(c.replace("|", "\\|") for c in line) + " |\n" for line in (columns, rule, *lines))


def show(title: str, columns: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a table on the terminal, wider than the terminal if necessary: a line that wraps can still be read."""
    table = rich.table.Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(*(rich.text.Text(printable(cell)) for cell in line))
    width = rich.console.Console(width=10_000).measure(table).maximum
    rich.console.Console(width=max(width, rich.console.Console().width)).print(table)

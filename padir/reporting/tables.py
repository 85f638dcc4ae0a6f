"""Tables in Markdown and on the terminal, and plots with matplotlib.

matplotlib comes with the extra `plot`; it is imported only when something is drawn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import rich.console
import rich.table
import rich.text

from padir.errors import PadirError
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


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # also distinct to the colour-blind


def require_matplotlib() -> None:
    """Checks that plots can be drawn; called before the work whose results are plotted.

    Raises:
      PadirError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise PadirError("plots need matplotlib: pip install 'padir[plot]'") from None


@contextlib.contextmanager
def styled_figure(**style: Any) -> Iterator[Any]:
    """A new matplotlib figure to draw and save within the context; `style` has rc parameters such as font_size=9."""
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    chosen: dict[Any, Any] = {name.replace("_", "."): value for name, value in style.items()}
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False, **chosen}):
        yield Figure(layout="constrained")

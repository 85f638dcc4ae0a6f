"""Messages, tables and progress that commands print."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import rich.console
import rich.progress

from padir.data.manifest import PreparedManifest
from padir.decoding.streaming import lines
from padir.reporting import tables
from padir.reporting.trace import printable
from padir.text.lines import open_bytes


def tell(message: str) -> None:
    """Print a message on stderr."""
    print(without_controls(message), file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Print a warning on stderr."""
    print(f"padir: warning: {without_controls(message)}", file=sys.stderr)


def without_controls(text: str) -> str:
    """Replace control characters, which a terminal would obey, in every line of a text."""
    return "\n".join(map(printable, text.split("\n")))


def own_words(message: str) -> str:
    """Remove the call names that gin appends to an error message."""
    return message.split("\n  In call to configurable")[0]


def read_lines(path: str) -> list[str]:
    """Read all lines of a file, as `padir translate` does."""
    with open_bytes(path) as file:
        return list(lines(file, warn, path))


def print_splits(title: str, manifest: PreparedManifest) -> None:
    """Print the size of every split of a prepared folder."""
    rows = [
        [split, f"{info.read:,}", f"{info.written:,}", f"{info.target_tokens:,}", _dropped(split, info.dropped)]
        for split, info in manifest.splits.items()
    ]
    tables.show(title, ["split", "pairs read", "written", "target tokens", "dropped"], rows)


def _dropped(split: str, dropped: dict[str, int]) -> str:
    """Number of dropped pairs by reason.

    Validation and test splits leave these pairs out of their records only, and keep them in their text.
    """
    counts = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    if split == "train" or not counts:
        return counts or "none"
    return f"none (kept in the text but not in the records: {counts})"


@contextlib.contextmanager
def counter(label: str, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Count lines on stderr if stderr is a terminal; yields a function to call with each number of new lines.

    Args:
      shown: False if the results go to the same terminal; then nothing is counted.
    """
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(
        rich.progress.TextColumn(label),
        rich.progress.TextColumn("{task.completed:,} lines"),
        rich.progress.TimeElapsedColumn(),
        console=console,
        disable=not (shown and console.is_terminal),
        transient=True,
    ) as bar:
        task = bar.add_task(label, total=None)
        yield lambda count: bar.advance(task, count)

"""What commands say to whoever runs them."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from padir.data.manifest import PreparedManifest


def warn(message: str) -> None:
    """Says on stderr what is odd but stops nothing."""
    print(f"padir: warning: {message}", file=sys.stderr)


def own_words(message: str) -> str:
    """A message without the calls that gin appends to it."""
    return message.split("\n  In call to configurable")[0]


def lines_of(path: str) -> list[str]:
    """A file's lines, as `padir translate` reads them."""
    from padir.decoding.streaming import lines
    from padir.text.lines import open_bytes

    with open_bytes(path) as file:
        return list(lines(file, warn, path))


def print_splits(title: str, manifest: PreparedManifest) -> None:
    """Prints the table of a prepared folder's splits."""
    from padir.reporting import tables

    rows = [
        [split, f"{info.read:,}", f"{info.written:,}", f"{info.target_tokens:,}", _counts(info.dropped)]
        for split, info in manifest.splits.items()
    ]
    tables.show(title, ["split", "pairs read", "written", "target tokens", "dropped"], rows)


def _counts(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count) or "none"


def counter(label: str) -> Any:
    """A context that gives a function which counts lines on stderr, where that is a terminal."""
    import rich.console
    import rich.progress

    @contextlib.contextmanager
    def counting():
        console = rich.console.Console(stderr=True)
        with rich.progress.Progress(
            rich.progress.TextColumn(label),
            rich.progress.TextColumn("{task.completed:,} lines"),
            rich.progress.TextColumn("{task.speed}"),
            console=console,
            disable=not console.is_terminal or sys.stdout.isatty(),
            transient=True,
        ) as bar:
            task = bar.add_task(label, total=None)
            yield lambda count: bar.advance(task, count)

    return counting()

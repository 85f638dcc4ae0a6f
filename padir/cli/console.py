"""Messages and tables that commands print."""

from __future__ import annotations

import collections
import contextlib
import logging
import re
import sys
from pathlib import Path

from padir.data.kinds import check_lines
from padir.data.prepared import PreparedManifest
from padir.reporting import tables
from padir.reporting.trace import printable
from padir.streaming import lines
from padir.text.lines import open_bytes

_warned: collections.Counter[str] = collections.Counter()  # warnings of the command by kind


class _Stderr(logging.Handler):
    """Prints what the library logs, as messages of padir."""

    def emit(self, record: logging.LogRecord) -> None:
        kind = "warning: " if record.levelno >= logging.WARNING else ""
        kind += "" if record.name == "padir" else f"{record.name}: "
        with contextlib.suppress(OSError):  # the terminal is gone
            print(f"padir: {kind}{without_controls(self.format(record))}", file=sys.stderr, flush=True)


def log_to_stderr() -> None:
    """Show on stderr what the library logs, and what SacreBLEU warns of."""
    _warned.clear()
    for name, level in (("padir", logging.INFO), ("sacrebleu", logging.WARNING)):
        logger = logging.getLogger(name)
        if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
            logger.addHandler(_Stderr(level))
            logger.setLevel(level)


def tell(message: str) -> None:
    """Print a message on stderr."""
    print(without_controls(message), file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Print a warning on stderr; of warnings with equal text but other numbers, the first 3, 10th, 100th, ...

    So input that is no text causes a few warnings, and not one for each of its lines.
    """
    kind = re.sub(r"\d+|'.*'", "", message)
    _warned[kind] += 1
    count = _warned[kind]
    if count <= 3 or re.fullmatch("10+", str(count)):
        more = "" if count < 3 else f" ({count:,} such warnings so far; further ones are counted, most are not shown)"
        print(f"padir: warning: {without_controls(message)}{more}", file=sys.stderr)


def without_controls(text: str) -> str:
    """Replace control characters, which a terminal would obey, in every line of a text."""
    return "\n".join(map(printable, text.split("\n")))


def read_lines(path: str) -> list[str]:
    """Read all lines of a file, as `padir translate` does."""
    with open_bytes(path) as file:
        check_lines(file, Path(path), path)
        return list(lines(file, warn, path))


def print_splits(title: str, manifest: PreparedManifest) -> None:
    """Print the size of every split of a prepared folder, and of the corpora that it is made of."""
    rows = []
    for split, info in manifest.splits.items():
        rows.append([split, f"{info.read:,}", f"{info.written:,}", f"{info.target_tokens:,}"])
        rows[-1].append(_dropped(split, info.dropped))
        if len(info.corpora) > 1:
            rows += [[f"  {name}", f"{n['read']:,}", f"{n['written']:,}", "", ""] for name, n in info.corpora.items()]
    tables.show(title, ["split", "pairs read", "written", "target tokens", "dropped"], rows)


def _dropped(split: str, dropped: dict[str, int]) -> str:
    """Number of dropped pairs by reason.

    In validation and test splits, these pairs have no records, but their text is kept.
    """
    counts = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items() if count)
    if split == "train" or not counts:
        return counts or "none"
    return f"none (kept in the text but not in the records: {counts})"

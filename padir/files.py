"""Files that get their name when they are whole."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def whole(path: str | os.PathLike[str], *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file that gets its name when it is whole, and is not left behind otherwise; a pipe or device as it is.

    Its folder is made if need be. Text is UTF-8 with LF line ends.
    """
    final = Path(os.path.realpath(path))
    how: dict[str, Any] = {"mode": "wb"} if binary else {"mode": "w", "encoding": "utf-8", "newline": "\n"}
    if final.exists() and not final.is_file():
        with final.open(**how) as file:
            yield file
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        with partial.open(**how) as file:
            yield file
        os.replace(partial, final)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with whole(path) as file:
        file.write(text)


def write_json(path: str | os.PathLike[str], figures: Any) -> None:
    """Figures as people read them: indented, and letters as they are."""
    write_text(path, json.dumps(figures, indent=1, ensure_ascii=False) + "\n")

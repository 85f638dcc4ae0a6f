"""Files and folders that get their name when they are whole, and files of folders that come from elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from padir.errors import PadirError


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


@contextlib.contextmanager
def whole_folder(folder: str | os.PathLike[str], kind: str, *, overwrite: bool) -> Iterator[Path]:
    """A folder that gets its name when it is whole, and is not left behind otherwise.

    Args:
      kind: the name of a file that only folders of this kind have: no others are replaced.
      overwrite: whether one of them may be.

    Raises:
      PadirError: there is something at that place.
    """
    final = Path(folder).resolve()
    unfinished, old = (final.with_name(f".{final.name}.{what}") for what in ("unfinished", "old"))
    if final.exists():
        empty = final.is_dir() and not any(final.iterdir())
        if not empty and not (final / kind).is_file():
            raise PadirError(f"{folder} is there and holds no {kind} of an earlier export: give another --output")
        if not empty and not overwrite:
            raise PadirError(f"{folder} holds an earlier export: give another --output, or --overwrite")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        shutil.rmtree(old, ignore_errors=True)
        if final.exists():
            final.rename(old)
        unfinished.rename(final)
    finally:
        if old.exists() and not final.exists():  # interrupted between the two
            old.rename(final)
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    with whole(path) as file:
        file.write(text)


def write_json(path: str | os.PathLike[str], figures: Any) -> None:
    """Figures as people read them: indented, and letters as they are."""
    write_text(path, json.dumps(figures, indent=1, ensure_ascii=False) + "\n")


def inside(folder: Path, name: str) -> Path:
    """The path of a file of a folder that somebody else may have made, by the name that the folder's manifest gives it.

    Raises:
      PadirError: it is no name of a file, or the file lies outside the folder, by its name or by a symbolic link.
    """
    try:
        path = folder / name
        if path.resolve().is_relative_to(folder.resolve()):
            return path
    except (OSError, RuntimeError, TypeError, ValueError):  # links in a circle, no string, a NUL, too long
        raise PadirError(f"{name!r} in {folder} is no file: restore the folder from a copy") from None
    raise PadirError(
        f"{folder} may only name its own files, got one outside its folder: {name!r}: put copies in the place of links,"
        " and use no folder that you do not trust"
    )


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
      PadirError: it is missing, or no JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise PadirError(f"cannot read {path} ({error.strerror or error}): restore the folder from a copy") from None
    except (ValueError, RecursionError):
        raise PadirError(f"{path} is damaged: restore the folder from a copy") from None

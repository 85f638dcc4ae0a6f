"""Files that get their name when they are whole, manifests that know their own sum, folders with one writer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from padir.errors import PadirError

LOCK = ".lock"
SEAL = "manifest_sha256"

_NO_ROOM = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room in your quota",
    errno.EFBIG: "raise the limit on a file's size (ulimit -f)",
}
_REMEDIES = _NO_ROOM | dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "give a folder that you may write to")


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Says what to do where the operating system lets no file or folder be written.

    What goes wrong with other files meanwhile passes as it is, and so does a closed pipe.

    Raises:
      PadirError: the disk is full, the folder is read-only, or something else is in the way of `path`.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not _concerns(error, Path(os.path.abspath(path))):
            raise
        raise cannot_write(path, error) from error


def cannot_write(path: str | os.PathLike[str], error: OSError) -> PadirError:
    remedy = _REMEDIES.get(error.errno or 0, "give another place")
    return PadirError(f"cannot write {path} ({error.strerror or error}): {remedy}")


def _concerns(error: OSError, path: Path) -> bool:
    """Whether an error is of `path`, of what lies in or above it, or of its partial file; a write has no name."""
    if not isinstance(error.filename, str | os.PathLike):
        return error.errno in _NO_ROOM
    named = Path(os.path.abspath(error.filename))
    if named in (path, *path.parents):
        return True
    return any(
        each == path or (each.parent == path.parent and each.name.startswith(f".{path.name}."))
        for each in (named, *named.parents)
    )


@contextlib.contextmanager
def only_writer(folder: Path, doing: str) -> Iterator[None]:
    """Holds the lock of a folder, a file in it, which the kernel releases when the process ends, however it ends.

    Args:
      doing: what is done in it: "trained in".

    Raises:
      PadirError: another process holds it, or the folder cannot be written to.
    """
    path = folder / LOCK
    with contextlib.ExitStack() as stack:
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("a+"))  # it stays: another file of that name would be another lock
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise PadirError(
                f"{folder} must be {doing} by one process at a time, got {holder} at it already: wait until it has"
                " ended, or give another folder"
            ) from None
        except OSError as error:
            print(
                f"padir: warning: {folder} cannot be locked ({error.strerror}): see that nothing else writes to it",
                file=sys.stderr,
            )
        with writing(path):  # for people: what counts is the lock
            file.truncate(0)
            file.write(f"process {os.getpid()} of {socket.gethostname()}\n")
            file.flush()
        yield


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest with the sum of what it says, so that a flipped bit in itself is noticed, too."""
    return {**manifest, SEAL: _sum(manifest)}


def seal_holds(manifest: dict[str, Any]) -> bool:
    return manifest.get(SEAL) == _sum(manifest)


def _sum(manifest: dict[str, Any]) -> str:
    said = {name: value for name, value in manifest.items() if name != SEAL}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def whole(path: str | os.PathLike[str], *, binary: bool = False) -> Iterator[IO[Any]]:
    """A file that gets its name when it is whole, and is not left behind otherwise; a pipe or device as it is.

    Its folder is made if need be. Text is UTF-8 with LF line ends.

    Raises:
      PadirError: it cannot be written (see `writing`).
    """
    with writing(os.path.realpath(path)), _whole(path, binary) as file:
        yield file


@contextlib.contextmanager
def _whole(path: str | os.PathLike[str], binary: bool) -> Iterator[IO[Any]]:
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

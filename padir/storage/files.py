"""Files that get their name when they are whole, manifests with their own sum, locks, files from elsewhere."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from padir.errors import PadirError

LOCK = ".lock"

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


def check_place(path: str | os.PathLike[str], *, file: bool) -> None:
    """Says before the work what writing a file there, or else a folder, would say after it; leaves nothing behind.

    Raises:
      PadirError: what `path` lies in, or will be made in, takes no files, or `path` is a folder and shall be a file.
    """
    if file and os.path.isdir(path):
        raise cannot_write(path, IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)))
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):  # a pipe or device
        return
    place = next(folder for folder in Path(os.path.realpath(path)).parents if folder.exists())
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise cannot_write(path, error) from error


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
    how: dict[str, Any] = {"mode": "wb"} if binary else {"mode": "w", "encoding": "utf-8", "newline": "\n"}
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, **how) as file:
            yield file
        return
    final = Path(os.path.realpath(path))
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
      PadirError: there is something at that place, or it cannot be written (see `writing`).
    """
    with writing(Path(folder).resolve()), _whole_folder(folder, kind, overwrite) as unfinished:
        yield unfinished


@contextlib.contextmanager
def _whole_folder(folder: str | os.PathLike[str], kind: str, overwrite: bool) -> Iterator[Path]:
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

    A link is followed within the folder, and from a snapshot in a cache of Hugging Face's hub to its own blobs.

    Raises:
      PadirError: it is no name of a file, or the file lies outside the folder, by its name or by a symbolic link.
    """
    try:
        path = folder / name
        home, file = folder.resolve(), path.resolve()
        if file.is_relative_to(home) or (path.parent == folder and file.parent == _blobs(home)):
            return path
    except (OSError, RuntimeError, TypeError, ValueError):  # links in a circle, no string, a NUL, too long
        raise PadirError(f"{name!r} in {folder} is no file: restore the folder from a copy") from None
    raise PadirError(
        f"{folder} may only name its own files, got one outside its folder: {name!r}: put copies in the place of links,"
        " and use no folder that you do not trust"
    )


def _blobs(home: Path) -> Path | None:
    """Where the files lie that a snapshot links to: models--NAME/snapshots/REVISION/x -> models--NAME/blobs/HASH."""
    repository = home.parent.parent
    known = home.parent.name == "snapshots" and repository.name.startswith(("models--", "datasets--"))
    return repository / "blobs" if known else None


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

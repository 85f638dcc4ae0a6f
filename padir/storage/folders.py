"""Atomic folders, and the lock that lets one process at a time write to a folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from padir.errors import PadirError
from padir.storage.files import beside, write_errors

LOCK = ".lock"
_LEFTOVER = re.compile(r"\.(.+)\.(\d{1,9})\.(partial|old)")  # see `files.beside`


@contextlib.contextmanager
def atomic_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a new folder to fill, which replaces `folder` when the `with` block ends, or is removed if it raises.

    Raises:
      PadirError: the folder cannot be written (see `write_errors`).
    """
    final = Path(folder).resolve()
    old = beside(final, "old")
    with write_errors(final), partial_folder(final) as partial:
        yield partial
        try:
            if final.exists():
                final.rename(old)
            partial.rename(final)
        finally:
            if old.exists() and not final.exists():  # interrupted between the two
                old.rename(final)
            shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def partial_folder(final: Path) -> Iterator[Path]:
    """Gives an empty folder beside `final`, removed at the end unless it was renamed."""
    remove_leftovers(final.parent, final.name)
    partial = beside(final, "partial")
    try:
        partial.mkdir(parents=True)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_leftovers(parent: Path, name: str | None = None) -> None:
    """Removes partial folders that killed processes left; a folder that one had set aside gets its name back.

    Args:
      parent: the folder in which they lie.
      name: the final name of the folder that was being written; None: any.
    """
    for path in list(parent.iterdir()) if parent.is_dir() else ():
        match = _LEFTOVER.fullmatch(path.name)
        if match is None or name not in (None, match[1]) or _runs_elsewhere(int(match[2])):
            continue
        if match[3] == "old" and not (parent / match[1]).exists():
            path.rename(parent / match[1])
        shutil.rmtree(path, ignore_errors=True)


def _runs_elsewhere(pid: int) -> bool:
    """True for a running process other than this one, which may have the number of a killed one."""
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    return pid != os.getpid()


def check_replaceable(folder: str | os.PathLike[str], kind: str, *, overwrite: bool) -> None:
    """Checks that an export may be written to `folder`: it is absent or empty, or may be overwritten.

    Args:
      kind: name of a file that every export of this kind has; other folders are never replaced.

    Raises:
      PadirError: the folder holds something else, or an earlier export without `overwrite`.
    """
    final = Path(folder)
    if not final.exists() or (final.is_dir() and not any(final.iterdir())):
        return
    if not (final / kind).is_file():
        raise PadirError(f"{folder} is there and holds no {kind} of an earlier export", remedy="give another folder")
    if not overwrite:
        raise PadirError(f"{folder} holds an earlier export", remedy="give another folder, or set overwrite")


@contextlib.contextmanager
def folder_lock(folder: Path, doing: str) -> Iterator[None]:
    """Holds the lock of a folder, a file in it that the kernel unlocks when the process ends, however it ends.

    Args:
      doing: the work that needs the lock, as a participle: "trained in".

    Raises:
      PadirError: another process holds the lock, or the folder cannot be written to.
    """
    import filelock

    path = folder / LOCK
    with write_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    # Never the soft lock, a file that a killed process would leave behind.
    lock = filelock.UnixFileLock(path, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        holder = path.read_text().strip() or "another process"
        raise PadirError(
            f"{folder} must be {doing} by one process at a time, got {holder} at it already",
            remedy="wait until that process has ended, or give another folder",
        ) from None
    except OSError as error:
        print(
            f"padir: warning: {folder} cannot be locked ({error.strerror}): see that nothing else writes to it",
            file=sys.stderr,
        )
    try:
        with write_errors(path):  # for people; the lock is the kernel's
            path.write_text(f"process {os.getpid()} of {socket.gethostname()}\n")
        yield
    finally:
        lock.release()

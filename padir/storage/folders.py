"""Atomic writing of folders, and the lock by which only one process at a time writes to a folder."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from padir.errors import PadirError
from padir.storage.files import beside, check_local, write_errors
from padir.storage.manifest import MANIFEST, Manifest

LOCK = ".lock"
_LEFTOVER = re.compile(r"\.(.+)\.(\d{1,9})\.(partial|old)")  # see `files.beside`


@contextlib.contextmanager
def atomic_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Makes a new folder, which replaces `folder` when the `with` block ends, or is removed if the block raises.

    A process that is killed leaves the old folder or the new one under the name `folder`, where the file system can
    exchange two folders (Linux's can); elsewhere `remove_leftovers` brings the old one back.

    Raises:
      PadirError: the folder cannot be written (see `write_errors`).
    """
    check_local(folder)
    final = Path(folder).resolve()
    old = beside(final, "old")
    with write_errors(final), partial_folder(final) as partial:
        yield partial
        if final.exists() and _exchange(partial, final):
            return
        try:
            if final.exists():
                final.rename(old)
            partial.rename(final)
        finally:
            if old.exists() and not final.exists():  # interrupted between the two renames
                old.rename(final)
            shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders in one step, as renameat2 of Linux does; returns False where that cannot be done."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return renameat2 is not None and not renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange)


@contextlib.contextmanager
def partial_folder(final: Path) -> Iterator[Path]:
    """Makes an empty folder beside `final`, and removes it at the end of the `with` block unless it was renamed."""
    remove_leftovers(final.parent, final.name)
    partial = beside(final, "partial")
    try:
        partial.mkdir(parents=True)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def remove_leftovers(parent: Path, name: str | None = None) -> None:
    """Removes the partial folders of killed processes, and renames back folders that these processes had set aside.

    Args:
      parent: the folder that holds the partial folders.
      name: the final name of the folder that was being written; None means any name.
    """
    for path in list(parent.iterdir()) if parent.is_dir() else ():
        match = _LEFTOVER.fullmatch(path.name)
        if match is None or name not in (None, match[1]) or _runs_elsewhere(int(match[2])):
            continue
        if match[3] == "old" and not (parent / match[1]).exists():
            path.rename(parent / match[1])
        shutil.rmtree(path, ignore_errors=True)


def _runs_elsewhere(pid: int) -> bool:
    """True if `pid` is a running process other than this one. This process may have got the number of a killed one."""
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    return pid != os.getpid()


def check_replaceable(folder: str | os.PathLike[str], kind: str, *, overwrite: bool) -> None:
    """Checks that an export may be written to `folder`, which must be absent, empty, or an export to overwrite.

    Args:
      kind: name of a file that every export of this kind has; folders without this file are never replaced.

    Raises:
      PadirError: the folder holds something else, an earlier export and files of other origin, or an earlier export
        without `overwrite`.
    """
    final = Path(folder)
    if not final.exists() or (final.is_dir() and not any(final.iterdir())):
        return
    if not (final / kind).is_file():
        raise PadirError(f"{folder} is there and holds no {kind} of an earlier export", remedy="give another folder")
    if not overwrite:
        raise PadirError(
            f"{folder} holds an earlier export", remedy="give another folder, or set overwrite (--overwrite)"
        )
    own = {MANIFEST, *Manifest.read(final).files}
    for path in final.rglob("*"):
        name = str(path.relative_to(final))
        if path.is_file() and name not in own and path.parent.name != "__pycache__":
            raise PadirError(
                f"{folder} holds {name}, which is not of the export", remedy="move it, or give another folder"
            )


@contextlib.contextmanager
def folder_lock(folder: Path, doing: str) -> Iterator[None]:
    """Holds the lock of a folder, the file `.lock` in it, which the kernel unlocks when the process ends or is killed.

    Args:
      doing: the work that needs the lock, as a participle for messages, such as "trained in".

    Raises:
      PadirError: another process holds the lock, or the folder cannot be written to.
    """
    import filelock

    path = folder / LOCK
    with write_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    # The soft lock is never used, because its file would stay after a killed process.
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
        with write_errors(path):  # the text is for messages alone; the lock itself is held by the kernel
            path.write_text(f"process {os.getpid()} of {socket.gethostname()}\n")
        yield
    finally:
        lock.release()

"""Atomic writing of folders, their locks, and the stored results from which long work resumes."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import fcntl
import json
import logging
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from padir.errors import PadirError
from padir.storage.files import atomic_file, beside, write_errors
from padir.storage.manifest import MANIFEST, Manifest

LOCK = ".lock"
_WAIT = "wait until that process has ended, or give another folder"
_log = logging.getLogger("padir")
_LEFTOVER = re.compile(r"\.(.+)\.[0-9a-f]{16}\.(partial|old|lock)")  # see `files.beside`


def vacant(folder: Path) -> bool:
    """True if there is nothing at a path, or an empty folder."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def check_vacant(folder: str | os.PathLike[str]) -> None:
    """Refuses a folder to write that is neither new nor empty. Errors are those of `write_errors`."""
    with write_errors(folder):
        if not vacant(Path(folder)):
            raise PadirError("the folder to write", "new or empty", str(folder), "give another folder")


@contextlib.contextmanager
def atomic_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Makes a new folder, which replaces `folder` when the `with` block ends, or is removed if the block raises.

    If the process is killed, `folder` is the old folder or the new one, provided that the file system can exchange two
    folders (on Linux it can). Elsewhere `remove_leftovers` brings the old folder back. A folder that another process
    made during the block is never replaced. Errors are those of `write_errors`.
    """
    final = Path(folder).resolve()
    with write_errors(folder), partial_folder(final) as partial:
        new = vacant(final)
        yield partial
        if new or not final.exists():
            partial.rename(final)
            return
        if _exchange(partial, final):
            return
        old = partial.with_suffix(".old")
        try:
            final.rename(old)
            partial.rename(final)
        finally:
            if old.exists() and not final.exists():  # interrupted between the two renames
                old.rename(final)
            shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two folders in one step, by renameat2 of Linux; returns False if that is impossible."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    at_fdcwd = -100
    rename_exchange = 2
    if renameat2 is None:
        return False
    return not renameat2(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), rename_exchange)


@contextlib.contextmanager
def partial_folder(final: Path) -> Iterator[Path]:
    """Makes an empty folder beside `final`, and removes it at the end of the `with` block unless it was renamed.

    A lock file beside it tells all machines that share the disk that its process is running.
    """
    remove_leftovers(final.parent, final.name)
    partial = beside(final, "partial")
    final.parent.mkdir(parents=True, exist_ok=True)
    lock = partial.with_suffix(".lock")
    with lock.with_suffix(".new").open("x") as file:
        with contextlib.suppress(OSError):  # on a file system without locks, leftovers stay
            fcntl.flock(file, fcntl.LOCK_EX)
        Path(file.name).rename(lock)  # so that nobody sees it unlocked
        try:
            partial.mkdir()
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            lock.unlink(missing_ok=True)


def remove_leftovers(parent: Path, name: str | None = None) -> None:
    """Removes the partial folders of killed processes, and renames back folders that these processes had set aside.

    With the final `name` of one folder (None: any), raises a PadirError if another process is writing it.
    """
    for path in list(parent.iterdir()) if parent.is_dir() else ():
        match = _LEFTOVER.fullmatch(path.name)
        if match is None or name not in (None, match[1]):
            continue
        final = parent / match[1]
        try:
            with path.with_suffix(".lock").open("r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:  # a lock file is there as long as its folder is being written
            pass
        except BlockingIOError:
            if name is None:
                continue
            what = f"{final} must be written by one process at a time, and another process is writing it"
            raise PadirError(what, remedy=_WAIT) from None
        except OSError:  # there are no locks
            continue
        if match[2] == "old" and not final.exists():
            path.rename(final)
        if match[2] == "lock":
            path.unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def check_replaceable(folder: str | os.PathLike[str], kind: str, *, overwrite: bool) -> None:
    """Checks that an export may be written to `folder`, which must be absent, empty, or an export to overwrite.

    `kind` is a file that every export of this kind has; folders without this file are never replaced.
    """
    final = Path(folder)
    if vacant(final):
        return
    if not (final / kind).is_file():
        raise PadirError(f"{folder} exists and holds no {kind} of an earlier export", remedy="give another folder")
    if not overwrite:
        remedy = "give another folder, or set overwrite"
        raise PadirError(f"{folder} holds an earlier export", remedy=remedy)
    check_no_others(final, Manifest.read(final).files)


def check_no_others(folder: Path, files: Iterable[str]) -> None:
    """Refuses a folder with files beside its manifest and `files`, because replacing the folder deletes them all."""
    ours = {MANIFEST, *files}
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    if foreign := sorted(name for name in names if name not in ours):
        remedy = "move them away, or give another folder"
        raise PadirError(f"{folder} holds files that padir did not make, such as {foreign[0]}", remedy=remedy)


def made_lock(path: Path, *, blocking: bool = True) -> Any:
    """The lock of a file, which is made. The soft lock is never used: its file would stay after a killed process."""
    import filelock

    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    return filelock.UnixFileLock(path, fallback_to_soft=False, blocking=blocking)


@contextlib.contextmanager
def folder_lock(folder: Path, doing: str) -> Iterator[None]:
    """Holds the lock of a folder, the file `.lock` in it, which the kernel unlocks when the process ends or is killed.

    `doing` is the work that needs the lock, as a participle for messages, such as "trained in".
    """
    import filelock

    path = folder / LOCK
    lock = made_lock(path, blocking=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        holder = path.read_text().strip() or "another process"
        what = f"{folder} must be {doing} by one process at a time, and {holder} is at work"
        raise PadirError(what, remedy=_WAIT) from None
    except OSError as error:
        _log.warning("%s cannot be locked (%s): make sure that nothing else writes to it", folder, error.strerror)
    try:
        with write_errors(path):  # the text is for messages alone; the lock itself is held by the kernel
            path.write_text(f"process {os.getpid()} of {socket.gethostname()}\n")
        yield
    finally:
        lock.release()


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Named results of long work, each a JSON file of a folder; all results in a folder are made from the same inputs.

    Attributes:
      folder: the folder, with NAME.json for each result and with inputs.json.
      after_write: called with the file of every result that was written.
    """

    folder: Path
    after_write: Callable[[Path], None] = lambda _: None

    @staticmethod
    def open(folder: Path, inputs: dict[str, Any], overwrite: bool) -> Chunks:
        """Opens a folder of results; results from other inputs are refused, or removed by `overwrite`.

        Results without inputs are those of an interrupted removal, and are removed.
        """
        chunks = Chunks(folder)
        found = chunks.read("inputs")
        if found not in (None, inputs) and not overwrite:
            what = f"{folder} holds unfinished translations of another teacher, decoding, corpus or version of padir"
            raise PadirError(what, remedy="remove it, or set overwrite")
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir() if found != inputs else ():
            if path.name != LOCK:  # the caller holds this lock
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        chunks.once("inputs", lambda: inputs)
        return chunks

    def read(self, name: str, length: int | None = None) -> Any:
        """The result called `name`, or None if there is none; with `length`, it must be a list of that length."""
        if name not in self:
            return None
        try:
            result = json.loads(self._path(name).read_text(encoding="utf-8"))
            if length is None or (isinstance(result, list) and len(result) == length):
                return result
        except ValueError:
            pass
        raise PadirError(f"{self._path(name)} is damaged: remove it, and run the same command again")

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns the result called `name`; the first call makes the result and writes it to disk before it returns."""
        if name not in self:
            self.write(name, make())
        return self.read(name)

    def write(self, name: str, result: Any) -> None:
        """Writes the result called `name`, which is on disk when the call returns."""
        with atomic_file(self._path(name)) as file:
            json.dump(result, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        self.after_write(self._path(name))

    def __contains__(self, name: str) -> bool:
        """True if the folder has a result called `name`."""
        return self._path(name).exists()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

"""Copies on this machine of folders at addresses such as gs://bucket/run: fetched to be read, or sent when written.

A copy lies in the folder that the environment variable PADIR_COPIES names, else in ~/.cache/padir/copies.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from padir.errors import PadirError
from padir.storage.files import atomic_file, is_address, write_errors
from padir.storage.folders import atomic_folder, folder_lock
from padir.storage.manifest import MANIFEST
from padir.storage.remote import Damaged, PathLike, RemoteFolder

CHECKPOINTS = "checkpoints"  # the folder of a training run that holds a folder for each step
METRICS = "metrics.jsonl"
_log = logging.getLogger("padir")


def copy_of(remote: RemoteFolder, kind: str) -> Path:
    """The folder on this machine that goes with an address.

    `kind` is "read" for a copy that is fetched, "write" for a training run, "made" for another folder written and then
    sent.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    copies = Path(os.environ.get("PADIR_COPIES") or home / "padir" / "copies")
    name = re.sub(r"\W+", "-", remote.address)[-60:]
    return copies.absolute() / kind / f"{name}.{hashlib.sha256(remote.address.encode()).hexdigest()[:12]}"


def fetched(path: PathLike, *, steps: bool = False) -> Path:
    """The folder on this machine to read: a local folder itself, or the copy of a folder at an address, fetched now.

    A process fetches an address once. A training run that has no finished model is fetched with its checkpoints;
    `steps` fetches the checkpoints and the metrics of a training run in any case.
    """
    return _fetched(RemoteFolder.at(path), steps) if is_address(path) else Path(path)


@functools.cache
def _fetched(remote: RemoteFolder, steps: bool) -> Path:
    copy = copy_of(remote, "read")
    with _waiting_lock(copy):
        if not (whole := remote.fetch(copy)):
            (copy / MANIFEST).unlink(missing_ok=True)
        if steps or not whole:
            for old in {path.name for path in copy.glob(f"{CHECKPOINTS}/*")} - {*remote.names(CHECKPOINTS)}:
                shutil.rmtree(copy / CHECKPOINTS / old, ignore_errors=True)
            fetch_steps(remote, copy)
            with contextlib.suppress(FileNotFoundError):
                remote.fetch_file(METRICS, copy / METRICS)
        if not whole and not [*copy.glob(f"{CHECKPOINTS}/*/{MANIFEST}")]:
            what = f"{remote.address} holds no {MANIFEST} and no whole checkpoint"
            raise PadirError(what, remedy="it is no folder of padir, or incomplete")
    return copy


def fetch_steps(remote: RemoteFolder, folder: Path) -> list[str]:
    """Fetches every whole checkpoint of a training run that `folder` lacks; logs and returns the names of damaged ones.

    A checkpoint is not damaged if the store does not answer, or if the disk is full: this raises a PadirError.
    """
    damaged = []
    for step in filter(str.isdigit, remote.names(CHECKPOINTS)):
        name, here = f"{CHECKPOINTS}/{step}", folder / CHECKPOINTS / step
        try:
            if (manifest := remote.read(f"{name}/{MANIFEST}")) not in (None, read_if_there(here / MANIFEST)):
                with atomic_folder(here) as partial:  # a checkpoint's folder is always whole
                    if not remote.fetch(partial, name) or read_if_there(partial / MANIFEST) != manifest:
                        raise Damaged(f"{remote.address}/{name} was removed or replaced while it was fetched")
        except Damaged as error:
            damaged.append(step)
            _log.warning("skipping the checkpoint of step %s: %s", step, error)
    return damaged


@contextlib.contextmanager
def sent_folder(path: PathLike) -> Iterator[Path]:
    """The folder to write: a local folder itself, or the copy of an address, which is sent at the end of the block.

    The contents of the address are fetched first, so that the block works as with a local folder. If an earlier call
    finished the folder but could not send it, that folder is sent instead, unless another process has written to the
    address since. An address with an unfinished training run is refused.
    """
    if not is_address(path):
        yield Path(path)
        return
    remote = RemoteFolder.at(path)
    copy = copy_of(remote, "made")
    with folder_lock(copy.with_name(f"{copy.name}.lock"), "written"):
        replaced = copy.with_name(f"{copy.name}.replaced")  # the manifest before the block; empty if there was none
        there, here, before = remote.read(MANIFEST), read_if_there(copy / MANIFEST), read_if_there(replaced)
        if before is not None and here not in (None, before) and there in (None, before):
            _log.info("sending what an earlier command left in %s", copy)
            remote.send(copy)
        elif there is None and CHECKPOINTS in remote.names(""):
            raise PadirError(f"{remote.address} holds a training run", remedy="give another address")
        else:
            if there != here:  # what is at the address is all that counts
                shutil.rmtree(copy, ignore_errors=True)
            remote.fetch(copy)
        with atomic_file(replaced, binary=True) as file:
            file.write(read_if_there(copy / MANIFEST) or b"")
        yield copy
        if read_if_there(copy / MANIFEST) != remote.read(MANIFEST):
            remote.send(copy)
        replaced.unlink()


def read_if_there(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


@contextlib.contextmanager
def _waiting_lock(copy: Path) -> Iterator[None]:
    """Lets only one process of this machine at a time fetch to a copy; others wait."""
    import filelock

    path = copy.with_name(f".{copy.name}.lock")
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    lock = filelock.UnixFileLock(path, fallback_to_soft=False)
    with contextlib.suppress(OSError):  # on a file system without locks, files still appear whole
        lock.acquire()
    try:
        yield
    finally:
        lock.release()

"""`RemoteFolder`, a folder of an object store such as gs://bucket/run: fetching and sending of whole folders.

An object store renames no folder, has no locks and does not append. So padir works in a copy on this machine
(`fetched`, `sent_folder`). A folder is fetched whole and compared with its manifest before it is read; it is sent file
by file, with its manifest last. So a folder that was sent in part is never taken for whole. fsspec speaks to the
stores. Copies lie in the folder that the environment variable PADIR_COPIES names, else in ~/.cache/padir/copies.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import functools
import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from padir.checks import from_json
from padir.errors import PadirError, first_line
from padir.storage import files as disk
from padir.storage.files import RESTORE, atomic_file, beside, is_address, parsed_json, path_inside, write_errors
from padir.storage.folders import atomic_folder, folder_lock, made_lock
from padir.storage.manifest import MANIFEST, FileSum, sealed

T = TypeVar("T")
_log = logging.getLogger("padir")
PathLike = str | os.PathLike[str]
CHECKPOINTS = "checkpoints"  # the folder of a training run that holds a folder for each step
METRICS = "metrics.jsonl"

PACKAGES = {"gs": "gcsfs", "s3": "s3fs", "az": "adlfs", "hf": "huggingface_hub"}
_WAITS = [1.0, 5.0, 25.0]  # seconds before each new attempt
_AT_ONCE = 8  # files that are sent or fetched at the same time
_FINAL = (PermissionError, NotImplementedError, ImportError, TypeError)  # another attempt is of no use
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REMEDY = "restore the folder from a copy, or remove it there and write it anew"


class Unreachable(PadirError):
    """Error for an address that did not answer, or refused, after several attempts."""


class Damaged(PadirError):
    """Error for a file at an address that is missing or differs from its manifest, or for a damaged manifest."""


@dataclasses.dataclass(frozen=True)
class RemoteFolder:
    """A folder of an object store; `address` is its scheme, bucket and folder, such as gs://bucket/run."""

    address: str

    @staticmethod
    def at(path: PathLike) -> RemoteFolder:
        """Reads an address, whose scheme must be known and its package installed."""
        scheme, _, rest = os.fspath(path).partition(":")
        names = [name for name in rest.split("/") if name]
        address = f"{scheme.lower()}://{'/'.join(names)}"
        if scheme.lower() not in PACKAGES:
            raise PadirError(f"the scheme of {address}", f"one of {', '.join(PACKAGES)}", scheme)
        if len(names) < 2 or {".", ".."} & set(names):
            raise PadirError("an address", "a bucket and a folder, such as gs://bucket/run", address)
        folder = RemoteFolder(address)
        _ = folder.store
        return folder

    @property
    def store(self) -> Any:
        """The file system of fsspec."""
        import fsspec

        scheme = self.address.partition(":")[0]
        try:
            return fsspec.filesystem(scheme)
        except ImportError:
            package = PACKAGES[scheme]
            what = f"addresses {scheme}:// need the package {package}, got {self.address}"
            raise PadirError(what, remedy=f"pip install {package}") from None
        except Exception as error:  # settings or credentials of the store are missing
            raise self._unreachable("", error) from error

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders directly in a folder; [] if there is no such folder."""
        self.store.invalidate_cache()
        try:
            paths = self._tried(folder, lambda path: self.store.ls(path, detail=False))
            return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        """Contents of a small file; None if there is no such file."""
        self.store.invalidate_cache()
        try:
            return self._tried(name, lambda path: self.store.cat_file(path))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file."""
        with self._there(name):
            self._tried(name, lambda path: self.store.pipe_file(path, content))

    def check_writable(self) -> None:
        """Writes and removes a small file, so that a wrong name or missing rights are found before long work."""
        name = f".padir.{secrets.token_hex(8)}"
        self.write(name, b"")
        self._tried(name, lambda path: self.store.rm(path))

    def put(self, file: Path, name: str) -> None:
        """Sends a file."""
        with self._there(name):
            self._tried(name, lambda path: self.store.put_file(str(file), path))

    def remove(self, folder: str) -> None:
        """Removes a folder, its manifest first, so that the rest is never taken for a whole folder."""
        with contextlib.suppress(FileNotFoundError):
            self._tried(f"{folder}/{MANIFEST}", lambda path: self.store.rm(path))
        with contextlib.suppress(FileNotFoundError):
            self._tried(folder, lambda path: self.store.rm(path, recursive=True))

    def send(self, folder: Path, name: str = "") -> None:
        """Sends a folder with a manifest to the folder `name` of the address, its manifest last."""
        files = _files((folder / MANIFEST).read_bytes(), folder)
        if name:
            self.remove(name)
        else:  # the folder may hold more than the manifest names
            with contextlib.suppress(FileNotFoundError):
                self._tried(MANIFEST, lambda path: self.store.rm(path))
        _all_at_once(lambda each: self.put(path_inside(folder, each), join(name, each)), files)
        self.put(folder / MANIFEST, join(name, MANIFEST))

    def fetch(self, folder: Path, name: str = "") -> bool:
        """Fetches the folder `name` of the address to `folder`; False if it has no manifest (it is incomplete).

        Files that are here already are compared with the manifest and not fetched again. A file that is missing there
        or differs from the manifest raises `Damaged`, with its address.
        """
        there = join(self.address, name)
        if (text := self.read(join(name, MANIFEST))) is None:
            return False
        files = _files(text, there)
        manifest = folder / MANIFEST
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if manifest.exists() and manifest.read_bytes() != text:
                manifest.unlink()
        missing = {each: expected for each, expected in files.items() if not _is(path_inside(folder, each), expected)}
        if missing:
            size = sum(expected.bytes for expected in missing.values())
            _log.info("fetching %s (%s files, %s MB)", there, len(missing), f"{size / 1e6:,.1f}")
        _all_at_once(lambda each: self.fetch_file(join(name, each), folder / each, missing[each]), missing)
        with atomic_file(manifest, binary=True) as file:
            file.write(text)
        return True

    def fetch_file(self, name: str, file: Path, expected: FileSum | None = None) -> None:
        """Fetches a file, which appears when all of it is here and is the expected one.

        A file with another sha256 is fetched once more, because it may have been damaged on the way. Raises `Damaged`
        if the expected file is not there, and FileNotFoundError if none is expected.
        """
        partial = beside(file, "partial")
        try:
            with write_errors(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                for _ in range(2):
                    self._tried(name, lambda path: self.store.get_file(path, str(partial)))
                    if expected is None or _is(partial, expected):
                        break
                else:
                    raise Damaged(f"{self._path(name)} was changed or damaged (its sha256 differs)", remedy=_REMEDY)
                os.replace(partial, file)
        except FileNotFoundError:
            if expected is None:
                raise
            raise Damaged(f"{self._path(name)} is missing", remedy=_REMEDY) from None
        except OSError as error:
            if error.errno in _NO_ROOM:  # a library may name another file than this one
                raise disk.cannot_write(file, error) from error
            raise
        finally:
            partial.unlink(missing_ok=True)

    def fetch_missing(self, name: str, folder: Path) -> None:
        """Fetches the files directly in the folder `name` of the address that `folder` lacks; it needs no manifest."""
        missing = [each for each in self.names(name) if not (folder / each).exists()]
        _all_at_once(lambda each: self.fetch_file(join(name, each), folder / each), missing)

    def _path(self, name: str) -> str:
        return join(self.address, name)

    def _tried(self, name: str, attempt: Callable[[str], T]) -> T:
        """Calls `attempt` with the file's address, again after errors of the connection; raises `Unreachable` at last.

        Errors that mean a missing file, or a full disk of this machine, pass unchanged.
        """
        for wait in (*_WAITS, None):
            try:
                return attempt(self._path(name))
            except Exception as error:  # each store's library raises types of its own
                if isinstance(error, FileNotFoundError) or getattr(error, "errno", None) in _NO_ROOM:
                    raise
                if wait is None or isinstance(error, _FINAL):
                    raise self._unreachable(name, error) from error
                time.sleep(wait)
        raise AssertionError

    @contextlib.contextmanager
    def _there(self, name: str) -> Iterator[None]:
        """Reports a missing bucket, where libraries only say that there is no such file."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._unreachable(name, error) from error

    def _unreachable(self, name: str, error: Exception) -> Unreachable:
        what = f"{self._path(name)} cannot be reached ({type(error).__name__}: {first_line(error)})"
        remedy = "check the address, the connection and your credentials, and run the same command again"
        return Unreachable(what, remedy=remedy)


def join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder and name else folder or name


def _is(file: Path, expected: FileSum) -> bool:
    return file.is_file() and file.stat().st_size == expected.bytes and FileSum.of(file) == expected


def _files(text: bytes, where: str | Path) -> dict[str, FileSum]:
    """The files that a manifest of any kind names, after checking the manifest's own sha256."""
    try:
        contents = parsed_json(text)
        files = from_json(dict[str, FileSum], contents["files"])
        folders = {str(folder) for name in files for folder in PurePosixPath(name).parents}
        if contents != sealed(contents) or folders & {*files} or not all(map(_may_be_a_file, files)):
            raise ValueError
    except (ValueError, LookupError, TypeError):
        raise Damaged(f"{where}/{MANIFEST} is damaged", remedy=RESTORE) from None
    return files


def _may_be_a_file(name: str) -> bool:
    """False for a name that no disk takes, or that is a folder's; `path_inside` judges where the file would lie."""
    parts = name.split("/")
    short = len(os.fsencode(name)) <= 1_000 and max(len(os.fsencode(part)) for part in parts) <= 200
    return short and parts[-1] not in ("", ".", "..")


def _all_at_once(function: Callable[[str], None], names: Iterable[str]) -> None:
    """Calls the function for every name in several threads; after an error no further call begins."""
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as threads:
        calls = [threads.submit(function, name) for name in names]
        try:
            for call in calls:
                call.result()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


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
        name = f"{CHECKPOINTS}/{step}"
        here = folder / CHECKPOINTS / step
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
        there = remote.read(MANIFEST)
        here = read_if_there(copy / MANIFEST)
        before = read_if_there(replaced)
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
    lock = made_lock(copy.with_name(f".{copy.name}.lock"))
    with contextlib.suppress(OSError):  # on a file system without locks, files still appear whole
        lock.acquire()
    try:
        yield
    finally:
        lock.release()

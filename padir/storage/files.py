"""Atomic writing of files, JSON files, operating system errors as `PadirError`, and paths that stay in a folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from padir import checks
from padir.errors import PadirError, shown

RESTORE = "restore the folder from a copy"
_NO_ROOM = {
    errno.ENOSPC: "make room on its disk",
    errno.EDQUOT: "make room in your quota",
    errno.EFBIG: "raise the limit on a file's size (ulimit -f)",
}
# "gs://bucket/run", and "gs:/bucket/run" as pathlib writes it; two letters at least, as "C:/" is a disk.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_REMEDIES = _NO_ROOM | dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "give a folder that you may write to")


def is_address(path: str | os.PathLike[str]) -> bool:
    """True for gs://bucket/run, and for gs:/bucket/run as pathlib writes it.

    >>> is_address("gs://bucket/run"), is_address("runs/de_en"), is_address("C:/runs")
    (True, False, False)
    """
    return bool(_ADDRESS.match(os.fspath(path)))


def check_local(path: str | os.PathLike[str]) -> None:
    """Refuses an address such as gs://bucket/run, which would be mistaken for a folder such as `gs:`.

    Only folders that padir can fetch or send may be addresses (`padir.storage.remote`).
    """
    if is_address(path):
        remedy = "copy the file or folder to this machine; only prepared folders, models and runs may be at addresses"
        raise PadirError("a local path is needed here", got=str(path), remedy=remedy)


@contextlib.contextmanager
def write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns an `OSError` about `path`, or about anything in or above it, into a `PadirError` with a remedy.

    Errors about other files and broken pipes pass unchanged. Links in `path` are followed. An address is refused,
    and so is what no file can be called.
    """
    checks.path(path=path)
    check_local(path)
    try:
        yield
    except OSError as error:
        places = map(Path, (os.path.abspath(path), os.path.realpath(path)))
        if isinstance(error, BrokenPipeError) or not any(_concerns(error, place) for place in places):
            raise
        raise cannot_write(path, error) from error


def cannot_write(path: str | os.PathLike[str], error: OSError) -> PadirError:
    """Makes the error to raise when `path` cannot be written, with a remedy for the system's error number."""
    remedy = _REMEDIES.get(error.errno or 0, "give another place")
    return PadirError(f"cannot write {path} ({error.strerror or error})", remedy=remedy)


def check_writable(path: str | os.PathLike[str], *, file: bool) -> None:
    """Fails early, not after hours of work, if `path` (a file or folder) cannot be written. Leaves nothing behind."""
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
    """True for an error about `path`, its contents, its parents or its partial version."""
    if not isinstance(error.filename, str | os.PathLike):  # errors of `write` have no file name
        return error.errno in _NO_ROOM
    named = Path(os.path.abspath(error.filename))
    if named in (path, *path.parents):
        return True
    return any(
        each == path or (each.parent == path.parent and each.name.startswith(f".{path.name}."))
        for each in (named, *named.parents)
    )


def beside(final: Path, kind: str) -> Path:
    """A new hidden path `.NAME.DIGITS.KIND` beside `final`, for a file or folder that is still being written.

    The digits are random, because processes in two containers on one volume may have the same number.

    >>> beside(Path("runs/model"), "partial").name.startswith(".model.")
    True
    """
    return final.with_name(f".{final.name}.{secrets.token_hex(8)}.{kind}")


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *, binary: bool = False) -> Iterator[IO[Any]]:
    """Opens a file for writing; the file at `path` is replaced when the `with` block ends, but not if the block raises.

    Pipes and devices are written directly. Missing parent folders are made. Text is UTF-8 with LF line ends. Errors are
    those of `write_errors`.
    """
    how: dict[str, Any] = {"mode": "wb"} if binary else {"mode": "w", "encoding": "utf-8", "newline": "\n"}
    with write_errors(path):
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, **how) as file:
                yield file
            return
        final = Path(os.path.realpath(path))
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = beside(final, "partial")
        try:
            with partial.open(**how) as file:
                yield file
            if final.exists():
                shutil.copymode(final, partial)  # a file that only its owner may read stays so
            os.replace(partial, final)
        finally:
            partial.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file atomically (see `atomic_file`)."""
    with atomic_file(path) as file:
        file.write(text)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes a value as indented JSON, atomically; non-ASCII letters are not escaped."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def parsed_json(text: str | bytes, *, halves: bool = False) -> Any:
    """Reads JSON of any origin; with `halves`, texts may have half a character (a lone surrogate).

    Raises:
      ValueError: the text is no JSON, is nested too deeply, or has a name twice or half a character.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text))
        found = json.loads(text, object_pairs_hook=_named_once)
        if "\\u" in text and not halves:
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except UnicodeEncodeError:
        raise ValueError("one of \\ud800 to \\udfff stands alone: write both halves of the character") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, whose names must differ: readers do not agree on which of two values holds."""
    found = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {shown(name)} stands twice in an object: leave one out")
        found[name] = value
    return found


def read_json(path: Path, most_bytes: int = 2**28, *, remedy: str = RESTORE) -> Any:
    """Reads a JSON file of a folder that padir wrote; a larger one than `most_bytes` is refused."""
    try:
        if path.stat().st_size > most_bytes:
            raise ValueError(f"it has more than {most_bytes:,} bytes")
        return parsed_json(path.read_bytes())
    except OSError as error:
        raise PadirError(f"cannot read {path} ({error.strerror or error})", remedy=remedy) from None
    except ValueError as error:
        raise PadirError(f"{path} is damaged ({error})", remedy=remedy) from None


def path_inside(folder: Path, name: str) -> Path:
    """The path of a file that a manifest names, after checking that the file lies inside the manifest's folder.

    The check protects against folders from untrusted sources. Symbolic links to files of the folder are allowed. If the
    folder is a snapshot in a cache of the Hugging Face hub, links directly in it may also lead to its repository's
    blobs.
    """
    try:
        path = folder / name
        home = folder.resolve()
        file = path.resolve()
        if file.is_relative_to(home) or (path.parent == folder and file.parent == _blobs(home)):
            return path
    except (OSError, RuntimeError, TypeError, ValueError):  # circular links, or `name` is no string or no file name
        raise PadirError(f"{name!r} in {folder} is no file", remedy=RESTORE) from None
    what = f"{name!r} of {folder} is outside its folder"
    raise PadirError(what, remedy="replace links by copies, and use no folder that you do not trust")


def check_files(folder: Path) -> None:
    """Refuses pipes and devices, which could be read for ever, and links out of the folder."""
    home = folder.resolve()
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            try:
                is_file = path.resolve().is_relative_to(home) and (path.is_file() or path.is_dir())
            except (OSError, RuntimeError):  # circular links
                is_file = False
            if not is_file:
                raise PadirError(f"{path} is no file of a checkpoint: do not use this checkpoint")


def check_chunks(where: Path, shape: Sequence[int], chunk: Sequence[int] | None) -> None:
    """Refuses chunks that are larger than their array, because a chunk is read whole."""
    if any(part > max(1, size) for size, part in zip(shape, chunk or (), strict=False)):
        what = f"the chunks of {where} must not be larger than its shape {tuple(shape)}"
        raise PadirError(what, got=tuple(chunk or ()))


def _blobs(home: Path) -> Path | None:
    """The blobs folder that a hub snapshot links to (models--NAME/snapshots/REVISION/x -> models--NAME/blobs/HASH)."""
    repository = home.parent.parent
    known = home.parent.name == "snapshots" and repository.name.startswith(("models--", "datasets--"))
    return repository / "blobs" if known else None

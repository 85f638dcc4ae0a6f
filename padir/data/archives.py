"""Reads the members of archives one after the other; nothing is unpacked, and no link is followed."""

from __future__ import annotations

import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

from padir.errors import PadirError
from padir.text.lines import Metered, Reader, open_bytes, readable


def matches(path: PurePath, pattern: str) -> bool:
    """True if the end of a path has a pattern, and its name does not begin with a dot as macOS's further files do."""
    return path.match(pattern) and not path.name.startswith(".")


def members(archive: Path, pattern: str, origin: str) -> Iterator[tuple[str, Reader]]:
    """Opens the members of an archive whose names match, one after the other; the members of a zip file by name.

    Raises:
      PadirError: the archive is damaged or has no such member, or one of them is no regular file.
    """
    found = False
    for name, content in (_of_zip if archive.suffix.lower() == ".zip" else _of_tar)(archive, pattern):
        found = True
        yield f"{archive}, {name}", content
    if not found:
        raise PadirError(f"{archive} has no {pattern}", remedy=f"fetch {origin}")


def _of_zip(archive: Path, pattern: str) -> Iterator[tuple[str, Reader]]:
    with readable(str(archive), "zip"), zipfile.ZipFile(archive) as file:
        chosen = {info.filename: info for info in file.infolist() if matches(PurePath(info.filename), pattern)}
        if sum(info.compress_size for info in chosen.values()) > archive.stat().st_size:
            raise PadirError(f"{archive}: its members overlap", remedy="fetch it again")
        for name in sorted(chosen):
            _check(archive, name, not stat.S_ISLNK(chosen[name].external_attr >> 16))
            yield name, Reader(file.open(chosen[name]), "zip")


def _of_tar(archive: Path, pattern: str) -> Iterator[tuple[str, Reader]]:
    """Opens members in one pass and to the end, where the compression's checksum is."""
    with readable(str(archive), "tar"), open_bytes(archive, text=False) as unpacked:
        meter: Any = Metered(unpacked, f"{archive}, member")
        with tarfile.open(fileobj=meter, mode="r|") as file:
            for member in file:
                sought = matches(PurePath(member.name), pattern) and not member.isdir()
                _check(archive, member.name, not member.issparse() and (member.isreg() or not sought))
                meter.begin(member.size)
                if sought and (content := file.extractfile(member)):
                    yield member.name, Reader(content, "tar")
            while unpacked.read(1 << 20):
                pass


def _check(archive: Path, name: str, regular: bool) -> None:
    if not regular:
        raise PadirError(f"{archive}: {name} is a link or a sparse file", remedy="fetch an archive with regular files")

"""Manifests, which hold SHA-256 and size of every file of a folder and are checked before the files are read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from padir.checks import from_json
from padir.errors import PadirError
from padir.storage.files import RESTORE, path_inside, read_json

MANIFEST = "manifest.json"
M = TypeVar("M", bound="Manifest")
_SEAL = "manifest_sha256"
_MOST_BYTES = 2**22  # some 25,000 files


def sha256(path: Path) -> str:
    """SHA-256 of a file's contents, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(contents: dict[str, Any]) -> dict[str, Any]:
    """Adds the SHA-256 of a manifest's contents to its JSON, so that a flipped bit in the manifest is noticed."""
    return {**contents, _SEAL: _sum(contents)}


def _sum(contents: dict[str, Any]) -> str:
    contents = {name: value for name, value in contents.items() if name != _SEAL}
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class FileSum:
    """SHA-256 (hexadecimal) and size of one file."""

    sha256: str
    bytes: int

    @staticmethod
    def of(path: Path) -> FileSum:
        return FileSum(sha256(path), path.stat().st_size)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The manifest of a model directory, checkpoint or export; other kinds of folder add fields in a subclass.

    Attributes:
      files: SHA-256 and size by path relative to the folder.
    """

    files: dict[str, FileSum]

    HEADER: ClassVar[dict[str, Any]] = {"format": 2}
    REMEDY: ClassVar[str] = RESTORE

    @classmethod
    def read(cls: type[M], folder: Path) -> M:
        """Reads a folder's manifest; `check` then compares the files with the manifest."""
        path = path_inside(folder, MANIFEST)
        if not os.path.isfile(path):
            what = f"{folder} has no {MANIFEST}: it is incomplete, or no folder of padir"
            raise PadirError(what, remedy="make it again, or give another folder")
        contents = read_json(path, _MOST_BYTES, remedy=cls.REMEDY)
        damaged = PadirError(f"{path} is damaged", remedy=cls.REMEDY)
        try:
            header = {name: contents[name] for name in cls.HEADER}
        except (KeyError, TypeError):
            raise damaged from None
        if header != cls.HEADER:
            expected, got = (" ".join(map(str, each.values())) for each in (cls.HEADER, header))
            raise PadirError(f"{path} must be of format {expected}, got {got}", remedy=cls.REMEDY)
        if contents.get(_SEAL) != _sum(contents):
            raise damaged
        try:
            return cls.of_json(contents)
        except TypeError:
            raise damaged from None

    @classmethod
    def of_json(cls: type[M], contents: dict[str, Any]) -> M:
        """Makes a manifest of the JSON of `to_json`; a TypeError says that a field is missing or of another type."""
        names = {field.name for field in dataclasses.fields(cls)}
        return from_json(cls, {name: value for name, value in contents.items() if name in names})

    def to_json(self) -> dict[str, Any]:
        """Converts the manifest to JSON with a SHA-256 of its own contents; fields that are None are left out."""
        fields = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return sealed({**self.HEADER, **fields})

    def write(self, folder: Path) -> None:
        """Writes `manifest.json`; call this when all other files of the folder are complete."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    def check(self, folder: Path, needed: Sequence[str] = (), *, sums: bool = True) -> None:
        """Compares the size and, with `sums`, the SHA-256 of every file with the manifest.

        Args:
          needed: files that the manifest must name, so that no file is read without a check.
        """
        if missing := [name for name in needed if name not in self.files]:
            what = f"{folder / MANIFEST} does not name {missing[0]}, so this file cannot be checked"
            raise PadirError(what, remedy=self.REMEDY)
        for name, expected in self.files.items():
            path = path_inside(folder, name)
            if not os.path.isfile(path):
                raise PadirError(f"{path} is missing", remedy=self.REMEDY)
            try:
                size = path.stat().st_size
                if size == expected.bytes and (not sums or sha256(path) == expected.sha256):
                    continue
            except OSError as error:
                raise PadirError(f"{path} cannot be read ({error.strerror})", remedy=self.REMEDY) from None
            how = f"it has {size:,} bytes, not {expected.bytes:,}" if size != expected.bytes else "its sha256 differs"
            raise PadirError(f"{path} was changed or damaged ({how})", remedy=self.REMEDY)


def file_sums(folder: Path) -> dict[str, FileSum]:
    """SHA-256 and size of every file under `folder` except its manifest, by relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {str(path.relative_to(folder)): FileSum.of(path) for path in paths}


def write_manifest(folder: Path) -> None:
    """Writes the manifest of a model directory, checkpoint or export whose other files are complete."""
    Manifest(file_sums(folder)).write(folder)


def check_manifest(folder: Path, needed: Sequence[str] = ()) -> None:
    """Reads the manifest of a model directory, checkpoint or export and compares every file (see `Manifest.check`)."""
    Manifest.read(folder).check(folder, needed)

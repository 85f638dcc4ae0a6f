"""Manifests: the sha256 of every file of a folder, written last and compared before the files are read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from padir.errors import PadirError
from padir.storage.files import inside

MANIFEST = "manifest.json"
FORMAT = 2
_UNSEALED = 1  # manifests of this format have no sum of themselves
_SEAL = "manifest_sha256"


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest with the sum of what it says, so that a flipped bit in itself is noticed, too."""
    return {**manifest, _SEAL: _sum(manifest)}


def seal_holds(manifest: dict[str, Any]) -> bool:
    return manifest.get(_SEAL) == _sum(manifest)


def _sum(manifest: dict[str, Any]) -> str:
    said = {name: value for name, value in manifest.items() if name != _SEAL}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Writes the sha256 and size of every file under `folder` to its manifest."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    entries = {str(path.relative_to(folder)): {"sha256": sha256(path), "bytes": path.stat().st_size} for path in files}
    manifest = sealed({"format": FORMAT, "files": entries})
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def check_manifest(folder: Path, needed: Sequence[str] = ()) -> None:
    """Compares every file with the manifest, and the manifest with its own sum.

    Args:
      needed: files that the manifest must name, so that nothing is read which was not compared.

    Raises:
      PadirError: no manifest, or a file that is missing, cannot be read, differs, or lies outside the folder.
    """
    path = inside(folder, MANIFEST)
    if not os.path.isfile(path):
        raise PadirError(f"{folder} has no {MANIFEST}: it is not whole, or not one of padir's folders")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        sums = {name: entry["sha256"] for name, entry in manifest["files"].items()}
        if manifest["format"] != _UNSEALED and not seal_holds(manifest):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise PadirError(f"{path} is damaged: restore the folder from a copy") from None
    except OSError as error:
        raise PadirError(f"{path} cannot be read ({error.strerror}): restore the folder from a copy") from None
    if missing := [name for name in needed if name not in sums]:
        raise PadirError(
            f"{path} does not name {missing[0]}, which so cannot be checked: restore the folder from a copy"
        )
    for name, expected in sums.items():
        path = inside(folder, name)
        if not os.path.isfile(path):
            raise PadirError(f"{path} is missing: restore the folder from a copy")
        try:
            got = sha256(path)
        except OSError as error:
            raise PadirError(f"{path} cannot be read ({error.strerror}): restore the folder from a copy") from None
        if got != expected:
            raise PadirError(f"{path} was changed or damaged (its sha256 differs): restore the folder from a copy")

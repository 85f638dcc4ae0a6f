"""Reading a prepared folder (`padir.data.prepare` says what is in it): its manifest, its vocabulary, its text."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from padir.data.sources import PathLike
from padir.errors import PadirError
from padir.files import seal_holds
from padir.tokenizer import Tokenizer

FORMAT = "padir-prepared"
VERSION = 2
UNSEALED = 1  # manifests of that version have no sum of themselves
MANIFEST = "manifest.json"
VOCABULARY = "vocab.model"

_REMEDY = "run `padir prepare --overwrite`"


def load_manifest(directory: PathLike, *, verify: bool = False) -> dict[str, Any]:
    """The manifest of a prepared folder, after checking every file's size and, with `verify`, its sha256.

    Raises:
      PadirError: no folder, no manifest (half-written or something else), another format, a changed or missing file.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise PadirError(f"the prepared folder {directory} does not exist: run `padir prepare`")
    path = directory / MANIFEST
    if not path.is_file():
        raise PadirError(f"{directory} has no {MANIFEST}, so `padir prepare` did not make it: give a prepared folder")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        kind, version = manifest["format"], manifest["version"]
        files = {name: (file["bytes"], file["sha256"]) for name, file in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PadirError(
            f"{path} is not a manifest of `padir prepare`, or damaged: give a prepared folder, or prepare another one"
        ) from None
    if kind != FORMAT or version not in (UNSEALED, VERSION):
        raise PadirError(f"{path} must be {FORMAT} version {VERSION}, got {kind} version {version}: {_REMEDY}")
    if version != UNSEALED and not seal_holds(manifest):
        raise PadirError(f"{path} was changed or damaged (its own sha256 differs): {_REMEDY}")
    for name, (size, sha256) in files.items():
        file = directory / name
        got_size = file.stat().st_size if file.is_file() else None
        if got_size != size:
            got = "no file" if got_size is None else f"{got_size:,} bytes"
            raise PadirError(f"{file} must have {size:,} bytes, got {got}: {_REMEDY}")
        if verify and file_sha256(file) != sha256:
            raise _changed(file)
    return manifest


def _changed(file: Path) -> PadirError:
    return PadirError(f"{file} has changed since it was prepared (its sha256 differs): {_REMEDY}")


def is_prepared(directory: Path) -> bool:
    """Whether a manifest says that `padir prepare` made the folder, so that replacing it deletes nobody's work."""
    try:
        return json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load_tokenizer(directory: PathLike) -> Tokenizer:
    """The vocabulary that a folder was prepared with.

    Raises:
      PadirError: as `load_manifest`, or the vocabulary is not the manifest's.
    """
    vocabulary = load_manifest(directory)["vocabulary"]
    path = Path(directory) / VOCABULARY
    if file_sha256(path) != vocabulary["sha256"]:
        raise PadirError(f"{path} is not the vocabulary of the manifest (its sha256 differs): {_REMEDY}")
    return Tokenizer.load(path, vocabulary["num_sentinels"])


def read_text(directory: PathLike, split: str) -> tuple[list[str], list[str]]:
    """The untouched sentences of all pairs of an evaluation split, as (sources, targets).

    Raises:
      PadirError: as `load_manifest`, the folder has no text of that split (the training split's is not kept), or the
        text has changed.
    """
    manifest = load_manifest(directory)
    known = [name for name in manifest["splits"] if name != "train"]
    if split not in known:
        raise PadirError(f"{directory} has the text of {', '.join(known) or 'no split'}, got {split!r}")
    names = text_names(split, manifest["source"]["source_language"], manifest["source"]["target_language"])
    contents = [(Path(directory) / name).read_bytes() for name in names]
    for name, content in zip(names, contents, strict=True):
        if hashlib.sha256(content).hexdigest() != manifest["files"][name]["sha256"]:
            raise _changed(Path(directory) / name)
    # Only a newline ends a line, and each line has one.
    source, target = (content.decode("utf-8").split("\n")[:-1] for content in contents)
    return source, target


def text_names(split: str, source_language: str, target_language: str) -> tuple[str, str]:
    """The names of the two text files of an evaluation split."""
    if source_language == target_language:  # simplification, say
        return f"{split}.{source_language}.source.txt", f"{split}.{target_language}.target.txt"
    return f"{split}.{source_language}.txt", f"{split}.{target_language}.txt"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

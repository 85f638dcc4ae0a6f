"""Reading a prepared folder (`padir.data.prepare` says what is in it): its manifest, its vocabulary, its text."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from padir.data.sources import PathLike
from padir.errors import PadirError
from padir.tokenizer import Tokenizer

FORMAT = "padir-prepared"
VERSION = 1
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
        kind, version, files = manifest["format"], manifest["version"], manifest["files"]
    except (ValueError, KeyError, TypeError):
        raise PadirError(f"{path} is not a manifest of `padir prepare`: give a prepared folder") from None
    if (kind, version) != (FORMAT, VERSION):
        raise PadirError(f"{path} must be {FORMAT} version {VERSION}, got {kind} version {version}: {_REMEDY}")
    for name, expected in files.items():
        file = directory / name
        size = file.stat().st_size if file.is_file() else None
        if size != expected["bytes"]:
            got = "no file" if size is None else f"{size:,} bytes"
            raise PadirError(f"{file} must have {expected['bytes']:,} bytes, got {got}: {_REMEDY}")
        if verify and file_sha256(file) != expected["sha256"]:
            raise PadirError(f"{file} has changed since it was prepared (its sha256 differs): {_REMEDY}")
    return manifest


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
    tokenizer = Tokenizer.load(path, vocabulary["num_sentinels"])
    if tokenizer.sha256 != vocabulary["sha256"]:
        raise PadirError(f"{path} is not the vocabulary of the manifest (its sha256 differs): {_REMEDY}")
    return tokenizer


def read_text(directory: PathLike, split: str) -> tuple[list[str], list[str]]:
    """The untouched sentences of all pairs of an evaluation split, as (sources, targets).

    Raises:
      PadirError: as `load_manifest`, or the folder has no text of that split (the training split's is not kept).
    """
    manifest = load_manifest(directory)
    known = [name for name in manifest["splits"] if name != "train"]
    if split not in known:
        raise PadirError(f"{directory} has the text of {', '.join(known) or 'no split'}, got {split!r}")
    names = text_names(split, manifest["source"]["source_language"], manifest["source"]["target_language"])
    # Only a newline ends a line, and each line has one.
    source, target = ((Path(directory) / name).read_bytes().decode("utf-8").split("\n")[:-1] for name in names)
    return source, target


def read_lengths(directory: PathLike, split: str) -> np.ndarray:
    """Source and target tokens of every pair of a split, EOS included, int32 [pairs, 2].

    Raises:
      PadirError: as `load_manifest`, or the folder has no such split or its lengths cannot be read.
    """
    known = list(load_manifest(directory)["splits"])
    if split not in known:
        raise PadirError(f"{directory} has the lengths of {', '.join(known) or 'no split'}, got {split!r}")
    path = Path(directory) / f"{split}.lengths.npy"
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise PadirError(f"cannot read {path} ({error}): {_REMEDY}") from None


def text_names(split: str, source_language: str, target_language: str) -> tuple[str, str]:
    """The names of the two text files of an evaluation split."""
    if source_language == target_language:  # simplification, say
        return f"{split}.{source_language}.source.txt", f"{split}.{target_language}.target.txt"
    return f"{split}.{source_language}.txt", f"{split}.{target_language}.txt"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

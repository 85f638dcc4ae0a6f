"""Reading a prepared folder (`padir.data.prepare` says what is in it): its manifest, its vocabulary, its text."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from padir.data.sources import PathLike
from padir.errors import PadirError
from padir.storage.files import inside
from padir.storage.manifest import seal_holds
from padir.text.tokenizer import Tokenizer

FORMAT = "padir-prepared"
VERSION = 2
UNSEALED = 1  # manifests of that version have no sum of themselves
MANIFEST = "manifest.json"
VOCABULARY = "vocab.model"

_COUNTS = ("read", "written", "source_tokens", "target_tokens", "longest_source", "longest_target")  # of a split
_REMEDY = "run `padir prepare --overwrite`"


def load_manifest(directory: PathLike, *, verify: bool = False) -> dict[str, Any]:
    """The manifest of a prepared folder, after checking every file's size and, with `verify`, its sha256.

    Raises:
      PadirError: no folder, no manifest (half-written or something else), another format, a changed or missing file,
        or one that the manifest does not name or that lies outside the folder.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise PadirError(f"the prepared folder {directory} does not exist: run `padir prepare`")
    path = inside(directory, MANIFEST)
    if not os.path.isfile(path):
        raise PadirError(f"{directory} has no {MANIFEST}, so `padir prepare` did not make it: give a prepared folder")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        kind, version, files = manifest["format"], manifest["version"], manifest["files"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PadirError(
            f"{path} is not a manifest of `padir prepare`, or damaged: give a prepared folder, or prepare another one"
        ) from None
    if kind != FORMAT or version not in (UNSEALED, VERSION):
        raise PadirError(f"{path} must be {FORMAT} version {VERSION}, got {kind} version {version}: {_REMEDY}")
    if version != UNSEALED and not seal_holds(manifest):
        raise PadirError(f"{path} was changed or damaged (its own sha256 differs): {_REMEDY}")
    try:
        _check_names(manifest)
        _check_types(manifest)
    except (KeyError, TypeError, AttributeError):
        raise PadirError(f"{path} is damaged: {_REMEDY}") from None
    for name, expected in files.items():
        file = inside(directory, name)
        size = file.stat().st_size if os.path.isfile(file) else None
        if size != expected["bytes"]:
            got = "no file" if size is None else f"{size:,} bytes"
            raise PadirError(f"{file} must have {expected['bytes']:,} bytes, got {got}: {_REMEDY}")
        if verify and file_sha256(file) != expected["sha256"]:
            raise _changed(file)
    return manifest


def _changed(file: Path) -> PadirError:
    return PadirError(f"{file} has changed since it was prepared (its sha256 differs): {_REMEDY}")


def _check_types(manifest: dict[str, Any]) -> None:
    """Whether what is read of a manifest, beside names, is of the type that it is read as.

    Raises:
      KeyError, TypeError, AttributeError: it is not.
    """
    values = [(manifest["vocabulary"][name], int) for name in ("size", "num_sentinels")]
    values += [(manifest["vocabulary"]["sha256"], str), (manifest["limits"], dict)]
    for info in manifest["splits"].values():
        values += [(info[name], int) for name in _COUNTS]
        values += [(info["sha256"], str), (info["shards"], list)]
    for entry in manifest["files"].values():
        values += [(entry["bytes"], int), (entry["sha256"], str)]
    if wrong := [value for value, kind in values if type(value) is not kind]:
        raise TypeError(wrong[0])


def _check_names(manifest: dict[str, Any]) -> None:
    """Whether a manifest names all files that are going to be read, so that each of them is checked.

    Raises:
      PadirError: it does not.
      KeyError, TypeError, AttributeError: it is none.
    """
    source = manifest["source"]
    needed = [VOCABULARY]
    for split, info in manifest["splits"].items():
        needed += [lengths_name(split), *info["shards"]]
        if split != "train":
            needed += text_names(split, source["source_language"], source["target_language"])
    files = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    if missing := [name for name in needed if name not in files]:
        raise PadirError(f"the manifest must name every file, got none called {missing[0]!r}: {_REMEDY}")


def is_prepared(directory: Path) -> bool:
    """Whether a manifest says that `padir prepare` made the folder, so that replacing it deletes nobody's work."""
    try:
        return json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def read_lengths(directory: PathLike, split: str, count: int) -> np.ndarray:
    """The tokens of each record of a split, int32 [records, 2]: source and target, EOS included.

    Raises:
      PadirError: the file is missing or damaged, or has not `count` records.
    """
    path = Path(directory) / lengths_name(split)
    try:
        length_N2 = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise PadirError(f"{path} cannot be read ({str(error).splitlines()[0]}): {_REMEDY}") from None
    if length_N2.shape != (count, 2) or length_N2.dtype != np.int32:
        raise PadirError(
            f"{directory} must have {count} pairs in {split}, got lengths of shape {length_N2.shape} and type"
            f" {length_N2.dtype}: {_REMEDY}"
        )
    return length_N2


def lengths_name(split: str) -> str:
    """The name of the file of a split's lengths."""
    return f"{split}.lengths.npy"


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


def split_lengths(directory: PathLike, split: str) -> np.ndarray:
    """`read_lengths` of a folder's split.

    Raises:
      PadirError: as `load_manifest` and `read_lengths`, or the folder has no such split.
    """
    splits = load_manifest(directory)["splits"]
    if split not in splits:
        raise PadirError(f"{directory} has the lengths of {', '.join(splits) or 'no split'}, got {split!r}")
    return read_lengths(directory, split, splits[split]["written"])


def text_names(split: str, source_language: str, target_language: str) -> tuple[str, str]:
    """The names of the two text files of an evaluation split."""
    if source_language == target_language:  # simplification, say
        return f"{split}.{source_language}.source.txt", f"{split}.{target_language}.target.txt"
    return f"{split}.{source_language}.txt", f"{split}.{target_language}.txt"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Reading a prepared folder (`padir.data.prepare` lists its files): manifest, vocabulary, lengths and text."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from padir.data.manifest import REMEDY, VOCABULARY, PreparedManifest, lengths_name, text_names
from padir.data.sources import PathLike
from padir.errors import PadirError, first_line
from padir.storage.copies import fetched
from padir.storage.manifest import MANIFEST, sha256
from padir.text.tokenizer import Tokenizer


def load_manifest(directory: PathLike, *, verify: bool = False) -> PreparedManifest:
    """Reads the manifest of a prepared folder and compares every file's size and, with `verify`, its SHA-256.

    A folder at an address is fetched, here and by all functions of this module.

    Raises:
      PadirError: the folder does not exist, has no manifest or one of another format, or a file is changed, missing,
        not in the manifest or outside the folder.
    """
    directory = fetched(directory)
    if not directory.is_dir():
        raise PadirError(f"the prepared folder {directory} does not exist", remedy="run `padir prepare`")
    manifest = PreparedManifest.read(directory)
    manifest.check(directory, manifest.needed_files(), sums=verify)
    return manifest


def is_prepared(directory: Path) -> bool:
    """True if `padir prepare` or `padir distill` made the folder."""
    try:
        contents = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        return contents["format"] == PreparedManifest.HEADER["format"] and isinstance(contents["files"], dict)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def check_replaceable(directory: Path) -> None:
    """Checks that padir made every file of a prepared folder, because replacing the folder deletes all its files.

    Raises:
      PadirError: the folder holds a file that its manifest does not name.
    """
    ours = {MANIFEST, *json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["files"]}
    names = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir())
    if foreign := sorted(name for name in names if name not in ours):
        raise PadirError(
            f"{directory} holds files that padir did not make, such as {foreign[0]}",
            remedy="move them away, or give another folder",
        )


def read_lengths(directory: PathLike, split: str, count: int) -> np.ndarray:
    """Numbers of tokens of each record of a split, int32 [records, 2]: source and target, EOS included.

    Raises:
      PadirError: the file is missing or damaged, or does not have `count` records.
    """
    path = fetched(directory) / lengths_name(split)
    try:
        length_N2 = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise PadirError(f"{path} cannot be read ({first_line(error)})", remedy=REMEDY) from None
    if length_N2.shape != (count, 2) or length_N2.dtype != np.int32:
        raise PadirError(
            f"{directory} must have {count} pairs in {split}, got lengths of shape {length_N2.shape} and type"
            f" {length_N2.dtype}",
            remedy=REMEDY,
        )
    return length_N2


def split_lengths(directory: PathLike, split: str) -> np.ndarray:
    """Numbers of tokens of each record of a split, as `read_lengths` gives them, with the count from the manifest.

    Raises:
      PadirError: as `load_manifest` and `read_lengths`, or the folder has no such split.
    """
    return read_lengths(directory, split, load_manifest(directory).split(split, directory).written)


def load_tokenizer(directory: PathLike) -> Tokenizer:
    """Loads the vocabulary that a folder was prepared with.

    Raises:
      PadirError: as `load_manifest`, or the vocabulary is not the manifest's.
    """
    vocabulary = load_manifest(directory).vocabulary
    path = fetched(directory) / VOCABULARY
    if sha256(path) != vocabulary.sha256:
        raise PadirError(f"{path} is not the vocabulary of the manifest (its sha256 differs)", remedy=REMEDY)
    return Tokenizer.load(path, vocabulary.num_sentinels)


def read_text(directory: PathLike, split: str) -> tuple[list[str], list[str]]:
    """Reads the original sentences of all pairs of an evaluation split, as (sources, targets).

    Raises:
      PadirError: as `load_manifest`, or the split's text is missing (no text of the training split is kept) or changed.
    """
    manifest = load_manifest(directory)
    known = [name for name in manifest.splits if name != "train"]
    if split not in known:
        raise PadirError(f"{directory} has the text of {', '.join(known) or 'no split'}, got {split!r}")
    sides = []
    for name in text_names(split, *manifest.source.languages):
        content = (fetched(directory) / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest.files[name].sha256:
            raise PadirError(f"{fetched(directory) / name} was changed or damaged (its sha256 differs)", remedy=REMEDY)
        sides.append(content.decode("utf-8").split("\n")[:-1])  # only a newline ends a line, and each line has one
    return sides[0], sides[1]

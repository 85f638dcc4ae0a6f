"""Files of several arrays in NumPy's format .npz, with the name of their format."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from padir.errors import PadirError
from padir.storage.files import atomic_file

# Errors of NumPy and zipfile for damaged files; a damaged size can ask for any amount of memory (MemoryError).
_UNREADABLE = (ValueError, TypeError, KeyError, EOFError, NotImplementedError, MemoryError)
_UNREADABLE += (zipfile.BadZipFile, zlib.error)
_MOST_BYTES = 2**30  # of all arrays in memory; a small file may unpack to any size


def save_arrays(path: str | os.PathLike[str], format: str, **values: np.ndarray | str | int) -> None:
    """Writes arrays, texts and numbers atomically."""
    with atomic_file(path, binary=True) as file:
        np.savez_compressed(file, format=format, **values)  # pyright: ignore[reportArgumentType]


def load_arrays(
    path: str | os.PathLike[str], format: str, noun: str, remedy: str, kinds: Mapping[str, type]
) -> dict[str, Any]:
    """Reads what `save_arrays` wrote.

    Args:
      noun: the contents in messages.
      kinds: type of each value by name: str, int, or NumPy's type of an array.

    Raises:
      PadirError: the file is missing, is damaged or is of another format.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as read:
            if sum(each.file_size for each in read.zip.infolist()) > _MOST_BYTES:
                raise MemoryError
            found = str(read["format"])
            values = {name: _read(read[name], kind) for name, kind in kinds.items()} if found == format else {}
    except OSError as error:
        raise PadirError(f"cannot read the {noun} {path} ({error.strerror or error}): {remedy}") from None
    except (*_UNREADABLE, AttributeError):  # an .npy file has no members
        raise PadirError(f"{path} is damaged or no {noun}: {remedy}") from None
    if found != format:
        raise PadirError(f"{path} must be of format {format!r}, got {found!r}: {remedy}")
    return values


def _read(array: np.ndarray, kind: type) -> Any:
    return kind(array.item()) if kind in (str, int) else array.astype(kind)


def check_vocabulary(noun: str, learned: tuple[str, int], model: tuple[str, int]) -> None:
    """Refuses arrays that were learned with another vocabulary, (SHA-256, number of pieces), than the model has.

    A tokenizer of number ids has no file; its SHA-256 is "".
    """
    if model[0] not in (learned[0], "") or model[1] != learned[1]:
        ours, theirs = (f"{pieces:,} pieces, sha256 {sha256[:8]}" for sha256, pieces in (learned, model))
        what = f"the {noun} has another vocabulary ({ours}) than the model ({theirs})"
        raise PadirError(what, remedy="learn one from data with the model's vocabulary")

"""Reading the zarr arrays of a T5X checkpoint, which may be damaged or made up, before memory is taken for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from padir.errors import PadirError, first_line
from padir.storage.files import check_chunks

AGAIN = "copy the checkpoint again"

Wanted = Callable[[str, tuple[int, ...]], bool]
"""Function from a parameter's name and shape that tells whether the parameter is read."""


def read_arrays(folder: Path, leaves: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """The leaves, with each named zarr array that is wanted read from its folder, all in parallel."""
    import tensorstore  # comes with Orbax; slow to import

    opened = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, dict):
            where = _inside(folder, name, leaf)
            # Only the folder's name is taken from the leaf, which could name any store and address.
            opened[name] = where, tensorstore.open(spec_of(where, fill_missing_data_reads=False), open=True, read=True)
    reading, arrays = {}, dict(leaves)
    for name, (where, future) in opened.items():
        try:
            array = future.result()
        except ValueError as error:
            raise PadirError(f"{where} holds no readable zarr array: {AGAIN} ({first_line(error)})") from None
        check_chunks(where, array.shape, array.chunk_layout.read_chunk.shape)
        if wanted(name, array.shape):
            reading[name] = where, array.read()
        else:
            arrays[name] = jax.ShapeDtypeStruct(array.shape, np.float32)
    for name, (where, future) in reading.items():
        try:
            arrays[name] = future.result()
        except ValueError as error:
            zeros = _zeros(where) if "missing" in str(error) else None
            if zeros is None:
                raise PadirError(f"{where} is damaged: {AGAIN} ({first_line(error)})") from None
            arrays[name] = zeros
    return arrays


def spec_of(where: Path, **options: Any) -> dict[str, Any]:
    return {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{where}/"}, **options}


def _inside(folder: Path, name: str, leaf: dict[str, Any]) -> Path:
    """The folder of the array that a leaf names, checked to lie within the checkpoint."""
    kvstore = leaf["kvstore"]
    path = kvstore.get("path", leaf.get("path")) if isinstance(kvstore, dict) else None  # an old form has it outside
    where = folder / str(path)
    try:
        lies_here = where.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # circular links, a path too long, a NUL
        lies_here = False
    if leaf.get("driver") != "zarr" or not path or not lies_here:
        raise PadirError(
            f"{folder} says that {name} lies at {path!r}, where no array of a checkpoint lies: do not use it"
        )
    return where


def _zeros(where: Path) -> np.ndarray | None:
    """Zeros for a scalar or vector without chunks (zarr omits chunks of zeros); None for other arrays."""
    import tensorstore

    shape = tensorstore.open(spec_of(where), open=True, read=True).result().shape
    chunks = [path for path in where.iterdir() if not path.name.startswith(".")]
    return np.zeros(shape, np.float32) if len(shape) < 2 and not chunks else None

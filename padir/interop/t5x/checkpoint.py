"""Reading and writing of T5X checkpoints without T5X.

A checkpoint is a folder `checkpoint_<step>/` in the model_dir of a T5X run, of one of two kinds:

    T5X's own   `checkpoint`, a msgpack file of the tree {"version", "optimizer": {"target", "state"}}, whose leaves are
                arrays or name a folder beside it, such as `target.encoder.encoder_norm.scale/`, with a zarr array
    Orbax's     `state/`, an Orbax tree {"target", "state"}; what T5X writes by default today

Parameters are under "target". The optimizer's state is not read. Both kinds are read; T5X's own kind is written, which
T5X reads with and without its option `use_orbax`.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.serialization
import flax.traverse_util
import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from padir.errors import PadirError, first_line
from padir.storage.files import check_chunks, check_files
from padir.storage.folders import atomic_folder
from padir.training.checkpoint_arrays import restore_part, stored_arrays

FOLDER = re.compile(r"checkpoint_(\d+)")
# The first bytes of a TensorFlow checkpoint's index file, which is called `checkpoint`, as is T5X's own file.
TENSORFLOW = b"model_checkpoint_path"
_VERSIONS = (2, 3)
_CHUNK_BYTES = 2**26


@dataclasses.dataclass(frozen=True)
class T5XCheckpoint:
    """The parameters of a T5X checkpoint, its folder, and the number of optimizer steps taken.

    Attributes:
      params: float32 parameters by name ("encoder/encoder_norm/scale"). A parameter for which `wanted` was False (see
        `read`) is a `jax.ShapeDtypeStruct` instead of an array.
    """

    path: Path
    step: int
    params: dict[str, Any]


def find(path: str | os.PathLike[str], step: int | None = None) -> Path:
    """Finds the folder of a checkpoint.

    Args:
      path: the checkpoint's folder, or the model_dir of a T5X run with several checkpoints.
      step: the checkpoint's step; None: the last one.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise PadirError(f"there is no folder {folder}: give a T5X checkpoint, or the model_dir of a T5X run")
    if FOLDER.fullmatch(folder.name) or (folder / "checkpoint").is_file():
        if step is not None and folder.name != f"checkpoint_{step}":
            raise PadirError(
                f"{folder} is not the checkpoint of step {step}: give its model_dir, or leave the step out"
            )
        return folder
    matches = [(FOLDER.fullmatch(child.name), child) for child in folder.iterdir() if child.is_dir()]
    found = {int(match[1]): child for match, child in matches if match}
    if not found:
        raise PadirError(f"{folder} has no checkpoint_<step> folder: give a T5X checkpoint, or the model_dir of a run")
    wanted = max(found) if step is None else step
    if wanted not in found:
        raise PadirError(f"{folder} has checkpoints of steps {', '.join(map(str, sorted(found)))}, not of {step}")
    return found[wanted]


def read(
    path: str | os.PathLike[str], step: int | None = None, *, wanted: Wanted = lambda name, shape: True
) -> T5XCheckpoint:
    """Reads the parameters of a checkpoint of either kind.

    Args:
      path, step: as in `find`.
      wanted: called with the name and shape of each parameter before memory is taken for it; False leaves it unread.
    """
    folder = find(path, step)
    check_files(folder)
    if (folder / "checkpoint").is_file():
        tree = _read_own(folder, wanted)
    elif (folder / "state").is_dir():
        tree = _read_orbax(folder / "state", wanted)
    else:
        raise PadirError(f"{folder} holds neither a file `checkpoint` nor a folder `state`: it is no T5X checkpoint")
    params = {name: _float32(name, value) for name, value in tree["target"].items()}
    number = FOLDER.fullmatch(folder.name)
    steps = tree["step"] if tree["step"] is not None else (number[1] if number else 0)
    return T5XCheckpoint(folder, int(steps), params)


def _float32(name: str, value: ArrayLike | jax.ShapeDtypeStruct) -> np.ndarray | jax.ShapeDtypeStruct:
    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    array = np.asarray(value)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise PadirError(f"parameters must be floating-point numbers, got {name} of {array.dtype}")
    if not np.isfinite(array.astype(np.float32)).all():
        raise PadirError(f"parameters must be finite, got NaN or infinity in {name}: take an earlier checkpoint")
    return array.astype(np.float32)


def _read_own(folder: Path, wanted: Wanted) -> dict[str, Any]:
    data = (folder / "checkpoint").read_bytes()
    if data.startswith(TENSORFLOW):
        raise PadirError(f"{folder} is a TensorFlow checkpoint: convert it with T5X's convert_tf_checkpoint.py first")
    try:
        contents = flax.serialization.msgpack_restore(data)
        version = int(contents["version"])
        optimizer = contents["optimizer"]
        step = int(np.asarray(optimizer["state"]["step"]))
        leaves = flax.traverse_util.flatten_dict(
            optimizer["target"], sep="/", is_leaf=lambda _, value: "kvstore" in value
        )
    except Exception as error:  # damaged files make msgpack raise errors of many types
        raise PadirError(
            f"{folder / 'checkpoint'} is not T5X's msgpack file, or damaged ({type(error).__name__}): {AGAIN}"
        ) from None
    if version not in _VERSIONS:
        raise PadirError(f"{folder} has version {version} of T5X's format, this padir reads {_VERSIONS}")
    return {"target": read_arrays(folder, leaves, wanted), "step": step}


def _read_orbax(state: Path, wanted: Wanted) -> dict[str, Any]:
    with stored_arrays(state, AGAIN) as (checkpointer, tree):
        arrays: dict[str, Any] = flax.traverse_util.flatten_dict(tree["target"], sep="/")
        chosen = {name: array for name, array in arrays.items() if wanted(name, array.shape)}
        part: dict[str, Any] = {"state": {"step": tree["state"]["step"]}}
        if chosen:  # to Orbax an empty "target" would be a structure other than the checkpoint's
            part["target"] = flax.traverse_util.unflatten_dict(chosen, sep="/")
        restored = restore_part(checkpointer, state, part)
    target = {name: jax.ShapeDtypeStruct(array.shape, np.float32) for name, array in arrays.items()}
    target |= flax.traverse_util.flatten_dict(restored.get("target", {}), sep="/")
    return {"target": target, "step": np.asarray(restored["state"]["step"])}


def _chunks(array: np.ndarray) -> list[int]:
    """The chunk shape that T5X uses: as many rows as 64 MB hold."""
    if array.ndim == 0:
        return []
    rows = _CHUNK_BYTES // max(1, array[:1].nbytes)
    return [min(max(1, rows), array.shape[0]), *array.shape[1:]]


def write(model_dir: str | os.PathLike[str], params: PyTree, step: int) -> Path:
    """Writes parameters as a checkpoint of T5X's own kind, without an optimizer's state, whole or not at all.

    Returns the folder, `checkpoint_<step>` in `model_dir`. The arrays of `params` are stored as float32.

    Raises:
      PadirError: the checkpoint exists, or it cannot be written.
    """
    import tensorstore  # comes with Orbax; slow to import

    final = Path(model_dir) / f"checkpoint_{step}"
    if final.exists():
        raise PadirError(f"{final} already exists: give another folder, or remove it")
    flat = flax.traverse_util.flatten_dict(jax.device_get(params), sep="/")
    specs = {}
    pending = []
    with atomic_folder(final) as unfinished:
        for name, value in flat.items():
            array = np.asarray(value, np.float32)
            path = f"target.{name.replace('/', '.')}"
            metadata = {"chunks": _chunks(array), "compressor": {"id": "gzip"}, "shape": list(array.shape)}
            specs[name] = {"driver": "zarr", "dtype": "float32", "metadata": metadata}
            specs[name]["kvstore"] = {"driver": "file", "path": path}
            here = {**specs[name], **spec_of(unfinished / path)}
            pending.append(tensorstore.open(here, create=True).result().write(array))
        try:
            for future in pending:
                future.result()
        except ValueError as error:  # TensorStore raises it for a full disk
            raise PadirError(f"cannot write {final} ({first_line(error)}): make room on its disk") from error
        target = flax.traverse_util.unflatten_dict(specs, sep="/")
        optimizer = {"target": target, "state": {"step": np.int32(step), "param_states": {}}}
        contents = flax.serialization.msgpack_serialize({"version": 3, "optimizer": optimizer})
        (unfinished / "checkpoint").write_bytes(contents)
    return final


AGAIN = "copy the checkpoint again"

Wanted = Callable[[str, tuple[int, ...]], bool]
"""Function from a parameter's name and shape that tells whether the parameter is read."""


def read_arrays(folder: Path, leaves: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """The leaves, with each named zarr array that is wanted read from its folder, all in parallel."""
    import tensorstore

    opened = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, dict):
            where = _inside(folder, name, leaf)
            # Only the folder's name is taken from the leaf, which could name any store and address.
            spec = {**spec_of(where), "fill_missing_data_reads": False}
            opened[name] = where, tensorstore.open(spec, open=True, read=True)
    reading = {}
    arrays = dict(leaves)
    for name, (where, future) in opened.items():
        try:
            array = future.result()
        except ValueError as error:
            raise PadirError(f"{where} holds no readable zarr array: {AGAIN} ({first_line(error)})") from None
        check_chunks(where, array.shape, array.chunk_layout.read_chunk.shape)
        if wanted(name, array.shape):
            reading[name] = where, array.shape, array.read()
        else:
            arrays[name] = jax.ShapeDtypeStruct(array.shape, np.float32)
    for name, (where, shape, future) in reading.items():
        try:
            arrays[name] = future.result()
        except ValueError as error:
            # zarr leaves out chunks of zeros; of other arrays than these, a chunk may have been lost.
            no_chunks = len(shape) < 2 and all(path.name.startswith(".") for path in where.iterdir())
            if not no_chunks or "missing" not in str(error):
                raise PadirError(f"{where} is damaged: {AGAIN} ({first_line(error)})") from None
            arrays[name] = np.zeros(shape, np.float32)
    return arrays


def spec_of(where: Path) -> dict[str, Any]:
    return {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{where}/"}}


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
            f"{folder} says that {name} lies at {path!r}, outside the checkpoint: do not use this checkpoint"
        )
    return where

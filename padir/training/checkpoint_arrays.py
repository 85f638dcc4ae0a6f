"""Arrays of a checkpoint in Orbax's format, which one process writes and reads whole."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flax.traverse_util
import jax
import numpy as np
from jaxtyping import PyTree

from padir.errors import PadirError, first_line
from padir.storage.files import check_chunks

if TYPE_CHECKING:
    from orbax.checkpoint import Checkpointer
else:
    Checkpointer = Any  # Orbax is slow to import, and decoding does not need it

Check = Callable[[Mapping[str, tuple[int, ...]]], object]
"""Callback that gets the shapes of arrays by name, and raises if they are not wanted."""
ARRAYS = "state"  # name of the folder in a checkpoint's folder


def made_checkpointer(*, partial: bool = False) -> Checkpointer:
    """Makes an Orbax checkpointer that does not wait for other processes; `partial` is for some of the arrays."""
    import orbax.checkpoint as ocp

    logging.getLogger("absl").addFilter(_is_no_raised_error)
    here = jax.process_index()
    processes = ocp.options.MultiprocessingOptions()
    if jax.process_count() > 1:
        processes = ocp.options.MultiprocessingOptions(here, {here}, f"process_{here}")
    if not partial:
        return ocp.StandardCheckpointer(multiprocessing_options=processes)
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=processes)
    return ocp.Checkpointer(handler, multiprocessing_options=processes)


def _is_no_raised_error(record: logging.LogRecord) -> bool:
    """False for log records with the traceback of an error that Orbax also raises."""
    return record.levelno < logging.ERROR or "orbax" not in record.pathname


def write_arrays(folder: Path, state: PyTree) -> None:
    """Writes a state that this process holds whole, without other processes."""
    with made_checkpointer() as checkpointer:
        checkpointer.save(folder.absolute() / ARRAYS, state)


def read_arrays(folder: Path, like: PyTree) -> PyTree:
    """Reads a whole state as NumPy arrays.

    Raises:
      ValueError: `like` has other shapes or names.
    """
    with made_checkpointer() as checkpointer:
        found, expected = (jax.tree.leaves(tree) for tree in (_stored(checkpointer, folder / ARRAYS), like))
        if sorted(map(np.shape, found)) != sorted(map(np.shape, expected)):  # before memory is taken for them
            raise ValueError("the shapes of its arrays differ")
        wanted = jax.tree.map(lambda leaf: np.empty(np.shape(leaf), leaf.dtype), like)
        state = checkpointer.restore(folder.absolute() / ARRAYS, wanted)
    if jax.tree.map(np.shape, state) != jax.tree.map(np.shape, like):  # Orbax takes any shape
        raise ValueError("the shapes of its arrays differ")
    return state


def _stored(checkpointer: Checkpointer, where: Path) -> PyTree:
    """The tree of Orbax's folder with shapes and types in place of arrays; refuses chunks larger than their array."""
    metadata = checkpointer.metadata(where.absolute()).item_metadata
    if metadata is None:
        raise ValueError("its arrays have no metadata")
    tree = metadata.tree
    for array in jax.tree.leaves(tree):
        check_chunks(where / array.name, array.shape, array.storage and array.storage.chunk_shape)
    return tree


@contextlib.contextmanager
def stored_arrays(where: Path, remedy: str) -> Iterator[tuple[Checkpointer, PyTree]]:
    """Opens Orbax's folder to read some of its arrays: a checkpointer, and the tree with shapes in place of arrays.

    Raises:
      PadirError: the folder is damaged.
    """
    with made_checkpointer(partial=True) as checkpointer:
        try:
            yield checkpointer, _stored(checkpointer, where)
        except PadirError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError) as error:
            raise PadirError(f"{where} is damaged, or no checkpoint ({first_line(error)})", remedy=remedy) from None


def read_branch(folder: Path, path: tuple[str, ...], check: Check) -> PyTree:
    """Reads the arrays below a path of the state's tree as NumPy arrays, whatever devices they were saved from.

    Raises:
      PadirError: the checkpoint is damaged, or holds nothing at that path.
    """
    with stored_arrays(folder / ARRAYS, "use another checkpoint") as (checkpointer, tree):
        arrays: dict[Any, Any] = flax.traverse_util.flatten_dict(tree)
        arrays = {name: array for name, array in arrays.items() if name[: len(path)] == path}
        if not arrays:
            raise _without(path, tree, folder)
        check({"/".join(name[len(path) :]): array.shape for name, array in arrays.items()})
        restored = restore_part(checkpointer, folder / ARRAYS, flax.traverse_util.unflatten_dict(arrays))
    for name in path:
        restored = restored[name]
    return restored


def restore_part(checkpointer: Checkpointer, folder: Path, part: PyTree) -> PyTree:
    """Reads some of the arrays of Orbax's folder as NumPy arrays, whatever devices they were saved from."""
    import orbax.checkpoint as ocp

    how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), part)
    arguments = ocp.args.PyTreeRestore(part, restore_args=how, partial_restore=True)
    return checkpointer.restore(folder.absolute(), args=arguments)


def _without(path: tuple[str, ...], tree: PyTree, folder: Path) -> PadirError:
    """The error for a checkpoint without parameters or without their moving average."""
    if path == ("params",) or "params" not in tree:
        return PadirError(f"{folder} holds {', '.join(tree)}, but no params: give a checkpoint of `padir train`")
    what = f"{folder} holds no moving average, although the run was validated with one"
    return PadirError(what, remedy="average the last checkpoints")

"""Arrays of a checkpoint in Orbax's format, written by one process or all, and read whole or in a device's parts.

The format is always the same: one process can read arrays that several processes wrote, and vice versa.
"""

from __future__ import annotations

import contextlib
import itertools
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
_MEETINGS = ("written", "committed")  # points at which Orbax's processes wait for each other
_SECONDS = 1_200  # seconds that the slowest process may take to write its part
_numbers = itertools.count()  # gives each state that all processes write a number, the same in each process


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


class WriteByAll:
    """Writes one state from all processes: each process writes the parts that its devices hold.

    All processes make an instance at the same point of the program, which copies the parts to the host. `wait` may run
    in another thread, because the processes then meet through JAX's coordinator and not on the devices. The first
    process has made `folder`, the unfinished folder of a checkpoint, and all processes see it.
    """

    def __init__(self, folder: Path, state: PyTree):
        import orbax.checkpoint as ocp

        logging.getLogger("absl").addFilter(_is_no_raised_error)
        every = set(range(jax.process_count()))
        self._folder = folder
        self._name = f"save_{next(_numbers)}"
        self._barrier = ocp.multihost.get_barrier_sync_fn(processes=every)
        self._left = iter(_MEETINGS)
        self._checkpointer = ocp.StandardCheckpointer(
            multiprocessing_options=ocp.options.MultiprocessingOptions(0, every, self._name),
            async_options=ocp.options.AsyncOptions(
                timeout_secs=_SECONDS, barrier_sync_fn=self._meet, create_directories_asynchronously=False
            ),
        )
        self._checkpointer.save(folder.absolute() / ARRAYS, state)

    def wait(self) -> None:
        """Waits until all processes have written their parts; raises if this process failed (in the first, if any)."""
        error = None
        try:
            self._checkpointer.wait_until_finished()
        except Exception as raised:  # each library that Orbax uses raises another type
            error = raised
        for meeting in self._left:  # this process has failed, and the others must not wait for it
            self._barrier(key=f"{self._name}.{meeting}", timeout_ms=1_000 * _SECONDS)
        self._checkpointer.close()
        if jax.process_index() == 0:
            marks = [self._mark(process) for process in range(jax.process_count())]
            failed = [process for process, mark in enumerate(marks) if not mark.exists()]
            if failed and failed[-1]:
                raise PadirError(f"process {failed[-1]} could not write its part: read its messages") from error
            for mark in marks:
                mark.unlink(missing_ok=True)
        if error is not None:
            raise error

    def _meet(self, *, key: str, timeout_ms: int) -> None:
        """Waits for all processes; Orbax calls this when this process's part is on disk, and after the commit."""
        meeting = next(self._left)
        if meeting == _MEETINGS[0]:
            self._mark(jax.process_index()).touch()
        self._barrier(key=f"{self._name}.{meeting}", timeout_ms=timeout_ms)

    def _mark(self, process: int) -> Path:
        return self._folder / f"written.{process}"


def write_arrays(folder: Path, state: PyTree) -> None:
    """Writes a state that this process holds whole, without other processes."""
    with made_checkpointer() as checkpointer:
        checkpointer.save(folder.absolute() / ARRAYS, state)


def read_arrays(folder: Path, like: PyTree, shardings: PyTree = None) -> PyTree:
    """Reads a whole state as NumPy arrays or, with shardings, the parts that this process's devices hold.

    Raises:
      ValueError: `like` has other shapes or names.
    """
    if shardings is None:
        wanted = jax.tree.map(lambda leaf: np.empty(np.shape(leaf), leaf.dtype), like)
    else:
        shape = jax.ShapeDtypeStruct
        wanted = jax.tree.map(lambda leaf, where: shape(leaf.shape, leaf.dtype, sharding=where), like, shardings)
    check_like(folder, like)
    with made_checkpointer() as checkpointer:
        state = checkpointer.restore(folder.absolute() / ARRAYS, wanted)
    if jax.tree.map(np.shape, state) != jax.tree.map(np.shape, like):  # Orbax takes any shape
        raise ValueError("the shapes of its arrays differ")
    return state


def check_like(folder: Path, like: PyTree) -> None:
    """Raises a ValueError if stored arrays have other shapes than `like`, before memory is taken for them."""
    with made_checkpointer() as checkpointer:
        found, expected = (jax.tree.leaves(tree) for tree in (_stored(checkpointer, folder / ARRAYS), like))
    if sorted(map(np.shape, found)) != sorted(map(np.shape, expected)):
        raise ValueError("the shapes of its arrays differ")


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

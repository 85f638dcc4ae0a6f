"""Training checkpoints: Orbax arrays with a manifest of sha256 sums.

A checkpoint is a folder `checkpoints/<step>/` with Orbax arrays of the train state, `loader.json`, the files
that the run adds (the operative `config.gin`, `model.json` and `vocab.model`), an empty file `extra` if the checkpoint
is an extra one, and `manifest.json`. A background thread writes
the folder under another name and renames the folder once every file is on disk, so that a folder named after a step is
always complete.
"""

from __future__ import annotations

import concurrent.futures
import json
import logging
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import flax.traverse_util
import jax
import numpy as np

from padir.errors import PadirError, first_line
from padir.storage.files import check_chunks, check_files
from padir.storage.folders import atomic_folder, remove_leftovers
from padir.storage.manifest import check_manifest, write_manifest

EXTRA = "extra"
Check = Callable[[Mapping[str, tuple[int, ...]]], object]
"""Callback that gets the shapes of arrays by name, and raises if they are not wanted."""
_STEP = re.compile("0|[1-9][0-9]{0,17}")  # the name of a checkpoint's folder; 0115 is not one: it would become 115


def _orbax(*, partial: bool = False) -> Any:
    """Makes an Orbax checkpointer that does not wait for other processes, as only the first one has the checkpoints.

    Args:
      partial: make one that reads some of the arrays.
    """
    import orbax.checkpoint as ocp  # slow to import, and decoding does not need it

    logging.getLogger("absl").addFilter(_is_no_raised_error)
    here, processes = jax.process_index(), ocp.options.MultiprocessingOptions()
    if jax.process_count() > 1:
        processes = ocp.options.MultiprocessingOptions(here, {here}, f"process_{here}")
    if not partial:
        return ocp.StandardCheckpointer(multiprocessing_options=processes)
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=processes)
    return ocp.Checkpointer(handler, multiprocessing_options=processes)


def _is_no_raised_error(record: logging.LogRecord) -> bool:
    """False for log records with the traceback of an error that Orbax also raises."""
    return record.levelno < logging.ERROR or "orbax" not in record.pathname


def _empty(leaf: Any) -> np.ndarray:
    """Makes a NumPy array with the leaf's shape and dtype, which tells Orbax to restore the leaf to the host."""
    return np.empty(np.shape(leaf), leaf.dtype)


class Checkpoints:
    """The checkpoints of one training run: `save` returns at once, `restore_latest` skips damaged checkpoints.

    Regular checkpoints come at the run's intervals, and only regular checkpoints are averaged. A stop between two
    intervals saves an extra checkpoint: the run resumes from the extra checkpoint, and the next save removes it, so
    that a run that was stopped ends with the same regular checkpoints as an uninterrupted run.

    Leaving the context manager waits for the last save, even after an exception: Orbax cannot finish a background save
    once the process exits.

    Attributes:
      folder: the folder that holds one folder for each step.
      keep: number of the newest regular checkpoints that are kept.
      protected: steps whose checkpoints are kept, however old.
    """

    def __init__(self, folder: Path, keep: int = 2):
        self.folder, self.keep = folder, keep
        self.protected: frozenset[int] = frozenset()
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: concurrent.futures.Future | None = None

    def __enter__(self) -> Checkpoints:
        self._thread.submit(int).result()  # starts the thread: an interrupt at its start would make a second one
        return self

    def __exit__(self, exception_type, *_) -> None:
        self._thread.submit(int).result()  # waits for all saves, even one that an interrupt kept from `_pending`
        try:
            self.wait()
        except Exception as error:
            if exception_type is None:
                raise
            print(
                f"padir: the last checkpoint could not be saved: {error}", file=sys.stderr
            )  # `exception_type` is raised, too

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        names = (path.name for path in self.folder.iterdir() if path.is_dir())
        return sorted(int(name) for name in names if _STEP.fullmatch(name))

    def regular_steps(self) -> list[int]:
        """Steps that have a regular checkpoint, oldest first."""
        return [step for step in self.steps() if not (self.folder / str(step) / EXTRA).exists()]

    def config(self, step: int) -> str:
        """Text of the configuration with which a checkpoint was trained; "" if the checkpoint has no config.gin."""
        path = self.folder / str(step) / "config.gin"
        return path.read_text() if path.exists() else ""

    def save(
        self,
        step: int,
        state: Any,
        loader_state: dict[str, Any],
        *,
        files: Mapping[str, bytes] = MappingProxyType({}),
        extra: bool = False,
    ) -> None:
        """Copies the state to the host and writes it in the background, after waiting for an earlier save.

        Args:
          files: contents of further files by name.
          extra: True for an extra checkpoint, False for a regular one.

        Raises:
          PadirError: the earlier save failed.
        """
        self.wait()
        host_state = jax.tree.map(np.asarray, jax.device_get(state))
        self._pending = self._thread.submit(self._write, step, host_state, dict(loader_state), files, extra)

    def wait(self) -> None:
        """Returns when the last save is on disk; raises the error of the save."""
        if self._pending is not None:
            concurrent.futures.wait([self._pending])  # after an interrupt here, the next call waits again
            pending, self._pending = self._pending, None
            pending.result()

    def _write(
        self, step: int, state: Any, loader_state: dict[str, Any], files: Mapping[str, bytes], extra: bool
    ) -> None:
        try:
            with atomic_folder(self.folder / str(step)) as unfinished:
                with _orbax() as checkpointer:
                    checkpointer.save(unfinished.absolute() / "state", state)
                (unfinished / "loader.json").write_text(json.dumps(loader_state) + "\n")
                for name, content in files.items():
                    (unfinished / name).write_bytes(content)
                if extra:
                    (unfinished / EXTRA).touch()
                write_manifest(unfinished)
        except Exception as error:  # each library that Orbax uses raises another type of error for a full disk
            remove_leftovers(self.folder)  # threads of Orbax may have written on while the folder was removed
            raise PadirError(
                f"the checkpoint of step {step} could not be written: {first_line(error)}; those before it are whole:"
                f" see that there is room in {self.folder}, and run the same command again"
            ) from error
        regular = self.regular_steps()
        for old in set(self.steps()) - {step, *regular[-self.keep :]} - self.protected:
            shutil.rmtree(self.folder / str(old), ignore_errors=True)

    def restore_latest(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """State and loader state of the newest undamaged checkpoint, or None; names damaged checkpoints on stderr.

        Args:
          like: a state of the same structure and shapes, or the shapes alone (from `jax.eval_shape`).

        Raises:
          PadirError: checkpoints exist, but all are damaged or none fits the state.
        """
        remove_leftovers(self.folder)
        for leftover in self.folder.glob("*.unfinished"):  # the name of unfinished folders in earlier versions
            shutil.rmtree(leftover, ignore_errors=True)
        damaged: list[int] = []
        for step in reversed(self.steps()):
            folder = self.folder / str(step)
            try:
                check_files(folder)
                check_manifest(folder)
                loader_state = json.loads((folder / "loader.json").read_text())
                with _orbax() as checkpointer:
                    shapes = sorted(array.shape for array in jax.tree.leaves(_stored(checkpointer, folder)))
                    if shapes != sorted(map(np.shape, jax.tree.leaves(like))):  # before memory is taken for them
                        raise ValueError("the shapes of its arrays differ")
                    state = checkpointer.restore(folder.absolute() / "state", jax.tree.map(_empty, like))
                if jax.tree.map(np.shape, state) != jax.tree.map(np.shape, like):  # Orbax takes any shape
                    raise ValueError("the shapes of its arrays differ")
                for newer in damaged:  # so that a damaged checkpoint does not count as one of the newest
                    shutil.rmtree(self.folder / f"{newer}.damaged", ignore_errors=True)
                    (self.folder / str(newer)).rename(self.folder / f"{newer}.damaged")
                return state, loader_state
            except PadirError as error:
                damaged.append(step)
                print(f"padir: skipping the checkpoint of step {step}: {error}", file=sys.stderr)
            except ValueError as error:
                raise PadirError(
                    f"the checkpoint of step {step} in {self.folder} is of another model or optimizer than this"
                    " configuration (a moving average belongs to the optimizer, and begins with the first step): train"
                    f" in a new directory ({first_line(error)})"
                ) from error
        if damaged:
            raise PadirError(f"no whole checkpoint is left in {self.folder}: remove it to start again")
        return None

    def params(self, step: int, *, moving_average: bool = False, check: Check = lambda shapes: None) -> Any:
        """Reads a checkpoint's parameters, or their moving average, whatever optimizer the run used.

        Args:
          check: called with the shapes of the arrays by name before memory is taken for them, to refuse them.

        Raises:
          PadirError: the checkpoint is missing or damaged, or holds no parameters or no moving average.
        """
        folder, path = self.folder / str(step), ("opt_state", "average") if moving_average else ("params",)
        check_files(folder)
        check_manifest(folder)
        with _orbax(partial=True) as checkpointer:
            try:
                tree = _stored(checkpointer, folder)
                arrays: dict[Any, Any] = flax.traverse_util.flatten_dict(tree)
                arrays = {name: array for name, array in arrays.items() if name[: len(path)] == path}
                if not arrays:
                    raise _without(path, tree, folder)
                check({"/".join(name[len(path) :]): array.shape for name, array in arrays.items()})
                part = flax.traverse_util.unflatten_dict(arrays)
                restored = _restore_part(checkpointer, folder, part)
            except PadirError:
                raise
            except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError) as error:
                raise PadirError(f"{folder} is damaged ({first_line(error)})", remedy="use another one") from None
        for name in path:
            restored = restored[name]
        return restored


def _stored(checkpointer: Any, folder: Path) -> Any:
    """The tree of a checkpoint with shapes and types in place of arrays.

    Raises:
      PadirError: a chunk is larger than its array.
    """
    tree = checkpointer.metadata(folder.absolute() / "state").item_metadata.tree
    for array in jax.tree.leaves(tree):
        check_chunks(folder / array.name, array.shape, array.storage and array.storage.chunk_shape)
    return tree


def _restore_part(checkpointer: Any, folder: Path, part: Any) -> Any:
    """Reads some arrays of a checkpoint as NumPy arrays, whatever devices the checkpoint was saved from."""
    import orbax.checkpoint as ocp

    how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), part)
    arguments = ocp.args.PyTreeRestore(part, restore_args=how, partial_restore=True)
    return checkpointer.restore(folder.absolute() / "state", args=arguments)


def _without(path: tuple[str, ...], tree: Any, folder: Path) -> PadirError:
    """The error for a checkpoint without parameters or without their moving average."""
    if path == ("params",) or "params" not in tree:
        return PadirError(f"{folder} holds {', '.join(tree)}, but no params: give a checkpoint of `padir train`")
    return PadirError(
        f"{folder} holds no moving average, although the run was validated with one: average the last checkpoints"
    )

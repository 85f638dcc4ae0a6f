"""Training checkpoints, Orbax arrays with a manifest of sha256 sums, and the models that they hold.

A checkpoint is a folder `checkpoints/<step>/` with Orbax arrays of the train state, `loader.json`, the files that the
run adds (the operative `config.gin`, `model.json` and `vocab.model`), an empty file `extra` in an extra checkpoint, and
`manifest.json`. A background thread writes the folder under another name, and renames it once every file is on disk. So
a folder named after a step is always complete.

Only the first process of a training run has checkpoints; it gathers the arrays of all processes.
"""

from __future__ import annotations

import concurrent.futures
import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import flax.traverse_util
import jax
import numpy as np
from jaxtyping import PyTree

from padir.distributed.processes import from_first, gathered, is_first
from padir.errors import PadirError, first_line
from padir.models.directory import ModelCard, check_shapes, model_params, read_card
from padir.refinement.protocols import Corruption, Strategy
from padir.storage.files import check_files
from padir.storage.folders import atomic_folder, remove_leftovers
from padir.storage.manifest import MANIFEST, check_manifest, write_manifest
from padir.text.tokenizer import Tokenizer
from padir.training import checkpoint_arrays as arrays

_log = logging.getLogger("padir")
EXTRA = "extra"
_STEP = re.compile("0|[1-9][0-9]{0,17}")  # the name of a checkpoint's folder; 0115 is not one: it would become 115


class Checkpoints:
    """The checkpoints of one training run: `save` returns at once, `restore_latest` skips damaged checkpoints.

    Regular checkpoints come at the run's intervals, and only they are averaged. A stop between two intervals saves an
    extra checkpoint, from which the run resumes, and which the next save removes. Leaving the context manager waits for
    the last save, even after an exception: Orbax cannot finish a background save once the process exits.

    Attributes:
      folder: the folder that holds one folder for each step.
      keep: number of the newest regular checkpoints that a save keeps.
      after_save: called in the first process, in the background, after each save.
    """

    def __init__(self, folder: Path, keep: int = 2, *, after_save: Callable[[], None] = lambda: None):
        self.folder = folder
        self.keep = keep
        self.after_save = after_save
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: concurrent.futures.Future | None = None

    def __enter__(self) -> Checkpoints:
        self._thread.submit(int).result()  # starts the thread: an interrupt at its start would make a second one
        return self

    def __exit__(self, exception_type, *_) -> None:
        self._thread.submit(int).result()  # waits for all saves, even one that an interrupt kept from `_pending`
        try:
            self._wait()
        except Exception as error:
            if exception_type is None:
                raise
            # `exception_type` is raised, too.
            _log.warning("the last checkpoint could not be saved: %s", error)

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
        state: PyTree,
        loader_state: dict[str, Any],
        *,
        files: Mapping[str, bytes] = MappingProxyType({}),
        extra: bool = False,
        protected: frozenset[int] = frozenset(),
    ) -> None:
        """Copies the state to the host and writes it in the background; all processes must call this function.

        Args:
          files: contents of further files by name.
          extra: True for an extra checkpoint, False for a regular one.
          protected: steps whose checkpoints are kept, too.
        """
        self.wait()
        others = {"loader.json": f"{json.dumps(loader_state)}\n".encode(), **files, **({EXTRA: b""} if extra else {})}
        whole = gathered(state)
        if is_first():
            whole = jax.tree.map(np.asarray, jax.device_get(whole))
            self._pending = self._thread.submit(self._write, step, whole, others, protected)

    def wait(self) -> None:
        """Waits until the last save is on disk, or raises its error; all processes must call this function."""
        from_first(self._wait)

    def _wait(self) -> None:
        if self._pending is not None:
            concurrent.futures.wait([self._pending])  # after an interrupt here, the next call waits again
            pending = self._pending
            self._pending = None
            pending.result()

    def _write(self, step: int, state: PyTree, others: Mapping[str, bytes], protected: frozenset[int]) -> None:
        """Writes a checkpoint's folder: the arrays of a state, and the other files by name."""
        try:
            with atomic_folder(self.folder / str(step)) as unfinished:
                arrays.write_arrays(unfinished, state)
                for name, content in others.items():
                    (unfinished / name).write_bytes(content)
                write_manifest(unfinished)
        except Exception as error:  # each library that Orbax uses raises another type of error for a full disk
            remove_leftovers(self.folder)  # threads of Orbax may have written on while the folder was removed
            what = f"the checkpoint of step {step} could not be written: {first_line(error)}"
            remedy = f"make room in {self.folder}, and run the same command again"
            raise PadirError(f"{what}; earlier checkpoints are whole", remedy=remedy) from error
        regular = self.regular_steps()
        for old in set(self.steps()) - {step, *regular[-self.keep :]} - protected:
            shutil.rmtree(self.folder / str(old), ignore_errors=True)
        self.after_save()

    def restore_latest(self, like: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
        """State (like `like`) and loader state of the newest undamaged checkpoint, or None; logs damaged ones.

        Raises:
          PadirError: checkpoints exist, but all are damaged or none fits the state.
        """
        remove_leftovers(self.folder)
        damaged: list[int] = []
        for step in reversed(self.steps()):
            folder = self.folder / str(step)
            try:
                check_files(folder)
                check_manifest(folder)
                loader_state = json.loads((folder / "loader.json").read_text())
                state = arrays.read_arrays(folder, like)
                for newer in damaged:  # so that a damaged checkpoint does not count as one of the newest
                    shutil.rmtree(self.folder / f"{newer}.damaged", ignore_errors=True)
                    (self.folder / str(newer)).rename(self.folder / f"{newer}.damaged")
                return state, loader_state
            except PadirError as error:
                damaged.append(step)
                _log.warning("skipping the checkpoint of step %s: %s", step, error)
            except ValueError as error:
                what = f"the checkpoint of step {step} in {self.folder} is of another model or optimizer than this"
                what += " configuration (a moving average belongs to the optimizer, and begins with the first step)"
                raise PadirError(what, remedy=f"train in a new directory ({first_line(error)})") from error
        if damaged:
            raise PadirError(f"no whole checkpoint is left in {self.folder}: remove this folder to start again")
        return None

    def params(self, step: int, *, moving_average: bool = False, check: arrays.Check = lambda shapes: None) -> PyTree:
        """Reads a checkpoint's parameters, or their moving average, whatever optimizer the run used.

        Args:
          check: called with the shapes of the arrays by name, before memory is taken for them; it may raise to refuse
            them.
        """
        folder = self.folder / str(step)
        path = ("opt_state", "average") if moving_average else ("params",)
        check_files(folder)
        check_manifest(folder)
        return arrays.read_branch(folder, path, check)


def load_step(
    folder: Path, step: int | None = None, *, corruption: Corruption | None = None, strategy: Strategy | None = None
) -> tuple[PyTree, ModelCard, Tokenizer]:
    """Loads the model of a training run's checkpoint, as `load_model` does, and logs the step; None is the newest.

    The run validates with the same parameters: the moving average, if it has one, else the parameters of the step.
    """
    checkpoints = Checkpoints(folder / "checkpoints")
    card, tokenizer = read_run_card(checkpoints, step, corruption=corruption, strategy=strategy)
    path = checkpoints.folder / str(card.step)
    average = card.weights.decay is not None
    params = checkpoints.params(card.step, moving_average=average, check=lambda found: check_shapes(found, path, card))
    flat = {name: np.asarray(leaf) for name, leaf in flax.traverse_util.flatten_dict(params, sep="/").items()}
    flat = model_params(flat, path, card)
    unfinished = "" if (folder / MANIFEST).exists() else "; the training run has not finished"
    _log.info("%s: the checkpoint of step %s is used%s", folder, f"{card.step:,}", unfinished)
    return flax.traverse_util.unflatten_dict(flat, sep="/"), card, tokenizer


def read_run_card(
    checkpoints: Checkpoints,
    step: int | None = None,
    *,
    corruption: Corruption | None = None,
    strategy: Strategy | None = None,
) -> tuple[ModelCard, Tokenizer]:
    """Card and tokenizer of a checkpoint (None: the newest); other arguments are as in `read_card`."""
    steps = checkpoints.steps()
    if not steps or (step is not None and step not in steps):
        kept = f"it has those of {', '.join(map(str, steps))}" if steps else "give the folder of a training run"
        wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
        raise PadirError(f"{checkpoints.folder} has no {wanted}", remedy=kept)
    step = steps[-1] if step is None else step
    return read_card(checkpoints.folder / str(step), corruption=corruption, strategy=strategy)

"""Resuming a training run: checks of directory and data, reading checkpoints, changes of the configuration."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from padir.data.manifest import PreparedManifest
from padir.data.mixture import Mixture
from padir.data.plan import Batching
from padir.distributed.processes import arrays_from_first, from_first
from padir.distributed.sharding import spread
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.storage.manifest import MANIFEST, check_manifest
from padir.training.checkpoints import Checkpoints


def check_new(folder: Path, checkpoints: Checkpoints) -> None:
    """Refuses a model directory whose model a new training run would overwrite.

    Raises:
      PadirError: the folder holds a model, but no checkpoints to resume from.
    """
    if (folder / MANIFEST).exists() and not checkpoints.steps():
        raise PadirError(
            f"model_dir must be new, or hold the checkpoints of the training run to resume, got {folder},"
            f" which holds a {MANIFEST} but no checkpoints and would be overwritten: give another one"
        )


def read_state(read: Callable[[], tuple[Any, Any] | None], like: Any, shardings: Any) -> tuple[Any, Any]:
    """Reads arrays and a JSON value in the first process, and distributes both to all processes.

    Args:
      read: function that only the first process calls; returns (arrays, JSON value), or None for (None, None).
      like: shapes and dtypes of the arrays.
      shardings: shardings of the arrays.
    """
    arrays: list[Any] = []

    def rest() -> list[Any]:
        got = read()
        if got is None:
            return []
        arrays.append(got[0])
        return [got[1]]

    told = from_first(rest)
    if not told:
        return None, None
    return arrays_from_first(arrays[0] if arrays else like, spread, shardings), told[0]


def finished(folder: Path, step: int) -> dict[str, float] | None:
    """The model card's metrics if the folder holds the finished model of the last step, as reported on stderr; or None.

    Args:
      step: the last step.
    """
    if not (folder / MANIFEST).exists():
        return None
    try:
        check_manifest(folder)
    except PadirError as error:
        print(f"padir: writing the model again from the last checkpoint: {error}", file=sys.stderr)
        return None
    card = json.loads((folder / "model.json").read_text())
    if card["step"] != step:
        return None
    print(
        f"padir: {folder} is finished: it has all {step:,} steps, and nothing was done. To go on, raise"
        " num_steps (train.num_steps in gin). To train again, give another model_dir. `padir average` averages its"
        " checkpoints",
        file=sys.stderr,
    )
    return card["metrics"]


def warn_of_changes(before: str, now: str, step: int) -> None:
    """Prints on stderr the bindings in which two operative configurations differ, except for num_steps.

    Args:
      before, now: texts of the earlier and the current configuration; "" if one is not known.
      step: step of the checkpoint that has the earlier configuration.
    """
    if not before or not now:
        return
    old, new = _bindings(before), _bindings(now)
    changes = [f"  was  {line}" for line in old if line not in new]
    changes += [f"  is   {line}" for line in new if line not in old]
    if changes:
        print(f"padir: warning: the configuration differs from that of the checkpoint of step {step}:", file=sys.stderr)
        print("\n".join(changes), file=sys.stderr)


def _bindings(config: str) -> list[str]:
    """The bindings of an operative configuration, one a line (gin continues long bindings on indented lines)."""
    lines = re.sub(r" *\\?\n +", " ", config).splitlines()
    return [line for line in lines if line and not line.startswith(("#", "import ", "from ", "train.num_steps"))]


def check_lengths(mixture: Mixture, manifests: list[PreparedManifest], model: ModelConfig, batching: Batching) -> None:
    """Checks that no training sentence, and no row of a single sentence, is longer than the model allows.

    Raises:
      PadirError: a sentence or a row of one sentence is longer than ModelConfig.max_length.
    """
    for folder, manifest in zip(mixture.folders, manifests, strict=True):
        for side in ("source", "target"):
            longest = getattr(manifest.splits["train"], f"longest_{side}")
            if longest > model.max_length:
                raise PadirError(
                    f"{folder} has {side}s of {longest} tokens, the model takes {model.max_length}: raise"
                    f" ModelConfig.max_length, or prepare with max_{side}_tokens={model.max_length}"
                )
    if batching.mode == "bucket" and batching.row_length > model.max_length:
        raise PadirError(
            f"rows of one sentence must not be longer than ModelConfig.max_length, {model.max_length}, got"
            f" Batching.row_length {batching.row_length}"
        )

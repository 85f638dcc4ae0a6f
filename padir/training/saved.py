"""Models of training runs that have not finished, and of earlier steps: the parameters of a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import flax.traverse_util
import numpy as np

from padir.errors import PadirError
from padir.models.card import ModelCard
from padir.models.directory import check_shapes, model_params, read_card
from padir.refinement.protocols import Corruption, Strategy
from padir.storage.manifest import MANIFEST
from padir.text.tokenizer import Tokenizer
from padir.training.checkpoints import Checkpoints


def load_step(
    folder: Path,
    step: int | None = None,
    *,
    corruption: Corruption | None = None,
    strategy: Strategy | None = None,
) -> tuple[Any, ModelCard, Tokenizer]:
    """Loads the model of a training run's checkpoint, as `load_model` does, and names the step on stderr.

    The parameters are those that the run validates with: the moving average, if the run has one.

    Args:
      folder: the model directory of `padir train`.
      step: step of the checkpoint; None for the newest.
      corruption, strategy: instances that replace those of the card, for classes that padir does not know.

    Raises:
      PadirError: the folder has no checkpoint of that step, or the checkpoint is damaged or does not describe its
        model.
    """
    checkpoints = Checkpoints(folder / "checkpoints")
    card, tokenizer = read_run_card(checkpoints, step, corruption=corruption, strategy=strategy)
    path = checkpoints.folder / str(card.step)
    params = checkpoints.params(
        card.step,
        moving_average=card.weights.decay is not None,
        check=lambda shapes: check_shapes(shapes, path, card),
    )
    flat = {name: np.asarray(leaf) for name, leaf in flax.traverse_util.flatten_dict(params, sep="/").items()}
    flat = model_params(flat, path, card)
    unfinished = "" if (folder / MANIFEST).exists() else "; the training run has not finished"
    print(f"padir: {folder}: the checkpoint of step {card.step:,} is used{unfinished}", file=sys.stderr)
    return flax.traverse_util.unflatten_dict(flat, sep="/"), card, tokenizer


def read_run_card(checkpoints: Checkpoints, step: int | None = None, **replaced: Any) -> tuple[ModelCard, Tokenizer]:
    """Card and tokenizer of a checkpoint.

    Args:
      step: step of the checkpoint; None for the newest.
      replaced: corruption and strategy that replace those of the card.

    Raises:
      PadirError: the run has no checkpoint of that step, or the checkpoint does not describe its model.
    """
    steps = checkpoints.steps()
    if not steps or (step is not None and step not in steps):
        kept = f"it has those of {', '.join(map(str, steps))}" if steps else "give the folder of a training run"
        wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
        raise PadirError(f"{checkpoints.folder} has no {wanted}", remedy=kept)
    step = steps[-1] if step is None else step
    folder = checkpoints.folder / str(step)
    if not (folder / "model.json").is_file():
        raise PadirError(
            f"{folder} does not describe its model, because an earlier version of padir wrote it",
            remedy="run the same `padir train` again, which writes further checkpoints",
        )
    return read_card(folder, **replaced)

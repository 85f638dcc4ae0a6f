"""Averaging the checkpoints of a finished training run into a model directory (`padir average`)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from padir import checks
from padir.errors import PadirError
from padir.models.card import ModelCard
from padir.models.config import DTYPES
from padir.models.directory import load_model, save_model
from padir.training.averaging import mean_of_checkpoints
from padir.training.checkpoints import Checkpoints


def average_run(
    run_dir: str | Path, output_dir: str | Path, *, kind: str, count: int, dtype: str = "float32"
) -> ModelCard:
    """Writes the mean of a finished training run's last or best checkpoints as a model directory.

    The run keeps only its last checkpoints (`Intervals.keep`), and kind "best" chooses among these. For a run with a
    moving average, kind "best" averages the moving averages and kind "last" averages the parameters.

    Args:
      run_dir: the model directory of `padir train`, with its checkpoints.
      output_dir: the folder to write.
      kind: "last" or "best".
      count: number of checkpoints to average.
      dtype: type of the weights in the file, "float32" or "bfloat16".

    Raises:
      PadirError: the run is not finished or has fewer than `count` checkpoints, or the output folder is not empty.
    """
    run_dir, output_dir = Path(run_dir), Path(output_dir)
    checks.at_least(1, **{f"--{kind}": count})
    checks.one_of(DTYPES, dtype=dtype)
    if output_dir.exists() and (not output_dir.is_dir() or any(output_dir.iterdir())):
        raise PadirError(f"{output_dir} is not an empty folder: give another folder")
    _, card, tokenizer = load_model(run_dir)
    params, weights = mean_of_checkpoints(Checkpoints(run_dir / "checkpoints"), kind, count, card.weights.decay)
    if len(weights.steps) < count:
        raise PadirError(
            f"{run_dir} has {len(weights.steps)} checkpoints to average ({', '.join(map(str, weights.steps))}), got"
            f" --{kind} {count}: lower it, or train with a higher Intervals.keep"
        )
    # The metrics are removed, as the run measured them with other weights.
    card = dataclasses.replace(card, weights=weights, step=weights.steps[-1], metrics={})
    save_model(output_dir, params, card, tokenizer, (run_dir / "config.gin").read_text(), dtype=dtype)
    return card

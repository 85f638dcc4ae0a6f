"""Averaging the checkpoints of a finished training run into a model directory (`padir average`)."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from padir import checks
from padir.decoding.fit import with_options
from padir.errors import PadirError
from padir.models.config import DTYPES
from padir.models.directory import ModelCard, check_shapes, save_model
from padir.storage.folders import check_vacant
from padir.training.averaging import mean_of_checkpoints
from padir.training.checkpoints import Checkpoints, read_run_card

_log = logging.getLogger("padir")


def average_run(
    run_dir: str | Path,
    output_dir: str | Path,
    *,
    kind: str,
    count: int,
    step: int | None = None,
    dtype: str = "float32",
    decoding: Mapping[str, Any] | None = None,
) -> ModelCard:
    """Writes the mean of a training run's last or best checkpoints as a model directory.

    The run keeps only its last checkpoints (`Intervals.max_to_keep`), and kind "best" chooses among these. For a run
    with a moving average, kind "best" averages the moving averages and kind "last" averages the parameters.

    Args:
      run_dir: the model directory of `padir train`, with its checkpoints.
      kind: "last" or "best".
      step: the last step whose checkpoint may be averaged; None for the newest.
      dtype: type of the weights in the file, "float32" or "bfloat16".
      decoding: the model's default decoding options (`ModelCard.decoding`).

    Raises:
      PadirError: a decoding option is refused, the run has fewer than `count` checkpoints, or the output folder is not
        empty.
    """
    run_dir = Path(run_dir)
    output_dir = Path(output_dir)
    checks.counts(1, **{f"--{kind}": count})
    checks.one_of(DTYPES, dtype=dtype)
    check_vacant(output_dir)
    checkpoints = Checkpoints(run_dir / "checkpoints")
    card, tokenizer = read_run_card(checkpoints, step)
    _log.info("%s: checkpoints up to step %s are used", run_dir, f"{card.step:,}")
    card = with_options(card, decoding or card.decoding)

    def check(shapes: Mapping[str, tuple[int, ...]]) -> None:
        check_shapes(shapes, checkpoints.folder, card)

    params, weights = mean_of_checkpoints(checkpoints, kind, count, card.weights.decay, until=step, check=check)
    if len(weights.steps) < count:
        raise PadirError(
            f"{run_dir} has {len(weights.steps)} checkpoints to average ({', '.join(map(str, weights.steps))}), got"
            f" --{kind} {count}: lower it, or train with a higher Intervals.max_to_keep"
        )
    of_run = run_dir / "config.gin"
    config = of_run.read_text() if of_run.is_file() else checkpoints.config(card.step)
    # The metrics are removed, as the run measured them with other weights.
    card = dataclasses.replace(card, weights=weights, step=weights.steps[-1], metrics={})
    save_model(output_dir, params, card, tokenizer, config, dtype=dtype)
    return card

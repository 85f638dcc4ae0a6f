"""The metrics of a log line, computed from the sums of several steps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from padir.training.batch import Sums


@jax.jit  # one program, not one for each number
def add_sums(total: Sums, sums: Sums) -> Sums:
    """Adds a step's sums to the sums of earlier steps."""
    return jax.tree.map(jnp.add, total, sums)


def step_metrics(sums: Sums, seconds: float, untimed: float = 0.0) -> dict[str, float]:
    """Computes a log line's metrics from the sums of several steps; if all steps were skipped, only "skipped".

    Args:
      seconds: duration of the steps.
      untimed: target tokens of steps that `seconds` leaves out.
    """
    skipped = {"skipped": float(sums.not_finite)} if sums.not_finite is not None and sums.not_finite > 0 else {}
    if not sums.tokens:
        return {**skipped, "tokens_per_second": 0.0}
    tokens = float(sums.tokens)
    segments = max(float(sums.segments), 1.0)
    row = {
        "loss": float(sums.loss) / (tokens if sums.divisor is None else max(float(sums.divisor), 1.0)),
        "length_loss": float(sums.length_loss) / segments,
        "length_accuracy": float(sums.length_correct) / segments,
    }
    loss_S = np.asarray(sums.stage_loss_S, float) / np.maximum(sums.stage_weight_S, 1)  # of weight "none": 0
    accuracy_S = np.asarray(sums.stage_correct_S, float) / tokens
    for stage, (loss, accuracy) in enumerate(zip(loss_S.tolist(), accuracy_S.tolist(), strict=True), 1):
        row[f"stage_{stage}_loss"] = loss
        row[f"stage_{stage}_accuracy"] = accuracy
    if sums.rejecter is not None:
        loss, correct, decisions = map(float, sums.rejecter)
        row["rejecter_loss"] = loss / max(decisions, 1.0)
        row["rejecter_accuracy"] = correct / max(decisions, 1.0)
    if sums.unaligned is not None:
        row["unaligned"] = float(sums.unaligned)
    row["tokens_per_second"] = (tokens - untimed) / seconds
    return {**row, **skipped}

"""Averages of a model's weights: a moving average kept while training, or the mean of some of its checkpoints.

The moving average is part of the optimizer's state, so it is saved, restored and placed on devices as that is, and a
training without one has the state that it always had.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from padir.errors import PadirError
from padir.models.card import Weights
from padir.training.checkpoints import Checkpoints
from padir.training.log import read_rows

KINDS = ("none", "ema", "last", "best")
MEASURE = "validation_bleu"


@dataclasses.dataclass(frozen=True)
class Averaging:
    """Which weights a training ends with.

    Attributes:
      kind: "none" (those of the last step), "ema" (an exponential moving average, which the validation split is
        decoded with, too), "last" (the mean of the last `count` checkpoints) or "best" (of those with the highest
        validation BLEU).
      decay: of the moving average; 1 / (1 - decay) steps is about how far back it reaches.
      count: how many checkpoints.

    Raises:
      PadirError: an unknown kind, or a number that makes no sense.
    """

    kind: str = "none"
    decay: float = 0.999
    count: int = 5

    def __post_init__(self):
        if self.kind not in KINDS:
            raise PadirError(f"Averaging.kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 0 <= self.decay < 1:
            raise PadirError(f"Averaging.decay must lie in [0, 1), got {self.decay}")
        if self.count < 1:
            raise PadirError(f"Averaging.count must be at least 1, got {self.count}")

    def transformation(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """The optimizer, with a moving average in its state if there is to be one."""
        return with_moving_average(optimizer, self.decay) if self.kind == "ema" else optimizer

    def current(self, params: Any, opt_state: Any) -> Any:
        """The weights to decode with while training: the moving average, or else the parameters."""
        return opt_state.average if isinstance(opt_state, MovingAverage) else params

    def check(self, num_steps: int, evaluate: int, checkpoint: int) -> None:
        """Checks that a training with such intervals will have the checkpoints for it.

        Raises:
          PadirError: too few checkpoints, or checkpoints whose BLEU is not measured.
        """
        if self.kind == "best" and (evaluate < 1 or evaluate % checkpoint):
            raise PadirError(
                f'Averaging.kind "best" needs checkpoints whose BLEU is measured: Intervals.evaluate must be a multiple'
                f" of Intervals.checkpoint, {checkpoint}, got {evaluate}"
            )
        if self.kind in ("last", "best"):
            interval = checkpoint if self.kind == "last" else evaluate
            will_be = -(-num_steps // interval)  # the last step always counts
            if will_be < self.count:
                raise PadirError(
                    f"Averaging.count is {self.count}, but {num_steps} steps make {will_be} such checkpoints: lower it,"
                    f" or Intervals.{'checkpoint' if self.kind == 'last' else 'evaluate'}"
                )


class MovingAverage(NamedTuple):
    """The optimizer's state with an average of the parameters beside it, float32 leaves of the parameters' shapes."""

    inner: Any
    count: Any
    average: Any


def with_moving_average(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """An optimizer that also keeps an exponential moving average of the parameters that it makes.

    After update t, counted from 0, the average is d * average + (1 - d) * parameters with d = min(decay, (1 + t) /
    (10 + t)), so that the first steps, which say little, are soon forgotten (as in TensorFlow's
    ExponentialMovingAverage). It begins as the initial parameters.
    """

    def init(params):
        average = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32, copy=True), params)
        return MovingAverage(optimizer.init(params), jnp.int32(0), average)

    def update(updates, state, params=None):
        assert params is not None
        updates, inner = optimizer.update(updates, state.inner, params)
        rest = 1 - jnp.minimum(decay, (1.0 + state.count) / (10.0 + state.count))
        average = jax.tree.map(
            lambda old, new: old + rest * (new.astype(jnp.float32) - old),
            state.average,
            optax.apply_updates(params, updates),
        )
        return updates, MovingAverage(inner, state.count + 1, average)

    return optax.GradientTransformation(init, update)


def mean(trees: Iterable[Any]) -> Any:
    """The mean of trees of arrays, summed in float64, in the first one's dtypes.

    The float64 sum and one tree are held at a time.

    >>> mean([{"x": np.float32([1, 2])}, {"x": np.float32([3, 6])}])["x"].tolist()
    [2.0, 4.0]
    """
    dtypes = total = None
    count = 0
    for tree in trees:
        if total is None:
            dtypes = jax.tree.map(lambda leaf: leaf.dtype, tree)
            total = jax.tree.map(lambda leaf: np.array(leaf, np.float64), tree)
        else:
            jax.tree.map(lambda summed, leaf: np.add(summed, np.asarray(leaf, np.float64), out=summed), total, tree)
        count += 1
        del tree  # before the next one is read
    if total is None:
        raise PadirError("a mean needs at least one checkpoint, got none")
    return jax.tree.map(lambda dtype, summed: (summed / count).astype(dtype), dtypes, total)


def best_steps(rows: Iterable[dict[str, Any]], count: int) -> list[int]:
    """The steps of the `count` rows of metrics.jsonl with the highest validation BLEU, in order; of equals the latest.

    >>> best_steps([{"step": 1, MEASURE: 5.0}, {"step": 2, MEASURE: 7.0}, {"step": 3, MEASURE: 5.0}], 2)
    [2, 3]
    """
    measured = {row["step"]: row[MEASURE] for row in rows if MEASURE in row}
    return sorted(sorted(measured, key=lambda step: (measured[step], step))[-count:])


def mean_of_checkpoints(
    checkpoints: Checkpoints, kind: str, count: int, decay: float | None = None
) -> tuple[Any, Weights]:
    """The mean of the last or best regular checkpoints of a run (fewer than `count` if there are not more).

    Args:
      kind: "last" or "best".
      decay: of the moving average that the run was validated with, if any: the best are ranked by its BLEU, so it is
        moving averages that their mean is made of. That of the last is of the parameters in any case.

    Raises:
      PadirError: no checkpoint, none with a measured BLEU, or one is damaged or lacks its moving average.
    """
    steps: Sequence[int] = checkpoints.regular_steps()
    if kind == "best":
        log = checkpoints.folder.parent / "metrics.jsonl"
        steps = best_steps((row for row in read_rows(log) if row["step"] in steps), count)
    steps = steps[-count:]
    if not steps:
        measured = f" with a {MEASURE} in metrics.jsonl" if kind == "best" else ""
        raise PadirError(f"{checkpoints.folder} has no checkpoint{measured}: nothing to average")
    decay = decay if kind == "best" else None
    trees = (checkpoints.params(step, moving_average=decay is not None) for step in steps)
    return mean(trees), Weights(kind, tuple(steps), decay)

"""Averages of a model's weights: a moving average kept while training, or the mean of some of its checkpoints.

The moving average is part of the optimizer's state, so it is saved, restored and placed on the devices with that state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from padir import checks
from padir.errors import PadirError
from padir.models.directory import Weights
from padir.training.checkpoint_arrays import Check
from padir.training.checkpoints import Checkpoints
from padir.training.log import read_rows

KINDS = ("none", "ema", "last", "best")
MEASURE = "validation_bleu"


@checks.settings
class Averaging:
    """The weights that a training run ends with.

    Attributes:
      kind: "none" takes the weights of the last step; "ema" an exponential moving average, which also decodes the
        validation split; "last" the mean of the last `count` checkpoints; "best" the mean of the `count` checkpoints
        with the highest validation BLEU.
      decay: decay of the moving average, which reaches back about 1 / (1 - decay) steps.
      count: number of checkpoints in the mean.
    """

    kind: Annotated[str, partial(checks.one_of, KINDS)] = "none"
    decay: checks.ShareBelow1 = 0.999
    count: checks.Count = 5

    def transformation(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """Adds a moving average to the optimizer's state for kind "ema"; returns other optimizers unchanged."""
        return with_moving_average(optimizer, self.decay) if self.kind == "ema" else optimizer

    def current(self, params: PyTree, opt_state: PyTree) -> PyTree:
        """The weights for decoding during training: the moving average for kind "ema", else the parameters."""
        return opt_state.average if isinstance(opt_state, MovingAverage) else params

    def check(self, num_steps: int, evaluate: int, checkpoint: int) -> None:
        """Refuses a training run that saves too few checkpoints, or averages checkpoints whose BLEU is not measured.

        Args:
          num_steps, evaluate, checkpoint: `TrainConfig.num_steps`, and two of its `Intervals`.
        """
        if self.kind == "best" and (evaluate < 1 or evaluate % checkpoint):
            needs = 'Averaging.kind "best" needs checkpoints whose BLEU is measured'
            raise PadirError("Intervals.evaluate", f"a multiple of Intervals.checkpoint, {checkpoint}", evaluate, needs)
        if self.kind in ("last", "best"):
            name, interval = ("checkpoint", checkpoint) if self.kind == "last" else ("evaluate", evaluate)
            found = -(-num_steps // interval)  # the last step always counts
            if found < self.count:
                what = f"Averaging.count is {self.count}, but {num_steps} steps make {found} checkpoints to average"
                raise PadirError(what, remedy=f"lower it, or Intervals.{name}")


class MovingAverage(NamedTuple):
    """Optimizer state with a moving average of the parameters: float32 arrays in the parameters' shapes."""

    inner: PyTree
    count: PyTree
    average: PyTree


def with_moving_average(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """An optimizer that also keeps an exponential moving average of the parameters.

    The average begins as the initial parameters. Update t, counted from 0, replaces the average by d * average +
    (1 - d) * parameters with d = min(decay, (1 + t) / (10 + t)), so that the first steps are soon forgotten (as in
    TensorFlow's ExponentialMovingAverage).
    """

    def init(params):
        average = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32, copy=True), params)
        return MovingAverage(optimizer.init(params), jnp.int32(0), average)

    def update(updates, state, params=None):
        assert params is not None
        updates, inner = optimizer.update(updates, state.inner, params)
        rest = 1 - jnp.minimum(decay, (1.0 + state.count) / (10.0 + state.count))
        after = optax.apply_updates(params, updates)
        average = jax.tree.map(lambda old, new: old + rest * (new.astype(jnp.float32) - old), state.average, after)
        return updates, MovingAverage(inner, state.count + 1, average)

    return optax.GradientTransformation(init, update)


def mean(trees: Iterable[PyTree]) -> PyTree:
    """Mean of trees of arrays, in the first tree's dtypes; memory holds one tree and the sum in float64.

    Raises:
      PadirError: there is no tree.

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
        raise PadirError("a mean needs at least one tree, got none")
    return jax.tree.map(lambda dtype, summed: (summed / count).astype(dtype), dtypes, total)


def best_steps(rows: Iterable[dict[str, Any]], count: int) -> list[int]:
    """Steps of the `count` rows of metrics.jsonl with the highest validation BLEU, ascending; ties go to later steps.

    >>> best_steps([{"step": 1, MEASURE: 5.0}, {"step": 2, MEASURE: 7.0}, {"step": 3, MEASURE: 5.0}], 2)
    [2, 3]
    """
    measured = {row["step"]: row[MEASURE] for row in rows if MEASURE in row}
    return sorted(sorted(measured, key=lambda step: (measured[step], step))[-count:])


def mean_of_checkpoints(
    checkpoints: Checkpoints,
    kind: str,
    count: int,
    decay: float | None = None,
    until: int | None = None,
    check: Check = lambda shapes: None,
) -> tuple[PyTree, Weights]:
    """Mean of a run's last or best `count` regular checkpoints (or of all, if there are fewer), and its description.

    Args:
      decay: decay of the run's moving average, or None if the run has none. Validation measures the BLEU of the moving
        average. So kind "best" averages the moving averages, and kind "last" averages the parameters.
      until: the last step whose checkpoint may be averaged; None for no limit.
      check: as in `Checkpoints.params`.
    """
    steps: Sequence[int] = [step for step in checkpoints.regular_steps() if until is None or step <= until]
    if kind == "best":
        log = checkpoints.folder.parent / "metrics.jsonl"
        steps = best_steps((row for row in read_rows(log) if row["step"] in steps), count)
    steps = steps[-count:]
    if not steps:
        measured = f" with a {MEASURE} in metrics.jsonl" if kind == "best" else ""
        raise PadirError(f"{checkpoints.folder} has no checkpoint{measured}: nothing to average")
    decay = decay if kind == "best" else None
    trees = (checkpoints.params(step, moving_average=decay is not None, check=check) for step in steps)
    return mean(trees), Weights(kind, tuple(steps), decay)

"""Stopping at, or skipping, a batch whose loss or gradient is NaN or infinite."""

from __future__ import annotations

import collections
import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from padir import checks
from padir.errors import PadirError
from padir.storage.files import atomic_file

ACTIONS = ("stop", "skip")
FOLDER = "not_finite"

# A step's outcome is looked at when this many later steps are under way, so that the device never waits for the host.
_STEPS_BEHIND = 2


@dataclasses.dataclass(frozen=True)
class NotFinite:
    """Policy for a batch whose loss or gradient is NaN or infinite.

    Attributes:
      action: "stop" (the batch is saved) or "skip" (the update is left out, parameters and optimizer stay as they were,
        and metrics.jsonl counts the step as "skipped").
      most_in_a_row: number of such steps in a row after which "skip" stops, too, since the batches are not the cause.

    Raises:
      PadirError: the action is unknown, or the number below 1.
    """

    action: str = "stop"
    most_in_a_row: int = 20

    def __post_init__(self):
        checks.one_of(ACTIONS, **checks.fields_of(self, "action"))
        checks.at_least(1, **checks.fields_of(self, "most_in_a_row"))

    def choose(self, finite: Bool[Array, ""], new: Any, old: Any) -> Any:
        """The trees after a step, leaf by leaf: `new`, or `old` where the step is skipped."""
        if self.action == "stop":
            return new
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)


def is_finite(loss: Float[Array, ""], grads: Any) -> Bool[Array, ""]:
    """True if a loss and the norm of its gradient are finite."""
    return jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(grads))


class Watch:
    """Acts on steps that are not finite, as soon as their outcomes are known; only `drain` waits for these.

    Attributes:
      folder: the model directory, which gets the batch that the run stopped at.
      policy: what happens at such a step.
    """

    def __init__(self, folder: Path, policy: NotFinite):
        self.folder, self.policy = folder, policy
        self._pending: collections.deque[tuple[int, dict[str, np.ndarray], Any]] = collections.deque()
        self._in_a_row = 0

    def add(self, step: int, batch: dict[str, np.ndarray], count: Any) -> None:
        """Notes a step, and acts on earlier steps.

        Args:
          batch: the batch of the step, [B, ...] arrays by name.
          count: 0 if loss and gradient were finite; a scalar that may still be under computation.

        Raises:
          PadirError: an earlier step was not finite, and the policy stops the run.
        """
        self._pending.append((step, batch, count))
        while len(self._pending) > _STEPS_BEHIND:
            self._look()

    def drain(self) -> None:
        """Waits for all steps, and acts on them.

        Raises:
          PadirError: a step was not finite, and the policy stops the run.
        """
        while self._pending:
            self._look()

    def _look(self) -> None:
        step, batch, count = self._pending.popleft()
        if not count:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        what = f"the loss or its gradient is not finite at step {step}"
        if self.policy.action == "skip" and self._in_a_row < self.policy.most_in_a_row:
            print(f"padir: warning: {what}: its update is left out", file=sys.stderr)
            return
        if self.policy.action == "skip":
            what += f", {self._in_a_row} times in a row"
        path = self.folder / FOLDER / f"step_{step}{_process()}.npz"
        with atomic_file(path, binary=True) as file:
            np.savez(file, **batch)  # type: ignore[arg-type]
        remedy = "" if self.policy.action == "skip" else ", or leave such updates out (--gin.NotFinite.action=skip)"
        raise PadirError(
            f"{what}; its batch is saved in {path}: lower the learning rate or clip the gradient{remedy}; the"
            " checkpoints are from before"
        )


def _process() -> str:
    """The part of a file name that tells the processes of a run apart, each of which saves its own rows."""
    return f"_process_{jax.process_index()}" if jax.process_count() > 1 else ""

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

# A step's outcome is read once this many later steps are under way, so that the device never waits for the host.
_STEPS_BEHIND = 2


@dataclasses.dataclass(frozen=True)
class NotFinite:
    """Policy for a batch whose loss or gradient is NaN or infinite.

    Attributes:
      action: "stop" (saves the batch and ends the run) or "skip" (leaves parameters and optimizer state unchanged, and
        counts the step as "skipped" in metrics.jsonl).
      most_in_a_row: number of skipped steps in a row after which "skip" stops the run, too, because so many failures in
        a row are not due to single batches.

    Raises:
      PadirError: the action is unknown, or `most_in_a_row` is below 1.
    """

    action: str = "stop"
    most_in_a_row: int = 20

    def __post_init__(self):
        checks.one_of(ACTIONS, **checks.fields_of(self, "action"))
        checks.at_least(1, **checks.fields_of(self, "most_in_a_row"))

    def choose(self, finite: Bool[Array, ""], new: Any, old: Any) -> Any:
        """Returns `new`, or `old` if the step is skipped; both are trees of arrays."""
        if self.action == "stop":
            return new
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)


def is_finite(loss: Float[Array, ""], grads: Any) -> Bool[Array, ""]:
    """True if a loss and the norm of its gradient are finite."""
    return jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(grads))


class Watch:
    """Applies the policy to steps whose loss or gradient is not finite, as soon as the outcome of a step is known.

    Only `drain` waits for outcomes.

    Attributes:
      folder: the model directory, where the batch is saved if the run stops.
      policy: the action for a step that is not finite.
    """

    def __init__(self, folder: Path, policy: NotFinite):
        self.folder, self.policy = folder, policy
        self._pending: collections.deque[tuple[int, dict[str, np.ndarray], Any]] = collections.deque()
        self._in_a_row = 0

    def add(self, step: int, batch: dict[str, np.ndarray], count: Any) -> None:
        """Records a step, and applies the policy to earlier steps.

        Args:
          batch: the batch of the step, [B, ...] arrays by name.
          count: a scalar, possibly not yet computed, that is 0 if loss and gradient were finite.

        Raises:
          PadirError: an earlier step was not finite, and the policy stops the run.
        """
        self._pending.append((step, batch, count))
        while len(self._pending) > _STEPS_BEHIND:
            self._look()

    def drain(self) -> None:
        """Waits for all steps, and applies the policy to them.

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
        remedy = "" if self.policy.action == "skip" else ", or leave such updates out (NotFinite.action='skip')"
        raise PadirError(
            f"{what}; its batch is saved in {path}: lower the learning rate or clip the gradient{remedy}; the"
            " checkpoints were saved before that step"
        )


def _process() -> str:
    """Suffix of a file name for this process, as each of several processes saves its own rows; "" for one process."""
    return f"_process_{jax.process_index()}" if jax.process_count() > 1 else ""

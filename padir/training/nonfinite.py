"""What happens when a loss or its gradient is NaN or infinite."""

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

from padir.errors import PadirError
from padir.storage.files import atomic_file

ACTIONS = ("stop", "skip")
FOLDER = "not_finite"

# So many steps may be under way when one is looked at: the device never waits for the host to look.
_STEPS_BEHIND = 2


@dataclasses.dataclass(frozen=True)
class NotFinite:
    """What a training does with a batch whose loss or gradient is NaN or infinite.

    Attributes:
      action: "stop" (with the batch saved) or "skip" (its update is left out and counted, as "skipped" in
        metrics.jsonl; parameters and optimizer stay as they were).
      most_in_a_row: "skip" stops, too, after so many: then it is not the batches.

    Raises:
      PadirError: an unknown action, or a number below 1.
    """

    action: str = "stop"
    most_in_a_row: int = 20

    def __post_init__(self):
        if self.action not in ACTIONS:
            raise PadirError(f"NotFinite.action must be one of {', '.join(ACTIONS)}, got {self.action!r}")
        if self.most_in_a_row < 1:
            raise PadirError(f"NotFinite.most_in_a_row must be at least 1, got {self.most_in_a_row}")

    def choose(self, finite: Bool[Array, ""], new: Any, old: Any) -> Any:
        """What a step leaves, leaf by leaf: `old` where it is skipped."""
        if self.action == "stop":
            return new
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)


def is_finite(loss: Float[Array, ""], grads: Any) -> Bool[Array, ""]:
    """Whether a loss and the norm of its gradient are."""
    return jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(grads))


class Watch:
    """Looks at each step's outcome when it is there, and acts on it; nothing waits for that but `drain`.

    Attributes:
      folder: gets the batch that a training stopped at.
    """

    def __init__(self, folder: Path, policy: NotFinite):
        self.folder, self.policy = folder, policy
        self._pending: collections.deque[tuple[int, dict[str, np.ndarray], Any]] = collections.deque()
        self._in_a_row = 0

    def add(self, step: int, batch: dict[str, np.ndarray], count: Any) -> None:
        """Notes a step.

        Args:
          batch: what it was made on, [B, ...] arrays by name.
          count: 0 if its loss and gradient were finite, a scalar that may still be computed.

        Raises:
          PadirError: an earlier one was not finite.
        """
        self._pending.append((step, batch, count))
        while len(self._pending) > _STEPS_BEHIND:
            self._look()

    def drain(self) -> None:
        """Looks at all steps.

        Raises:
          PadirError: one was not finite.
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
    """Tells apart what several processes of one training save, each its own rows."""
    return f"_process_{jax.process_index()}" if jax.process_count() > 1 else ""

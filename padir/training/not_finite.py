"""Batches whose loss or gradient is not finite: the run stops, or leaves the update out."""

from __future__ import annotations

import collections
import logging
from functools import partial
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PyTree

from padir import checks
from padir.errors import PadirError
from padir.storage.files import atomic_file

_log = logging.getLogger("padir")
ACTIONS = ("stop", "skip")
FOLDER = "not_finite"

# A step's outcome is read once this many later steps are under way, so that the device never waits for the host.
_STEPS_BEHIND = 2


@checks.settings
class NotFinite:
    """Policy for a batch whose loss or gradient is NaN or infinite.

    Attributes:
      action: "stop" (saves the batch and ends the run) or "skip" (leaves parameters and optimizer state unchanged, and
        counts the step as "skipped" in metrics.jsonl). The learning rate's schedule waits, too, so that the applied
        rate is that of as many steps before the logged one as were skipped.
      most_in_a_row: number of skipped steps in a row after which "skip" also stops the run; so many failures in a row
        are not due to single batches.
    """

    action: Annotated[str, partial(checks.one_of, ACTIONS)] = "stop"
    most_in_a_row: checks.Count = 20

    def choose(self, finite: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
        """Returns `new`, or `old` if the step is skipped; both are trees of arrays."""
        if self.action == "stop":
            return new
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)


def is_finite(loss: Float[Array, ""], grads: PyTree) -> Bool[Array, ""]:
    """True if a loss and the norm of its gradient are finite."""
    return jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(grads))


@jax.jit  # one program even if several devices hold parts of the parameters
def all_finite(params: PyTree) -> jax.Array:
    """True if no parameter is NaN or infinite."""
    return jnp.isfinite(optax.tree.norm(params))


class Watch:
    """Applies the policy to steps whose loss or gradient is not finite, as soon as the outcome of a step is known.

    If the policy stops the run, `add` and `drain` raise a PadirError, and the batch is saved in the model directory.
    Only `drain` waits for outcomes.
    """

    def __init__(self, folder: Path, policy: NotFinite):
        self.folder = folder
        self.policy = policy
        self._pending: collections.deque[tuple[int, dict[str, np.ndarray], jax.Array | None]] = collections.deque()
        self._in_a_row = 0

    def add(self, step: int, batch: dict[str, np.ndarray], count: jax.Array | None) -> None:
        """Records a step, and applies the policy to earlier steps.

        Args:
          count: a scalar, possibly not yet computed, that is 0 if loss and gradient were finite.
        """
        self._pending.append((step, batch, count))
        while len(self._pending) > _STEPS_BEHIND:
            self._look()

    def drain(self) -> None:
        """Waits for all steps, and applies the policy to them."""
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
            _log.warning("%s: its update is left out", what)
            return
        if self.policy.action == "skip":
            what += f", {self._in_a_row} times in a row"
        process = f"_process_{jax.process_index()}" if jax.process_count() > 1 else ""  # each process saves its rows
        path = self.folder / FOLDER / f"step_{step}{process}.npz"
        with atomic_file(path, binary=True) as file:
            np.savez(file, **batch)  # type: ignore[arg-type]
        skip = "" if self.policy.action == "skip" else ", or leave such updates out (NotFinite.action='skip')"
        remedy = f"lower the learning rate or clip the gradient{skip}; the checkpoints were saved before that step"
        raise PadirError(f"{what}; its batch is saved in {path}", remedy=remedy)

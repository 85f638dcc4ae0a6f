"""The train state."""

from __future__ import annotations

from typing import Any

import flax.struct
from jaxtyping import PyTree


@flax.struct.dataclass
class TrainState:
    """Step number, parameters and optimizer state: everything that a training step changes."""

    step: Any  # an integer array; checkpoints replace the leaves by other kinds of objects
    params: PyTree
    opt_state: PyTree

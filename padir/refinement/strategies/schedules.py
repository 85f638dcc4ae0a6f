"""Schedules of step sizes: how many positions are still masked after each pass.

docs/theory.md says for which texts "linear" and "geometric" are optimal. "doubling" takes about log2(L) passes,
"cosine" writes few positions at first.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from padir.checks import fits
from padir.errors import PadirError
from padir.refinement.protocols import Number

SCHEDULES = ("linear", "cosine", "geometric", "doubling")


def check_schedule(**values: Any) -> None:
    """Checks that a schedule is one of `SCHEDULES`, or shares that fall from at most 1 to 0."""
    for name, value in values.items():
        shares = fits(value, tuple[float, ...]) and value[-1:] == (0,)
        if shares and all(a >= b for a, b in itertools.pairwise((1, *value))):
            continue
        if not isinstance(value, str) or value not in SCHEDULES:
            expected = f"one of {', '.join(SCHEDULES)}, or shares that fall from at most 1 to 0"
            raise PadirError(name, f"{expected}, such as (0.8, 0.5, 0.2, 0.0)", value)


Schedule = Annotated[str | tuple[float, ...], check_schedule]


def still_masked(
    schedule: str | tuple[float, ...],
    length_BL: Int[Array, "B L"],
    passes: Number | Int[Array, " L"],
    num_steps: Number,
) -> Int[Array, "B L"]:
    """Number of positions that are masked after `passes` of `num_steps` passes, 0 after the last.

    Except under "linear" and "cosine", each pass hides at least one position less than the pass before, until none is
    masked.

    Args:
      schedule: one of `SCHEDULES`, or shares (s_1, ..., s_n) for n passes: s_i is the share of positions that are
        masked after pass i. For another number of passes, shares are interpolated.
      length_BL: number of editable positions of the sentence, at each of its positions.
      passes: number of passes that are done, from 1 to num_steps; or one for each position.

    >>> length_BL = jnp.array([[15]])
    >>> [int(still_masked((0.6, 0.3, 0.1, 0.0), length_BL, t, 4)[0, 0]) for t in range(1, 5)]
    [9, 4, 1, 0]
    >>> {name: [int(still_masked(name, length_BL, t, 4)[0, 0]) for t in range(1, 5)] for name in SCHEDULES}
    {'linear': [11, 7, 3, 0], 'cosine': [13, 10, 5, 0], 'geometric': [14, 12, 8, 0], 'doubling': [13, 11, 7, 0]}
    """
    if schedule == "linear":
        return length_BL * (num_steps - passes) // num_steps
    if schedule == "cosine":
        # cos(pi / 3) is 0.5, though float32 rounds it down, and no rounding may leave a position at the last pass.
        share = jnp.where(passes == num_steps, 0.0, jnp.cos(jnp.pi / 2 * passes / num_steps))
        return jnp.floor(length_BL * share + 1e-4).astype(jnp.int32)
    if schedule == "geometric":
        written_BL = (1.0 + length_BL) ** (passes / num_steps) - 1.0
        least = passes
    elif isinstance(schedule, tuple):
        shares = jnp.array((1.0, *schedule))
        written_BL = length_BL * (1.0 - jnp.interp(passes / num_steps, jnp.linspace(0, 1, len(shares)), shares))
        least = passes
    else:
        written_BL = length_BL * 2.0 ** (passes - num_steps)
        least = 2.0 ** (passes - 1.0)
    written_BL = jnp.ceil(jnp.maximum(written_BL, least) - 1e-4).astype(jnp.int32)
    return jnp.maximum(length_BL - jnp.where(passes == num_steps, length_BL, written_BL), 0)

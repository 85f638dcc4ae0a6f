"""Counts the arithmetic of a program's matrix products, with the bodies of loops as often as they run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


def matrix_flops(jaxpr: Any, trips: int = 1, scans: bool = True, platform: str = "cpu") -> float:
    """FLOPs of all matrix products on all devices; a multiplication and an addition count as two.

    Products whose results nothing uses do not count, as XLA leaves them out. Of the branches of a condition the one
    with most counts.

    Args:
      jaxpr: a jaxpr, closed or open.
      trips: how often the body of each outermost `while` loop counts; loops inside it count once.
      scans: count the body of a `scan` as often as it runs; else once, as XLA does.
      platform: the platform whose branch of `jax.lax.platform_dependent` counts.

    >>> import jax, jax.numpy as jnp
    >>> step = lambda x, _: (x @ x, None)
    >>> matrix_flops(jax.make_jaxpr(lambda x: jax.lax.scan(step, x, length=3))(jnp.ones((4, 4))))
    384.0
    """
    total = 0.0
    for equation in _used(getattr(jaxpr, "jaxpr", jaxpr)):
        name = equation.primitive.name
        if name == "dot_general":
            total += _dot_flops(equation)
            continue
        inner = trips if name != "while" else 1
        parts = [matrix_flops(each, inner, scans, platform) for each in _jaxprs(equation.params)]
        if platforms := equation.params.get("branches_platforms"):
            total += parts[next(i for i, some in enumerate(platforms) if some is None or platform in some)]
        elif name == "cond":
            total += max(parts, default=0.0)
        else:
            times = {"while": trips, "scan": equation.params.get("length", 1) if scans else 1}.get(name, 1)
            total += times * math.fsum(parts)
    return total


def _used(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr whose results are used, from the last to the first."""
    needed = {id(each) for each in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(each) in needed for each in equation.outvars):
            needed |= {id(each) for each in equation.invars}
            yield equation


def _dot_flops(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return 2.0 * math.prod(result) * math.prod(left[axis] for axis in contracted)


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation."""
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(each, "jaxpr", each), "eqns"):
                yield each

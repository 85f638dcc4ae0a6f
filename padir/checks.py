"""Range checks with one wording; each raises a `PadirError` that names the value.

Values are given by name, those of a dataclass through `fields_of`:

    checks.at_least(1, num_steps=num_steps)
    checks.at_least(1, **checks.fields_of(self, "width", "heads"))  # "ModelConfig.width must be at least 1, got 0"
"""

from __future__ import annotations

import numbers
from collections.abc import Collection
from typing import Any

from padir.errors import PadirError


def fields_of(instance: Any, *names: str) -> dict[str, Any]:
    """Fields of a dataclass under the names that gin binds, such as "ModelConfig.width"."""
    return {f"{type(instance).__name__}.{name}": getattr(instance, name) for name in names}


def whole_numbers(**values: Any) -> None:
    """Refuses values that are no integers (bool, too); those of NumPy are integers."""
    for name, value in values.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise PadirError(name, "a whole number", value)


def strings(**values: Any) -> None:
    """Refuses values that are no lists of strings; other collections of strings pass, but for a single string."""
    for name, value in values.items():
        if isinstance(value, str | bytes) or not isinstance(value, Collection):
            raise PadirError(name, "a list of strings", value, "put one string into a list, a generator into list(...)")
        for i, item in enumerate(value):
            if not isinstance(item, str):
                remedy = "decode it, as with .decode()" if isinstance(item, bytes) else ""
                raise PadirError(f"{name}[{i}]", "a string", item, remedy)


def at_least(least: int | float, remedy: str = "", /, **values: Any) -> None:
    """Refuses values below `least` (NaN, too), and integers of 2**31 and above, which arrays of int32 cannot hold."""
    for name, value in values.items():
        if not value >= least:
            raise PadirError(name, f"at least {least}", value, remedy)
        if isinstance(value, int) and value >= 2**31:
            raise PadirError(name, "below 2**31", value, remedy)


def above(bound: int | float, remedy: str = "", /, **values: Any) -> None:
    """Refuses values that are not above `bound` (NaN, too)."""
    for name, value in values.items():
        if not value > bound:
            raise PadirError(name, f"above {bound}", value, remedy)


def within(low: int | float, high: int | float, remedy: str = "", /, **values: Any) -> None:
    """Refuses values outside [low, high] (NaN, too)."""
    for name, value in values.items():
        if not low <= value <= high:
            raise PadirError(name, f"in [{low}, {high}]", value, remedy)


def below(low: int | float, high: int | float, remedy: str = "", /, **values: Any) -> None:
    """Refuses values outside [low, high), for rates that must stay below `high` (NaN, too)."""
    for name, value in values.items():
        if not low <= value < high:
            raise PadirError(name, f"in [{low}, {high})", value, remedy)


def one_of(choices: Collection[str], remedy: str = "", /, **values: Any) -> None:
    """Refuses names that are not among `choices`, and lists these."""
    for name, value in values.items():
        if value not in choices:
            raise PadirError(name, f"one of {', '.join(choices)}", value, remedy)

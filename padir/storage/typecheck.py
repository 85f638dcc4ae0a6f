"""Checks values from JSON or gin against dataclass annotations."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any


def fits(value: Any, hint: Any, *, unresolved: tuple[type, ...] = ()) -> bool:
    """True if a value has the annotated type; annotations of unknown kinds, such as protocols, fit every value.

    Args:
      unresolved: types of values that are not known yet (gin references); such values fit every annotation.

    >>> fits(3, float), fits(True, int), fits(("a", 1), tuple[str, ...]), fits(None, int | None)
    (True, False, False, True)
    """
    if hint is Any or isinstance(value, unresolved):
        return True
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return any(fits(value, option, unresolved=unresolved) for option in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        of = typing.get_args(hint)[0]
        return isinstance(value, list | tuple) and all(fits(item, of, unresolved=unresolved) for item in value)
    if typing.get_origin(hint) is dict:
        of = typing.get_args(hint)[1]
        return isinstance(value, dict) and all(fits(item, of, unresolved=unresolved) for item in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


def from_json(hint: Any, value: Any, name: str = "") -> Any:
    """Makes a value of the annotated type from JSON: dataclasses from JSON objects, and tuples from lists.

    >>> @dataclasses.dataclass
    ... class Point:
    ...     xy: tuple[int, ...]
    >>> from_json(dict[str, Point], {"a": {"xy": [1, 2]}})["a"].xy
    (1, 2)

    Raises:
      TypeError: a field is missing, unknown, or of another type.
    """
    of_dataclass, of_dict = dataclasses.is_dataclass(hint), typing.get_origin(hint) is dict
    if (of_dataclass or of_dict) and not isinstance(value, dict):
        raise TypeError(f"{name or hint} must be a JSON object, got {value!r}")
    if of_dataclass:
        hints = typing.get_type_hints(hint)
        return hint(
            **{key: from_json(hints.get(key, Any), item, f"{hint.__name__}.{key}") for key, item in value.items()}
        )
    if of_dict:
        return {key: from_json(typing.get_args(hint)[1], item, f"{name}[{key!r}]") for key, item in value.items()}
    if not fits(value, hint):
        raise TypeError(f"{name} must be of type {hint}, got {value!r}")
    return tuple(value) if isinstance(value, list) else value

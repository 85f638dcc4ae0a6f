"""Whether a value from outside has the type of the field that it is for."""

from __future__ import annotations

import types
import typing
from typing import Any


def fits(value: Any, hint: Any, *, unresolved: tuple[type, ...] = ()) -> bool:
    """Whether a value has a type as annotations write it; hints that cannot be checked fit everything.

    Args:
      unresolved: types of values that stand for others and fit everything.

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
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)

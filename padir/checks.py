"""Checks of ranges with one wording, and of values from JSON, gin or Python against dataclass annotations.

A check of a range raises a `PadirError` that names the value, which is given by name:

    checks.counts(1, num_steps=num_steps)

The annotations of a dataclass made by `settings` say what its fields may hold:

    @checks.settings
    class Uniform:
        rate: Share = 0.7  # "Uniform.rate must be in [0, 1], got 2"
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, TypeVar, dataclass_transform

import numpy as np

from padir.errors import PadirError, shown

if TYPE_CHECKING:

    class _Strings(Protocol):
        """Several strings: one string, which is no such object, can say of strings alone whether it contains them."""

        def __contains__(self, value: object, /) -> bool: ...
        def __iter__(self) -> Iterator[str]: ...

    Texts: TypeAlias = _Strings | Iterator[str]
else:
    Texts = Any  # `strings` checks them


def strings(name: str, value: Iterable[str]) -> list[str]:
    """The strings of a list, a generator, or a column of a library for tables, as a list (`each_string`)."""
    return [*each_string(name, value)]


def each_string(name: str, value: Iterable[str]) -> Iterator[str]:
    """Yields the strings of an iterable. Refuses a single string, sets and mappings, tables, and other items."""
    one_column = len(getattr(value, "shape", (0,))) == 1  # iterating over a table gives the names of its columns
    if isinstance(value, str | bytes | Set | Mapping) or not isinstance(value, Iterable) or not one_column:
        got = value if isinstance(value, str | bytes | numbers.Number | None) else type(value)
        raise PadirError(name, "a list of strings", got, "put one string into a list, a set into sorted(...)")
    for i, item in enumerate(value):
        arrow = getattr(item, "as_py", None)  # PyArrow's arrays hold no str
        text = item if arrow is None else arrow()
        if not isinstance(text, str):
            remedy = "decode it, as with .decode()" if isinstance(text, bytes) else ""
            raise PadirError(f"{name}[{i}]", "a string", text, remedy)
        yield str(text)  # NumPy has a str of its own


_TESTS = {
    "least": operator.le,
    "above": operator.lt,
    "most": operator.ge,
    "below": operator.gt,
    "choices": operator.contains,
    "form": lambda form, value: re.fullmatch(form, os.fspath(value)),
}


def _limit(values: Mapping[str, Any], expected: str, remedy: str, **ends: Any):
    """Refuses values that fail a test of `_TESTS` against its end; returns the range as data (`ranges`)."""
    for name, value in values.items():
        if not all(_TESTS[test](end, value) for test, end in ends.items()):
            raise PadirError(name, expected, value, remedy)
    return [{"expected": expected, "remedy": remedy, **ends}]


def at_least(least: int | float, remedy: str = "", /, **values: Any):
    """Refuses values below `least` (NaN, too)."""
    return _limit(values, f"at least {least}", remedy, least=least)


def counts(least: int, remedy: str = "", /, **values: Any):
    """Refuses what is no integer of Python or NumPy, below `least`, or above what arrays of int32 hold."""
    for name, value in values.items():
        if not fits(value, int):
            raise PadirError(name, "a whole number", value)
    return at_least(least, remedy, **values) + _limit(values, "below 2**31", remedy, below=2**31)


def above(bound: int | float, remedy: str = "", /, **values: Any):
    """Refuses values that are not above `bound` (NaN, too)."""
    return _limit(values, f"above {bound}", remedy, above=bound)


def within(low: int | float, high: int | float, remedy: str = "", /, **values: Any):
    """Refuses values outside [low, high] (NaN, too)."""
    return _limit(values, f"in [{low}, {high}]", remedy, least=low, most=high)


def below(low: int | float, high: int | float, remedy: str = "", /, **values: Any):
    """Refuses values outside [low, high), for rates that must stay below `high` (NaN, too)."""
    return _limit(values, f"in [{low}, {high})", remedy, least=low, below=high)


def one_of(choices: Collection[Any], remedy: str = "", /, **values: Any):
    """Refuses names that are not among `choices`, and lists these."""
    return _limit(values, f"one of {', '.join(map(str, choices))}", remedy, choices=choices)


def words_of(known: Set[str], name: str, value: Any) -> None:
    """Refuses what is no set of known words, such as `needs`."""
    if not isinstance(value, Set) or not value <= known:
        raise PadirError(name, f"a frozenset of {' or '.join(map(repr, sorted(known)))}", value)


def instance(name: str, value: Any, protocol: type, remedy: str = "") -> None:
    """Refuses what lacks a member of a protocol, and a class in place of its instance."""
    if isinstance(value, type) or not isinstance(value, protocol):
        own = [*members(protocol), *(["__call__"] if "__call__" in vars(protocol) else [])]
        lacking = [each for each in own if not hasattr(value, each)]
        remedy = remedy or (f"add {' and '.join(lacking)}" if lacking and not isinstance(value, type) else "")
        raise PadirError(name, f"an instance with {', '.join(members(protocol))}", value, remedy)


def takes(name: str, function: Callable[..., Any], parameters: str) -> None:
    """Refuses a function of the user's own that cannot be called with parameters such as "sources, *, language".

    >>> takes("rule", lambda: 0, "sources, *, language")
    Traceback (most recent call last):
    padir.errors.PadirError: rule must be callable as (sources, *, language): too many positional arguments
    """
    positional, _, named = parameters.partition(", *, ")
    keywords = dict.fromkeys(named.split(", ")) if named else {}
    try:
        inspect.signature(function).bind(*positional.split(", "), **keywords)
    except TypeError as error:
        raise PadirError(name, f"callable as ({parameters})", remedy=str(error)) from None


def pair(name: str, results: str, value: Any) -> Any:
    """The two results of a function of the user's own."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise PadirError(name, f"a function that gives ({results})", type(value))
    return value


def path(**values: Any):
    """Refuses "", NUL and lone surrogates, but for those with which Python writes names that are not UTF-8."""
    return _limit(values, "text that can name a file or folder", "", form="[^\0\ud800-\udc7f\udd00-\udfff]+")


def language(**values: Any):
    """Refuses languages that no code is written like; "" is an unknown language."""
    return _limit(values, "a code of at most 35 letters, digits, - and _", "", form="[A-Za-z0-9_-]{0,35}")


# Annotations of fields with a range.
Path = Annotated[str | os.PathLike[str], path]
Count = Annotated[int, partial(counts, 1)]
CountOrZero = Annotated[int, partial(counts, 0)]
Positive = Annotated[float, partial(above, 0)]
NotNegative = Annotated[float, partial(below, 0, math.inf)]
Share = Annotated[float, partial(within, 0, 1)]
ShareAbove0 = Annotated[float, partial(above, 0), partial(within, 0, 1)]
ShareBelow1 = Annotated[float, partial(below, 0, 1)]

Class = TypeVar("Class", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def settings(cls: Class) -> Class:
    """Makes a frozen dataclass whose `__post_init__`, if it has one, finds all fields checked (`check_fields`)."""
    further = cls.__dict__.get("__post_init__")

    def __post_init__(self: Any) -> None:
        check_fields(self, f"{type(self).__name__}.")
        if further is not None:
            further(self)

    cls.__post_init__ = __post_init__
    return dataclasses.dataclass(frozen=True)(cls)


Function = TypeVar("Function", bound=Callable[..., Any])


def arguments(function: Function) -> Function:
    """Makes a function refuse arguments of other types than annotated, or that a check in `Annotated` refuses.

    >>> @arguments
    ... def repeated(text: str, count: Count) -> str:
    ...     return text * count
    >>> repeated("a", 0)
    Traceback (most recent call last):
    padir.errors.PadirError: count must be at least 1, got 0
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options).arguments
        for name, hint, checks in _annotations(function):
            if name in given:
                _check(name, given[name], hint, checks)
        return function(*args, **options)

    return call  # pyright: ignore[reportReturnType]


def check_fields(instance: Any, prefix: str = "") -> None:
    """Refuses fields whose value has another type than annotated, or is refused by a check in `Annotated`.

    Makes tuples of lists, Python's integers of NumPy's, and floats of whole numbers, which jitted programs tell apart.
    Checks are not asked about None.

    Args:
      prefix: what stands before the names of fields in messages, such as "ModelConfig.".
    """
    for name, hint, checks in _annotations(type(instance)):
        value = getattr(instance, name)
        _check(f"{prefix}{name}", value, hint, checks)
        object.__setattr__(instance, name, float(value) if hint is float else _plain(value))


def _check(name: str, value: Any, hint: Any, checks: list[Any]) -> None:
    """Refuses a value of another type, or that a check refuses."""
    if not fits(value, hint) or isinstance(value, type):
        having = ", ".join(member for each in (hint, *typing.get_args(hint)) for member in members(each))
        having = f" with {having}" if having else ""
        remedy = f"give an instance{having} (in gin @Name())" if "padir." in str(hint) else ""
        remedy += " or its name" if remedy and fits("", hint) else ""
        if isinstance(value, list) and any(each is None for each in value):
            remedy = "each entry needs a value, so leave out those without one"
        raise PadirError(name, words(hint), value, remedy)
    for check in checks if value is not None else ():
        check(**{name: value})


def members(hint: Any) -> list[str]:
    """Names of the members of a protocol; none for other types."""
    return [name for name in vars(hint) if name[0] != "_"] if getattr(hint, "_is_protocol", False) else []


def ranges(cls: type) -> dict[str, Any]:
    """Each field of a dataclass as data: its type in words, and the ranges of its checks."""
    return {
        name: {"type": words(hint), "ranges": [each for check in checks for each in check()]}
        for name, hint, checks in _annotations(cls)
    }


@cache
def _annotations(of: Any) -> list[tuple[str, Any, list[Any]]]:
    """Name, type and checks of each field of a dataclass, or of each parameter of a function."""
    hints = typing.get_type_hints(of)
    full = typing.get_type_hints(of, include_extras=True)
    names = [field.name for field in dataclasses.fields(of)] if isinstance(of, type) else hints
    return [(name, hints[name], list(_metadata(full[name]))) for name in names]


def _metadata(hint: Any) -> Iterator[Any]:
    """Lists what `Annotated` says of a type, or of one that is joined with None."""
    for each in (hint, *typing.get_args(hint)):
        if typing.get_origin(each) is Annotated:
            yield from each.__metadata__


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, np.integer):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, int | float) else value


def words(hint: Any) -> str:
    """An annotated type in words, such as "a number or None"."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(map(words, typing.get_args(hint)))
    if typing.get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    known = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", type(None): "None"}
    known |= {Sequence: "a list", Iterable: "a list", Mapping: "a mapping", Callable: "a function"}
    known |= {os.PathLike: "a path"}
    hint = typing.get_origin(hint) or hint
    return known.get(hint, f"a {hint.__name__}")


def fits(value: Any, hint: Any) -> bool:
    """True if a value has the annotated type; annotations of unknown kinds, such as protocols, fit every value.

    >>> fits(3, float), fits(True, int), fits(("a", 1), tuple[str, ...]), fits(None, int | None)
    (True, False, False, True)
    """
    if hint is Any:
        return True
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return any(fits(value, option) for option in typing.get_args(hint))
    origin = typing.get_origin(hint)
    if origin is Literal:
        kinds = (type(each) for each in typing.get_args(hint))
        return any(fits(value, kind) for kind in kinds) and value in typing.get_args(hint)
    if origin in (tuple, Sequence):
        of = typing.get_args(hint)[0]
        return isinstance(value, list | tuple) and all(fits(item, of) for item in value)
    if origin is dict:
        of = typing.get_args(hint)[1]
        return isinstance(value, dict) and all(fits(item, of) for item in value.values())
    if hint is float:  # a larger integer is no float
        huge = isinstance(value, int) and value.bit_length() > 1_000
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and not huge
    if hint is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if origin is Iterable and getattr(value, "shape", None) == ():  # NumPy's array of a single number
        return False
    kind = origin or hint
    return not isinstance(kind, type) or isinstance(value, kind)


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
    of_dataclass = isinstance(hint, type) and dataclasses.is_dataclass(hint)
    of_dict = typing.get_origin(hint) is dict
    if (of_dataclass or of_dict) and not isinstance(value, dict):
        raise TypeError(f"{name or hint} must be a JSON object, got {shown(value)}")
    if of_dataclass:
        hints = typing.get_type_hints(hint)
        return hint(
            **{key: from_json(hints.get(key, Any), item, f"{hint.__name__}.{key}") for key, item in value.items()}
        )
    if of_dict:
        return {key: from_json(typing.get_args(hint)[1], item, f"{name}[{key!r}]") for key, item in value.items()}
    if not fits(value, hint):
        raise TypeError(f"{name} must be {words(hint)}, got {shown(value)}")
    return tuple(value) if isinstance(value, list) else value

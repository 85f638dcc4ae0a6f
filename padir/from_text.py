"""Objects that text names: padir's own by NAME or NAME:FIELD=VALUE, those of a user as MODULE:NAME.

Nothing here imports a module, because strangers write cards. The program must import it first: the command line
imports the modules that its options name (`padir.cli.arguments`), and gin files theirs, with --allow_imports.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
import typing
from collections.abc import Container
from typing import Any

from padir.checks import fits, members, words
from padir.errors import OWN_CLASS, PadirError, nearest

_FORM = re.compile(r"((?:\w+\.)*\w+):([A-Za-z_][\w.]*)")


def module_of(text: str) -> str | None:
    """The module that a text names, if it names an object of one's own.

    >>> module_of("mine.rules:Shortest"), module_of("threshold:tau=0.9"), module_of("mbr")
    ('mine.rules', None, None)
    """
    match = _FORM.match(text)
    return match[1] if match and text[match.end() : match.end() + 1] in ("", ":") else None


def own_object(name: str, noun: str) -> Any:
    """The object that an imported module has under the name after the colon; `noun` is its kind in messages.

    Raises:
      PadirError: the module is not imported, or has no such object.

    >>> own_object("padir.errors:PadirError", "error").__name__
    'PadirError'
    """
    module, _, attribute = name.partition(":")
    if module not in sys.modules:
        remedy = f"import {module} first, on the command line with --allow_imports {module}"
        raise PadirError(f"the {noun} {name!r} is in a module that is not imported", remedy=remedy)
    found: Any = sys.modules[module]
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise PadirError(f"the module {module} has no {attribute}", remedy=f"write the {noun} as MODULE:NAME")
    return found


def is_dataclass_of(cls: Any, protocol: Any) -> bool:
    """True for a dataclass with all members of a protocol."""
    fields = getattr(cls, "__dataclass_fields__", None)
    return isinstance(cls, type) and fields is not None and {*members(protocol)} <= {*dir(cls), *fields}


def own_instance(name: str, noun: str, protocol: Any, values: dict[str, Any]) -> Any:
    """An instance of a class of one's own, "module:Name", with values for its fields; `noun` is its kind in messages.

    Raises:
      PadirError: the module is not imported, or the class is no dataclass with the protocol's members and defaults.
    """
    cls = own_object(name, noun)
    if not is_dataclass_of(cls, protocol):
        expected = f"a frozen dataclass with {', '.join(members(protocol)) or '__call__'}"
        raise PadirError(f"the {noun} {name}", expected, cls)
    if missing := [each.name for each in dataclasses.fields(cls) if _default(each) is dataclasses.MISSING]:
        raise PadirError(f"the {noun} {name} has no default for {missing[0]}", remedy="give all its fields defaults")
    fields = checked_call(cls, name, values)
    try:
        return cls(**fields)
    except TypeError as error:
        raise PadirError(f"the {noun} {name} cannot be made ({error})", remedy="give all its fields defaults") from None


def checked_call(cls: Any, name: str, values: dict[str, Any], **further: Any) -> dict[str, Any]:
    """Checks values for the fields of a dataclass that have a default; makes floats of integers and tuples of lists.

    `name` is the dataclass in messages, which list its fields. `further` holds names and defaults of values that are no
    fields.
    """
    hints = typing.get_type_hints(cls) | {field: type(default) for field, default in further.items()}
    defaults = {each.name: _default(each) for each in dataclasses.fields(cls)}
    texts = {
        field: f"{field}: {words(hints[field])} = {default!r}"
        for field, default in defaults.items()
        if default is not dataclasses.MISSING
    }
    texts |= {field: f"{field}: {type(default).__name__} = {default!r}" for field, default in further.items()}
    listed = ", ".join(texts.values()) or "none"
    checked = dict(values)
    for field, value in values.items():
        if field not in texts:
            raise PadirError(f"{name} has no hyperparameter {field!r} (it has {listed})", remedy=nearest(field, texts))
        if not fits(value, hints[field]):
            raise PadirError(f"{field}={value!r} is of the wrong type for {name}: it has {listed}")
        kinds = typing.get_args(hints[field]) or (hints[field],)
        if type(value) is int and float in kinds and int not in kinds:
            checked[field] = float(value)
        if isinstance(value, list):
            checked[field] = tuple(value)
    return checked


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


_OF_JSON = {"true": True, "false": False, "null": None}


def parse_call(text: str, noun: str, example: str, known: Container[str]) -> tuple[str, dict[str, Any]]:
    """Splits NAME or NAME:FIELD=VALUE,FIELD=VALUE; values are literals of Python or JSON, or bare words.

    NAME is one of the `known` names, or "module:Name" for a class of one's own. A bare word is a string; true, false
    and null are JSON's. The error for text of another form names the `noun`, the kind of object that the text names,
    and an `example`.

    >>> parse_call("block_gibbs:block=3,order=margin", "strategy", "threshold:tau=0.9", {"block_gibbs"})
    ('block_gibbs', {'block': 3, 'order': 'margin'})
    """
    name, _, fields = text.partition(":")
    if name not in known and module_of(text):
        own, _, fields = fields.partition(":")
        name = f"{name}:{own}"
    try:
        call: Any = ast.parse(f"dict({fields})", mode="eval").body
        names = [keyword.arg for keyword in call.keywords]
        if call.func.id != "dict" or call.args or None in names or len({*names}) < len(names):
            raise ValueError
        return name, {
            keyword.arg: _OF_JSON.get(keyword.value.id, keyword.value.id)
            if isinstance(keyword.value, ast.Name)
            else ast.literal_eval(keyword.value)
            for keyword in call.keywords
        }
    except (ValueError, SyntaxError, AttributeError, RecursionError, MemoryError):  # the last two for deep nesting
        what = f"a {noun} is written NAME or NAME:FIELD=VALUE,FIELD=VALUE, such as {example}"
        raise PadirError(what, got=text, remedy=OWN_CLASS) from None

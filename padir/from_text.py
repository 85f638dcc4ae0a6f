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
from collections.abc import Mapping
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


def made(name: str, noun: str, known: Mapping[str, Any], protocol: Any, values: Mapping[str, Any]) -> Any:
    """An instance of a class in `known`, or of one's own, "module:Name", with values for its fields.

    Integers become floats, and lists tuples, where the fields are such. `noun` is the kind of object in messages, which
    list the known names and the fields.

    Raises:
      PadirError: there is no such class, its module is not imported, or it is no dataclass with the protocol's members;
        a field is unknown, has a value of another type, or has neither value nor default.
    """
    own = module_of(name)
    cls = own_object(name, noun) if own else known.get(name)
    if cls is None:
        of_class = next((each for each, cls in known.items() if getattr(cls, "__name__", "") == name), "")
        remedy = f"write it as {of_class}" if of_class else nearest(name, known)
        raise PadirError(f"no {noun} is called {name!r}", remedy=remedy)
    fields = getattr(cls, "__dataclass_fields__", None)
    if not isinstance(cls, type) or fields is None or not {*members(protocol)} <= {*dir(cls), *fields}:
        expected = f"a frozen dataclass with {', '.join(members(protocol)) or '__call__'}"
        raise PadirError(f"the {noun} {name}", expected, cls)
    checked = _checked(cls, f"the {noun} {name}", values)
    try:
        return cls(**checked)
    except TypeError as error:
        raise PadirError(f"the {noun} {name} cannot be made ({error})", remedy="give all its fields defaults") from None


def _checked(cls: Any, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the fields of a dataclass, which is called `what` in messages."""
    hints = typing.get_type_hints(cls)
    defaults = {each.name: _default(each) for each in dataclasses.fields(cls)}
    if missing := [name for name in defaults.keys() - values if defaults[name] is dataclasses.MISSING]:
        raise PadirError(f"{what} has no default for {min(missing)}", remedy="give all its fields defaults, or values")
    texts = {
        name: f"{name}: {words(hints[name])}" + ("" if default is dataclasses.MISSING else f" = {default!r}")
        for name, default in defaults.items()
    }
    listed = ", ".join(texts.values()) or "none"
    checked = dict(values)
    for field, value in values.items():
        if field not in texts:
            raise PadirError(f"{what} has no hyperparameter {field!r} (it has {listed})", remedy=nearest(field, texts))
        if not fits(value, hints[field]):
            raise PadirError(f"{field}={value!r} is of the wrong type for {what}: it has {listed}")
        kinds = typing.get_args(hints[field]) or (hints[field],)
        if type(value) is int and float in kinds and int not in kinds:
            checked[field] = float(value)
        if isinstance(value, list):
            checked[field] = tuple(value)
    return checked


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


_OF_JSON = {"true": True, "false": False, "null": None}


def named(text: str, noun: str, example: str, known: Mapping[str, Any], protocol: Any) -> Any:
    """The object (`made`) of text such as NAME or NAME:FIELD=VALUE,FIELD=VALUE.

    NAME is one of the `known` names, or "module:Name" for a class of one's own. Values are literals of Python or JSON,
    or bare words, which are strings; true, false and null are JSON's. The error for text of another form shows the
    `example`.
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
        values = {
            keyword.arg: _OF_JSON.get(keyword.value.id, keyword.value.id)
            if isinstance(keyword.value, ast.Name)
            else ast.literal_eval(keyword.value)
            for keyword in call.keywords
        }
    except (ValueError, SyntaxError, AttributeError, RecursionError, MemoryError):  # the last two for deep nesting
        what = f"a {noun} is written NAME or NAME:FIELD=VALUE,FIELD=VALUE, such as {example}"
        raise PadirError(what, got=text, remedy=OWN_CLASS) from None
    return made(name, noun, known, protocol, values)

"""Puts the examples of docstrings into fences, so that the site shows them as code."""

import re
from typing import Any

import griffe

# From ">>>" to the next empty line; the docstring's own fences are left alone, since none begins so.
EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


class Examples(griffe.Extension):
    """Fences every example that a docstring gives."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and ">>>" in obj.docstring.value:
            shown = re.sub(r" *# doctest:.*", "", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", shown)

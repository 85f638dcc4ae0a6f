"""Clean-up of what a model wrote: repeated tokens, bytes that are no character, control characters, doubled spaces."""

from __future__ import annotations

import re
from collections.abc import Sequence

from padir.text.tokenizer import Tokenizer

_CONTROLS = re.compile("[\\x00-\\x08\\n-\\x1f\\x7f-\\x9f\\u2028\\u2029]")  # all but tabs


def one_line(text: str) -> str:
    """Replaces control characters by spaces: programs read many as line ends, and terminals obey others."""
    return _CONTROLS.sub(" ", text)


def broken(text: str, source: str) -> int:
    """Number of U+FFFD, which stand for bytes that are no character; 0 if the source has one, too."""
    return 0 if "\ufffd" in source else text.count("\ufffd")


def clean(text: str, source: str) -> str:
    """One line without broken characters, and without doubled spaces unless the source has some.

    >>> clean("Y\ufffdlmaz  lives", "Yılmaz lebt")
    'Ylmaz lives'
    """
    text = one_line(text.replace("\ufffd", "") if broken(text, source) else text)
    return text if "  " in source else re.sub(" {2,}", " ", text)


def text_of(tokenizer: Tokenizer, tokens: Sequence[int], source: str) -> str:
    """The clean text of a translation's ids."""
    return clean(tokenizer.decode(tokens, source), source)


def without_repeats(tokens: Sequence[int], copied: frozenset[int] = frozenset()) -> list[int]:
    """Leaves out tokens that equal their left neighbour (the paper's section L.2), except `copied` ids.

    These are digits, for example: without them the pieces 1 0 0 would become 1 0. The paper has no such ids.

    >>> without_repeats([7, 7, 8, 8, 7], frozenset([8]))
    [7, 8, 8, 7]
    """
    return [token for i, token in enumerate(tokens) if i == 0 or token != tokens[i - 1] or token in copied]

"""`PadirError`, the one exception for bad input; the command line turns it into a short message and exit status 2."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable
from typing import Any

_LONGEST = 4_000  # maximum number of characters of a message without its remedy


class PadirError(ValueError):
    """Error for bad input; its message says what was wrong, what was expected and got, and what to do.

    Attributes:
      what: the wrong field, option or file; without `expected`, a sentence that says what is wrong.
      expected: the end of "WHAT must be ...", such as "at least 1"; None if `what` is a sentence.
      got: the refused value; `...` if the message shows no value.
      remedy: an imperative that says what to do; "" if that is obvious.

    >>> str(PadirError("num_steps", "at least 1", 0, "use 1 for one-shot decoding"))
    'num_steps must be at least 1, got 0: use 1 for one-shot decoding'
    """

    def __init__(self, what: str, expected: str | None = None, got: Any = ..., remedy: str = ""):
        self.what, self.expected, self.got, self.remedy = what, expected, got, remedy
        super().__init__(what, expected, got, remedy)  # so that the error can be pickled

    def __str__(self) -> str:
        message = self.what if self.expected is None else f"{self.what} must be {self.expected}"
        if self.got is not ...:
            message += f", got {self.got!r}"
        if len(message) > _LONGEST:  # with names or text from a file
            message = f"{message[:_LONGEST]} ..."
        return f"{message}: {self.remedy}" if self.remedy else message


def nearest(name: str, known: Iterable[str]) -> str:
    """Remedy for an unknown name: the known name with the most similar spelling, or else all known names.

    >>> nearest("num_stepz", ["num_steps", "seed"])
    "did you mean 'num_steps'?"
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def first_line(error: Exception) -> str:
    """First line of another library's message; a long line is cut to its beginning and the system's reason, or its end.

    >>> first_line(OSError("x" * 200 + " File too large " + "y" * 200))[120:]
    ' ... File too large'
    """
    line = (str(error).splitlines() or [type(error).__name__])[0]
    if len(line) <= 240:
        return line
    reasons = [os.strerror(code) for code in errno.errorcode if os.strerror(code) in line[120:]]
    return f"{line[:120]} ... {max(reasons, key=len, default=line[-120:])}"

"""Refusals: calls that must fail with one line, in tables of (call, words of the message)."""

import contextlib

import pytest

from padir.errors import PadirError


@contextlib.contextmanager
def refused(words, error=PadirError):
    """Expects an error in the block whose message has all of these words, in any order, in one line."""
    with pytest.raises(error) as caught:
        yield
    message = str(_one_line(caught))
    del caught
    assert not [word for word in words.split() if word not in message], message


def refuses(call, words="", *arguments, error=PadirError, **settings):
    """Calls it; gives the error that it must raise, whose one line has the words in this order.

    Words are those that name the culprit: the field, what came, or what to do. " ... " stands for any text.
    """
    with pytest.raises(error) as found:
        call(*arguments, **settings)
    refusal = _one_line(found)
    del found
    message = str(refusal)
    rest = message
    for part in filter(None, words.split(" ... ")):
        _, there, rest = rest.partition(part)
        assert there == part, f"{part!r} is not in {message!r}, or not after the words before it"
    return refusal


def _one_line(caught):
    """The error, whose message has one line, without the traceback.

    A traceback that refers to itself keeps files open until garbage is looked for, in another test.
    """
    error = caught.value.with_traceback(None)
    assert "\n" not in str(error), error
    return error

"""Messages of errors and range checks."""

import dataclasses
import difflib
import pickle

import numpy as np
import pytest
from support.refusals import refuses

from padir import checks
from padir.checks import fits, from_json
from padir.errors import PadirError, cut, first_line, nearest


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PadirError("free text"), "free text"),
        (PadirError("free text", remedy="do this"), "free text: do this"),
        (PadirError("rows", "at least 1", 0), "rows must be at least 1, got 0"),
        (PadirError("rows", "at least 1", None, "give some"), "rows must be at least 1, got None: give some"),
    ],
)
def test_an_error_survives_pickling(error, message):
    assert str(error) == message
    assert str(pickle.loads(pickle.dumps(error))) == message


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


HUGE = "x" * 10**6


@pytest.mark.parametrize(
    "error",
    [
        PadirError(HUGE),
        PadirError("rows", HUGE, HUGE, HUGE),
        PadirError("rows", "few", [HUGE] * 3, nearest("y", map(str, range(10**5)))),
        PadirError("rows", "few", nested(5_000)),
        PadirError("rows", "few", 16**9_999),
    ],
)
def test_every_message_is_bounded(error):
    message = str(error)
    assert len(message) < 2_500 and message.startswith(("xxxx", "rows must be"))


def test_what_is_cut_keeps_its_beginning_and_end():
    assert [cut("abcdefghij" * 2, most) for most in (20, 16)] == ["abcdefghijabcdefghij", "abcdefgh ... hij"]


def test_names_are_compared_only_while_they_are_few_and_short(monkeypatch):
    compared = []
    close = difflib.get_close_matches
    monkeypatch.setattr(difflib, "get_close_matches", lambda *a, **k: compared.append(a) or close(*a, **k))
    assert nearest(HUGE, [HUGE + "y", "seed"]).startswith("known are") and not compared
    assert nearest("sed", [HUGE, "seed", *map(str, range(10**5))]) == "did you mean 'seed'?"
    assert len(compared[0][1]) < 1_000


@pytest.mark.parametrize(
    ("name", "known", "remedy"),
    [
        ("num_beams", ["n_best", "beam"], "here it is called 'beam' (docs/help.md)"),
        ("--beam-size", ["--batch_size", "--beam"], "here it is called '--beam' (docs/help.md)"),
        ("--iterations", ["--terms", "--num_steps"], "here it is called '--num_steps' (docs/help.md)"),
        ("iterations", ["terms"], "known are terms"),
        ("--batch", ["--batch_size", "--beam"], "did you mean '--batch_size'?"),
        ("x", [], "known are none"),
    ],
)
def test_names_of_other_tools_and_misspelt_ones(name, known, remedy):
    assert nearest(name, known) == remedy


@pytest.mark.parametrize(
    ("check", "words"),
    [
        *((lambda x=x: checks.counts(0, x=x), "x must be a whole number, got") for x in (3.0, "3", True, None)),
        (lambda: checks.below(0, 1, "lower it", x=1), "x must be in [0, 1), got 1: lower it"),
    ],
)
def test_what_is_out_of_range_is_refused(check, words):
    refuses(check, words)


@checks.settings
class Sizes:
    count: checks.Count
    share: checks.Share | None = None
    names: tuple[str, ...] = ()
    placeholders: bool = True

    def __post_init__(self):
        assert isinstance(self.names, tuple) and self.count > 0  # own checks come last


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": 0}, "Sizes.count must be at least 1, got 0"),
        ({"count": 1.0}, "Sizes.count must be a whole number, got 1.0"),
        ({"count": 1, "share": 2}, "Sizes.share must be in [0, 1], got 2"),
        ({"count": 1, "share": "all"}, "Sizes.share must be a number or None, got 'all'"),
        ({"count": 1, "names": "ab"}, "Sizes.names must be a tuple, got 'ab'"),
        ({"count": 1, "placeholders": "no"}, "Sizes.placeholders must be True or False, got 'no'"),
    ],
)
def test_annotations_of_settings_are_checked(fields, message):
    refuses(Sizes, message, **fields)


def test_settings_hold_tuples_and_whole_numbers_of_python():
    made = Sizes(np.int64(3), names=["a"])
    assert made == Sizes(3, None, ("a",)) and type(made.count) is int and hash(made)


def test_long_messages_of_other_libraries_are_cut_in_the_middle():
    assert first_line(ValueError("one\ntwo")) == "one" and first_line(ValueError()) == "ValueError"
    assert first_line(ValueError("a" * 200 + "b" * 200)) == "a" * 120 + " ... " + "b" * 120


@dataclasses.dataclass(frozen=True)
class Inner:
    sizes: tuple[int, ...] = ()
    rate: float | None = None


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    inner: dict[str, Inner]


def test_dataclasses_are_made_of_nested_json():
    made = from_json(Outer, {"name": "a", "inner": {"x": {"sizes": [1, 2], "rate": 3}, "y": {}}})
    assert made == Outer("a", {"x": Inner((1, 2), 3), "y": Inner()})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"name": 1, "inner": {}}, "Outer.name must be a string"),
        ({"inner": {}}, "missing 1 required positional argument: 'name'"),
        ({"name": "a", "inner": {}, "more": 1}, "unexpected keyword argument 'more'"),
        ({"name": "a", "inner": [1]}, "Outer.inner must be a JSON object"),
        ({"name": "a", "inner": {"x": {"sizes": [1, "2"]}}}, "Inner.sizes must be a tuple"),
        ({"name": "a", "inner": {"x": {"rate": "fast"}}}, "Inner.rate must be a number or None"),
        ([], "must be a JSON object"),
    ],
)
def test_other_types_are_refused_by_name(value, message):
    refuses(from_json, message, Outer, value, error=TypeError)


def test_values_of_dictionaries_must_fit():
    assert fits({"a": 1}, dict[str, int]) and not fits({"a": "1"}, dict[str, int])

"""What a client may send: every field and limit, and anything else that JSON or bytes can be."""

import dataclasses
import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from padir.errors import PadirError
from padir.serve.messages import Limits, Refused, RequestReader, TranslateRequest

LIMITS = Limits(max_sentences=3, max_steps=6, max_lengths=5)
READER = RequestReader(LIMITS, ["refine"], ["padir"], "num_lengths", most_lengths=4)
CAUSAL = RequestReader(LIMITS, ["causal"], [], "num_lengths", most_lengths=1)
FIELDS = READER.names


def read(reader=READER, /, **fields):
    return reader(json.dumps(fields).encode())


def refused(body, reader=READER):
    with pytest.raises(Refused) as caught:
        reader(body if isinstance(body, bytes) else json.dumps(body).encode())
    return caught.value.status, str(caught.value)


def test_what_is_left_out_has_its_default():
    assert read(text="eins") == TranslateRequest(("eins",), None, None, n_best=0, trace=False, split=False)
    assert read(text=["eins", ""]).texts == ("eins", "") and read(text=[]).texts == ()
    assert read(CAUSAL, text="eins") == TranslateRequest(("eins",))


def test_every_field():
    request = read(text="ä", num_steps=6, num_lengths=4, n_best=5, trace=True, split=True)
    assert request == TranslateRequest(("ä",), 6, 4, n_best=5, trace=True, split=True)
    assert read(CAUSAL, text="eins", split=True, n_best=2) == TranslateRequest(("eins",), split=True, n_best=2)


def test_a_kind_of_spans_counts_once():
    assert read(text="eins", placeholders=["tags"] * 4_000).placeholders == {"tags"}


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b'{"text": ', b"{'text': 'eins'}", b'{"text": "\xff"}', b'{"text": "\\ud800"}'),
        *(b'{"text": "eins", "num_steps": NaN}', b'{"text": "eins"} {}', '{"text": "eins"}'.encode("utf-16")),
        *(b"[" * 200_000, b'{"text": "eins", "num_steps": ' + b"9" * 5_000 + b"}"),
    ],
)
def test_what_is_no_json(body):
    status, said = refused(body)
    assert status == 400 and said.startswith("the body must be JSON in UTF-8: ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"text": "a", "text": "b"}', "the name 'text' stands twice in an object: leave one out"),
        (b'{"text": "a", "te\\u0078t": "b"}', "the name 'text' stands twice"),
        (b'{"text": "\\ud800 a"}', r"one of \ud800 to \udfff stands alone: write both halves"),
        (b'{"text": ["a", "\\ude00\\ud83d"]}', "stands alone"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"x":' + b"[" * 1_900 + b"]" * 1_900 + b"}", "nested too deeply"),
    ],
)
def test_what_is_wrong_with_the_json(body, message):
    status, said = refused(body)
    assert status == 400 and message in said


def test_both_halves_of_a_character_are_one():
    assert READER(b'{"text": "\\ud83d\\ude00"}').texts == ("\N{GRINNING FACE}",)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "got `array`"),
        (None, "got `null`"),
        ({}, "missing required field `text`"),
        ({"text": None}, "got `null` - at `$.text`"),
        ({"text": ["eins", 2]}, "got `int` - at `$.text[1]`"),
        ({"text": ["eins"] * 4}, "length <= 3"),
        (
            {"text": "eins", "steps": 4},
            "unknown field `steps`; the fields are text, split, placeholders, n_best, mode, num_steps, num_lengths",
        ),
        ({"text": "eins", "num_steps": 0}, "`int` >= 1 - at `$.num_steps`"),
        ({"text": "eins", "num_steps": 7}, "`int` <= 6"),
        (b'{"text": "eins", "num_steps": ' + b"9" * 500 + b"}", "`int` <= 6"),
        ({"text": "eins", "num_steps": 4.0}, "got `float`"),
        ({"text": "eins", "num_steps": True}, "got `bool`"),
        ({"text": "eins", "num_lengths": 5}, "`int` <= 4 - at `$.num_lengths`"),
        ({"text": "eins", "n_best": -1}, "`int` >= 0 - at `$.n_best`"),
        ({"text": "eins", "n_best": 6}, "`int` <= 5"),
        ({"text": "eins", "trace": 1}, "got `int` - at `$.trace`"),
        ({"text": "eins", "split": "yes"}, "got `str` - at `$.split`"),
        ({"text": "eins", "mode": "causel"}, "enum value 'causel' - at `$.mode`; mode is one of "),
        ({"text": "eins", "strategy": "padirr"}, "at `$.strategy`; strategy is one of padir"),
        ({"text": "eins", "placeholders": ["tag"]}, "placeholders is one of tags, urls, numbers"),
    ],
)
def test_what_is_wrong_with_the_fields(body, message):
    status, said = refused(body)
    assert status == 422 and message in said


@pytest.mark.parametrize("name", FIELDS[5:])
def test_an_autoregressive_model_has_no_options(name):
    status, said = refused({"text": "eins", name: 1}, CAUSAL)
    assert status == 422 and f"unknown field `{name}`; the fields are text, split" in said


@pytest.mark.parametrize("field", dataclasses.fields(Limits), ids=lambda field: field.name)
def test_limits_let_something_through(field):
    with pytest.raises(PadirError) as caught:
        Limits(**{field.name: type(field.default)(0)})
    assert caught.value.what == field.name


def test_a_request_fits_the_queue():
    with pytest.raises(PadirError) as caught:
        Limits(max_queue=8)
    assert (caught.value.what, caught.value.got) == ("max_queue", 8)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner, max_size=5),
)
PLAUSIBLE = st.fixed_dictionaries({"text": st.text() | st.lists(st.text())}, optional={n: JSON for n in FIELDS[1:]})


@given(st.binary() | JSON.map(json.dumps).map(str.encode) | PLAUSIBLE.map(json.dumps).map(str.encode))
def test_anything_is_read_or_refused(body):
    try:
        request = READER(body)
    except Refused as error:
        assert error.status in (400, 422)
        str(error).encode()  # it can be sent
    else:
        assert len(request.texts) <= 3
        assert request.num_steps in (None, *range(1, 7)) and request.num_lengths in (None, *range(1, 5))
        assert 0 <= request.n_best <= 5

"""What a client may send: every field and limit, and anything else that JSON or bytes can be."""

import dataclasses
import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from padir.errors import PadirError
from padir.serve.request import FIELDS, Limits, Options, Refused, Request, read_request

LIMITS = Limits(max_sentences=3, max_characters=10, max_steps=6, max_lengths=4)
DEFAULTS = Options(num_steps=4, top_k=2)
CAUSAL = Options(None, None)


def read(defaults=DEFAULTS, /, **fields):
    return read_request(json.dumps(fields).encode(), LIMITS, defaults)


def refused(body, defaults=DEFAULTS):
    with pytest.raises(Refused) as caught:
        read_request(body if isinstance(body, bytes) else json.dumps(body).encode(), LIMITS, defaults)
    return caught.value.status, str(caught.value)


def test_what_is_left_out_has_its_default():
    assert read(text="eins") == Request(("eins",), DEFAULTS)
    assert read(text=["eins", ""]).texts == ("eins", "")
    assert read(text=[]).texts == ()


def test_every_field():
    request = read(text="ä", num_steps=6, top_k=4, n_best=4, trace=True)
    assert request == Request(("ä",), Options(6, 4, trace=True), n_best=4)


def test_a_sentence_may_have_as_many_characters_as_the_limit():
    assert read(text="e" * 10).texts == ("e" * 10,)


def test_defaults_may_lie_beyond_what_clients_may_ask_for():
    assert read(Options(9, 9), text="eins").options == Options(9, 9)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "must be JSON"),
        (b'{"text": ', "must be JSON"),
        (b"{'text': 'eins'}", "must be JSON"),
        (b'{"text": "\xff"}', "byte 11 is not"),
        (b'{"text": "eins", "num_steps": NaN}', "NaN is no JSON number"),
        (b'{"text": "eins", "num_steps": ' + b"9" * 5_000 + b"}", "must be JSON"),
        (b"[" * 200_000, "nested"),
    ],
)
def test_what_is_no_json(body, message):
    status, said = refused(body)
    assert status == 400 and message in said


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "must be a JSON object .* got a list"),
        ("eins", "got a string"),
        (None, "got null"),
        ({}, "text is missing"),
        ({"text": None}, "text must be a string or a list of strings, got null"),
        ({"text": {"de": "eins"}}, "got an object"),
        ({"text": ["eins", 2]}, "got a number at place 2"),
        ({"text": ["eins", ["zwei"]]}, "got a list at place 2"),
        ({"text": ["eins"] * 4}, "at most 3 sentences, got 4"),
        ({"text": ["eins", "e" * 11]}, "sentence 2 has 11 characters, the server takes 10"),
        ({"text": "eins", "steps": 4}, "unknown field 'steps': known are text, split, num_steps, top_k, n_best, trace"),
        ({"text": "eins", "x" * 999: 4}, r"unknown field 'x{40}\.\.\.'"),
        ({"text": "eins", "\ud800": 4}, r"unknown field '\\ud800'"),
        ({"text": "eins", "num_steps": 0}, r"num_steps must be in 1 \.\. 6, got 0"),
        ({"text": "eins", "num_steps": 7}, r"in 1 \.\. 6, got 7"),
        ({"text": "eins", "num_steps": 10**400}, "got far more"),
        ({"text": "eins", "num_steps": 4.0}, "num_steps must be a whole number, got a number"),
        ({"text": "eins", "num_steps": True}, "got true or false"),
        ({"text": "eins", "num_steps": "4"}, "got a string"),
        ({"text": "eins", "num_steps": None}, "got null"),
        ({"text": "eins", "top_k": 5}, r"top_k must be in 1 \.\. 4, got 5"),
        ({"text": "eins", "n_best": -1}, r"n_best must be in 0 \.\. 4, got -1"),
        ({"text": "eins", "trace": 1}, "trace must be true or false, got a number"),
    ],
)
def test_what_is_wrong_with_the_fields(body, message):
    status, said = refused(body)
    assert status == 422
    with pytest.raises(PadirError, match=message):
        raise PadirError(said)


@pytest.mark.parametrize("name", FIELDS[2:])
def test_an_autoregressive_model_has_no_options(name):
    status, said = refused({"text": "eins", name: 1}, CAUSAL)
    assert status == 422 and f"autoregressive and has no {name}" in said
    assert read(CAUSAL, text="eins") == Request(("eins",), CAUSAL)
    assert read(CAUSAL, text="eins", split=True) == Request(("eins",), CAUSAL, split=True)


@pytest.mark.parametrize("field", dataclasses.fields(Limits), ids=lambda field: field.name)
def test_limits_let_something_through(field):
    with pytest.raises(PadirError, match=field.name):
        Limits(**{field.name: type(field.default)(0)})


def test_a_request_fits_the_queue():
    with pytest.raises(PadirError, match="64 sentences would never fit a queue of 8"):
        Limits(max_queue=8)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner, max_size=5),
)
PLAUSIBLE = st.fixed_dictionaries({"text": st.text() | st.lists(st.text())}, optional={n: JSON for n in FIELDS[1:]})


@given(st.binary() | JSON.map(json.dumps).map(str.encode) | PLAUSIBLE.map(json.dumps).map(str.encode))
def test_anything_is_read_or_refused(body):
    try:
        request = read_request(body, LIMITS, DEFAULTS)
    except Refused as error:
        assert error.status in (400, 422)
        str(error).encode()  # it can be sent
    else:
        assert len(request.texts) <= 3 and all(len(text) <= 10 for text in request.texts)
        assert 1 <= request.options.num_steps <= 6 and 1 <= request.options.top_k <= 4 and 0 <= request.n_best <= 4

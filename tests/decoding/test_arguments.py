"""Arguments of every public method of `Translator`, decoding options, and cards: wrong types and sizes are refused."""

import dataclasses
import fractions
import inspect
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.refusals import refuses
from support.tiny_model import random_translator

import padir
from padir.decoding.fit import default_decoding
from padir.decoding.options import Decoding
from padir.errors import PadirError
from padir.models.directory import ModelCard
from padir.options import OPTIONS
from padir.refinement import Threshold, Uniform
from padir.storage.files import write_text
from padir.translator import Translator

pytestmark = pytest.mark.usefixtures("unchecked")
TEXTS = ["eins"]
OTHERS = [None, 5, -1, 5.5, math.nan, "x", b"x", [5], [None], {"a": 1}, {1, 2}, object(), int, np.array([1, 2]), 10**30]
# Each argument with those of `OTHERS` that it takes.
CALLS = {
    "__init__": {"card": [], "tokenizer": []},
    "load": {"path": ["x"], "step": [None, 5], "corruption": [None], "strategy": [None], "sharding": [None]},
    "translate": {
        **{"texts": [], "decoding": [None], "target_lengths": [None, [5]], "truncate": [], "trace": []},
        **{"template": [None], "terms": [None], "align": [], "progress": []},
    },
    "translate_iter": {"texts": [], "decoding": [None], "truncate": []},
    "steps": {"text": ["x"], "decoding": [None]},
    "score": {"sources": [], "targets": [], "batch_size": [5], "truncate": []},
    "align": {"sources": [], "targets": [], "batch_size": [5], "truncate": []},
    "predict_lengths": {"texts": [], "k": [5], "batch_size": [5]},
    "save": {"folder": ["x"], "dtype": []},
    "refines": {"decoding": []},
    "resolved": {"decoding": []},
}
NEEDED = {"texts": TEXTS, "text": "eins", "sources": TEXTS, "targets": TEXTS, "decoding": None, "folder": "."}


@pytest.fixture(scope="module")
def dual(tokenizer):
    return random_translator(tokenizer, dual=True)


def allowed(value, taken):
    return any(value is each or (isinstance(each, list | int | str) and repr(value) == repr(each)) for each in taken)


@pytest.mark.parametrize(("method", "argument"), [(method, name) for method, names in CALLS.items() for name in names])
def test_arguments_of_other_types_are_refused_by_name(dual, tmp_path, monkeypatch, method, argument):
    monkeypatch.chdir(tmp_path)
    function = getattr(dual, method)
    names = inspect.signature(function).parameters
    needed = {"params": None, "card": dual.card, "tokenizer": dual.tokenizer} if method == "__init__" else NEEDED
    needed = {name: needed[name] for name, each in names.items() if each.default is each.empty and name in needed}
    for value in (each for each in OTHERS if not allowed(each, CALLS[method][argument])):
        with pytest.raises(PadirError) as error:
            made = function(**needed | {argument: value})
            list(made)  # a generator, which begins late
        assert argument in error.value.what and len(str(error.value)) < 2_500
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "a/\udfff/b"])
@pytest.mark.parametrize("call", [Translator.load, lambda path: write_text(path, "a"), "save"])
def test_a_path_that_no_file_can_have_is_refused(dual, tmp_path, monkeypatch, call, path):
    monkeypatch.chdir(tmp_path)
    refuses(lambda: (dual.save if call == "save" else call)(path), "text that can name a file or folder, got")
    assert not [*tmp_path.iterdir()]


def test_a_name_that_is_not_utf_8_is_a_path(tmp_path):
    write_text(tmp_path / os.fsdecode(b"\xff"), "a")
    assert [*map(os.fsencode, os.listdir(tmp_path))] == [b"\xff"]


def test_the_table_has_every_public_method():
    public = {name for name, each in vars(Translator).items() if callable(getattr(Translator, name)) and name[0] != "_"}
    assert public - {"pipeline", "side"} == CALLS.keys() - {"__init__"}


HOSTILE = {
    "placeholders": [
        None,
        5,
        [5],
        [None],
        {"tags"},
        {"tags": 1},
        ["("],
        ["(" * 5_000 + ")" * 5_000],
        ["a{99999999999}"],
    ],
    "mode": ["nar", ["refine"]],
    "precision": ["int4"],
    "strategy": [5, "MaskPredict", "x" * 10**6],
    "shortlist": [5, "x" * 5_000],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_other_types_or_sizes_are_refused_by_name(name):
    hostile = [5.5j, object(), math.nan, math.inf, -1, 10**400, {1: 2}, *HOSTILE.get(name, [])]
    for value in hostile:
        assert len(str(refuses(lambda value=value: Decoding(**{name: value}), name))) < 2_500


@pytest.mark.parametrize(("name", "cls"), [("strategy", Threshold), ("canvas", Uniform)])
def test_a_class_that_is_not_frozen_is_refused(name, cls):
    value = object.__new__(type("Own", (cls,), {"__hash__": None}))
    vars(value).update(vars(cls()))
    refuses(Decoding, f"{name} must be a frozen dataclass of hashable fields", **{name: value})


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_used_and_has_a_place_on_the_page(name):
    package = Path(padir.__file__).parent
    places = {*package.rglob("*.py")} - {package / "options.py", package / "decoding" / "options.py"}
    own = {"beam", "temperature", "length_penalty", "drop_repeats"}  # `Decoding.search` and `drops_repeats` read them
    assert name in own or any(re.search(rf"decoding\.{name}\b", place.read_text()) for place in places)
    assert re.search(rf"`(--)?{name}\b", (package.parent / "docs" / "decoding.md").read_text())


def test_work_beyond_all_patience_is_refused():
    assert Decoding(num_lengths=64, num_drafts=64, num_steps=256).num_drafts == 64 and Decoding(beam=4_096)
    for name, options in {
        "num_lengths x prefix_beam x num_drafts": {"num_lengths": 64, "num_drafts": 65},
        "beam": {"beam": 4_097},
        "n_best": {"n_best": 4_097},
        "num_steps x num_lengths x prefix_beam x num_drafts": {"num_lengths": 64, "num_drafts": 64, "num_steps": 257},
    }.items():
        assert refuses(Decoding, name, **options).what == name


# Options of a card, and the words of their refusal.
OF_CARDS = [
    ({"num_lengths": 64, "num_drafts": 2}, "num_lengths x prefix_beam x num_drafts"),
    *(({"beam": value}, "beam") for value in (65, 10**9)),
    ({"n_best": 2}, "n_best"),
    *(({"num_steps": value, "num_lengths": 2}, "num_steps") for value in (0, 2_049, 2**31 - 1)),
    ({"temperature": 1e30}, "temperature"),
    *(({"length_normalization": value}, "length_normalization") for value in (10**400, 11, 1e308, "x")),
    ({"length_penalty": 1e308}, "length_penalty"),
    *(({"placeholders": value}, "placeholders") for value in ([5], [None], None, 5, [[]], "[a-z]", ["tags", "x"])),
    ({"strategy": {"name": "padir"}}, "strategy"),
    ({"mode": ["causal"]}, "mode"),
    ({"num_lengths": "3"}, "num_lengths"),
    ({"drop_repeats": "no"}, "drop_repeats"),
    ({"batch_size": 10**9}, "batch_size"),
    ({"seed": 3}, "seed"),
    ({"num_drafts": 4096}, "num_drafts"),
    *(({"rerank": value}, "rerank") for value in ("/tmp", "gs://a/b", ["de_en"])),
    *(({"shortlist": value}, "shortlist") for value in ("/etc/passwd", "mbr")),
    *(({name: {}}, name[:3]) for name in ("x" * 10**6, "self", "card_options", "top_j")),
]


@pytest.mark.parametrize(("options", "words"), OF_CARDS)
def test_a_card_cannot_ask_for_more_than_a_strangers_due(dual, options, words):
    most = {"num_lengths": 64, "beam": 64}
    assert default_decoding(dataclasses.replace(dual.card, decoding=most)).beam == 64
    card = ModelCard.from_json(dual.card.to_json() | {"decoding": options})
    said = refuses(Translator, f"card has wrong decoding options ... {words}", dual.params, card, dual.tokenizer)
    assert len(str(said)) < 2_500


def test_decoding_options_of_a_card_are_named(dual):
    refuses(ModelCard.from_json, "model.json", dual.card.to_json() | {"decoding": [1]})


def test_a_kind_named_twice_is_looked_for_once():
    assert Decoding(placeholders=["tags", "urls", "tags"]).placeholders == ("tags", "urls")


TYPED = """\
from collections.abc import Iterator, Sequence
import padir
translator = padir.Translator.load()
def accepted(rows: Sequence[str], lines: Iterator[str], names: dict[str, int]) -> None:
    for texts in (["a"], ("a", "b"), rows, lines, names.keys(), (text for text in rows), map(str.strip, rows)):
        translator.translate(texts, mode="refine", precision="int8", placeholders=("tags",))
    translator.translate_iter(open("x"))
    translator.score(["a"], ["b"])
    padir.Decoding(mode=None, precision="bfloat16")
translator.translate("a")  # refused
translator.translate_iter("a")  # refused
translator.score("a", ["b"])  # refused
translator.align(["a"], "b")  # refused
translator.translate(["a"], mode="nar")  # refused
translator.translate(["a"], precision="int4")  # refused
padir.Decoding(mode="nar")  # refused
translator.save("x", dtype="int8")  # refused
"""


@pytest.mark.slow
def test_pyright_refuses_what_is_refused(tmp_path):
    (tmp_path / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, tmp_path / "typed.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    found = {each["range"]["start"]["line"] for each in json.loads(done.stdout)["generalDiagnostics"]}
    assert found == {number for number, line in enumerate(TYPED.splitlines()) if line.endswith("# refused")}


def test_a_number_of_any_kind_is_a_float():
    assert Decoding(temperature=fractions.Fraction(1, 2)) == Decoding(temperature=0.5)
    assert type(Threshold(tau=fractions.Fraction(1, 2)).tau) is float

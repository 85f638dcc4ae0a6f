"""Objects named by text: classes of one's own are MODULE:NAME in Python, on the command line, in gin and in cards."""

import json
import sys

import pytest
from support.commands import refused as refuses
from support.commands import run
from support.refusals import refused
from support.tiny_model import random_model_dir

from padir import from_text
from padir.decoding import Decoding
from padir.decoding.fit import of_card
from padir.refinement import get_strategy, parse_strategy

SOURCE = """
import dataclasses
from typing import Literal
from padir.refinement import Uniform
from padir.refinement.strategies import Padir

@dataclasses.dataclass(frozen=True)
class Step(Padir):
    patience: int = 1

@dataclasses.dataclass(frozen=True)
class Typed(Padir):
    tries: Literal[1, 2] = 1
    share: float | None = None
    sizes: tuple[int, ...] = dataclasses.field(default_factory=lambda: (1, 2))

@dataclasses.dataclass(frozen=True)
class Noise(Uniform):
    pass

@dataclasses.dataclass(frozen=True)
class Longest:
    by: float = 1.0
    needs = frozenset({"text"})

    def __call__(self, sources, hypotheses, *, target_language):
        return [[self.by * len(each.text) for each in own] for own in hypotheses]

@dataclasses.dataclass(frozen=True)
class Open(Padir):
    limit: int = dataclasses.field(kw_only=True)

class Words:
    def __call__(self, hypotheses, references):
        return 1.0

unfit = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that Python finds, and nobody has imported."""
    (tmp_path / "own_parts.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_parts"
    sys.modules.pop("own_parts", None)


def test_a_name_gives_an_instance_once_the_module_is_imported(module):
    with refused("the strategy 'own_parts:Step' is in a module that is not imported: import own_parts first"):
        Decoding(strategy="own_parts:Step")
    own = __import__(module)
    assert (
        Decoding(strategy="own_parts:Step:patience=3").strategy
        == own.Step(patience=3)
        == parse_strategy("own_parts:Step:patience=3")
    )
    assert get_strategy("own_parts:Step", patience=2) == own.Step(patience=2)
    assert Decoding(canvas="own_parts:Noise").canvas == own.Noise()
    made = Decoding(rerank="own_parts:Longest:by=-1", num_lengths=2)
    assert made.rerank == made.ranker == own.Longest(-1.0)
    assert of_card({"rerank": "own_parts:Longest"}).rerank == own.Longest()


def test_fields_of_any_type_have_values(module):
    own = __import__(module)
    assert get_strategy("own_parts:Open", limit=3) == own.Open(limit=3)
    found = parse_strategy("own_parts:Typed:tries=2,share=1,sizes=[3]")
    assert found == own.Typed(tries=2, share=1.0, sizes=(3,)) and isinstance(found.share, float)
    assert parse_strategy("own_parts:Typed") == own.Typed(sizes=(1, 2))
    with refused("tries='2' is of the wrong type tries: one of 1, 2 = 1"):
        parse_strategy("own_parts:Typed:tries='2'")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "own_parts:Steps"}, "the module own_parts has no Steps: write the strategy as MODULE:NAME"),
        ({"strategy": "own_parts:unfit"}, "own_parts:unfit must be a frozen dataclass with init, step, stop"),
        ({"strategy": "own_parts:Longest"}, "own_parts:Longest must be a frozen dataclass with init"),
        ({"rerank": "own_parts:Step"}, "the rule own_parts:Step must be a frozen dataclass with needs"),
        ({"strategy": "own_parts:Step:patience=x"}, "patience='x' wrong type for own_parts:Step"),
        ({"strategy": "own_parts:Step:3"}, "a strategy is written NAME"),
        ({"strategy": "own_parts:Open"}, "own_parts:Open has no default for limit: give all its fields defaults"),
    ],
)  # fmt: skip
def test_what_is_no_such_class_is_refused(options, words, module):
    __import__(module)
    with refused(words):
        Decoding(**options)


@pytest.mark.parametrize("text", ["threshold:tau=0.9", "mbr", "runs/a:b", "gs://bucket/x", "de_en", ":Name", "a:9"])
def test_other_texts_name_no_class_of_ones_own(text):
    assert from_text.module_of(text) is None


def test_the_command_line_imports_what_it_names(module, tmp_path, capsys):
    folder = random_model_dir(tmp_path)
    line = f"translate --model {folder} --jsonl --num_lengths 3 --n_best 3"
    longest, shortest = (
        run(capsys, f"{line} --strategy own_parts:Step --rerank own_parts:Longest:by={by}", "eins zwei")
        for by in (1, -1)
    )
    assert longest[0] == shortest[0] == 0, longest
    lengths = [[len(each["text"]) for each in json.loads(out)["candidates"]] for _, out, _ in (longest, shortest)]
    # The first one is the best without broken characters.
    assert lengths[0][1:] == sorted(lengths[0][1:], reverse=True) and lengths[1][1:] == sorted(lengths[1][1:])
    assert lengths[0] != lengths[1]
    status, _, err = run(capsys, f"{line} --strategy nowhere_at_all:Step", "eins zwei")
    assert status == 2 and "nowhere_at_all of nowhere_at_all:Step cannot be imported (No module named" in err


def test_results_and_cards_name_it_in_the_same_way(module):
    own = __import__(module)
    from padir.models.directory import name_and_fields
    from padir.refinement import STRATEGIES, Strategy

    described = name_and_fields(own.Step(patience=3), STRATEGIES)
    assert described["name"] == "own_parts:Step"
    assert from_text.made(described.pop("name"), "strategy", STRATEGIES, Strategy, described) == own.Step(patience=3)


def test_a_metric_must_give_a_score(module, tmp_path, capsys):
    folder = random_model_dir(tmp_path)
    (tmp_path / "t.de").write_text("eins\n")
    (tmp_path / "t.en").write_text("one\n")
    line = f"evaluate --model {folder} --languages de-en --test {tmp_path}/t.de {tmp_path}/t.en"
    assert "must be a padir.metrics.scores.Score, got 1.0" in refuses(capsys, f"{line} --metric {module}:Words")

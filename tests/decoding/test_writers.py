"""Every writer keeps the same promises behind `Translator`: padir's own, CTranslate2, and one that a user brings."""

import dataclasses
import importlib.util
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.refusals import refuses
from support.tiny_model import random_translator, same, with_bigrams

from padir import Decoding, Translation, Translator
from padir.decoding import Writer
from padir.decoding.hypothesis import Hypothesis, SourceSentence
from padir.decoding.ranker import RULES, CausalScore, MinimumBayesRisk, Ranker, Rescore, ranker_of
from padir.decoding.refiner import Refiner
from padir.decoding.searcher import Searcher
from padir.decoding.shortlist import Shortlist
from padir.decoding.templates import Template
from padir.decoding.writer import Written
from padir.errors import PadirError
from padir.evaluation.rows import _RULES
from padir.interop.ctranslate2 import in_ctranslate2
from padir.options import MODES
from padir.refinement import Mask, MaskPredict

TEXTS = ["eins", "zwei drei vier fünf sechs sieben", "acht acht", "neun null", "vier drei zwei eins"]
ODD = ["\x00", "<extra_id_0> </s>", "\u2581", "日本語 🙂", "\u2028", "eins", "zwei"]


@dataclasses.dataclass(frozen=True)
class Rotated:
    """A user's writer: the tokens of the source, begun anew at each of its first tokens."""

    most_hypotheses: int = 3

    def write(self, sources):
        def hypothesis(tokens, n):
            turned = [*tokens[n:], *tokens[:n]]
            return Hypothesis(turned, score=-n / 4, passes=1)

        words = [source.tokens[1:-1] for source in sources]  # without [LENGTH] and EOS
        return Written([[hypothesis(own, n) for n in range(min(3, len(own)))] for own in words])


@dataclasses.dataclass(frozen=True)
class Longest:
    """A user's rule, which writes down what it was asked about."""

    asked: dict[str, list[str]] = dataclasses.field(default_factory=dict, compare=False)
    needs = frozenset({"text"})

    def __call__(self, sources, hypotheses, *, target_language):
        self.asked.update((source, [h.text for h in row]) for source, row in zip(sources, hypotheses, strict=True))
        return [[float(len(h.text)) for h in row] for row in hypotheses]


class Case(NamedTuple):
    sizes: dict[str, Any]
    options: dict[str, Any]
    draws: bool = False  # another seed gives another translation
    engine: Callable[[Translator], Translator] = lambda translator: translator

    def translator(self, tokenizer):
        return self.engine(random_translator(tokenizer, **{"max_length": 7} | self.sizes))


CAUSAL = {"causal": True}
CTC = {"readout": "ctc", "dual": True, "max_length": 14}
ONE_PASS = {"prefix_beam": 3, "blank_penalty": 5.0, "num_steps": 2, "mode": "refine"}
CASES = {
    "one draft": Case({}, {"num_steps": 2}, draws=True),
    "lengths": Case({}, {"num_lengths": 3, "num_drafts": 2, "num_steps": 2}, draws=True),
    "masks": Case({"corruption": Mask(), "strategy": MaskPredict()}, {"num_lengths": 2}),
    "ctc": Case(CTC, ONE_PASS, draws=True),
    "dual": Case({"dual": True}, {"num_lengths": 3, "rerank": "causal", "mode": "refine"}, draws=True),
    "table": Case(
        {}, {"num_lengths": 2, "num_steps": 2, "fusion": "bigrams:weight=2.0"}, draws=True, engine=with_bigrams
    ),
    "fallback": Case(
        CTC,
        {"fusion": "bigrams:weight=0.0,bonus=0.0,unknown=0.0,fallback=True", "prefix_beam": 2, "blank_penalty": 3.0}
        | {"num_steps": 2, "mode": "refine"},
        True,
        with_bigrams,
    ),
    "greedy": Case(CAUSAL, {"beam": 1}),
    "beam": Case(CAUSAL, {"beam": 3}),
    "sampling": Case(CAUSAL, {"temperature": 0.8, "num_drafts": 2}, draws=True),
    "ctranslate2": Case(CAUSAL, {"beam": 2}, engine=lambda translator: in_ctranslate2(translator, "float32")),
    "a user's": Case({}, {}, engine=lambda translator: translator.with_writer(lambda *_, **__: Rotated())),
}
HERE = [name for name in CASES if name != "ctranslate2" or importlib.util.find_spec("ctranslate2")]


@pytest.fixture(scope="module", params=HERE)
def case(request):
    return CASES[request.param]


@pytest.fixture(scope="module")
def translator(case, tokenizer):
    return case.translator(tokenizer)


@pytest.fixture(scope="module")
def write(case, translator):
    """A function that translates with the writer's options."""
    return lambda texts, **more: translator.translate(texts, **case.options | more)


@pytest.fixture(scope="module")
def most(case, translator):
    """The largest number of hypotheses of a sentence."""
    writer = translator.writer(translator.resolved(translator.decoding.changed(**case.options)))
    assert isinstance(writer, Writer)
    return writer.most_hypotheses


@pytest.fixture(scope="module")
def plain(write):
    """The translations of `TEXTS`, which are not all alike."""
    made = write(TEXTS)
    assert len({each.text for each in made}) > 2
    return made


def test_a_sentence_does_not_depend_on_its_batch(write, plain):
    """Odd and cut neighbours, another place, twice, and alone: 17 sentences are two batches of 8 and one of 1."""
    moved = write([*TEXTS[::-1], *ODD, "neun " * 40, *TEXTS[:4]], truncate=True, batch_size=8)
    same([*moved[:5], *moved[-4:]], [*plain[::-1], *plain[:4]])
    same(write(TEXTS[1:2]), plain[1:2])


def test_a_given_length_concerns_its_sentence_alone(case, translator):
    """A writer may get sentences with and without a length in one batch."""
    writer = translator.writer(translator.resolved(translator.decoding.changed(**case.options)))
    tokens, _ = translator.loaded.source_tokens(TEXTS, truncate=False)
    sources = [*map(SourceSentence, TEXTS, tokens)]
    given = sources[0]._replace(target_length=3)
    try:
        alone = writer.write([given]).hypotheses
    except PadirError:
        return
    mixed, free = writer.write([given, *sources[1:]]).hypotheses, writer.write(sources).hypotheses
    for found, expected in zip(mixed, [*alone, *free[1:]], strict=True):
        assert [each.tokens for each in found] == [each.tokens for each in expected]


def test_an_empty_line_stays_empty_and_moves_no_other(write, plain):
    made = write([*TEXTS[:2], "", " ", "\t \u3000", *TEXTS[2:]])
    assert made[2:5] == [Translation(text="", score=0.0, length=1, passes=0, hypotheses=0)] * 3
    same([*made[:2], *made[5:]], plain)
    assert write([]) == []


def test_any_text_gives_one_line(write):
    assert not any("\n" in each.text for each in write([*ODD, *TEXTS[:4]], truncate=True, batch_size=8))


def test_a_text_that_is_too_long_is_refused_or_cut(write):
    long = TEXTS[1] + " neun" * 9
    refuses(write, "a text has 15 tokens, the model takes 6, got ... truncate=True", ["eins", long])
    cut, whole, *_ = write([long, TEXTS[1], *TEXTS], truncate=True)  # as many rows as elsewhere
    assert cut.truncated and not whole.truncated
    same([dataclasses.replace(cut, truncated=False)], [whole])


def test_another_seed_is_another_translation_of_writers_that_draw(case, write, plain):
    again, other = write(TEXTS), write(TEXTS, seed=1)
    assert again == plain and (other != plain) == case.draws


def test_it_comes_back_from_disk(case, translator, plain, tmp_path):
    translator.save(tmp_path / "model")
    back = case.engine(Translator.load(tmp_path / "model"))
    assert back.card == translator.card
    assert back.translate(TEXTS, **case.options) == plain


def test_n_best_lists_different_texts_best_first(write, plain, most):
    """The text without broken characters stands first, as it does without a list."""
    listed = write(TEXTS, n_best=most)
    for one, result in zip(plain, listed, strict=True):
        first, *others = result.candidates
        same([dataclasses.replace(result, candidates=()), first], [one, one])
        assert [each.score for each in others] == sorted((each.score for each in others), reverse=True)
        assert len({each.text for each in result.candidates}) == 1 + len(others) <= most <= result.hypotheses * most
    assert any(len(each.candidates) > 1 for each in listed) == (most > 1)
    assert all(each.candidates == () for each in plain)
    refuses(write, f"n_best must be at most {most}, the number of hypotheses", TEXTS, n_best=most + 1)


def test_a_rule_chooses_among_the_hypotheses(case, write, plain, most, monkeypatch):
    """A sentence with one hypothesis is not asked about, and keeps its score."""
    if "fallback" in str(case.options.get("fusion")):
        refuses(write, "fallback reads the writer's own order", TEXTS, rerank=Longest())
        return
    monkeypatch.setattr("padir.decoding.reading.broken", lambda text, source: 0)
    rule = Longest()
    for text, own, result in zip(TEXTS, plain, write(TEXTS, n_best=most, rerank=rule), strict=True):
        if text in rule.asked:
            asked = rule.asked[text]
            assert {each.text for each in result.candidates} == {*asked}
            scores = [each.score for each in result.candidates]
            assert scores == sorted({each: len(each) for each in asked}.values(), reverse=True)
            assert result.text == max(asked, key=len)  # the first of the longest
        else:
            assert result.text == own.text and result.score == pytest.approx(own.score, abs=1e-4)
    assert bool(rule.asked) == (most > 1)


def test_spans_stand_once(write, plain):
    made = write(["<b>eins</b> 17 zwei", "17 <b></b>", *TEXTS[:4]], placeholders=("tags", "numbers"))
    assert all(made[0].text.count(span) == 1 for span in ("<b>", "</b>", "17"))
    assert (made[1].text, made[1].passes) == ("17 <b></b>", 0)  # no words to translate
    same(made[2:], plain[:4])


@pytest.mark.parametrize("rule", [*map(ranker_of, sorted({*RULES} - {"own"})), Rescore(lambda s, t: []), Longest()])
def test_every_rule_is_a_frozen_ranker(rule):
    assert isinstance(rule, Ranker) and hash(rule) == hash(dataclasses.replace(rule))
    assert type(rule) in {*_RULES.values(), Longest}  # its name in results
    assert rule.needs <= {"text", "causal"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.needs = frozenset()


class Careless(Longest):
    """A user's rule that changes what it is asked about."""

    def __call__(self, sources, hypotheses, *, target_language):
        for own in hypotheses:
            for each in own:
                each.tokens.clear()
            own.pop()
        return [[0.0] * (1 + len(own)) for own in hypotheses]


def test_a_rule_cannot_change_hypotheses(tokenizer):
    translator, how = CASES["lengths"].translator(tokenizer), CASES["lengths"].options
    careless = translator.translate(TEXTS, **how, rerank=Careless(), n_best=6)
    for own, result in zip(translator.translate(TEXTS, **how, n_best=6), careless, strict=True):
        assert {each.text for each in own.candidates} == {each.text for each in result.candidates}


def test_numbers_of_numpy_become_numbers_of_json(tokenizer):
    class Numpy(Rotated):
        def write(self, sources):
            written = super().write(sources)
            return Written(
                [
                    [each._replace(score=np.float32(each.score), passes=np.int64(1)) for each in own]
                    for own in written.hypotheses
                ]
            )

    translator = CASES["a user's"].translator(tokenizer)
    plain = translator.translate(TEXTS, n_best=2)
    made = translator.with_writer(lambda *_, **__: Numpy()).translate(TEXTS, n_best=2)
    assert json.dumps([dataclasses.asdict(each) for each in made]) == json.dumps([*map(dataclasses.asdict, plain)])


def test_the_encoders_output_of_other_sentences_is_refused(tokenizer):
    """A writer that passes some sentences to another one gets an output of these alone."""
    model, dual = CASES["dual"].translator(tokenizer), {"num_lengths": 2, "mode": "refine", "rerank": "causal"}

    class Rest:
        most_hypotheses = 2

        def __init__(self, first):
            self.first = first

        def write(self, sources):
            written = self.first.write(sources[1:])
            return written._replace(hypotheses=[written.hypotheses[0], *written.hypotheses])

    translator = model.with_writer(
        lambda loaded, decoding, *, trace, shapes: Rest(Refiner(loaded, decoding, trace, shapes))
    )
    refuses(translator.translate, "Written.encoded is of other sentences ... leave it None", TEXTS[:3], **dual)


@pytest.mark.parametrize("rule", ["causal", "mbr", "mbr_bleu", MinimumBayesRisk(), Longest()], ids=str)
def test_a_rule_does_not_depend_on_the_batch_or_the_order_of_the_list(tokenizer, rule):
    """Each sentence's choice is its own; of all rules, the candidates are those of the writer."""
    translator, how = CASES["dual"].translator(tokenizer), {"num_lengths": 3, "mode": "refine", "n_best": 3}
    together = translator.translate(TEXTS, rerank=rule, **how)
    same(translator.translate(TEXTS[::-1], rerank=rule, **how)[::-1], together)
    for own, result in zip(translator.translate(TEXTS, **how), together, strict=True):
        assert {each.text for each in own.candidates} == {each.text for each in result.candidates}
        assert result.score == result.candidates[0].score


@pytest.mark.parametrize(("writer", "mode"), [(Refiner, "refine"), (Searcher, "causal")])
def test_a_writer_needs_options_that_are_resolved_for_it(tokenizer, writer, mode):
    translator = CASES["dual"].translator(tokenizer)
    (other,) = {*MODES} - {mode}
    wrong = [translator.decoding, translator.resolved(translator.decoding.changed(mode=other))]
    wrong += [wrong[1].changed(mode="refine")] if mode == "refine" else []
    for options in wrong:
        refuses(writer, f"resolved for the mode {mode} ... translator.resolved", translator.loaded, options)


SHORTLIST = Shortlist("", np.zeros((1, 1), np.int32), np.zeros(0, np.int32), 0)
HELD = [
    ("greedy", ((5,), 0, (6,)), {}, "cannot hold these words: give a prefix"),
    ("ctc", ((5,), 0), {}, "a CTC model cannot hold these words"),
    ("greedy", ((5,), 0), {"shortlist": SHORTLIST}, "a template needs all ids"),
    ("one draft", ((5,), 0), {"shortlist": SHORTLIST}, "a template needs all ids"),
]


@pytest.mark.parametrize(("case", "parts", "options", "words"), HELD)
def test_a_writer_refuses_a_template_that_it_cannot_hold(tokenizer, case, parts, options, words):
    translator = CASES[case].translator(tokenizer)
    resolved = translator.resolved(translator.decoding.changed(**CASES[case].options))
    writer = translator.writer(dataclasses.replace(resolved, **options))
    source = SourceSentence("eins", [5, 1], template=Template(parts))
    refuses(writer.write, words, [source])


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_each_side_of_a_model_is_made_once(tokenizer, precision):
    loaded = CASES["dual"].translator(tokenizer).loaded
    refines, causal = (loaded.side(mode, precision) for mode in MODES)
    assert causal.card.config.causal and not refines.card.config.causal
    assert {refines.precision, causal.precision} == {precision}
    for side in (refines, causal):
        assert side.side("refine") is refines and side.side("causal") is causal
        assert side.side("refine", "float32") is loaded
    assert loaded.side("causal") is loaded.side("causal", "float32")


GOOD = Hypothesis([5, 6], score=-1.0, passes=1)
BAD = GOOD._replace(score=-2.0)


@dataclasses.dataclass(frozen=True)
class Given:
    """A user's writer, which gives always the same."""

    written: Any
    most_hypotheses: int = 2

    def write(self, sources):
        return self.written


WRONG_WRITERS = [
    (Given(Written([[GOOD]])), "at least one hypothesis for each of 2 sentences, got [1]"),
    (Given(Written([[GOOD], []])), "at least one hypothesis for each of 2 sentences, got [1, 0]"),
    (Given([[GOOD], [GOOD]]), "Writer.write gives no padir.decoding.Written of lists of hypotheses, got [["),
    (Given(Written([GOOD, GOOD])), "gives no padir.decoding.Written of lists of hypotheses, got Written("),  # pyright: ignore
    (Given(Written([GOOD] for _ in "ab")), "gives no padir.decoding.Written of lists ... <generator"),  # pyright: ignore
    (Given(Written([[GOOD], [GOOD, GOOD._replace(score=float("nan"))]])), "the score ... finite number, got nan"),
    (Given(Written([[GOOD], [GOOD._replace(score=None)]])), "the score ... a finite number, got None"),
    (
        Given(Written([[GOOD], [GOOD._replace(rank=r) for r in (0.0, math.nan)]])),
        "the rank ... a finite number, got nan",
    ),
    (Given(Written([[GOOD], [GOOD, GOOD._replace(rank=1.0)]])), "Hypothesis.rank ... given for all hypotheses"),
    *(
        (Given(Written([[GOOD], [GOOD._replace(tokens=tokens)]])), f"the tokens ... whole numbers ... got {tokens}")
        for tokens in ([5, 10**6], [-1], [5, 1], [0], [5.0, 7.0], [[5, 6]], None)
    ),
    (Given(Written([[GOOD], [GOOD]], np.zeros(2))), "Written.encoded and Written.searched ... an EncodedBatch"),  # pyright: ignore
    (Given(Written([[GOOD], [GOOD]], searched="2")), "Written.encoded and Written.searched"),  # pyright: ignore
    (None, "with_writer gives must be an instance with most_hypotheses, write, got None"),
    (Given, "with_writer gives must be an instance with most_hypotheses, write, got <class"),
    (Given(Written([[GOOD], [GOOD]]), most_hypotheses=lambda: 2), "most_hypotheses must be a whole number"),  # pyright: ignore
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("writer", "words"), WRONG_WRITERS)
def test_a_wrong_writer_is_named(tokenizer, writer, words):
    translator = CASES["one draft"].translator(tokenizer)
    refuses(translator.with_writer(lambda *_, **__: writer).translate, words, ["eins", "zwei"])
    refuses(translator.with_writer, "a function that makes a writer, got None", None)
    words = "must be callable as (loaded, decoding, *, trace, shapes): got an unexpected keyword argument 'trace'"
    refuses(translator.with_writer, words, lambda loaded, decoding: writer)


@dataclasses.dataclass(frozen=True, eq=False)
class Rule:
    """A user's rule, which gives always the same."""

    scores: object
    needs: object = frozenset()

    def __repr__(self):
        return "my rule"

    def __call__(self, sources, hypotheses, *, target_language):
        return self.scores


@dataclasses.dataclass(frozen=True, eq=False)
class Unlike(Rule):
    """A rule with other parameters."""

    scores: object = None

    def __repr__(self):
        return "an unlike rule"

    def __call__(self, hypotheses):
        return self.scores


class Faulty(Rule):
    def __call__(self, sources, hypotheses, *, target_language):
        return [[each.causal[0] for each in row] for row in hypotheses]


NEEDS = "my rule.needs must be a frozenset of 'causal' or 'text', got"
SHAPE = "(sources, hypotheses, *, target_language) gives a list for each source"
WRONG_RULES = [
    (
        Unlike(),
        "the rule an unlike rule must be callable as (sources, hypotheses, *, target_language): too many positional",
    ),
    (Rule(None), f"the rule my rule gives no scores ('NoneType' object is not iterable): {SHAPE}"),
    (Rule([1.0, 2.0]), f"the rule my rule gives no scores ('float' object is not iterable): {SHAPE}"),
    (Rule("ab"), f"the rule my rule gives no scores ... {SHAPE}"),
    (
        Rule([[1.0, 2.0]]),
        f"what the rule my rule gives must be a list of scores for each of 2 ... got '1 lists': {SHAPE}",
    ),
    (Rule([[1.0, 2.0], [1.0]]), f"must be 2 scores of a sentence, neither NaN nor plus infinity, got [1.0]: {SHAPE}"),
    *((Rule([], needs), f"{NEEDS} {needs!r}") for needs in (["text"], "text", None, frozenset({"words"}))),
    *(
        (
            Rule([[1.0, 2.0], [1.0, float(each)]]),
            f"2 scores of a sentence, neither NaN nor plus infinity, got [1.0, {each}]",
        )
        for each in ("nan", "inf")
    ),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("rule", "words"), WRONG_RULES)
def test_a_wrong_rule_is_named(tokenizer, rule, words):
    writer = Given(Written([[GOOD, BAD], [GOOD, BAD]]))
    translator = CASES["one draft"].translator(tokenizer).with_writer(lambda *_, **__: writer)
    refuses(translator.translate, words, ["eins", "zwei"], rerank=rule)
    vetoed = translator.translate(["eins", "zwei"], rerank=Rule([[float("-inf"), -3.0]] * 2))
    assert [each.score for each in vetoed] == [-3.0, -3.0]
    with pytest.raises(TypeError):  # an error of the rule's own code, with its line
        translator.translate(["eins", "zwei"], rerank=Faulty(None))


@dataclasses.dataclass(frozen=True)
class Marks:
    marks: list
    needs = frozenset({"text"})

    def __call__(self, sources, hypotheses, *, target_language):
        return [[0.0 for _ in row] for row in hypotheses]


def test_a_rule_that_cannot_be_compared_or_described_is_refused():
    refuses(
        Decoding, "rerank must be a frozen dataclass of hashable fields (unhashable type: 'list')", rerank=Marks([])
    )
    undecorated = type("Undecorated", (), {name: vars(Marks)[name] for name in ("needs", "__call__")})
    refuses(Decoding, "rerank must be a frozen dataclass, got", rerank=undecorated())
    named = dataclasses.make_dataclass("Named", [("name", str, "x")], bases=(MaskPredict,), frozen=True)
    refuses(Decoding, "strategy must be without a field called name", strategy=named())
    assert Decoding(rerank=Marks(("!",))).ranker == Marks(("!",))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"template": "one ___"}, "a writer's hypothesis lacks the template's fixed text"),
        ({"target_lengths": [2]}, "the length of a hypothesis must be at most 2, got 4: keep SourceSentence.target"),
    ],
)
def test_a_writer_that_ignores_what_a_sentence_asks_for_is_named(tokenizer, asked, words):
    writer = Given(Written([[GOOD._replace(tokens=[30, 31, 32])]]))
    translator = CASES["one draft"].translator(tokenizer).with_writer(lambda *_, **__: writer)
    refuses(translator.translate, words, ["eins"], **asked)


def test_a_rule_without_needs_is_refused():
    refuses(Decoding, "rerank must be a Ranker or a string ... instance with needs", rerank=lambda *_, **__: [])


def test_the_causal_side_ranks_the_hypotheses_of_another_engine(tokenizer):
    class Two:
        most_hypotheses = 2

        def write(self, sources):
            return Written([[Hypothesis([100], 0.0, 1), Hypothesis([101] * 3, -1.0, 1)] for _ in sources])

    translator = random_translator(tokenizer, dual=True).with_writer(lambda *_, **__: Two())
    plain, ranked = (
        translator.translate(["eins"], mode="causal", rerank=each)[0] for each in ("causal", CausalScore())
    )
    assert (plain.score, plain.read_again) == (0.0, False) and ranked.read_again and ranked.score < 0

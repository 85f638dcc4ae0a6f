"""Tables of systems: which rows there are, what they measure, and what a combination without a meaning says."""

import dataclasses
import types

import pytest
from support.refusals import refuses

from padir.decoding import Decoding, MinimumBayesRisk
from padir.decoding.translation import Translation
from padir.errors import PadirError
from padir.evaluation import TestSet, describe_row, evaluate_all, length_recall
from padir.metrics.scores import Score
from padir.models import ModelConfig, Weights
from padir.refinement import Mask, MaskPredict, Padir, Uniform
from padir.translator import Translator

TEST_SET = TestSet("listed", "de", "en", ["eins zwei drei vier", "fünf"], ["one two three four", "five"])


class Fake(Translator):
    """Writes the first words of the reference, one more with each step."""

    card = tokenizer = None  # of an instance, in place of its loaded model's

    has_other_engine = False

    def __init__(self, causal=False, refuses=()):
        config = ModelConfig(max_length=8, causal=causal)
        self.card = types.SimpleNamespace(
            config=config,
            strategy=Padir(),
            corruption=Uniform(0.5),
            weights=Weights(steps=(7,)),
            source_language="de",
            target_language="en",
        )
        self.tokenizer = types.SimpleNamespace(encode_batch=lambda texts: [text.split() for text in texts])
        self.refuses, self.calls, self.decoding = refuses, [], Decoding()

    def translate(self, texts, decoding=None, *, truncate=False, **changes):
        decoding = dataclasses.replace(decoding, **changes)
        if isinstance(decoding.strategy, self.refuses):
            raise PadirError("it needs a rejecter head")
        self.calls.append(decoding)
        results = []
        for i, reference in enumerate(TEST_SET.references):
            words = reference.split()[: decoding.num_steps]
            numbers = -1.0, len(words) + 1, decoding.num_steps, decoding.num_lengths
            results.append(
                Translation(
                    " ".join(words), *numbers, whole_text=" ".join(w for w in words for _ in "ab"), oscillated=i == 0
                )
            )
        return results

    def predict_lengths(self, texts, k=1, batch_size=32):
        return [[4, 5, 2][:k], [3, 2, 9][:k]]


def test_a_row_for_every_model_and_way():
    models = [("a", Fake()), ("b", Fake())]
    decodings = [Decoding(num_steps=n, num_lengths=k) for k in (1, 5) for n in (1, 2)]
    rows = evaluate_all(models, TEST_SET, decodings)
    ways = [(row.model, row.decoding.num_lengths, row.decoding.num_steps) for row in rows]
    assert ways == [(m, k, n) for m in "ab" for k in (1, 5) for n in (1, 2)]
    first = rows[0].evaluation
    assert first.hypotheses == ["one", "five"]
    assert rows[0].decoding.strategy == Padir() and rows[0].decoding.canvas == Uniform(1.0)
    assert first.metrics["length_ratio"] == pytest.approx(2 / 5)
    assert "compile:no" in first.scores["seconds"].signature


def test_each_way_is_compiled_once_by_one_step():
    fake = Fake()
    evaluate_all([("a", fake)], TEST_SET, [Decoding(num_steps=n) for n in (2, 4)])
    assert [decoding.num_steps for decoding in fake.calls] == [1, 2, 4]
    fake.calls.clear()  # what another model reads has other shapes after other numbers of steps
    evaluate_all([("a", fake)], TEST_SET, [Decoding(num_steps=n, rerank=MinimumBayesRisk()) for n in (2, 4)])
    assert [decoding.num_steps for decoding in fake.calls] == [2, 2, 4, 4]


def test_models_have_other_names_and_the_languages_of_the_test_set():
    other = dataclasses.replace(TEST_SET, source_language="en", target_language="de")
    empty = dataclasses.replace(TEST_SET, sources=[], references=[])
    for models, test_set, words in (
        ("aba", TEST_SET, "two models are called 'a': give each its own name, as NAME=DIR"),
        ("a", other, "a translates de-en, and the test set is en-de"),
        ("a", empty, "at least one sentence"),
    ):
        named = [(name, Fake()) for name in models]
        refuses(lambda named=named, test_set=test_set: evaluate_all(named, test_set, [Decoding()]), words)


def test_length_recall():
    """True lengths, EOS included: 5 and 2; the first is the second guess, the other, too."""
    recall = {name: score.value for name, score in length_recall(Fake(), TEST_SET).items()}
    assert recall == {"length_recall_1": 0, "length_recall_3": 100, "length_recall_5": 100}
    assert length_recall(Fake(causal=True), TEST_SET) == {}


def test_an_autoregressive_model_has_neither_steps_nor_lengths():
    decodings = [
        Decoding(num_steps=n, strategy=s, num_lengths=k) for n in (1, 4) for s in (None, MaskPredict()) for k in (1, 5)
    ]
    fake = Fake(causal=True)
    (row,) = evaluate_all([("ar", fake)], TEST_SET, decodings)
    assert row.causal and row.decoding == Decoding(mode="causal")
    assert len(fake.calls) == 2  # once to compile, once to time


def test_a_combination_without_a_meaning_is_a_row_that_says_why():
    decodings = [Decoding(strategy=MaskPredict()), Decoding(canvas=Mask()), Decoding()]
    said, unfit, good = evaluate_all([("a", Fake(refuses=MaskPredict))], TEST_SET, decodings)
    assert said.evaluation is None and said.note == "it needs a rejecter head" and good.evaluation
    assert unfit.evaluation is None and "was trained with Uniform" in unfit.note
    alone = [("a", Fake(refuses=MaskPredict))]
    refuses(evaluate_all, "it needs a rejecter head", alone, TEST_SET, decodings[:1])


def test_further_metrics_and_progress():
    done = []
    metric = lambda hypotheses, references: Score("mine", float(len(hypotheses)), "by:me")  # noqa: E731
    (row,) = evaluate_all([("a", Fake())], TEST_SET, [Decoding()], metrics=[metric], progress=done.append)
    assert row.evaluation.scores["mine"] == Score("mine", 2.0, "by:me") and len(done) == 1


def test_repeats_are_dropped_for_all_drafts_of_a_comparison_or_for_none():
    models = [("refining", Fake()), ("causal", Fake(causal=True))]

    def dropped(*strategies, **options):
        decodings = [Decoding(num_steps=1, strategy=strategy, **options) for strategy in strategies]
        rows = evaluate_all(models, TEST_SET, decodings)
        return [describe_row(row, TEST_SET)["drop_repeats"] for row in rows]

    assert dropped(MaskPredict()) == [False, False]
    assert dropped(Padir()) == [True, False]
    assert dropped(Padir(), MaskPredict()) == [True, True, False]
    assert dropped(Padir(), MaskPredict(), drop_repeats=False) == [False, False, False]


def test_stutter_is_counted_before_and_after_the_clean_up():
    refining, causal = evaluate_all([("a", Fake()), ("b", Fake(causal=True))], TEST_SET, [Decoding(num_steps=4)])
    assert refining.evaluation.metrics["stutter"] == 0
    assert refining.evaluation.metrics["stutter_before"] == 500  # every word twice
    assert "stutter_before" not in causal.evaluation.metrics


def test_sentences_that_oscillated_are_counted():
    refining, causal = evaluate_all([("a", Fake()), ("b", Fake(causal=True))], TEST_SET, [Decoding(num_steps=4)])
    assert refining.evaluation.metrics["oscillating"] == 50 and "oscillating" not in causal.evaluation.metrics

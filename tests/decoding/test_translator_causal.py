"""An autoregressive model behind `Translator`: its searches, scores of given targets, and figures without lengths."""

import numpy as np
import pytest
from support.tiny_model import random_translator, same

from padir import Decoding
from padir.decoding import Beam
from padir.decoding.autoregressive import length_limits
from padir.evaluation import TestSet, evaluate

TEXTS = ["eins", "zwei drei vier fünf sechs sieben", "acht acht", "neun null", "vier drei zwei eins"]
SEARCHES = [{"beam": 1}, {"beam": 3}, {"temperature": 0.8, "num_drafts": 2}]


@pytest.fixture(scope="module")
def translator(tokenizer):
    return random_translator(tokenizer, causal=True, max_length=8)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_translations_say_what_the_search_did(translator, search):
    limits = length_limits([len(tokens) + 1 for tokens in translator.tokenizer.encode_batch(TEXTS)], 8)
    results = translator.translate(TEXTS, **search)
    for result, limit in zip(results, limits, strict=True):
        assert result.hypotheses == search.get("beam", 2) and 2 <= result.length <= result.passes <= limit
        assert result.score < 0 and result.trace is None


def test_the_default_is_a_beam_of_5(translator):
    assert translator.resolved(Decoding()).search == Beam(5, 0.6)
    assert hash(Decoding(beam=5)) == hash(Decoding(mode="causal"))


def test_the_causal_sides_own_rule_keeps_the_order_of_the_search(translator):
    listed = translator.translate(TEXTS, beam=3, n_best=3)
    same(translator.translate(TEXTS, beam=3, n_best=3, rerank="causal"), listed)


class TestScore:
    def test_is_the_sum_over_the_tokens_of_each_pair(self, translator):
        targets = ["one", "two three four", "", "nine zero", "four"]
        scored = translator.score(TEXTS, targets)
        tokens = [len(tokens) + 1 for tokens in translator.tokenizer.encode_batch(targets)]
        assert [s.tokens for s in scored] == tokens == [2, 4, 1, 3, 2]
        assert all(s.log_prob < 0 for s in scored)
        again = translator.score(TEXTS, targets, batch_size=1)
        np.testing.assert_allclose([s.log_prob for s in again], [s.log_prob for s in scored], rtol=1e-4)

    def test_depends_on_source_and_target(self, translator):
        scores = translator.score(["eins", "eins", "zwei"] * 2, ["one", "two", "one"] * 2)
        assert len({round(s.log_prob, 4) for s in scores}) == 3

    def test_of_none_is_none_and_long_ones_are_cut(self, translator):
        assert translator.score([], []) == []
        assert translator.score(["eins " * 40], ["one " * 40], truncate=True)[0].tokens == 8


def test_evaluates(translator):
    test_set = TestSet("numbers_de_en", "de", "en", TEXTS, ["one two three four five"] * len(TEXTS))
    figures = evaluate(translator, test_set, Decoding(beam=1)).metrics
    assert figures["hypotheses"] == 1 and figures["passes"] > 1

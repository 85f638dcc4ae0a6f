"""Rules of choice on hypotheses whose scores a person can add up."""

import dataclasses

import numpy as np
import pytest
from support.refusals import refuses
from support.tiny_model import random_model_dir, random_translator

from padir import Decoding, Translator
from padir.decoding.hypothesis import Hypothesis
from padir.decoding.ranker import CausalScore, MinimumBayesRisk, Rescore, length_normalised, ranker_of


def hypothesis(text):
    return Hypothesis([], score=0.0, passes=1, text=text)


SHORT = hypothesis("a b")
LONG = hypothesis("a b c d")


def scores(rule, *hypotheses, source="quelle"):
    (row,) = rule([source], [hypotheses], target_language="en")
    return row


def test_rules_need_what_they_read():
    """Their contract is in test_writers.py. The rule "own" leaves the choice to the writer's scores."""
    assert ranker_of("own") is None
    assert (CausalScore.needs, Rescore.needs, MinimumBayesRisk.needs) == ({"causal"}, {"text"}, {"text"})


class TestNormalised:
    @pytest.mark.parametrize(
        ("length_normalization", "expected"), [(1.0, [-1.0, -1.1]), (0.0, [-2.0, -4.4]), (0.5, [-1.4142, -2.2])]
    )
    def test_the_sum_over_a_power_of_the_length(self, length_normalization, expected):
        """The shorter one of two has the better mean."""
        made = length_normalised(np.array([-2.0, -4.4]), np.array([2, 4]), length_normalization)
        assert made.tolist() == pytest.approx(expected, abs=1e-4)

    def test_a_hypothesis_without_tokens_is_not_divided_by_zero(self):
        assert length_normalised(0.0, 0, 1.0) == 0.0


def test_a_causal_score_reads_the_other_side_s_numbers():
    short, long = SHORT._replace(causal=(-6.0, 3)), LONG._replace(causal=(-5.0, 5))
    assert scores(CausalScore(), short, long) == [-2.0, -1.0]
    assert scores(CausalScore(length_normalization=0.0), short, long) == [-6.0, -5.0]


class TestRescore:
    def test_every_hypothesis_is_scored_with_its_source(self):
        asked = []

        def score_fn(sources, targets):
            asked.extend(zip(sources, targets, strict=True))
            return [(-float(len(target)), len(target.split()) + 1) for target in targets]

        rows = Rescore(score_fn)(["eins", "zwei"], [[SHORT, LONG], [SHORT]], target_language="en")
        assert asked == [("eins", "a b"), ("eins", "a b c d"), ("zwei", "a b")]
        assert rows == [[-3 / 3, -7 / 5], [-3 / 3]]
        assert Rescore(score_fn, length_normalization=0.0)(["eins"], [[SHORT, LONG]], target_language="en") == [
            [-3.0, -7.0]
        ]

    def test_a_rule_that_only_names_a_model_scores_nothing(self):
        refuses(ranker_of("de_en_ar"), "only names the model de_en_ar", ["eins"], [[SHORT, LONG]], target_language="en")


class TestMinimumBayesRisk:
    def test_the_text_that_most_agree_with_wins(self):
        texts = ["the cat sat", "the cat sat down", "a dog"]
        utility = scores(MinimumBayesRisk(), *(hypothesis(text) for text in texts))
        assert utility[1] > utility[2] and utility[0] > utility[2]
        again = scores(MinimumBayesRisk(), *(hypothesis(text) for text in [*texts, "a dog", "a dog"]))
        assert again[2] == again[3] == max(again)  # three votes of five

    def test_a_mean_of_sentence_bleu(self):
        """chrF and BLEU of a text with itself are 100; 'x y z w' and 'x y z v' share 3, 2, 1 and 0 n-grams."""
        texts = ["x y z w", "x y z v"]
        shared = 100 * (3 / 4 * 2 / 3 * 1 / 2 * (1 / 2) / 1) ** 0.25  # exponential smoothing halves the missing count
        utility = scores(MinimumBayesRisk("bleu"), *(hypothesis(text) for text in texts))
        assert utility == pytest.approx([(100 + shared) / 2] * 2)

    def test_bleu_of_texts_without_spaces_counts_characters(self):
        """The tokenizer of English makes one word of each, and all scores would be equal."""
        texts = ["我们今天去学校。", "我们今天去公园。", "我们今天去公园"]
        for others in ([], ["we go to the park", "we go to school"]):  # the other sentences of a batch do not matter
            rows = [[hypothesis(text) for text in each] for each in (texts, others)]
            utility, _ = MinimumBayesRisk("bleu")(["", ""], rows, target_language="en")
            assert 50 < utility[0] < min(utility[1:])


def test_a_model_may_be_called_like_a_rule(tokenizer, tmp_path, monkeypatch):
    random_model_dir(tmp_path / "made", causal=True).rename(tmp_path / "mbr_like")
    monkeypatch.chdir(tmp_path)
    options = Decoding(rerank="mbr_like", num_lengths=2, length_normalization=0.5)
    assert random_translator(tokenizer).resolved(options).ranker.length_normalization == 0.5


class OwnRule(MinimumBayesRisk):
    """A user's rule, named by text."""


def test_a_rule_unsets_the_normalization_that_it_does_not_read(tokenizer):
    own = random_translator(tokenizer, max_length=8)
    card = dataclasses.replace(own.card, decoding={"num_lengths": 2, "length_normalization": 1.5})
    translator = Translator(own.params, card, tokenizer)
    for rule in ("mbr", MinimumBayesRisk(), f"{__name__}:OwnRule"):
        assert translator.translate(["eins"], num_steps=1, rerank=rule)[0].hypotheses == 2
    assert translator.decoding.changed(rerank="own") == translator.decoding
    both = translator.decoding.changed(rerank="mbr", length_normalization=0.5)
    refuses(translator.resolved, "length_normalization applies only to ... leave one of them out", both)

"""Rules of choice on hypotheses whose scores a person can add up."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.small_corpus import small_tokenizer
from support.tiny_model import random_translator

from padir.decoding.batches import SourceBatch
from padir.decoding.options import Decoding, Prune
from padir.decoding.refine_batch import DraftInputs, encode, pseudo_likelihoods
from padir.decoding.rerank import RULES, CausalScore, Hypothesis, MinimumBayesRisk, OwnScore, Rerank, Rescore
from padir.decoding.shortlist import Shortlist
from padir.errors import PadirError
from padir.refinement.corruption import Mask, Uniform
from padir.refinement.scores import forbid
from padir.refinement.strategies import MaskPredict
from padir.text.ids import EOS

# The short one has the better mean, the long one the more probable length.
SHORT = Hypothesis("a b", log_prob=-2.0, tokens=2, length_log_prob=math.log(0.1))
LONG = Hypothesis("a b c d", log_prob=-4.4, tokens=4, length_log_prob=math.log(0.8))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return small_tokenizer(tmp_path_factory.mktemp("rerank") / "vocab.model")


def scores(rule, *hypotheses, source="quelle"):
    (row,) = rule([source], [hypotheses], target_language="en")
    return row


def test_every_rule_is_a_frozen_rerank():
    for rule in (*RULES.values(), Rescore(lambda s, t: [])):
        assert isinstance(rule, Rerank) and hash(rule) is not None
    assert not OwnScore.reads_text and Rescore.reads_text and MinimumBayesRisk.reads_text


class TestOwnScore:
    @pytest.mark.parametrize(
        ("brevity", "expected"), [(1.0, [-1.0, -1.1]), (0.0, [-2.0, -4.4]), (0.5, [-1.4142, -2.2])]
    )
    def test_the_sum_over_a_power_of_the_length(self, brevity, expected):
        assert scores(OwnScore(brevity), SHORT, LONG) == pytest.approx(expected, abs=1e-4)

    def test_the_joint_log_probability_of_length_and_tokens(self):
        joint = scores(OwnScore(brevity=0.0, length_weight=1.0), SHORT, LONG)
        assert joint == pytest.approx([-2 + math.log(0.1), -4.4 + math.log(0.8)])

    def test_the_length_may_turn_the_choice(self):
        short, long = scores(OwnScore(length_weight=1.0), SHORT, LONG)
        assert short == pytest.approx((-2 + math.log(0.1)) / 2) and long == pytest.approx((-4.4 + math.log(0.8)) / 4)
        assert long > short

    def test_a_hypothesis_without_tokens_is_not_divided_by_zero(self):
        assert scores(OwnScore(), Hypothesis("", 0.0, 0)) == [0.0]

    def test_a_length_head_without_probabilities(self):
        nothing = SHORT._replace(length_log_prob=None)
        assert scores(OwnScore(), nothing) == [-1.0]
        with pytest.raises(PadirError, match="length_weight needs a length head that gives probabilities"):
            scores(OwnScore(length_weight=0.5), nothing)

    @pytest.mark.parametrize("settings", [{"brevity": -0.1}, {"length_weight": -1.0}])
    def test_negative_numbers(self, settings):
        with pytest.raises(PadirError, match="must be at least 0"):
            OwnScore(**settings)


def test_a_causal_score_reads_the_other_side_s_numbers():
    short, long = SHORT._replace(again=(-6.0, 3)), LONG._replace(again=(-5.0, 5))
    assert scores(CausalScore(), short, long) == [-2.0, -1.0]
    assert scores(CausalScore(brevity=0.0), short, long) == [-6.0, -5.0]
    with pytest.raises(PadirError, match="brevity must be at least 0"):
        CausalScore(brevity=-1.0)


class TestPseudoLikelihood:
    """Of tiny models with random parameters."""

    TEXTS = ("eins zwei", "drei vier fünf")

    def refined(self, translator, **changes):
        pipeline = translator.pipeline(Decoding().changed(rerank="pseudo", num_steps=2, **changes))
        tokens, _ = translator.loaded.source_tokens(list(self.TEXTS), False)
        return pipeline, pipeline.run_to_drafts(SourceBatch(list(self.TEXTS), tokens))

    @pytest.mark.parametrize(
        "changes",
        [pytest.param({"top_k": 3}, marks=pytest.mark.slow), {"top_k": 3, "prune": Prune(keep=2)}],
        ids=["all", "kept"],
    )
    def test_hides_one_token_at_a_time(self, tokenizer, changes):
        translator = random_translator(tokenizer, corruption=Mask(), strategy=MaskPredict())
        ids, bound = translator.loaded.model.ids, translator.loaded.model.bind({"params": translator.params})
        pipeline, refined = self.refined(translator, **changes)
        source_BS = jnp.asarray(refined.tried.batch.source_BS)
        encoded = bound.encode(source_BS, (source_BS > 0).astype(jnp.int32))
        drafts, candidates = refined.drafts, refined.drafts.kept_BN.shape[1]
        for row, tokens_L in enumerate(drafts.tokens_RL):
            memory = [x[row // candidates][None] for x in (encoded.memory_BSD, encoded.segment_BS)]
            total = 0.0
            for place in np.flatnonzero(drafts.free_RL[row]):
                seen_1L = jnp.asarray(tokens_L).at[place].set(ids.mask)[None]
                logits = bound.decode(seen_1L, (seen_1L > 0).astype(jnp.int32), bound.cross_kv(memory[0]), memory[1])
                logits_V = forbid(logits.logits_BLV, ids.special)[0, place]
                total += float(jax.nn.log_softmax(logits_V)[tokens_L[place]])
            assert float(refined.pseudo_R[row]) == pytest.approx(total, rel=1e-4)
        for b, result in enumerate(pipeline.choose(refined)):
            own = [
                float(refined.pseudo_R[row]) / drafts.free_RL[row].sum()
                for row in range(b * candidates, (b + 1) * candidates)
            ]
            assert result.score == pytest.approx(max(own))

    @pytest.mark.parametrize("sizes", [{}, {"self_conditioning": True}, {"decontextualised": True}], ids=str)
    def test_no_token_counts_for_itself(self, tokenizer, sizes):
        """So the probabilities of all tokens at the only free position add up to 1."""
        translator = random_translator(tokenizer, **sizes)
        model = translator.loaded.model
        encoded, cross_kv = encode(model, translator.params, jnp.array([[*range(10, 14), EOS]]))
        token_R = np.setdiff1d(np.arange(model.ids.vocab_size), model.ids.special)
        tokens_R2 = jnp.stack([token_R, np.full_like(token_R, EOS)], axis=1)
        length_1N, draw_1N = np.full((1, len(token_R)), 2), np.zeros((1, len(token_R)), int)
        inputs = DraftInputs(cross_kv, encoded.segment_BS, jnp.array([[*range(10, 14), EOS]]), length_1N, draw_1N)
        found_R = pseudo_likelihoods(model, translator.params, inputs, tokens_R2, corruption=Uniform(), seed=0)
        assert float(np.exp(found_R).sum()) == pytest.approx(1.0, rel=1e-4)
        assert len(np.unique(np.asarray(found_R))) > 3

    def test_a_ctc_model_has_none(self, tokenizer):
        translator = random_translator(tokenizer, length_head="ctc")
        with pytest.raises(PadirError, match="'pseudo' needs a model whose tokens keep their places"):
            translator.translate(["eins"], rerank="pseudo")

    def test_a_shortlist_has_none(self, tokenizer):
        translator = random_translator(tokenizer)
        order = np.arange(tokenizer.ids.first_regular, tokenizer.ids.end_regular, dtype=np.int32)
        shortlist = Shortlist(tokenizer.sha256, np.zeros((tokenizer.ids.end_regular, 1), np.int32), order, frequent=9)
        with pytest.raises(PadirError, match="'pseudo' needs the whole vocabulary: leave the shortlist out"):
            translator.translate(["eins"], rerank="pseudo", shortlist=shortlist)


class TestRescore:
    def test_every_hypothesis_is_scored_with_its_source(self):
        asked = []

        def score_fn(sources, targets):
            asked.extend(zip(sources, targets, strict=True))
            return [(-float(len(target)), len(target.split()) + 1) for target in targets]

        rows = Rescore(score_fn)(["eins", "zwei"], [[SHORT, LONG], [SHORT]], target_language="en")
        assert asked == [("eins", "a b"), ("eins", "a b c d"), ("zwei", "a b")]
        assert rows == [[-3 / 3, -7 / 5], [-3 / 3]]
        assert Rescore(score_fn, brevity=0.0)(["eins"], [[SHORT, LONG]], target_language="en") == [[-3.0, -7.0]]


class TestMinimumBayesRisk:
    def test_the_text_that_most_agree_with_wins(self):
        texts = ["the cat sat", "the cat sat down", "a dog"]
        utility = scores(MinimumBayesRisk(), *(Hypothesis(text, 0.0, 1) for text in texts))
        assert utility[1] > utility[2] and utility[0] > utility[2]
        again = scores(MinimumBayesRisk(), *(Hypothesis(text, 0.0, 1) for text in [*texts, "a dog", "a dog"]))
        assert again[2] == again[3] == max(again)  # three votes of five

    def test_a_mean_of_sentence_bleu(self):
        """chrF and BLEU of a text with itself are 100; 'x y z w' and 'x y z v' share 3, 2, 1 and 0 n-grams."""
        texts = ["x y z w", "x y z v"]
        shared = 100 * (3 / 4 * 2 / 3 * 1 / 2 * (1 / 2) / 1) ** 0.25  # exponential smoothing halves the missing count
        utility = scores(MinimumBayesRisk("bleu"), *(Hypothesis(text, 0.0, 1) for text in texts))
        assert utility == pytest.approx([(100 + shared) / 2] * 2)

    def test_an_unknown_utility(self):
        with pytest.raises(PadirError, match="utility must be one of chrf, bleu, got 'ter'"):
            MinimumBayesRisk("ter")

"""An autoregressive model behind `Translator`: what goes in and comes out is as with others; it has its own options."""

import dataclasses

import numpy as np
import pytest
from support.tiny_model import TINY, random_translator, same

from padir import Decoding, PadirError, Translation, Translator
from padir.decoding.autoregressive import length_limits
from padir.evaluation import TestSet, evaluate
from padir.models import ModelCard, Transformer, init_params, save_model
from padir.refinement import Mask, Padir, Uniform
from padir.text.ids import EOS

TEXTS = ["eins", "zwei drei vier fünf sechs sieben", "acht acht", "neun null", "vier drei zwei eins"]
SEARCHES = [{"beam": 1}, {"beam": 3}, {"temperature": 0.8, "num_drafts": 2}]
SOME_SLOW = [SEARCHES[0], *(pytest.param(search, marks=pytest.mark.slow) for search in SEARCHES[1:])]


@pytest.fixture(scope="module")
def translator(tokenizer):
    config = dataclasses.replace(TINY, causal=True, max_length=24)
    card = ModelCard(config, tokenizer.ids, None, None, "de", "en", "numbers_de_en")
    params = init_params(Transformer(config, tokenizer.ids), seed=0)
    # Larger kernels write more than one token over and over; EOS gets likely enough to be written at many lengths.
    params = {**params, "decoder": _scaled(params["decoder"], 4.0), "encoder": _scaled(params["encoder"], 4.0)}
    params["token_embedder"] = {"embedding": params["token_embedder"]["embedding"].at[EOS].multiply(4.0)}
    return Translator(params, card, tokenizer)


def _scaled(tree, factor):
    return {k: _scaled(v, factor) if isinstance(v, dict) else v * factor if v.ndim == 2 else v for k, v in tree.items()}


@pytest.fixture(scope="module")
def refiner(tokenizer):
    return random_translator(tokenizer)


class TestSentences:
    @pytest.mark.parametrize("search", SOME_SLOW, ids=str)
    def test_do_not_depend_on_the_batch(self, translator, search):
        together = translator.translate(TEXTS, **search)
        same(translator.translate(TEXTS, **search, batch_size=2), together)
        same(translator.translate(TEXTS[2:3], **search), together[2:3])
        again = translator.translate([*TEXTS[::-1], *TEXTS[1:3]], **search)
        same(again, [*together[::-1], *together[1:3]])
        assert len({result.text for result in together}) > 2 and len({r.length for r in together}) > 1

    def test_say_what_the_search_did(self, translator):
        for search in SEARCHES:
            sources = [len(tokens) + 1 for tokens in translator.tokenizer.encode_batch(TEXTS)]
            limits = length_limits(sources, 24)
            for result, limit in zip(translator.translate(TEXTS, **search), limits, strict=True):
                assert result.hypotheses == search.get("beam", 2) and 2 <= result.length <= result.passes <= limit
                assert result.score < 0 and result.trace is None

    def test_an_empty_line_stays_empty(self, translator):
        results = translator.translate(["", TEXTS[1], " "])
        assert results[0] == results[2] == Translation(text="", score=0.0, length=1, passes=0, hypotheses=0)
        same(results[1:2], translator.translate(TEXTS)[1:2])

    def test_long_ones_are_cut_or_refused(self, translator):
        with pytest.raises(PadirError, match="text 1 has 40 tokens, the model takes 23"):
            translator.translate([" ".join(["eins"] * 40)])
        assert translator.translate([" ".join(["eins"] * 40)], truncate=True)[0].truncated

    def test_another_seed_is_another_sample(self, translator):
        samples = [[r.text for r in translator.translate(TEXTS, temperature=1.0, seed=s)] for s in (0, 0, 1)]
        assert samples[0] == samples[1] != samples[2]

    def test_the_default_is_a_beam_of_5(self, translator):
        same(translator.translate(TEXTS), translator.translate(TEXTS, beam=5, length_penalty=0.6))

    def test_a_wider_beam_scores_no_worse_here(self, translator):
        narrow, wide = (translator.translate(TEXTS, beam=n) for n in (1, 8))
        assert sum(r.score for r in wide) > sum(r.score for r in narrow)


class TestScore:
    def test_is_the_sum_over_the_tokens_of_each_pair(self, translator):
        targets = ["one", "two three four", "", "nine zero", "four"]
        scored = translator.score(TEXTS, targets)
        tokens = [len(tokens) + 1 for tokens in translator.tokenizer.encode_batch(targets)]
        assert [s.tokens for s in scored] == tokens == [2, 4, 1, 3, 2]
        assert all(s.log_prob < 0 for s in scored)
        for batch_size in (1, 2):
            again = translator.score(TEXTS, targets, batch_size=batch_size)
            np.testing.assert_allclose([s.log_prob for s in again], [s.log_prob for s in scored], rtol=1e-4)

    def test_depends_on_source_and_target(self, translator):
        scores = translator.score(["eins", "eins", "zwei"], ["one", "two", "one"])
        assert len({round(s.log_prob, 4) for s in scores}) == 3

    def test_of_none_is_none(self, translator):
        assert translator.score([], []) == []

    def test_long_ones_are_cut_or_refused(self, translator):
        with pytest.raises(PadirError, match="target 2 has 40 tokens, the model takes 23"):
            translator.score(["eins", "eins"], ["one", " ".join(["one"] * 40)])
        assert translator.score([" ".join(["eins"] * 40)], [" ".join(["one"] * 40)], truncate=True)[0].tokens == 24

    def test_wrong_ones_are_refused(self, translator, refiner):
        with pytest.raises(PadirError, match="2 sources need 2 targets, got 1"):
            translator.score(["eins", "zwei"], ["one"])
        with pytest.raises(PadirError, match="score with an autoregressive model or a dual one"):
            refiner.score(["eins"], ["one"])


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_steps": 2}, "num_steps applies only to the mode refine, got 'causal': leave num_steps out"),
            ({"strategy": Padir()}, "strategy applies only to the mode refine"),
            ({"canvas": Mask()}, "canvas applies only to the mode refine"),
            ({"num_lengths": 2}, "num_lengths applies only to the mode refine"),
            ({"num_drafts": 2}, "num_drafts must be 1 without a temperature"),
            ({"drop_repeats": True}, "drop_repeats applies only to the mode refine"),
            ({"target_lengths": [3] * len(TEXTS)}, "ends itself"),
            ({"trace": True}, "has no steps to show"),
        ],
    )
    def test_of_drafts_are_refused(self, translator, options, message):
        with pytest.raises(PadirError, match=message):
            translator.translate(TEXTS, **options)

    @pytest.mark.parametrize("search", SEARCHES, ids=str)
    def test_of_searches_are_refused_by_models_that_refine(self, refiner, search):
        with pytest.raises(PadirError) as error:
            refiner.translate(TEXTS, **search)
        assert (
            error.value.what.startswith(f"{next(iter(search))} applies only to the mode")
            and error.value.got == "refine"
        )

    def test_decoding_names_a_search_and_keeps_it_hashable(self):
        assert hash(Decoding(beam=5)) == hash(Decoding())


def test_evaluates_without_reference_lengths(translator):
    test_set = TestSet("numbers_de_en", "de", "en", TEXTS, ["one two three four five"] * len(TEXTS))
    figures = evaluate(translator, test_set, Decoding(beam=1)).metrics
    assert figures["hypotheses"] == 1 and figures["passes"] > 1
    given = evaluate(translator, test_set, Decoding(beam=1), oracle_lengths=True)  # it ends them itself
    assert given.metrics["bleu"] == figures["bleu"] and given.metrics["passes"] == figures["passes"]


def test_a_model_directory_comes_back(translator, tmp_path):
    save_model(tmp_path / "model", translator.params, translator.card, translator.tokenizer, "")
    loaded = Translator.load(tmp_path / "model")
    assert loaded.card == translator.card
    same(loaded.translate(TEXTS), translator.translate(TEXTS))
    for options in ({"strategy": Padir()}, {"corruption": Uniform()}):
        with pytest.raises(PadirError, match="has neither corruption nor strategy"):
            Translator.load(tmp_path / "model", **options)

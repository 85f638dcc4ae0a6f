"""Text in, text out: order, empty lines, batches, lengths, candidates, traces, and what is refused."""

import dataclasses
import itertools
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from support.tiny_model import TINY, random_model_dir, random_translator, same

from padir.decoding import Decoding, OwnScore, Rescore, Translator, rescorer
from padir.decoding.batches import Candidate, SourceBatch, choose
from padir.decoding.refine_batch import refine_drafts
from padir.decoding.translation import Translation, clean, without_repeats
from padir.errors import PadirError
from padir.metrics.scores import bleu
from padir.models.directory import ModelCard
from padir.refinement import BlockGibbs, EasyFirst, IndependentParallel, MaskPredict, Padir, Rejecter, Threshold
from padir.refinement.corruption import Mask, MaskRange, Mixed
from padir.refinement.protocols import Strategy
from padir.reporting.trace import Step, Trace

TEXTS = ["eins", "zwei drei vier fünf sechs sieben acht", "acht acht", "neun null"]
TEXTS += ["vier drei zwei eins", "sieben sechs fünf vier drei zwei", "fünf"]


class Column:
    """A column of a table as pandas has it: iterated in order, but [] takes row numbers, here those of other rows."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[~row]


class Arrow(Column):
    """An array as PyArrow has it, whose items are no strings."""

    def __iter__(self):
        return (SimpleNamespace(as_py=lambda item=item: item) for item in self.items)


@dataclasses.dataclass(frozen=True)
class BySource:
    """A rule of reranking that reads the sources."""

    reads_text = True

    def __call__(self, sources, hypotheses, *, target_language):
        return [[(len(h.text) * len(source)) % 7 for h in row] for source, row in zip(sources, hypotheses, strict=True)]


@pytest.fixture(scope="module")
def translator(tokenizer):
    return random_translator(tokenizer, max_length=8)  # few shapes are few programs to compile


@pytest.fixture(scope="module")
def masked(tokenizer):
    return random_translator(tokenizer, corruption=Mask(), max_length=8)


@pytest.fixture
def whole(monkeypatch):
    """The bytes that a random model writes are no reason to take another hypothesis."""
    monkeypatch.setattr("padir.decoding.batches.broken", lambda text, source: 0)


def test_digits_and_bytes_may_repeat(tokenizer):
    pieces = [*tokenizer.encode_batch(["1100 😀😀"])[0]]
    assert without_repeats(np.array(pieces), np.ones(len(pieces), bool), tokenizer.copied) == pieces
    two, twice = tokenizer.encode_batch(["zwei zwei"])[0], tokenizer.encode_batch(["zwei"])[0]
    assert not set(twice) & tokenizer.copied and len(two) == 2 * len(twice)


class TestSentences:
    def test_each_has_its_translation_in_its_place(self, translator):
        together = translator.translate(TEXTS)
        for i in (0, 1, 4):
            same(translator.translate(TEXTS[i : i + 1]), together[i : i + 1])
        assert len({result.text for result in together}) > 1

    def test_do_not_depend_on_their_places(self, translator):
        """Lines in another order, repeated, and one inserted, in batches of other shapes."""
        moved = ["null eins", *TEXTS[::-1], TEXTS[3], *TEXTS[1:3]]
        first = dict(zip(TEXTS, translator.translate(TEXTS), strict=True))
        same(translator.translate(moved, batch_size=4)[1:], [first[text] for text in moved[1:]])

    def test_an_empty_line_stays_empty_and_moves_no_other(self, translator):
        empty = ["", " ", "\t \u3000"]
        results = translator.translate([*TEXTS[:5], *empty, *TEXTS[5:]])
        assert results[5:8] == [Translation(text="", score=0.0, length=1, passes=0, hypotheses=0)] * 3
        same(results[:5], translator.translate(TEXTS)[:5])
        assert translator.translate([]) == [] and translator.translate([""])[0].text == ""

    def test_another_seed_is_another_draft(self, translator):
        drafts = [translator.translate(TEXTS, seed=s, num_steps=1, trace=True)[1].trace[0] for s in (0, 0, 1)]
        assert drafts[0] == drafts[1] != drafts[2]

    @pytest.mark.parametrize("text", ["eins \udc80", "\ud800", "5 \ud83d\ude00!"])
    def test_surrogates_are_refused(self, translator, text):
        """Also in a text without letters, which no model reads."""
        for call in (translator.translate, translator.predict_lengths, lambda texts: translator.align(texts, ["one"])):
            with pytest.raises(PadirError, match="without surrogates"):
                call([text])

    def test_any_text_gives_one_line(self, translator):
        odd = ["\x00", "<extra_id_0> </s>", "\u2581", "日本語 🙂", "\u2028", "eins", "zwei"]
        assert not any("\n" in result.text for result in translator.translate(odd, truncate=True))

    def test_bytes_that_are_no_character_are_not_written(self, translator):
        """A random model writes many; of several hypotheses, one without them is taken, or they are left out."""
        (alone, several), texts = ([], []), [f"{a} {b}" for a in TEXTS[::2] for b in ("eins", "zwei", "neun")]
        for results, options in ((alone, {"num_lengths": 1}), (several, {"num_lengths": 4})):
            results += translator.translate(texts, num_steps=1, truncate=True, **options)
            assert not any("\ufffd" in result.text for result in results)
        assert sum(r.broken > 0 for r in alone) > sum(r.broken > 0 for r in several) > 0
        given = translator.translate(["eins \ufffd", "eins \ufffd \ufffd"], num_steps=1, truncate=True)
        assert all(result.broken == 0 for result in given)

    @pytest.mark.parametrize(
        ("written", "source", "text"),
        [
            ("one\u2028two\x85three\x0c\x1b[2Jfour\tfive", "eins", "one two three [2Jfour\tfive"),
            ("Y\ufffdlmaz \ufffd is", "Yılmaz ist", "Ylmaz is"),
            ("a \ufffd b", "a \ufffd b", "a \ufffd b"),
            ("a  b   c", "a b c", "a b c"),
            ("a  b", "a  b", "a  b"),
            (" an ordinary text ", "ein", " an ordinary text "),
        ],
    )
    def test_are_clean(self, written, source, text):
        assert clean(written, source) == text


@pytest.mark.usefixtures("unchecked")
class TestWrongCalls:
    """Calls with wrong types are checked without jaxtyping, as a user makes them."""

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            ("eins", "texts must be a list of strings, got 'eins': put one string into a list"),
            (b"eins", "texts must be a list of strings, got b'eins'"),
            (3, "texts must be a list of strings, got 3"),
            (None, "texts must be a list of strings, got None"),
            ({"eins": 1}, "texts must be a list of strings, got <class 'dict'>"),
            ({"eins"}, r"got <class 'set'>: .* a set into sorted\(...\)"),
            (np.array([["eins"]]), "got <class 'numpy.ndarray'>"),
            (np.array("eins"), "got <class 'numpy.ndarray'>"),
            (["eins", None], r"texts\[1\] must be a string, got None"),
            ([b"eins"], r"texts\[0\] must be a string, got b'eins': decode it"),
        ],
    )
    def test_texts_are_strings(self, translator, texts, message):
        calls = (translator.translate, translator.predict_lengths, translator.tokenizer.encode_batch)
        for call in (*calls, lambda texts: [*translator.translate_iter(texts)]):
            with pytest.raises(PadirError, match=message):
                call(texts)

    @pytest.mark.parametrize("kind", [iter, deque, np.array, Column, Arrow])
    def test_any_iterable_of_strings_is_a_list(self, translator, kind):
        """`Column` keeps the row numbers of a shuffled table, by which it is read with []."""
        expected = [result.text for result in translator.translate(TEXTS, num_lengths=2, rerank=BySource())]
        lengths = [1 + len(text.split()) for text in TEXTS]
        given = translator.translate(TEXTS, target_lengths=lengths)
        assert [r.text for r in translator.translate(kind(TEXTS), num_lengths=2, rerank=BySource())] == expected
        assert translator.translate(kind(TEXTS), target_lengths=Column(lengths)) == given
        assert [r.text for r in translator.translate_iter(kind(TEXTS), num_lengths=2, rerank=BySource())] == expected
        assert translator.predict_lengths(kind(TEXTS)) == translator.predict_lengths(TEXTS)
        assert bleu(kind(TEXTS), kind(expected), "en") == bleu(TEXTS, expected, "en")

    def test_steps_are_of_one_string(self, translator):
        with pytest.raises(PadirError, match=r"text must be a string, got \['eins'\]"):
            next(translator.steps(["eins"]))

    @pytest.mark.parametrize("lengths", [[2.5], [[]], [[3]], ["3"], [True], [None], np.array([3.0]), np.array([[3]])])
    def test_target_lengths_are_whole(self, translator, lengths):
        with pytest.raises(PadirError, match="target_lengths must be whole, in 2 .. .* got "):
            translator.translate(["eins"], target_lengths=lengths)

    @pytest.mark.parametrize("lengths", [np.array(3), 3])
    def test_target_lengths_are_a_list(self, translator, lengths):
        with pytest.raises(PadirError, match="target_lengths must be a list or None, got "):
            translator.translate(["eins"], target_lengths=lengths)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"num_steps": "4"}, "num_steps must be a whole number, got '4'"),
            ({"batch_size": 2.0}, "batch_size must be a whole number, got 2.0"),
            ({"length_window": "no"}, "length_window must be True or False, got 'no'"),
            ({"seed": True}, "seed must be a whole number, got True"),
            ({"drop_repeats": "no"}, "drop_repeats must be True or False or None, got 'no'"),
            ({"num_lengths": "5"}, "num_lengths must be a whole number, got '5'"),
            ({"num_stepz": 3}, "no decoding option 'num_stepz': did you mean 'num_steps'?"),
            ({"topk": 3}, "no decoding option 'topk': here it is called 'num_lengths'"),
            ({"strategy": "mask_predcit"}, "no strategy is called 'mask_predcit'"),
            ({"strategy": Padir}, "strategy must be a Strategy or a string or None, got"),
            ({"mode": 3}, "mode must be one of refine, causal or None, got 3"),
            ({"beam": 2}, "beam applies only to the mode causal, got 'refine': leave beam out"),
            ({"beam": Decoding.beam}, "beam applies only to the mode causal"),
        ],
    )
    def test_options_have_names_and_types(self, translator, changes, message):
        with pytest.raises(PadirError, match=message):
            translator.translate(["eins"], **changes)
        if "no decoding option" in message:
            with pytest.raises(PadirError, match=message):
                Decoding(**changes)


def test_options_of_lengths_and_a_strategy_by_name(translator, masked):
    several = Decoding(num_lengths=3, num_steps=2)
    assert Decoding(num_steps=2).changed(num_lengths=3) == several
    assert translator.translate(TEXTS[:2], num_steps=2, num_lengths=3) == translator.translate(TEXTS[:2], several)
    named, given = (masked.translate(TEXTS[:2], strategy=s) for s in ("mask_predict", MaskPredict()))
    assert named == given and Decoding().changed(strategy="threshold:tau=1").strategy == Threshold(1.0)


class TestLongText:
    def test_raises(self, translator):
        with pytest.raises(PadirError, match="text 2 has 40 tokens, the model takes 7: split it, or .*truncate=True"):
            translator.translate(["eins", "eins " * 39 + "eins"])

    def test_or_is_cut(self, translator):
        longest = " ".join(["eins"] * 7)
        cut, whole = translator.translate([longest + " zwei" * 9, longest], truncate=True)
        assert cut.truncated and not whole.truncated
        same(translator.translate([longest]), [dataclasses.replace(cut, truncated=False)])


@pytest.mark.usefixtures("whole")
class TestLengths:
    def test_given_lengths_are_kept_and_the_oracle_head_needs_them(self, tokenizer, translator):
        oracle = random_translator(tokenizer, length_head="oracle", max_length=8)
        with pytest.raises(PadirError, match="length head is 'oracle': give the target lengths"):
            oracle.translate(TEXTS[:2])
        for model in (translator, oracle):
            results = model.translate(["eins", "", "zwei"], target_lengths=[5, 1, 7], drop_repeats=False)
            assert [r.length for r in results] == [5, 1, 7]

    def test_there_must_be_one_for_each_text(self, translator):
        with pytest.raises(PadirError, match="2 texts need 2 target_lengths, got 1"):
            translator.translate(["eins", "zwei"], target_lengths=[3])
        for wrong in (1, TINY.max_length + 1):
            with pytest.raises(PadirError, match="target_lengths must be whole, in 2 .. .*, or 1 for an empty text"):
                translator.translate(["", "eins"], target_lengths=[1, wrong])

    def test_adjacent_lengths_surround_the_most_likely(self, translator):
        options = {"num_lengths": 4, "n_best": 4, "num_steps": 1}
        likely, around = (translator.translate(TEXTS[:4], length_window=each, **options) for each in (False, True))
        for best, near in zip(translator.translate(TEXTS[:4], num_steps=1), around, strict=True):
            lengths = sorted(near.candidate_lengths)
            assert best.length in lengths and lengths == list(range(lengths[0], lengths[-1] + 1))  # 1 becomes 2
        assert any(np.ptp(each.candidate_lengths) > 3 for each in likely)

    def test_candidates_are_lengths_times_draws_without_duplicates(self, translator):
        (result,) = translator.translate(["eins"], num_lengths=translator.card.config.max_length, num_drafts=2)
        assert result.hypotheses == 14  # a length of 1 would hold EOS alone, so 1 and 2 are one
        (result,) = translator.translate(["eins"], target_lengths=[6], num_lengths=3, num_drafts=2)
        assert result.hypotheses == 2 and result.length == 6

    def test_parallel_draws_of_a_length_differ(self, translator):
        options = {"num_drafts": 4, "n_best": 4, "num_steps": 1}
        (result,) = translator.translate(["eins zwei drei"], target_lengths=[8], **options)
        assert result.candidate_lengths == (8, 8, 8, 8)
        assert len({score for _, score in result.candidates}) == 4

    def test_a_text_of_several_hypotheses_is_listed_once(self, translator, monkeypatch):
        options = {"num_drafts": 4, "n_best": 4, "num_steps": 1, "target_lengths": [8]}
        (each,) = translator.translate(["eins zwei drei"], **options)
        monkeypatch.setattr(type(translator.tokenizer), "decode", lambda self, ids, source="": "the same")
        (result,) = translator.translate(["eins zwei drei"], **options)
        best = max(score for _, score in each.candidates)
        assert result.candidates == (("the same", pytest.approx(best)),) and result.candidate_lengths == (8,)
        assert result.hypotheses == 4

    def test_the_best_of_more_candidates_is_no_worse(self, translator):
        scores = [
            [r.score for r in translator.translate(TEXTS, **lengths)]
            for lengths in ({}, {"num_lengths": 3}, {"num_lengths": 3, "num_drafts": 2})
        ]
        assert all(a <= b + 1e-4 <= c + 2e-4 for a, b, c in zip(*scores, strict=True))
        assert sum(scores[2]) > sum(scores[0])

    @pytest.mark.parametrize("head", ["affine", "fertility"])
    def test_a_head_of_one_number_gives_the_nearest_lengths(self, tokenizer, head):
        translator = random_translator(tokenizer, length_head=head, max_length=16)
        (one,), (three,) = (translator.predict_lengths(["eins zwei drei vier"], k) for k in (1, 3))
        assert three[0] == one[0] and max(three) - min(three) == 2 and len(set(three)) == 3
        (result,) = translator.translate(["eins zwei drei vier"], num_lengths=3, n_best=3)
        assert result.candidate_lengths and set(result.candidate_lengths) == {max(2, each) for each in three}

    def test_the_drafts_of_sundae_have_both_lengths_of_a_class(self, tokenizer):
        """configs/decode/sundae.gin on a model whose length head counts by twos: the best of 16 drafts."""
        translator = random_translator(tokenizer, length_unit=2, max_length=16)
        (result,) = translator.translate(["drei vier fünf eins"], num_lengths=2, num_drafts=8, n_best=16)
        shorter, longer = sorted(set(result.candidate_lengths))
        (unasked,) = translator.translate(["drei vier fünf eins"], n_best=2)
        assert sorted(unasked.candidate_lengths) == [shorter, longer]
        assert longer == shorter + 1 and longer % 2 == 0
        assert sorted(result.candidate_lengths) == [shorter] * 8 + [longer] * 8 and result.hypotheses == 16
        assert result.score == max(score for _, score in result.candidates)


@pytest.mark.usefixtures("whole")
class TestChoosing:
    LENGTHS = 3

    @pytest.mark.parametrize("rerank", ["own", "mbr"])
    def test_rows_that_pad_a_sentence_are_no_candidates(self, translator, rerank):
        """The first sentence has 2 candidates, its neighbour 3: the first one's third row repeats one of the two."""
        texts = ["eins zwei", "drei vier fünf"]
        tokens, _ = translator.loaded.source_tokens(texts, False)
        tried = [[Candidate(length, 0) for length in own] for own in ((2, 3), (5, 6, 7))]
        pipeline = translator.pipeline(Decoding(n_best=9, rerank=rerank))

        def chosen(some):
            batch = pipeline.encode(SourceBatch([texts[b] for b in some], [tokens[b] for b in some]))
            own = [tried[b] for b in some]
            return choose(pipeline.loaded, pipeline.decoding, batch, own, pipeline.refine(batch, own))

        together = chosen([0, 1])
        assert [result.hypotheses for result in together] == [2, 3]
        for one, (other,) in zip(together, (chosen([0]), chosen([1])), strict=True):
            assert [text for text, _ in one.candidates] == [text for text, _ in other.candidates]
            assert [s for _, s in one.candidates] == pytest.approx([s for _, s in other.candidates], abs=1e-4)

    def test_of_equal_scores_the_most_likely_length_wins(self, translator):
        def equal(sources, targets):
            return [(0.0, 1) for _ in targets]

        results = translator.translate(TEXTS, num_lengths=4, rerank=Rescore(equal))
        assert [r.length for r in results] == [lengths[0] for lengths in translator.predict_lengths(TEXTS)]

    def test_the_candidates_are_listed_best_first(self, translator):
        for result in translator.translate(TEXTS, num_lengths=self.LENGTHS, n_best=2):
            assert len(result.candidates) == 2 <= result.hypotheses <= 3  # of lengths that differ
            assert result.candidates[0] == (result.text, result.score) and result.candidates[1][1] <= result.score
        plain = translator.translate(TEXTS, num_lengths=self.LENGTHS)
        assert all(result.candidates == () for result in plain)
        assert [r.text for r in plain] == [
            r.text for r in translator.translate(TEXTS, num_lengths=self.LENGTHS, n_best=3)
        ]

    def test_the_best_of_a_rule_wins_and_is_told_its_source(self, translator):
        asked = {}

        def longest(sources, targets):
            for source, target in zip(sources, targets, strict=True):
                asked.setdefault(source, set()).add(target)
            return [(float(len(target)), 1) for target in targets]

        results = translator.translate(TEXTS, num_lengths=self.LENGTHS, rerank=Rescore(longest), batch_size=4)
        assert set(asked) == set(TEXTS)
        for text, result in zip(TEXTS, results, strict=True):
            assert result.text in asked[text] and result.score == max(map(len, asked[text])) == len(result.text)

    def test_the_whole_text_has_the_repeats_that_were_dropped(self, translator, monkeypatch):
        kept = translator.translate(TEXTS[:2], drop_repeats=False, num_steps=2)
        monkeypatch.setattr("padir.decoding.batches.without_repeats", lambda tokens_L, free_L, copied: [])
        dropped = translator.translate(TEXTS[:2], num_steps=2)  # every token counts as a repetition
        assert [result.whole_text for result in dropped] == [result.text for result in kept]
        assert [result.text for result in dropped] == ["", ""] and kept[0].text == kept[0].whole_text != ""

    def test_own_scores_are_the_sums_over_a_power_of_the_length(self, translator):
        mean, total = (
            translator.translate(TEXTS, target_lengths=[6] * len(TEXTS), rerank=OwnScore(length_normalization))
            for length_normalization in (1.0, 0.0)
        )
        for m, t in zip(mean, total, strict=True):
            assert t.score == pytest.approx(5 * m.score, rel=1e-5)  # five tokens and EOS

    def test_predicted_lengths_are_those_that_are_tried(self, translator):
        predicted = translator.predict_lengths(TEXTS, 3, batch_size=2)
        assert all(len(set(lengths)) == 3 for lengths in predicted)
        assert [lengths[0] for lengths in predicted] == [r.length for r in translator.translate(TEXTS)]

    def test_rescoring_needs_an_autoregressive_model(self, tmp_path):
        with pytest.raises(PadirError, match="holds no autoregressive model"):
            rescorer(str(random_model_dir(tmp_path, max_length=8)))


class TestSteps:
    @pytest.mark.parametrize("strategy", [Padir(), Padir(remask="start"), MaskPredict()])
    def test_the_trace_ends_with_the_translation(self, translator, strategy):
        assert isinstance(strategy, Strategy)
        pieces = {piece: i for i, piece in enumerate(translator.tokenizer.pieces)}
        for result in translator.translate(TEXTS, strategy=strategy, num_steps=3, trace=True, drop_repeats=False):
            assert len(result.trace) == 4 and 1 <= result.passes <= 3
            assert all(len(step) == len(scores) == result.length for step, scores in result.trace)
            tokens, scores = result.trace[-1]
            assert clean(translator.tokenizer.decode([pieces[piece] for piece in tokens]), "") == result.text
            assert tokens[-1] == "</s>" and scores[-1] is None  # EOS is given, not written
            assert np.mean(scores[:-1]) == pytest.approx(result.score, rel=1e-4)

    def test_come_one_by_one(self, translator):
        """A step is yielded for each pass; the trace repeats the last step of a sentence that ended early."""
        for text in TEXTS[:2]:
            steps = [(step.pieces, step.log_probs) for step in translator.steps(text, num_steps=5)]
            (result,) = translator.translate([text], num_steps=5, num_lengths=1, trace=True)
            assert len(steps) == result.passes + 1
            for (pieces, scores), (traced, traced_scores) in zip(steps, result.trace, strict=False):
                assert pieces == traced and scores == pytest.approx(traced_scores, abs=1e-4)

    def test_of_no_text_are_refused(self, translator):
        with pytest.raises(PadirError, match="text must be a sentence, got ' '"):
            next(translator.steps(" "))
        assert translator.translate(TEXTS)[0].trace is None

    def test_traces_of_other_numbers_of_steps_need_no_other_program(self, translator):
        refine_drafts.clear_cache()
        translator.translate(TEXTS[:1], num_steps=5, trace=True)
        before = refine_drafts._cache_size()
        for num_steps in (6, 8):
            (result,) = translator.translate(TEXTS[:1], num_steps=num_steps, trace=True)
            assert len(result.trace) == num_steps + 1
            same([result], translator.translate(TEXTS[:1], num_steps=num_steps))
        assert refine_drafts._cache_size() == before + 1  # the one without a trace

    def test_mask_predict_makes_as_many_passes_as_it_has_positions_to_write(self, masked):
        # Of 1 free position none is hidden again after the first pass; of 7 some are until the last.
        results = masked.translate(["eins", "zwei"], target_lengths=[2, 8], strategy=MaskPredict(), num_steps=4)
        assert [r.passes for r in results] == [1, 4]

    @pytest.mark.parametrize(
        ("strategy", "passes"),
        # Of one position the draft is the conditional, which a sweep of one pass finds again.
        [(BlockGibbs(temperature=0.0), [6, 6]), (IndependentParallel(temperature=0.0), [2, 6])],
    )
    def test_conditionals_are_those_of_a_model_that_knows_the_mask(self, masked, strategy, passes):
        results = masked.translate(["eins", "zwei"], target_lengths=[2, 8], strategy=strategy, num_steps=6)
        assert [r.passes for r in results] == passes
        assert all(np.isfinite(r.score) and r.score < 0 for r in results)

    def test_what_has_no_meaning_for_a_model_is_refused(self, translator):
        for strategy in (EasyFirst(), Rejecter(), BlockGibbs(), IndependentParallel()):
            with pytest.raises(PadirError, match="choose one of padir, mask_predict, constant, sundae, threshold"):
                translator.translate(TEXTS, strategy=strategy)

    def test_a_canvas_that_the_model_has_never_seen_is_refused(self, masked, translator):
        for canvas in (Mask(), MaskRange(), Mixed()):
            with pytest.raises(PadirError, match="was trained with .*: leave Decoding.canvas out"):
                translator.translate(TEXTS, canvas=canvas)
        with pytest.raises(PadirError, match="or train with that noise"):
            masked.translate(TEXTS, canvas=MaskRange())

    def test_a_masked_draft_holds_the_mask_id(self, tokenizer):
        mixed = random_translator(tokenizer, corruption=Mixed(), max_length=8)
        (result,) = mixed.translate(["eins"], canvas=Mask(), target_lengths=[4], trace=True)
        assert result.trace[0][0] == ("<extra_id_0>",) * 3 + ("</s>",)  # T5's first extra id is the last id

    def test_the_models_own_strategy_and_canvas_are_the_default(self, tokenizer):
        own = random_translator(tokenizer, corruption=Mask(0.5), strategy=MaskPredict(), max_length=8)
        same(own.translate(TEXTS), own.translate(TEXTS, strategy=MaskPredict(), canvas=Mask()))

    def test_the_cards_decoding_is_the_default(self, translator, tmp_path):
        options = {"num_lengths": 3, "num_steps": 2, "length_normalization": 0.5, "strategy": "mask_predict"}
        card = dataclasses.replace(translator.card, decoding=options)
        Translator(translator.params, card, translator.tokenizer).save(tmp_path / "own")
        own = Translator.load(tmp_path / "own")
        assert own.decoding == Decoding().changed(**options) and own.decoding.num_lengths == 3
        expected = translator.translate(["eins"], Decoding().changed(**options))
        same(own.translate(["eins"]), expected)
        same(own.translate(["eins"], num_lengths=1), translator.translate(["eins"], **options | {"num_lengths": 1}))
        same(own.translate(["eins"], Decoding()), translator.translate(["eins"]))
        assert expected[0].hypotheses == 3

    @pytest.mark.parametrize(
        "options",
        [
            *(
                {"top_j": 3},
                {"num_lengths": "3"},
                {"num_steps": 0},
                {"length_normalization": "x"},
                [1],
                {"drop_repeats": "no"},
            ),
            *(
                {"batch_size": 10**9},
                {"seed": 3},
                {"num_steps": 2**31 - 1},
                {"num_drafts": 4096},
                {"length_normalization": 1e308},
            ),
            *({"beam": 10**9}, {"beam": 65}, {"n_best": 10**6}, {"length_penalty": 1e308}),
            *({"rerank": "/tmp"}, {"rerank": "gs://a/b"}, {"shortlist": "/etc/passwd"}, {"rerank": ["de_en"]}),
        ],
    )
    def test_a_wrong_decoding_of_a_card_is_refused(self, translator, options):
        card = translator.card.to_json() | {"decoding": options}
        with pytest.raises(PadirError, match="model.json|wrong decoding options"):
            Translator(translator.params, ModelCard.from_json(card), translator.tokenizer)


class TestRefused:
    @pytest.mark.parametrize("sizes", [{}, {"causal": True}])
    def test_weights_whose_logits_are_not_finite(self, tokenizer, sizes):
        made = random_translator(tokenizer, max_length=8, **sizes)
        scale = made.params["decoder"]["decoder_norm"]["scale"]
        params = {**made.params, "decoder": {**made.params["decoder"], "decoder_norm": {"scale": scale * 3e38}}}
        huge = Translator(params, made.card, tokenizer)
        with pytest.raises(PadirError, match="logits are not finite"):
            huge.translate(["eins"])

    @pytest.mark.parametrize(
        "options", [{"n_best": 99, "num_lengths": 3, "num_drafts": 2}, {"n_best": 7, "num_lengths": 9}]
    )
    def test_more_candidates_than_hypotheses(self, translator, options):
        most = 6 if "num_drafts" in options else 1
        given = {"target_lengths": [3]} if most == 1 else {}
        with pytest.raises(PadirError, match=f"n_best must be at most {most}, the number of hypotheses of a sentence"):
            translator.translate(["eins"], **options, **given)

    def test_draws_of_a_canvas_that_is_always_the_same(self, masked):
        with pytest.raises(PadirError, match="num_drafts must be 1 for a canvas without randomness, got 2"):
            masked.translate(TEXTS, num_drafts=2)


class TestWithoutRepeats:
    @pytest.mark.parametrize(
        ("tokens", "free", "kept"),
        [
            ([7, 7, 7, 8, 8, 7, 1, 0], [1, 1, 1, 1, 1, 1, 0, 0], [7, 8, 7]),
            ([7, 8, 1], [1, 1, 0], [7, 8]),
            ([7, 1], [1, 0], [7]),
            ([1, 0], [0, 0], []),
        ],
    )
    def test_keeps_the_first_of_a_run(self, tokens, free, kept):
        assert without_repeats(np.array(tokens), np.array(free, bool)) == kept

    def test_is_for_padir_unless_asked_for(self, translator, monkeypatch):
        calls = []
        monkeypatch.setattr("padir.decoding.batches.without_repeats", lambda *a: calls.append(a) or [])
        translator.translate(["eins"], strategy=MaskPredict())
        translator.translate(["eins"], drop_repeats=False)
        assert not calls
        translator.translate(["eins"])
        translator.translate(["eins"], strategy=MaskPredict(), drop_repeats=True)
        assert len(calls) == 2


def test_what_is_saved_is_loaded_again(translator, tmp_path):
    translator.save(tmp_path / "new" / "model")
    assert Translator.load(tmp_path / "new" / "model").translate(TEXTS) == translator.translate(TEXTS)
    for wrong in (tmp_path / "new", tmp_path / "new" / "model" / "model.json"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(PadirError, match="folder must be a new or an empty folder"):
            translator.save(wrong)
        assert sorted(tmp_path.rglob("*")) == before


def test_sentences_are_translated_as_they_come(translator):
    read = []

    def endless():
        for text in itertools.cycle(TEXTS):
            read.append(text)
            yield text

    results = translator.translate_iter(endless(), batch_size=1)
    expected = translator.translate(TEXTS)
    same(list(itertools.islice(results, 17)), (expected * 3)[:17])
    assert len(read) == 32  # two chunks of 16 batches
    with pytest.raises(PadirError, match="put one string into a list"):
        next(translator.translate_iter("eins"))


def test_a_translation_shows_its_text_with_markup_escaped():
    assert Translation("a < b", -0.1, 4, 2)._repr_html_() == "<p>a &lt; b</p>"


def test_a_translation_with_a_trace_shows_every_step():
    steps = ((("\u2581tea", "\u2581cup"), (None, None)), (("\u2581a", "\u2581cup"), (-0.1, -0.2)))
    shown = Translation("a cup", -0.1, 3, 1, trace=steps)._repr_html_()
    assert shown == Trace("", tuple(Step(*step) for step in steps), "a cup")._repr_html_()
    assert "step 1" in shown and "probability 0.82" in shown

"""Text in, text out: order, empty lines, batches, lengths, candidates, traces, and what is refused."""

import dataclasses
import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from support.tiny_model import random_translator, same

from padir.decoding import Decoding, Rescore
from padir.decoding.paragraphs import join_sentences, split_sentences
from padir.decoding.refine_batch import refine_drafts
from padir.decoding.translation import Translation
from padir.metrics.scores import bleu
from padir.refinement import BlockGibbs, IndependentParallel, MaskPredict, Padir
from padir.refinement.corruption import Mask, Mixed
from padir.refinement.protocols import Strategy
from padir.reporting.trace import Step, Trace
from padir.text.cleaning import clean, without_repeats
from padir.translator import Translator

TEXTS = ["eins", "zwei drei vier fünf sechs sieben", "acht acht", "neun null"]
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

    needs = frozenset({"text"})

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
    monkeypatch.setattr("padir.decoding.reading.broken", lambda text, source: 0)


def lengths_of(result):
    """The lengths of a translation's candidates."""
    return [each.length for each in result.candidates]


def test_digits_and_bytes_may_repeat(tokenizer):
    pieces = [*tokenizer.encode_batch(["1100 😀😀"])[0]]
    assert without_repeats(pieces, tokenizer.copied) == pieces
    two, twice = tokenizer.encode_batch(["zwei zwei"])[0], tokenizer.encode_batch(["zwei"])[0]
    assert not set(twice) & tokenizer.copied and len(two) == 2 * len(twice)


class TestSentences:
    def test_bytes_that_are_no_character_are_not_written(self, translator):
        """A random model writes many; of several hypotheses, one without them is taken, or they are left out."""
        (alone, several), texts = ([], []), [f"{a} {b}" for a in TEXTS[::2] for b in ("eins", "zwei", "neun")]
        for results, options in ((alone, {"num_lengths": 1}), (several, {"num_lengths": 4})):
            results += translator.translate(texts, num_steps=1, truncate=True, **options)
            assert not any("\ufffd" in result.text for result in results)
        assert sum(r.broken > 0 for r in alone) > sum(r.broken > 0 for r in several) > 0
        given = translator.translate(["eins \ufffd", "eins \ufffd \ufffd", *TEXTS[:4]], num_steps=1, truncate=True)
        assert all(result.broken == 0 for result in given[:2])

    def test_of_a_text_are_split_on_request(self, translator):
        """A text of one sentence keeps its trace."""
        texts = ["Eins! Zwei", "Eins!", "Zwei"]
        both, *single = translator.translate(texts, split=True, trace=True, truncate=True)
        expected = translator.translate(texts[1:], trace=True, truncate=True)
        assert both.text == " ".join(each.text for each in single) and both.trace is None
        same(single, expected)
        assert [len(each.trace) for each in single] == [len(each.trace) for each in expected]

    def test_of_a_text_are_counted_together(self):
        paragraphs, _ = split_sentences(["Eins! Zwei"], "de", ())
        made = [Translation("One!", -1.0, 2, 1, broken=1, oscillated=True, truncated=True, whole_text="One One!")]
        made += [Translation("two", -1.0, 2, 1, broken=2, read_again=True, fell_back=True)]
        ((_, both, _),) = join_sentences(["Eins! Zwei"], paragraphs, made, "en")
        assert both.broken == 3 and both.oscillated and both.read_again
        assert both.whole_text == "One One! two" and both.hypotheses == 2
        default = Translation("", 0.0, 0, 0)
        kept = {
            each.name for each in dataclasses.fields(both) if getattr(both, each.name) != getattr(default, each.name)
        }
        lost = {each.name for each in dataclasses.fields(both)} - kept
        assert lost == {"trace", "candidates", "alignment"}  # a new field is joined, or named here

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
@pytest.mark.parametrize("kind", [iter, np.array, Column, Arrow])
def test_any_iterable_of_strings_is_a_list(translator, kind):
    """`Column` keeps the row numbers of a shuffled table, by which it is read with []."""
    how = {"num_lengths": 3, "rerank": BySource()}
    expected = [result.text for result in translator.translate(TEXTS, **how)]
    lengths = [1 + len(text.split()) for text in TEXTS]
    given = translator.translate(TEXTS, target_lengths=lengths)
    assert [r.text for r in translator.translate(kind(TEXTS), **how)] == expected
    assert translator.translate(kind(TEXTS), target_lengths=Column(lengths)) == given
    assert [r.text for r in translator.translate_iter(kind(TEXTS), **how)] == expected
    assert translator.predict_lengths(kind(TEXTS)) == translator.predict_lengths(TEXTS)
    assert bleu(kind(TEXTS), kind(expected), "en") == bleu(TEXTS, expected, "en")


@pytest.mark.usefixtures("whole")
class TestLengths:
    def test_given_lengths_are_kept(self, translator):
        results = translator.translate(["eins", "", "zwei"], target_lengths=[5, 1, 7], drop_repeats=False)
        assert [r.length for r in results] == [5, 1, 7]

    def test_adjacent_lengths_surround_the_most_likely(self, translator):
        options = {"num_lengths": 3, "n_best": 3, "num_steps": 1}
        likely, around = (translator.translate(TEXTS, length_window=each, **options) for each in (False, True))
        for best, near in zip(translator.translate(TEXTS, num_steps=1), around, strict=True):
            lengths = sorted(lengths_of(near))
            assert best.length in lengths and lengths == list(range(lengths[0], lengths[-1] + 1))  # 1 becomes 2
        assert any(np.ptp(lengths_of(each)) > 2 for each in likely)
        assert translator.translate_sentences(TEXTS, Decoding(**options)) == likely

    @pytest.mark.parametrize("window", [False, True])
    def test_lengths_that_are_much_less_likely_are_skipped(self, translator, window):
        """For each sentence: those lengths of the five that have a share of the most likely one's probability."""
        options = {"num_lengths": 5, "length_window": window, "num_steps": 1, "n_best": 5}
        tokens, _ = translator.loaded.source_tokens(TEXTS, truncate=False)
        output = translator.loaded.encode(tokens, 32).encoded.length
        prob_BM = np.asarray(jax.nn.softmax(output.logits_BGM[:, 0]))
        share_BM = prob_BM / prob_BM.max(-1, keepdims=True)
        share_BM[:, 1] = share_BM[:, :2].max(-1)  # a draft of length 1 would have no token, and gets 2
        listed = translator.translate(TEXTS, **options)
        shares = [
            share_BM[b, lengths_of(each)[n] - 1] for b, each in enumerate(listed) for n in range(len(each.candidates))
        ]
        least = 0.99 * float(np.median(shares))  # no share is as near as the last bits
        skipped = translator.translate(TEXTS, length_min_p=least, **options)
        for b, (each, all_) in enumerate(zip(skipped, listed, strict=True)):
            likely = [length for length in lengths_of(all_) if share_BM[b, length - 1] >= least]
            assert sorted(lengths_of(each)) == sorted(likely) and each.hypotheses == len(likely) > 0
        assert sum(each.hypotheses for each in skipped) < sum(each.hypotheses for each in listed)

    def test_candidates_are_lengths_times_draws_without_duplicates(self, translator):
        (result,) = translator.translate(["eins"], num_lengths=translator.card.config.max_length, num_drafts=2)
        assert result.hypotheses == 14  # a length of 1 would hold EOS alone, so 1 and 2 are one
        (result,) = translator.translate(["eins"], target_lengths=[6], num_lengths=3, num_drafts=2)
        assert result.hypotheses == 2 and result.length == 6

    def test_parallel_draws_differ_and_a_text_of_several_is_listed_once(self, translator, monkeypatch):
        options = {"num_drafts": 4, "n_best": 4, "num_steps": 1, "target_lengths": [8]}
        (result,) = translator.translate(["eins zwei drei"], **options)
        assert lengths_of(result) == [8, 8, 8, 8]
        scores = {each.score for each in result.candidates}
        assert len(scores) == 4
        monkeypatch.setattr(type(translator.tokenizer), "decode", lambda self, ids, source="": "the same")
        (result,) = translator.translate(["eins zwei drei"], **options)
        (only,) = result.candidates
        assert (only.text, only.score, only.length) == ("the same", pytest.approx(max(scores)), 8)
        assert result.hypotheses == 4

    def test_the_drafts_of_sundae_have_both_lengths_of_a_class(self, tokenizer):
        """configs/decode/sundae.gin on a model whose length head counts by twos: the best of 16 drafts."""
        translator = random_translator(tokenizer, length_unit=2, max_length=16)
        assert translator.decoding.num_lengths == 2
        (result,) = translator.translate(["drei vier fünf eins"], num_drafts=8, n_best=16)
        shorter, longer = sorted(set(lengths_of(result)))
        assert longer == shorter + 1 and longer % 2 == 0
        assert sorted(lengths_of(result)) == [shorter] * 8 + [longer] * 8 and result.hypotheses == 16
        assert result.score == max(each.score for each in result.candidates)


@pytest.mark.usefixtures("whole")
class TestChoosing:
    def test_of_equal_scores_the_most_likely_length_wins(self, translator):
        def equal(sources, targets):
            return [(0.0, 1) for _ in targets]

        results = translator.translate(TEXTS, num_lengths=3, rerank=Rescore(equal))
        assert [r.length for r in results] == [lengths[0] for lengths in translator.predict_lengths(TEXTS)]

    def test_the_whole_text_has_the_repeats_that_were_dropped(self, translator, monkeypatch):
        kept = translator.translate(TEXTS, drop_repeats=False, num_steps=2)
        monkeypatch.setattr("padir.decoding.refiner.without_repeats", lambda tokens, copied: [])
        dropped = translator.translate(TEXTS, num_steps=2)  # every token counts as a repetition
        assert [result.whole_text for result in dropped] == [result.text for result in kept]
        assert {result.text for result in dropped} == {""} != {kept[0].text} and kept[0].whole_text is None

    def test_own_scores_are_the_sums_over_a_power_of_the_length(self, translator):
        mean, total = (
            translator.translate(TEXTS, target_lengths=[6] * len(TEXTS), length_normalization=length_normalization)
            for length_normalization in (1.0, 0.0)
        )
        for m, t in zip(mean, total, strict=True):
            assert t.score == pytest.approx(5 * m.score, rel=1e-5)  # five tokens and EOS

    def test_predicted_lengths_are_those_that_are_tried(self, translator):
        predicted = translator.predict_lengths(TEXTS, 3)
        assert all(len(set(lengths)) == 3 for lengths in predicted)
        assert [lengths[0] for lengths in predicted] == [r.length for r in translator.translate(TEXTS)]


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

    @pytest.mark.parametrize(
        "options", [{"seed": 7, "canvas": "uniform:rate=0.5"}, {"strategy": "threshold:tau=0.05"}], ids=str
    )
    def test_come_one_by_one(self, translator, options):
        """A step is yielded for each pass; the trace repeats the last step of a sentence that ended early."""
        steps = [(step.pieces, step.log_probs) for step in translator.steps(TEXTS[1], num_steps=4, **options)]
        (result,) = translator.translate([TEXTS[1]], num_steps=4, trace=True, **options)
        assert len(steps) == result.passes + 1
        for (pieces, scores), (traced, traced_scores) in zip(steps, result.trace, strict=False):
            assert pieces == traced and scores == pytest.approx(traced_scores, abs=1e-4)

    def test_traces_of_other_numbers_of_steps_need_no_other_program(self, translator):
        plain = translator.translate(TEXTS[:1], num_steps=3)
        traced = translator.translate(TEXTS[:1], num_steps=3, trace=True)
        assert plain[0].trace is None and len(traced[0].trace) == 4
        before = refine_drafts._cache_size()
        for num_steps in (1, 4):
            (result,) = translator.translate(TEXTS[:1], num_steps=num_steps, trace=True)
            assert len(result.trace) == num_steps + 1
            same([result], translator.translate(TEXTS[:1], num_steps=num_steps))
        assert refine_drafts._cache_size() == before

    def test_mask_predict_makes_as_many_passes_as_it_has_positions_to_write(self, masked):
        # Of 1 editable position none is masked again after the first pass; of 7 some are until the last.
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

    def test_a_masked_draft_holds_the_mask_id(self, tokenizer):
        mixed = random_translator(tokenizer, corruption=Mixed(), max_length=8)
        (result,) = mixed.translate(["eins"], canvas=Mask(), target_lengths=[4], trace=True)
        assert result.trace[0][0] == ("<extra_id_0>",) * 3 + ("</s>",)  # T5's first extra id is the last id

    def test_the_models_own_strategy_and_canvas_are_the_default(self, tokenizer):
        own = random_translator(tokenizer, corruption=Mask(0.5), strategy=MaskPredict(), max_length=8)
        same(own.translate(TEXTS), own.translate(TEXTS, strategy=MaskPredict(), canvas=Mask()))

    def test_the_cards_decoding_is_the_default(self, translator, tmp_path):
        options = {"num_lengths": 3, "num_steps": 2, "length_normalization": 0.5, "strategy": "padir:remask=previous"}
        card = dataclasses.replace(translator.card, decoding=options)
        Translator(translator.params, card, translator.tokenizer).save(tmp_path / "own")
        own = Translator.load(tmp_path / "own")
        assert own.decoding == dataclasses.replace(Decoding(), **options) and own.decoding.num_lengths == 3
        expected = translator.translate(TEXTS, Decoding().changed(**options))
        same(own.translate(TEXTS), expected)
        same(own.translate(TEXTS, num_lengths=1), translator.translate(TEXTS, **options | {"num_lengths": 1}))
        same(own.translate(TEXTS, Decoding()), translator.translate(TEXTS))
        assert expected[0].hypotheses == 3


class TestWithoutRepeats:
    @pytest.mark.parametrize(
        ("tokens", "kept"), [([7, 7, 7, 8, 8, 7], [7, 8, 7]), ([7, 8], [7, 8]), ([7], [7]), ([], [])]
    )
    def test_keeps_the_first_of_a_run(self, tokens, kept):
        assert without_repeats(tokens) == kept

    @pytest.mark.parametrize(
        ("strategy", "drop_repeats", "dropped"),
        [(Padir(), None, True), (MaskPredict(), None, False), (Padir(), False, False), (MaskPredict(), True, True)],
    )
    def test_is_for_padir_unless_asked_for(self, translator, strategy, drop_repeats, dropped):
        asked = Decoding(strategy=strategy, drop_repeats=drop_repeats)
        assert translator.resolved(asked).drops_repeats == dropped


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


def test_a_translation_shows_its_text_with_markup_escaped():
    assert Translation("a < b", -0.1, 4, 2)._repr_html_() == "<p>a &lt; b</p>"


def test_a_translation_with_a_trace_shows_every_step():
    steps = Step(("\u2581tea", "\u2581cup"), (None, None)), Step(("\u2581a", "\u2581cup"), (-0.1, -0.2))
    shown = Translation("a cup", -0.1, 3, 1, trace=steps)._repr_html_()
    assert shown == Trace("", steps, "a cup")._repr_html_()
    assert "step 1" in shown and "probability 0.82" in shown

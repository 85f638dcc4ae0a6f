"""Decoding with a CTC model: canvases, the collapse to a translation, and the options that have no meaning for it."""

import itertools

import pytest
from support.tiny_model import random_translator

from padir import Decoding, PadirError, Translator
from padir.decoding.batches import SourceBatch
from padir.decoding.rerank import OwnScore
from padir.decoding.translation import clean
from padir.evaluation.systems import named, ways
from padir.refinement.strategies import MaskPredict, Padir
from padir.text.ids import EOS

TEXTS = ["eins", "zwei drei vier", "acht acht", "vier drei zwei eins"]

MIXED = 3.0  # at this penalty on the blank, a model without training writes both blanks and pieces
HOW = {"blank_penalty": MIXED, "num_steps": 2}


@pytest.fixture(scope="module")
def translator(tokenizer):
    return random_translator(tokenizer, readout="ctc")


@pytest.fixture(scope="module")
def dual(tokenizer):
    return random_translator(tokenizer, readout="ctc", dual=True)


def test_texts_are_the_collapsed_canvases(translator, tokenizer):
    ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    blank = translator.model.ids.blank
    merged = written = 0
    for result in translator.translate(TEXTS, trace=True, num_steps=2, blank_penalty=MIXED):
        last = [ids[piece] for piece in result.trace[-1][0]][:-1]  # without EOS
        tokens = [token for token, _ in itertools.groupby(last) if token != blank]
        merged += len(last) - len(tokens)
        assert result.text == result.whole_text == clean(tokenizer.decode(tokens), "").strip()
        written += len(tokens)
    assert merged > 0 and written > 0


def test_canvases_have_two_positions_for_each_source_token(translator, tokenizer):
    lengths = [2 * (len(tokens) + 1) for tokens in tokenizer.encode_batch(TEXTS)]
    assert [len(result.trace[-1][0]) for result in translator.translate(TEXTS, trace=True)] == lengths


def test_a_penalty_on_the_blank_writes_more_pieces(translator, tokenizer):
    """With 100 off its logit no position is blank; `steps` and `evaluate` say and do the same."""
    blank = tokenizer.pieces[translator.model.ids.blank]
    pieces = {}
    for penalty in (0.0, 100.0):
        results = translator.translate(TEXTS, trace=True, num_steps=1, blank_penalty=penalty)
        pieces[penalty] = [sum(piece != blank for piece in result.trace[-1][0][:-1]) for result in results]
        last = list(translator.steps(TEXTS[1], num_steps=1, blank_penalty=penalty))[-1]
        assert last.pieces == results[1].trace[-1][0]
    assert pieces[100.0] == [len(result.trace[-1][0]) - 1 for result in results]
    assert sum(pieces[0.0]) < sum(pieces[100.0])
    assert named("a", translator, Decoding(blank_penalty=1.5)) == "a, blank penalty 1.5"
    with pytest.raises(PadirError, match="blank_penalty must be at most 0 for a plain model"):
        random_translator(tokenizer).translate(TEXTS, blank_penalty=1.0)


def near(candidates, expected):
    """The same candidates in the same order, with the same scores."""
    assert [text for text, _ in candidates] == [text for text, _ in expected]
    assert [score for _, score in candidates] == pytest.approx([score for _, score in expected], abs=1e-4)


def without(candidates, others):
    """The candidates that are left when others, with their scores, are taken out."""
    left = list(candidates)
    for text, score in others:
        left.remove(next(each for each in left if each[0] == text and each[1] == pytest.approx(score, abs=1e-4)))
    return left


class TestPrefixBeam:
    def test_the_best_sentence_is_at_least_as_likely_as_the_best_alignment(self, translator, tokenizer):
        ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
        plain = translator.translate(TEXTS, blank_penalty=MIXED, num_steps=2)
        for one, best in zip(
            plain, translator.translate(TEXTS, n_best=4, prefix_beam=4, trace=True, **HOW), strict=True
        ):
            assert best.hypotheses == 4 and 1 <= len(best.candidates) == len(dict(best.candidates)) <= 4
            assert max(score for _, score in best.candidates) >= one.score - 1e-6  # a sum of alignments
            assert best.passes == one.passes == 2
            last = [ids[piece] for piece in best.trace[-1][0]][:-1]
            tokens = [token for token, _ in itertools.groupby(last) if token != translator.model.ids.blank]
            assert best.whole_text == clean(tokenizer.decode(tokens), "").strip() and best.length == len(tokens) + 1

    def test_a_sentence_does_not_depend_on_its_batch(self, tokenizer):
        """With blanks that are likely in some places: a long neighbour makes the logits of all positions computed."""
        made = random_translator(tokenizer, readout="ctc", max_length=48)
        head = {"kernel": -made.params["position_head"]["kernel"]}
        made = Translator({**made.params, "position_head": head}, made.card, tokenizer)
        texts, how = [*TEXTS, " ".join(["sieben"] * 12)], {"prefix_beam": 6, "n_best": 6, "num_steps": 1}
        for text, together in zip(texts, made.translate(texts, **how), strict=True):
            near(together.candidates, made.translate([text], **how)[0].candidates)

    def test_a_canvas_with_few_sentences_lists_each_once(self, dual):
        """A source of its EOS alone has a canvas of one position, whose sentences are four pieces and the empty one."""
        pipeline = dual.pipeline(Decoding(prefix_beam=8, n_best=8, rerank="causal", **HOW), trace=True)
        few, many = pipeline.run(SourceBatch(["", TEXTS[0]], [[EOS], *dual.loaded.source_tokens(TEXTS[:1], False)[0]]))
        assert few.hypotheses == 5 and many.hypotheses == 8 and len(dict(few.candidates)) == len(few.candidates)
        assert {*few.candidate_lengths} <= {1, 2} and few.read_again

    def test_a_trace_ends_with_what_was_chosen(self, translator):
        for best in translator.translate(TEXTS, prefix_beam=3, trace=True, blank_penalty=MIXED, num_steps=12):
            assert best.trace[best.passes][0] == best.trace[-1][0]
            assert best.passes == 12 or best.trace[best.passes - 1] != best.trace[best.passes]

    def test_the_causal_side_orders_all_sentences(self, dual):
        own = dual.translate(TEXTS, n_best=3, prefix_beam=3, length_normalization=0.0, **HOW)
        chosen = dual.translate(TEXTS, n_best=3, prefix_beam=3, rerank="causal", **HOW)
        for one, other in zip(own, chosen, strict=True):
            assert {text for text, _ in one.candidates} == {text for text, _ in other.candidates}
            assert other.read_again and not one.read_again
            assert dict(one.candidates) != pytest.approx(dict(other.candidates), abs=1e-2)
            scores = [score for _, score in other.candidates]
            assert scores[1:] == sorted(scores[1:], reverse=True)  # a text without broken characters stands first

    def test_resolved_options_are_resolved_again(self, dual):
        """As a server does; a single draft leaves a rule no choice."""
        once = dual.resolved(Decoding(rerank="causal"))
        assert dual.resolved(once) == once and once.rule == OwnScore()

    def test_options_that_have_no_meaning_are_refused(self, translator, dual):
        for options, words in (
            ({"length_window": True}, "length_window must be False for a CTC model"),
            ({"prefix_beam": 65}, "prefix_beam must be at most 64 for a CTC model, got 65"),
            (
                {"num_lengths": 2},
                "num_lengths must be at most 1 for a CTC model, got 2: set prefix_beam for several",
            ),
            ({"prefix_beam": 2, "num_drafts": 2}, "prefix_beam must be 1 beside several num_drafts"),
        ):
            with pytest.raises(PadirError, match=words):
                translator.translate(TEXTS, **options)
        with pytest.raises(
            PadirError, match="prefix_beam must be at most 1 for a plain model, got 2: set num_lengths for"
        ):
            random_translator(dual.tokenizer).translate(TEXTS, prefix_beam=2)


def test_blanks_are_written_by_ctc_models_alone(translator, tokenizer):
    assert translator.model.ids.blank not in translator.model.ids.special
    other = random_translator(tokenizer).model.ids
    assert translator.model.ids.blank in other.special


def test_repeats_are_not_dropped_twice(translator):
    for strategy in (Padir(), MaskPredict()):
        assert not translator.resolved(Decoding(strategy=strategy)).drops_repeats
    with pytest.raises(PadirError, match="drop_repeats must be False"):
        translator.translate(TEXTS, drop_repeats=True)
    (way,) = ways(translator, [Decoding()], oracle_lengths=True)
    assert way[0].drop_repeats is False and way[1] is False


def test_what_reads_tokens_as_those_of_a_target_refuses(translator):
    with pytest.raises(PadirError, match="gives targets no probability"):
        translator.score(["eins"], ["one"])


def test_a_source_has_half_the_positions_of_the_canvas(translator):
    """The limit that the server states is that of the tokens that are read: two positions for each, and for EOS."""
    loaded = translator.loaded
    assert loaded.longest_source == loaded.card.config.max_length // 2 - 1
    tokens, cut = loaded.source_tokens(["eins " * 60], truncate=True)
    assert len(tokens[0]) == loaded.longest_source + 1 and cut == {0}

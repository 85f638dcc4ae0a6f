"""Decoding with a CTC model: canvases, the collapse to a translation, and the options that have no meaning for it."""

import itertools

import pytest
from support.tiny_model import random_translator, same

from padir import Decoding, Translator
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.ranker import CausalScore
from padir.decoding.writer import Shapes
from padir.evaluation.systems import named, ways
from padir.refinement.strategies import MaskPredict, Padir
from padir.text.cleaning import clean
from padir.text.ids import EOS

TEXTS = ["eins", "zwei drei vier", "acht acht", "neun null", "vier drei zwei eins"]

MIXED = 5.0  # at this penalty on the blank, a model without training writes both blanks and pieces
HOW = {"blank_penalty": MIXED, "num_steps": 2}


@pytest.fixture(scope="module")
def translator(tokenizer):
    return random_translator(tokenizer, readout="ctc", dual=True, max_length=16)


def test_texts_are_the_collapsed_canvases(translator, tokenizer):
    ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    blank = translator.model.ids.blank
    merged = written = 0
    for result in translator.translate(TEXTS, trace=True, num_steps=2, blank_penalty=MIXED):
        last = [ids[piece] for piece in result.trace[-1][0]][:-1]  # without EOS
        tokens = [token for token, _ in itertools.groupby(last) if token != blank]
        merged += len(last) - len(tokens)
        assert result.text.strip() == clean(tokenizer.decode(tokens), "").strip() and result.whole_text is None
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
    assert named("a", translator, Decoding(blank_penalty=1.5)) == "a, refine, blank penalty 1.5"


def near(candidates, expected):
    """The same candidates in the same order, with the same scores."""
    assert [each.text for each in candidates] == [each.text for each in expected]
    assert [each.score for each in candidates] == pytest.approx([each.score for each in expected], abs=1e-4)


def scored(result):
    """The candidates' scores by text."""
    return {each.text: each.score for each in result.candidates}


class TestPrefixBeam:
    def test_the_best_sentence_is_at_least_as_likely_as_the_best_alignment(self, translator, tokenizer):
        ids = {piece: i for i, piece in enumerate(tokenizer.pieces)}
        plain = translator.translate(TEXTS, trace=True, **HOW)
        found = translator.translate(TEXTS, n_best=3, prefix_beam=3, trace=True, **HOW)
        for one, best in zip(plain, found, strict=True):
            assert best.hypotheses == 3 and 1 <= len(best.candidates) == len(scored(best)) <= 3
            assert max(each.score for each in best.candidates) >= one.score - 1e-6  # a sum of alignments
            assert best.passes == one.passes == 2
            last = [ids[piece] for piece in best.trace[-1][0]][:-1]
            tokens = [token for token, _ in itertools.groupby(last) if token != translator.model.ids.blank]
            assert best.text.strip() == clean(tokenizer.decode(tokens), "").strip() and best.length == len(tokens) + 1

    def test_allowed_numbers_of_candidates_are_of_other_canvases(self, translator):
        """A server allows few numbers; a prefix beam reads several sentences out of one canvas."""
        fixed = translator.with_shapes(Shapes((16,), (4,)))
        same(fixed.translate(TEXTS, prefix_beam=3, **HOW), translator.translate(TEXTS, prefix_beam=3, **HOW))

    def test_a_sentence_does_not_depend_on_its_batch(self, translator):
        """With blanks that are likely in some places: a long neighbour makes the logits of all positions computed."""
        head = {"kernel": -translator.params["position_head"]["kernel"]}
        made = Translator({**translator.params, "position_head": head}, translator.card, translator.tokenizer)
        texts, how = [*TEXTS, " ".join(["sieben"] * 7)], {"prefix_beam": 3, "n_best": 3, "num_steps": 1}
        together = made.translate(texts, **how)
        for i in (0, 1):
            near(together[i].candidates, made.translate([texts[i]], **how)[0].candidates)

    def test_a_canvas_with_few_sentences_lists_each_once(self, translator):
        """A source of its EOS alone has a canvas of one position, whose sentences are four pieces and the empty one."""
        decoding = translator.resolved(Decoding(prefix_beam=8, n_best=8, rerank="causal", **HOW))
        (tokens,), _ = translator.loaded.source_tokens(TEXTS[:1], False)
        sources = [SourceSentence("", [EOS]), SourceSentence(TEXTS[0], tokens)]
        few, many = translator.batch_translator(decoding, trace=True)(sources)
        assert few.hypotheses == 5 and many.hypotheses == 8 and len(scored(few)) == len(few.candidates)
        assert {each.length for each in few.candidates} <= {1, 2} and few.read_again

    def test_a_trace_ends_with_what_was_chosen(self, translator):
        for best in translator.translate(TEXTS, prefix_beam=3, trace=True, blank_penalty=MIXED, num_steps=4):
            assert best.trace[best.passes][0] == best.trace[-1][0]
            assert best.passes == 4 or best.trace[best.passes - 1] != best.trace[best.passes]

    def test_the_causal_side_orders_all_sentences(self, translator):
        own = translator.translate(TEXTS, n_best=3, prefix_beam=3, length_normalization=0.0, **HOW)
        chosen = translator.translate(TEXTS, n_best=3, prefix_beam=3, rerank="causal", **HOW)
        for one, other in zip(own, chosen, strict=True):
            assert {*scored(one)} == {*scored(other)}
            assert other.read_again and not one.read_again
            assert scored(one) != pytest.approx(scored(other), abs=1e-2)
            scores = [each.score for each in other.candidates]
            assert scores[1:] == sorted(scores[1:], reverse=True)  # a text without broken characters stands first

    def test_resolved_options_are_resolved_again(self, translator):
        """As a server does. A rule stays: a template, or a writer of one's own, may give a draft several hypotheses."""
        once = translator.resolved(Decoding(rerank="causal"))
        assert translator.resolved(once) == once and once.ranker == CausalScore()


def test_blanks_are_written_by_ctc_models_alone(translator, tokenizer):
    assert translator.model.ids.blank not in translator.model.ids.special
    other = random_translator(tokenizer).model.ids
    assert translator.model.ids.blank in other.special


def test_repeats_are_not_dropped_twice(translator):
    for strategy in (Padir(), MaskPredict()):
        assert not translator.resolved(Decoding(strategy=strategy)).drops_repeats
    ((decoding,),) = ways([("m", translator)], [Decoding()])
    assert decoding.drop_repeats is False


def test_a_source_has_half_the_positions_of_the_canvas(translator):
    """The limit that the server states is that of the tokens that are read: two positions for each, and for EOS."""
    loaded = translator.loaded
    assert loaded.longest_source == loaded.card.config.max_length // 2 - 1
    tokens, cut = loaded.source_tokens(["eins " * 60], truncate=True)
    assert len(tokens[0]) == loaded.longest_source + 1 and cut == {0}

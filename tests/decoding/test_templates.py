"""Templates: fixed text of a translation, with gaps of known and unknown length, and prefixes."""

import logging

import numpy as np
import pytest
from support.tiny_model import one_shape_translator, random_model_dir, random_translator, same

from padir.decoding.autoregressive import write_targets
from padir.decoding.search import Beam
from padir.decoding.templates import Template
from padir.refinement import EasyFirst, Mask, MaskPredict, Rejecter, Threshold
from padir.translator import rescorer

TEXTS = ["eins zwei", "drei vier fünf sechs"]


def parts(text, tokenizer):
    made = Template.parse(text, tokenizer).parts
    return [part if isinstance(part, int) else tokenizer.decode(part) for part in made]


def test_text_and_gaps_take_turns(tokenizer):
    assert parts("one ___ two", tokenizer) == ["one", 0, "two"]
    assert parts("__2__one, ____.", tokenizer) == [2, "one,", 0, "."]
    assert parts("one two ___", tokenizer) == ["one two", 0]
    assert tokenizer.encode("one.")[1:] == list(Template.parse("___.", tokenizer).parts[1])  # without a space


def test_rows_share_out_the_positions():
    template = Template((0, (7,), 2, (8,), 0))
    assert (template.least, template.length(3), template.length(9)) == (7, 7, 9)
    assert template.rows(8) == [[0, 7, 0, 0, 8, 0, 0, 0], [0, 0, 7, 0, 0, 8, 0, 0]]
    assert len(template.rows(60)) <= 8 and len({sum(map(bool, row)) for row in template.rows(60)}) == 1
    first_gaps = [row.index(7) for row in Template((0, (7,), 0, (8,), 0, (9,), 0)).rows(100)]
    assert len(first_gaps) == 8 and first_gaps[0] == 1 and first_gaps[-1] > 40  # not the first of 129,766 ways
    assert Template(((7,), 2)).length(9) == 4 and Template(((7,), 2)).rows(4) == [[7, 0, 0, 0]]
    assert Template(((7,), 0)).prefix == (7,) and Template((0, (7,))).prefix is None


MODELS = {
    "padir": ({}, {"num_lengths": 3}),
    "one pass": ({}, {"num_steps": 1}),
    "masks": ({"corruption": Mask(), "strategy": MaskPredict()}, {"num_drafts": 1}),
    "easy first": ({"corruption": Mask(), "strategy": EasyFirst(), "decontextualised": True}, {}),
    "threshold": ({"corruption": Mask(), "strategy": Threshold(0.5)}, {}),
    "rejecter": ({"strategy": Rejecter(), "rejecter": True}, {}),
    "dual": ({"dual": True}, {"rerank": "causal", "num_lengths": 3}),
}


@pytest.mark.parametrize(
    ("parts", "held", "lacking"),
    [
        (((7, 8), 0), [(7, 8), (7, 8, 9)], [(7,), (9, 7, 8)]),
        ((0, (7,)), [(7,), (9, 9, 7)], [(7, 9)]),
        (((7,), 2, (8,)), [(7, 1, 2, 8), (7, 7, 7, 8)], [(7, 1, 8), (7, 1, 2, 3, 8)]),
        (((7,), 0, (8, 9), 1), [(7, 8, 9, 8), (7, 8, 9, 8, 9, 3)], [(7, 8, 9), (7, 9, 8, 3)]),
        (((46, 42), 0), [(46, 42, 3)], [(46, 46, 42)]),  # the characters . and *
        (((10,), 0), [(10, 10)], [(11, 10)]),  # a line end
    ],
)
def test_held_text_stands_at_its_places(parts, held, lacking):
    template = Template(parts)
    assert all(map(template.is_held, held)) and not any(map(template.is_held, lacking))


def test_a_template_of_many_equal_parts_is_read_in_time():
    """A match that tried every way to share out the gaps would take years."""
    template = Template(((7, 8), 0) * 40 + ((9,),))
    assert template.is_held([7, 8, 5, 5] * 40 + [9])
    assert not template.is_held([7, 8, 5, 5] * 40 + [9, 5])
    assert not template.is_held([7, 8, 5, 5] * 39 + [9])
    assert Template((0, (7,), 0, (7, 8))).is_held([7, 7, 8]) and not Template((0, (7, 8), 0, (8,))).is_held([7, 8])


@pytest.mark.parametrize("name", MODELS)
def test_every_strategy_holds_the_words(tokenizer, name):
    sizes, options = MODELS[name]
    translator = one_shape_translator(tokenizer, **sizes)
    templates = ["one ___ seven nine", "___ eight", "__1__ zero zero __2__", "one __1__"]
    results = translator.translate(2 * TEXTS, template=templates, **options)
    for template, result in zip(templates, results, strict=True):
        begin = 0
        for part in (part for part in parts(template, tokenizer) if isinstance(part, str)):
            begin = result.text.index(part, begin) + len(part)
    assert [each.length for each in results[2:]] == [6, 3]  # the words and the gaps, with EOS: none is predicted


def test_repeats_in_a_template_are_kept_for_its_own_sentence(tokenizer):
    translator, own = random_translator(tokenizer), "one ___"
    (alone,) = translator.translate(TEXTS[:1], template=[own], num_steps=1)
    beside = translator.translate(TEXTS[:2], template=[own, "two two three three ___"], num_steps=1)
    (whole,) = translator.translate(TEXTS[:1], template=[own], num_steps=1, drop_repeats=False)
    assert beside[0].text == alone.text != whole.text
    assert beside[1].text.startswith("two two three three")


def test_the_rule_chooses_among_ways_to_share_out_the_gaps(tokenizer, tmp_path):
    translator = one_shape_translator(tokenizer, dual=True)
    options = {"num_steps": 1, "length_normalization": 0.5}
    found = translator.translate(TEXTS, template="one ___ seven ___", rerank="causal", **options)
    assert all(each.hypotheses > 1 and each.read_again for each in found)
    own = translator.translate(TEXTS, template="one ___ seven ___", **options)
    assert not any(each.read_again for each in own)
    model = str(random_model_dir(tmp_path, causal=True))
    named, given = (
        translator.translate(TEXTS, template="one ___ seven ___", rerank=rule, num_steps=1)
        for rule in (model, rescorer(model))
    )
    same(named, given)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [({"causal": True}, {"beam": 3}), ({"causal": True}, {"beam": 1}), ({"dual": True}, {"mode": "causal"})]
    + [({"causal": True}, {"temperature": 1.0, "num_drafts": 3})]
    + [({"readout": "ctc", "dual": True, "max_length": 32}, options) for options in ({}, {"mode": "causal"})],
)
def test_a_search_begins_with_the_prefix(tokenizer, sizes, options):
    translator = one_shape_translator(tokenizer, **sizes)
    results = translator.translate(TEXTS, template=["seven eight ___", "one ___"], **options)
    assert results[0].text.startswith("seven eight") and results[1].text.startswith("one")
    assert results[0].length > 3


def test_the_prefix_that_a_search_would_write_changes_nothing(tokenizer):
    loaded = random_translator(tokenizer, causal=True, max_length=16).loaded
    source_BS, limit_B = loaded.padded(loaded.source_tokens(TEXTS, False)[0], 2), np.array([12, 16])
    how = {"search": Beam(1), "max_length": 16, "seed": 0}
    rows, score_BN, _ = write_targets(loaded.model, loaded.params, source_BS, limit_B, **how)
    prefix_BL = np.where(np.arange(16) < 3, np.asarray(rows.tokens_BNL)[:, 0], 0)
    again, score_again_BN, _ = write_targets(
        loaded.model, loaded.params, source_BS, limit_B, **how, prefix_BL=prefix_BL
    )
    assert (np.asarray(again.tokens_BNL) == np.asarray(rows.tokens_BNL)).all()
    assert np.asarray(score_again_BN) == pytest.approx(np.asarray(score_BN), abs=1e-5)


def test_a_mode_that_cannot_hold_the_words_gives_way(tokenizer, caplog):
    translator = one_shape_translator(tokenizer, dual=True)
    with caplog.at_level(logging.WARNING, "padir"):
        (result,) = translator.translate(TEXTS[:1], template="___ one", mode="causal")
        assert result.text.endswith("one") and "in the mode 'refine', because 'causal'" in caplog.text
        random_translator(tokenizer, readout="ctc", dual=True, max_length=32).translate(TEXTS[:1], template="one ___")
        assert "in the mode 'causal', because 'refine'" in caplog.text

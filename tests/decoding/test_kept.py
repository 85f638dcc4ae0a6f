"""`Decoding.placeholders`: spans stand in every translation, even of models that have learned nothing."""

import dataclasses
import html
import itertools
import re

import pytest
from support.markup import well_formed
from support.small_corpus import letters_tokenizer
from support.tiny_model import one_shape_translator, random_translator, same

from padir.constrained.placeholders import _led_by_best
from padir.decoding import Decoding
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.templates import Template
from padir.decoding.translation import Translation
from padir.refinement import Mask
from padir.text.marks import mark
from padir.text.spans import MARKS
from padir.translator import Translator

KEEP = ("tags", "urls", "numbers", "Zeta|Eta")
TEXTS = [
    "<b>eins</b> zwei <i>drei</i>",
    "vier www.x.org fünf a@b.de",
    "acht 17:30 {n} Zeta",
    "Zeta Eta",
    "eins zwei",
    "",
]
SPANS = re.compile(r"</?[bi]>|www\.x\.org|a@b\.de|17:30|\{n\}|Zeta|Eta")
MODELS = {
    "refine": ({}, {"num_lengths": 3}),
    "one pass": ({}, {"num_steps": 1, "drop_repeats": False, "batch_size": 1}),
    "ctc, dual": ({"readout": "ctc", "dual": True, "max_length": 32}, {"batch_size": 1}),
    "causal": ({"causal": True}, {"beam": 3, "batch_size": 1}),
    "sampled": ({"causal": True}, {"temperature": 1.0, "num_drafts": 3}),
    "dual, causal": ({"dual": True}, {"mode": "causal", "batch_size": 1}),
    "dual, drafts": ({"dual": True}, {"num_drafts": 2}),
}


def kept(text):
    return sorted(SPANS.findall(text))


@pytest.mark.parametrize(("name", "placeholders"), [*((name, True) for name in MODELS), ("refine", False)])
def test_every_mode_keeps_every_span(tokenizer, name, placeholders):
    """Models without placeholders: `test_writers.py`."""
    sizes, options = MODELS[name]
    corruption = {"corruption": Mask()} if "ctc" in name else {}
    vocabulary = tokenizer.with_placeholders() if placeholders else tokenizer
    translator = one_shape_translator(vocabulary, **corruption, **sizes)
    results = translator.translate(TEXTS, placeholders=KEEP, **options)
    for text, result in zip(TEXTS, results, strict=True):
        assert kept(result.text) == kept(text), result.text
        assert result.whole_text is None or kept(result.whole_text) == kept(text), result.whole_text
        assert well_formed("".join(re.findall("</?[bi]>", result.text)))
    assert results[3].text == "Zeta Eta" and results[3].passes == 0  # no words to translate
    same(results[4:], translator.translate(TEXTS[4:], **options))


@pytest.mark.parametrize("name", ["refine", "sampled"])
def test_no_placeholder_is_left_that_the_source_lacks(tokenizer, name):
    """Models that have learned nothing write many."""
    sizes, options = MODELS[name]
    translator = one_shape_translator(tokenizer.with_placeholders(), max_length=8, **sizes)
    options = options | ({"n_best": 3} if name == "refine" else {})
    words = "eins zwei drei vier fünf sechs sieben acht".split()
    texts = [f"{a} {b} {a}" for a in words for b in words[:4]]  # a batch
    for placeholders, added in ((), ""), ("tags", f" {MARKS[3]}"):
        found = translator.translate([text + added for text in texts], placeholders=placeholders, **options)
        every = [[each.text, each.whole_text or "", *(other.text for other in each.candidates)] for each in found]
        assert not {*"".join(itertools.chain(*every))} & ({*MARKS} - {*added})


def test_a_candidate_that_kept_all_spans_wins(tokenizer):
    translator = one_shape_translator(tokenizer)
    plain = translator.translate(["acht 17"], num_lengths=3, n_best=3)[0]
    result = translator.translate(["acht 17"], num_lengths=3, n_best=3, placeholders="numbers")[0]
    assert "17" in result.text and "17" not in plain.text
    assert result.text == result.candidates[0].text and all("17" in each.text for each in result.candidates)


def test_a_whole_candidate_wins_over_a_broken_one_that_kept_all_spans():
    broken = Translation("eight 17", 0.0, 3, 1, broken=1)
    whole = dataclasses.replace(broken, text="eight", broken=0)
    listed = dataclasses.replace(broken, candidates=(broken, whole))
    assert _led_by_best(listed, mark("acht 17", ["numbers"], placeholders=False)).text == "eight"


def run(translator, decoding, *sources):
    """The translations of a batch, with the marks that the model read and wrote."""
    decoding = translator.resolved(decoding)
    return translator.batch_translator(decoding)(sources)


@pytest.mark.parametrize("sizes", [{"causal": True}, {"dual": True}], ids=str)
def test_what_lost_a_mark_is_written_on_from_left_to_right_after_it(tokenizer, sizes):
    translator = random_translator(tokenizer.with_placeholders(), **sizes)
    translator.decoding = dataclasses.replace(translator.decoding, length_penalty=0.0)  # of the model's own options
    text = f"acht {MARKS[0]}"
    (tokens,), _ = translator.loaded.source_tokens([text], truncate=False)
    (first,) = run(translator, translator.decoding, SourceSentence(text, tokens))
    result, both = translator.translate(["acht www.x.org", "acht www.x.org a@b.de"], placeholders="urls")
    begun = result.text.partition("www.x.org")[0].strip()
    assert MARKS[0] not in first.text and begun and first.text.startswith(begun)
    prefix = Template((tuple(translator.tokenizer.encode(f"{begun} {MARKS[0]}")), 0))
    (again,) = run(translator, Decoding(length_penalty=0.0), SourceSentence(text, tokens, template=prefix))
    assert result.text == again.text.replace(MARKS[0], "www.x.org", 1).replace(MARKS[0], "")
    assert result.passes == first.passes + again.passes and result.score == pytest.approx(again.score, abs=1e-4)
    assert both.text.count("www.x.org") == both.text.count("a@b.de") == 1
    assert both.passes > first.passes + 2 * again.passes - 4  # written again for each of the two


def test_what_is_written_again_leads_the_candidates(tokenizer):
    translator = one_shape_translator(tokenizer.with_placeholders(), dual=True)
    how = {"placeholders": "urls", "n_best": 3, "num_lengths": 3, "trace": True}
    again, other = translator.translate(["acht www.x.org", "acht"], **how)
    first = again.candidates[0]
    assert (first.text, first.score, first.length) == (again.text, again.score, again.length)
    assert len(again.candidates) == 3
    assert again.trace is None and other.trace is not None


@pytest.mark.parametrize(
    "sizes", [{"causal": True, "max_length": 8}, {"readout": "ctc", "dual": True, "max_length": 20}], ids=str
)
def test_marks_beyond_the_end_of_a_cut_source_are_placed_and_not_forced(tokenizer, sizes):
    corruption = {} if "causal" in sizes else {"corruption": Mask()}
    translator = random_translator(tokenizer.with_placeholders(), **corruption, **sizes)
    text = "eins " * 10
    how = {"placeholders": "urls", "truncate": True, "mode": "causal"}
    plain, kept = translator.translate([text, text + "www.x.org"], **how)
    assert kept.passes == plain.passes and kept.text.replace("www.x.org", "").split() == plain.text.split()


def test_marks_that_the_vocabulary_lacks_are_placed_and_not_forced():
    translator = random_translator(letters_tokenizer(), causal=True)
    (result,) = translator.translate(["eins www.x.org"], placeholders="urls")
    assert result.text.count("www.x.org") == 1


def test_a_saved_model_knows_its_placeholders(tokenizer, tmp_path):
    translator = random_translator(tokenizer.with_placeholders(), max_length=16)
    translator.save(tmp_path / "model")
    again = Translator.load(tmp_path / "model")
    assert again.card.ids == translator.card.ids and again.card.ids.num_placeholders == 16
    same(again.translate(TEXTS, placeholders=KEEP), translator.translate(TEXTS, placeholders=KEEP))


def test_a_placeholder_is_a_token_of_a_ctc_model_like_others(tokenizer):
    translator = random_translator(tokenizer.with_placeholders(), readout="ctc", max_length=16)
    assert translator.translate([f"eins {MARKS[0]}"])[0].passes > 0


@pytest.mark.parametrize("how", [{}, {"mode": "refine"}], ids=str)
def test_entities_are_read_as_their_characters(how):
    translator = Translator.load("de_en")
    plain = ["Das Haus & der Garten sind schön.", "Schöne Grüße.", 'Er sagte "Hallo".', "Das ist unglaublich alt."]
    written = [
        "Das Haus &amp; der Garten sind sch&ouml;n.",
        "Sch&#246;ne Gr&uuml;&szlig;e.",
        "Er sagte &quot;Hallo&quot;.",
    ]
    expected = [each.text for each in translator.translate(plain, **how)]
    results = translator.translate([*written, "Das ist un<b>glaub</b>lich alt."], placeholders="tags", **how)
    assert [html.unescape(each.text) for each in results[:3]] == expected[:3]
    assert "&amp;" in results[0].text and results[2].text.count("&quot;") == 2
    assert re.sub("</?b>", "", results[3].text) == expected[3] and re.search(r"(^| )<b>\w+</b>", results[3].text)


def test_one_kind_is_a_tuple_of_one():
    assert Decoding(placeholders=["tags"]).placeholders == Decoding(placeholders="tags").placeholders == ("tags",)

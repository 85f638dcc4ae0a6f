"""Terms: target words that must stand where source words stand."""

import re

import numpy as np
import pytest
from support.refusals import refuses
from support.small_corpus import letters_tokenizer
from support.tiny_model import one_shape_translator, random_translator, same

from padir import Decoding, Translation, Translator
from padir.constrained.terms import _edits, missing, read_terms, terms_of
from padir.decoding.shortlist import Shortlist
from padir.text.spans import edited

TERMS = {"eins": "seven", "zwei drei": "zero nine", "Zehn": "ten"}
TEXTS = ["eins zwei drei", "vier zwei drei fünf eins", "sechs", "zehn", "", "einstein"]


def test_missing_terms_are_found():
    assert missing(TERMS, "Eins, zwei drei", "Seven") == [(6, 15, "zero nine")]
    assert missing({"Haus": "home", "Haus am See": "lake house"}, "Haus am See", "the house") == [(0, 11, "lake house")]
    terms, source = {"Haus": "house", "Haus am See": "lake house"}, "Das Haus am See ist kein Haus"
    assert missing(terms, source, "") == [(4, 15, "lake house"), (25, 29, "house")]
    assert missing({"Hund": "dog", "Köter": "dog"}, "Hund und Köter", "dog and cur") == [(9, 14, "dog")]
    terms, source = {"Vertrag": "agreement", "Vertragsstrafe": "agreement penalty"}, "Vertrag und Vertragsstrafe"
    assert missing(terms, source, "The agreement penalty") == [(0, 7, "agreement")]
    assert missing({"桌面": "desktop"}, "使用桌面环境", "use it") == [(2, 4, "desktop")]
    assert missing({"Haus": "house"}, "Hausboot", "boat") == [] == missing({"Haus": "house"}, "Haus", "A HOUSE.")


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({}, {"num_lengths": 3}),
        ({}, {"num_steps": 1}),
        ({"dual": True}, {"rerank": "causal", "num_lengths": 3, "length_normalization": 2.0}),
        ({"dual": True}, {"mode": "causal"}),
        ({"causal": True}, {"beam": 2}),
        ({"readout": "ctc", "dual": True, "max_length": 32}, {}),
    ],
)
def test_every_term_stands_in_every_mode(tokenizer, sizes, options):
    translator = one_shape_translator(tokenizer, **sizes)
    results = translator.translate(TEXTS, terms=TERMS, **options)
    assert [missing(TERMS, text, result.text) for text, result in zip(TEXTS, results, strict=True)] == [[]] * 6
    plain = translator.translate(TEXTS, **options)
    same([results[i] for i in (2, 4, 5)], [plain[i] for i in (2, 4, 5)])
    assert [each.passes for each in results] == [each.passes for each in plain]  # nothing is written again


def test_terms_may_have_characters_that_the_vocabulary_lacks():
    results = random_translator(letters_tokenizer()).translate(["eins zwei", "vier eins"], terms={"eins": "漢字"})
    assert all(result.text.count("漢字") == 1 and "⁇" not in result.text for result in results)


def test_terms_may_be_outside_a_shortlist(tokenizer):
    ids_N = np.arange(tokenizer.ids.end_regular, dtype=np.int32)
    shortlist = Shortlist(tokenizer.sha256, ids_N[:, None], ids_N[:0], 0)
    (result,) = one_shape_translator(tokenizer).translate(TEXTS[:1], terms=TERMS, shortlist=shortlist)
    assert missing(TERMS, TEXTS[0], result.text) == []


@pytest.mark.parametrize("sizes", [{"causal": True}, {}], ids=str)
@pytest.mark.parametrize("placeholders", [(), ("urls",)])
def test_terms_are_not_sought_where_a_source_was_cut(tokenizer, sizes, placeholders):
    translator = one_shape_translator(tokenizer, **sizes)
    text = f"vier {'www.xyz.org/abc' * bool(placeholders)} eins " + "zwei " * 20 + "acht"
    how = {"terms": {"eins": "seven", "acht": "eleven"}, "placeholders": placeholders, "truncate": True}
    (result,) = translator.translate([text], **how)
    assert result.truncated and "seven" in result.text and "eleven" not in result.text


def test_terms_and_spans_stand_together(tokenizer):
    translator = one_shape_translator(tokenizer)
    (result,) = translator.translate(["eins <b>vier</b> www.x.org"], terms=TERMS, placeholders=("tags", "urls"))
    assert all(result.text.count(each) == 1 for each in ("<b>", "</b>", "www.x.org")) and "seven" in result.text
    assert result.whole_text is None  # it would have no terms


def test_a_term_of_another_source_blocks_no_place(tokenizer, monkeypatch):
    translator = random_translator(tokenizer, causal=True)
    monkeypatch.setattr(translator, "links", lambda *_: [[0, 1, 2, 3, 4]])
    terms = [{"Vertrag": "agreement", "Auftrag": "contract"}]
    results = [Translation("The contract is good.", 0.0, 6, 6)]
    (edits,) = _edits(translator, ["Der Vertrag ist gut."], results, Decoding(), terms).values()
    assert edited(results[0].text, edits) == "The agreement is good."


@pytest.mark.parametrize("model", ["de_en", "de_en_ar"])
def test_a_model_reads_no_spans_when_it_places_terms(model):
    source = 'Klicken Sie <a href="https://www.example.org/Seite/5">hier</a>, um den Vertrag zu lesen.'
    placeholders, terms = ("tags", "urls"), {"Vertrag": "covenant", "Seite": "page"}
    translator = Translator.load(model)
    (plain,) = translator.translate([source], placeholders=placeholders)
    (result,) = translator.translate([source], placeholders=placeholders, terms=terms)
    for span in ('<a href="https://www.example.org/Seite/5">', "</a>", "example", "covenant"):
        assert result.text.count(span) == 1
    assert "page" not in result.text  # a word of an address is no term
    assert result.passes == plain.passes  # the sentence is not translated again
    (result,) = translator.translate(
        ["Der Hund &amp; der Vertrag"], placeholders="tags", terms=terms | {"amp": "volt", "Hund": "hound"}
    )
    assert "&amp;" in result.text and "covenant" in result.text and "hound" in result.text and "volt" not in result.text


def test_white_space_around_terms_is_left_out():
    assert terms_of({" Tu\u0308r\u00a0": " a  door "}, 2, 0) == [{"T\u00fcr": "a  door"}] * 2


def test_terms_of_each_sentence(tokenizer):
    translator = random_translator(tokenizer, max_length=24)
    one, two = translator.translate(["Eins!", "Zwei."], terms={"eins": "seven"}, num_steps=1)
    (both,) = translator.translate(["Eins! Zwei."], terms={"eins": "seven"}, num_steps=1, split=True)
    assert "seven" in one.text and both.text == f"{one.text} {two.text}"


def test_terms_are_found_in_any_case():
    """As `re.IGNORECASE` finds them, also letters whose cases have several forms."""
    terms = {
        "maß": "MAß",
        "ſaal": "SAAL",
        "İzmir": "i̇zmir",
        "Σοφός": "ΣΟΦΟΣ",
        "kelvin": "\u212aelvin",
        "ẞ": "ß",
        "µ": "μ",
        "İstanbul": "Istanbul",
        "istanbul": "İSTANBUL",
        "ısı": "ISI",
        "sk": "ſ\u212a",
    }
    for own, text in terms.items():
        found = missing({own: "x"}, f"Das {text} hier", "none")
        assert bool(found) == bool(re.search(re.escape(own), text, re.IGNORECASE)), own
    assert len(missing({"saal": "x"}, "Ein Saal", "none")) == 1


def test_a_file_of_terms(tmp_path):
    text = "\ufeffVertrag\tagreement\n\n das Haus \t the home\r\nein\u2028Tag\ta day\n"
    (tmp_path / "terms.tsv").write_text(text, encoding="utf-8", newline="")
    assert read_terms(tmp_path / "terms.tsv") == {
        "Vertrag": "agreement",
        "das Haus": "the home",
        "ein\u2028Tag": "a day",
    }
    (tmp_path / "wrong.tsv").write_text("Vertrag\tagreement\nHaus house\n")
    (tmp_path / "twice.tsv").write_text("Haus\thouse\nHaus\thome\n")
    for name, words in (
        ("wrong.tsv", "line 2 must be SOURCE, a tab and TARGET, got 'Haus house'"),
        ("twice.tsv", "line 2 ... of no earlier line, got 'Haus'"),
        ("none.tsv", "cannot read the terms"),
    ):
        refuses(read_terms, words, tmp_path / name)

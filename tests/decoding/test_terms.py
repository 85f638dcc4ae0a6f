"""Terms: target words that must stand where source words stand."""

import numpy as np
import pytest
from support.tiny_model import random_translator, same

from padir import Decoding, Translation, Translator
from padir.decoding.shortlist import Shortlist
from padir.decoding.terms import _edits, missing, read_terms
from padir.errors import PadirError
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
    ("sizes", "options", "again"),
    [
        ({}, {"num_lengths": 3}, True),
        ({}, {"num_steps": 1}, True),
        ({"dual": True}, {"rerank": "causal", "num_lengths": 3, "length_normalization": 2.0}, True),
        ({"dual": True}, {"mode": "causal"}, False),
        ({"causal": True}, {"beam": 2}, False),
        ({"readout": "ctc", "dual": True, "max_length": 48}, {}, False),
    ],
)
def test_every_term_stands_in_every_mode(tokenizer, sizes, options, again):
    translator = random_translator(tokenizer, **({"max_length": 32} | sizes))
    results = translator.translate(TEXTS, terms=TERMS, **options)
    assert [missing(TERMS, text, result.text) for text, result in zip(TEXTS, results, strict=True)] == [[]] * 6
    plain = translator.translate(TEXTS, **options)
    same([results[i] for i in (2, 4, 5)], [plain[i] for i in (2, 4, 5)])
    assert (results[0].passes > plain[0].passes) == again


def test_terms_may_be_outside_a_shortlist(tokenizer):
    ids_N = np.arange(tokenizer.ids.end_regular, dtype=np.int32)
    shortlist = Shortlist(tokenizer.sha256, ids_N[:, None], ids_N[:0], 0)
    (result,) = random_translator(tokenizer).translate(TEXTS[:1], terms=TERMS, shortlist=shortlist)
    assert missing(TERMS, TEXTS[0], result.text) == []


@pytest.mark.parametrize("sizes", [{"causal": True}, {}], ids=str)
@pytest.mark.parametrize("placeholders", [(), ("urls",)])
def test_terms_are_not_sought_where_a_source_was_cut(tokenizer, sizes, placeholders):
    translator = random_translator(tokenizer, max_length=12, **sizes)
    text = f"vier {'www.xyz.org/abc' * bool(placeholders)} eins " + "zwei " * 20 + "acht"
    how = {"terms": {"eins": "seven", "acht": "eleven"}, "placeholders": placeholders, "truncate": True}
    (result,) = translator.translate([text], **how)
    assert result.truncated and "seven" in result.text and "eleven" not in result.text


def test_terms_and_spans_stand_together(tokenizer):
    translator = random_translator(tokenizer, max_length=48)
    (result,) = translator.translate(["eins <b>vier</b> www.x.org"], terms=TERMS, placeholders=("tags", "urls"))
    assert all(result.text.count(each) == 1 for each in ("<b>", "</b>", "www.x.org")) and "seven" in result.text


def test_a_term_of_another_source_blocks_no_place(tokenizer, monkeypatch):
    translator = random_translator(tokenizer, causal=True)
    monkeypatch.setattr("padir.decoding.terms.links", lambda *_: [[0, 1, 2, 3, 4]])
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


def test_a_file_of_terms(tmp_path):
    (tmp_path / "terms.tsv").write_text("\ufeffVertrag\tagreement\n\n das Haus \t the home\n", encoding="utf-8")
    assert read_terms(tmp_path / "terms.tsv") == {"Vertrag": "agreement", "das Haus": "the home"}
    (tmp_path / "wrong.tsv").write_text("Vertrag\tagreement\nHaus house\n")
    with pytest.raises(PadirError, match=r"wrong.tsv, line 2 must be SOURCE, a tab and TARGET, got 'Haus house'"):
        read_terms(tmp_path / "wrong.tsv")
    (tmp_path / "twice.tsv").write_text("Haus\thouse\nHaus\thome\n")
    with pytest.raises(PadirError, match=r"twice.tsv, line 2 must be source words of no earlier line, got 'Haus'"):
        read_terms(tmp_path / "twice.tsv")
    with pytest.raises(PadirError, match="cannot read the terms"):
        read_terms(tmp_path / "none.tsv")


def test_what_cannot_be_held_is_refused(tokenizer):
    translator = random_translator(tokenizer)
    with pytest.raises(PadirError, match="differ by more than their case"):
        translator.translate(TEXTS, terms={"Eins": "one", "eins": "two"})
    with pytest.raises(PadirError, match=r"terms must be in \[0, 100000\], got 100001"):
        translator.translate(TEXTS, terms={str(n): "x" for n in range(100_001)})
    with pytest.raises(PadirError, match="terms must be words on both sides"):
        translator.translate(TEXTS, terms={"eins": ""})
    with pytest.raises(PadirError, match="terms must be words of one line"):
        translator.translate(TEXTS, terms={"eins": "one\ntwo"})
    with pytest.raises(PadirError, match="n_best lists candidates without the terms"):
        translator.translate(TEXTS, terms=TERMS, n_best=2, num_lengths=2)
    with pytest.raises(PadirError, match="terms and target_lengths exclude each other"):
        translator.translate(TEXTS, terms=TERMS, target_lengths=[3] * 6)
    with pytest.raises(PadirError, match="6 texts need 6 mappings of terms or one, got 1"):
        translator.translate(TEXTS, terms=[TERMS])
    with pytest.raises(PadirError, match="a template and terms exclude each other"):
        translator.translate(TEXTS, terms=TERMS, template="one ___")
    with pytest.raises(PadirError, match="a CTC model cannot align words"):
        random_translator(tokenizer, readout="ctc", max_length=48).translate(TEXTS, terms=TERMS)

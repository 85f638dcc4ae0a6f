"""Every way into a model reads a sentence in the same plain form, and what stood around it comes back."""

import dataclasses

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from support.odd_text import odd_lines
from support.serving import engine_of
from support.small_corpus import Listed
from support.tiny_model import random_translator

from padir.data.prepare import prepare
from padir.data.prepared import LengthLimits
from padir.decoding import Decoding
from padir.decoding.loaded import LoadedModel
from padir.models.directory import ModelCard
from padir.serve.messages import Limits, TranslateRequest
from padir.translator import Translator

ODD = odd_lines(2_000)


@pytest.fixture(scope="module")
def translator(tokenizer):
    return random_translator(tokenizer, max_length=200)


class Recorded(Exception):
    """Ends a translation before the model is used."""


def test_every_command_reads_the_same_ids(tmp_path, monkeypatch, tokenizer, translator):
    """Records of `prepare`, and the sentences that `Translator` and `padir serve` tokenise."""
    prepare(Listed(tuple((line, line) for line in ODD)), tokenizer, tmp_path, LengthLimits(500, 500), progress=False)
    records = ArrayRecordReader(str(tmp_path / "train-00000-of-00001.arrayrecord")).read_all()
    prepared = [np.frombuffer(record, "<i4").tolist() for record in records]
    expected = [tokenizer.normalised(line).text for line in ODD]
    ids = [[*tokenizer.encode(text), 1] for text in expected if text]
    assert prepared == [[len(each), *each, *each] for each in ids]

    read = []

    def record(self, texts, truncate):
        read.extend(texts)
        if len(read) == len(ODD):
            raise Recorded
        return [[1]] * len(texts), set()  # the server reads one by one

    monkeypatch.setattr(LoadedModel, "source_tokens", record)
    engine = engine_of(translator, limits=Limits(max_sentences=len(ODD), max_queue=2 * len(ODD)))
    engine.state = "ready"
    for way in (
        translator.translate,
        lambda texts: engine.prepare(TranslateRequest(tuple(texts))),
    ):
        read.clear()
        with pytest.raises(Recorded):
            way(ODD)
        assert read == expected


def test_what_stood_around_comes_back(translator):
    options = Decoding(num_steps=2, num_lengths=3, n_best=2)
    (plain,) = translator.translate(["eins zwei drei"], options)
    (odd,) = translator.translate(["\t- **eins\u00a0zwei drei** \U0001f600"], options)
    assert odd.text == f"\t- **{plain.text}** \U0001f600"
    assert odd.candidates == plain.rewritten(lambda text: f"\t- **{text}** \U0001f600").candidates
    assert dataclasses.replace(odd, text="", candidates=(), whole_text="") == dataclasses.replace(
        plain, text="", candidates=(), whole_text=""
    )
    assert odd.whole_text == f"\t- **{plain.whole_text}** \U0001f600"


def test_capitals_come_back(tokenizer, translator):
    text = "EINS ZWEI <b>DREI</b> VIER"
    read = tokenizer.normalised(text, ["tags"])
    assert read.text != text and read.capitals
    (expected,) = translator.translate([read.text], placeholders="tags")
    (result,) = translator.translate([text], placeholders="tags")
    assert result.text.count("<b>") == result.text.count("</b>") == 1
    assert result.text.upper() == expected.text.upper()
    assert result.text.replace("<b>", "").replace("</b>", "").isupper()


@pytest.mark.parametrize("text, result", [("- 5 \U0001f600", "- 5 \U0001f600"), ("\u200b \t", ""), ("a\x1b) ", None)])
def test_what_has_no_letter_is_not_translated(translator, text, result):
    (made,) = translator.translate([text])
    if result is not None:
        assert (made.text, made.passes, made.score) == (result, 0, 0.0)
    assert "\x1b" not in made.text


def test_alignments_count_the_words_around(translator):
    (plain, odd) = translator.translate(["eins zwei", "- \u2022 *eins zwei*"], align=True)
    assert plain.alignment
    assert odd.alignment == tuple((source + 2, target + 2) for source, target in plain.alignment)
    assert translator.align(["> eins"], ["> one"]) == [
        [(s + 1, t + 1) for s, t in pairs] for pairs in translator.align(["eins"], ["one"])
    ]


def test_scores_and_lengths_are_of_the_plain_form(tokenizer):
    dual = random_translator(tokenizer, dual=True)
    assert dual.score(["- eins\u00a0zwei"], ["one\u200btwo"]) == dual.score(["eins zwei"], ["one two"])
    one, other, marked, plain = dual.score(["zwei"] * 4, ["42.", "43.", "**one**", "one"])
    assert one != other and marked != plain and one.tokens > 1  # given targets are not taken apart
    assert dual.loaded.plain_texts(["42"])[0].text == "42"
    assert dual.predict_lengths(["\teins *zwei*"]) == dual.predict_lengths(["eins zwei"])
    steps = [list(dual.steps(text, num_steps=2)) for text in ("eins zwei", "## eins zwei ")]
    assert steps[0] == steps[1]


def test_a_model_of_raw_text_reads_text_as_it_is(tokenizer, translator):
    raw = Translator(translator.params, dataclasses.replace(translator.card, text_form="raw"), tokenizer)
    read = [raw.loaded.normalised([text])[0].text for text in ("\t- **EINS ZWEI**", "---")]
    assert read == ["\t- **EINS ZWEI**", "---"]
    assert ModelCard.from_json(raw.card.to_json()).text_form == "raw"

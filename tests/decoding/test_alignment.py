"""Word alignments from cross-attention: units and words of texts, links of the shipped models."""

import dataclasses
import json

import numpy as np
import pytest
from support.tiny_model import random_translator

from padir import Translator
from padir.cli import main
from padir.decoding.alignment import _by_unit, _ends, _links_of, words
from padir.text.marks import units

PAIRS = [
    ("Tom hat drei Hunde.", "Tom has three dogs.", {(0, 0), (1, 1), (2, 2), (3, 3)}),
    ("Das Haus ist alt.", "The house is old.", {(0, 0), (1, 1), (2, 2), (3, 3)}),
    ("Wo ist mein Buch?", "Where is my book?", {(0, 0), (1, 1), (2, 2), (3, 3)}),
    ("Gestern habe ich Maria gesehen.", "I saw Maria yesterday.", {(2, 0), (4, 1), (3, 2), (0, 3)}),
    ("Heute kauft er Brot.", "He is buying bread today.", {(2, 0), (1, 2), (3, 3), (0, 4)}),
]


def test_tokens_are_joined_to_words(tokenizer):
    text = "eins zwei, ß"  # ß is spelt in bytes
    tokens = tokenizer.encode(text)
    assert _ends(tokenizer, tokens)[-1] == len(text)
    by_word = _by_unit(tokenizer, words(text), tokens)
    assert by_word.shape == (3, len(tokens))
    assert [tokenizer.pieces[tokens[i]] for i in np.flatnonzero(~by_word.any(0))] in ([], ["▁"])  # spaces alone
    for (begin, end), row in zip(words(text), by_word, strict=True):
        assert text[begin:end] in tokenizer.decode([tokens[i] for i in np.flatnonzero(row)])
    assert [text[begin:end] for begin, end in units(text)] == ["eins", "zwei", ",", "ß"]


@pytest.mark.parametrize("model", ["de_en", "de_en_ar"])
def test_shipped_models_align_plain_sentences(model):
    sources, targets, expected = zip(*PAIRS, strict=True)
    found = Translator.load(model).align(sources, targets)
    right = sum(len(links & {*made}) for links, made in zip(expected, found, strict=True))
    assert right >= 0.8 * sum(map(len, expected))
    assert all(
        [target for _, target in made] == [*range(len(t.split()))] for made, t in zip(found, targets, strict=True)
    )


@pytest.mark.parametrize("sizes", [{}, {"readout": "ctc", "dual": True, "max_length": 16}])
def test_a_translation_has_links_on_request(tokenizer, sizes):
    translator = random_translator(tokenizer, **{"max_length": 8} | sizes)
    plain, asked = (translator.translate(["eins zwei", ""], align=align) for align in (False, True))
    assert [dataclasses.replace(each, alignment=None) for each in asked] == plain
    assert [each.alignment for each in plain] == [None, None] and asked[1].alignment == ()
    assert [target for _, target in asked[0].alignment] == [*range(len(asked[0].text.split()))]
    assert {source for source, _ in asked[0].alignment} <= {0, 1}


def test_a_word_without_a_link_takes_one_from_a_word_with_several():
    weight_tu = np.array([[0.4, 0.5, 0.0], [0.1, 0.8, 0.0], [0.0, 0.0, 0.0]])
    assert _links_of(weight_tu) == [0, 1, -1] and _links_of(weight_tu / 2) == [0, 1, -1]
    assert _links_of(weight_tu[1:]) == [1, -1]  # the only link of a word stays
    assert _links_of(weight_tu * [0.5, 1, 1]) == [1, 1, -1]  # too weak
    assert _links_of(weight_tu * [[2], [0.5], [1]]) == [1, 1, -1]  # the strongest link of a word stays
    assert _links_of(weight_tu[:0]) == [] and _links_of(weight_tu[:, :0]) == [-1] * 3


def test_the_longest_translation_has_links(tokenizer):
    """Rows are multiples of 8, but not longer than the model takes."""
    (links,) = random_translator(tokenizer, max_length=20).align(["eins zwei"], ["one " * 18])
    assert links[-1][1] == 17


def test_the_command_writes_links(tmp_path, capsys):
    assert main(["translate", "--align", "--jsonl", "Tom hat drei Hunde."]) == 0
    row = json.loads(capsys.readouterr().out)
    links = [link.split("-") for link in row["alignment"].split()]
    assert [int(target) for _, target in links] == [*range(len(row["text"].split()))]
    assert main(["translate", "--align", "Tom"]) == 2
    assert "--align writes the links of words in JSON: give --jsonl" in capsys.readouterr().err


def test_a_text_that_is_too_long_is_cut_on_request(tokenizer):
    translator, long = random_translator(tokenizer, max_length=20), "eins " * 40
    for pair in ([long], ["one"]), (["eins"], ["one " * 40]):
        assert len(translator.align(*pair, truncate=True)) == 1
    (result,) = translator.translate([long], align=True, truncate=True)
    assert result.truncated and result.alignment

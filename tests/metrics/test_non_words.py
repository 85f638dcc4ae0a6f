"""Words outside a list, counted by hand."""

import pytest

from padir.errors import PadirError
from padir.metrics.non_words import count_known, non_words

TEXT = ["Two children play.", "The children’s dog plays, and two well-fed cats."]
OUTPUTS = ["two childrenren play play", "THE DOG, cats 12", "well-fed childrenren", ""]
REFERENCES = ["a dog", "two children", "the cats", "two dogs"]


def by_name(outputs=OUTPUTS, references=REFERENCES):
    return {metric.name: metric(outputs, references).value for metric in non_words(TEXT)}


def test_case_is_folded_and_hyphens_part_words():
    assert count_known(["It’s re-read", "IT'S Straße"]) == {"it's": 2, "re": 1, "read": 1, "strasse": 1}


def test_outputs_words_and_references():
    assert by_name() == {
        "non_words": 50.0,
        "non_words_by_word": pytest.approx(100 * 2 / 10),
        "non_words_2": 75.0,  # only "two" occurs twice
        "non_words_by_word_2": pytest.approx(100 * 9 / 10),
        "reference_non_words": 50.0,
        "reference_non_words_by_word": pytest.approx(100 * 2 / 8),
        "reference_non_words_2": 100.0,
        "reference_non_words_by_word_2": pytest.approx(100 * 6 / 8),
    }


def test_the_signature_says_what_the_list_is():
    signatures = {metric.name: metric([""], [""]).signature for metric in non_words(TEXT)}
    assert signatures["non_words"] == "case:folded|unit:output|list:11|count:1"
    assert signatures["non_words_by_word_2"] == "case:folded|unit:word|list:1|count:2"


def test_composed_and_decomposed_letters_are_one_word():
    assert count_known(["tre\u0300s"]) == count_known(["tr\u00e8s"]) == {"tr\u00e8s": 1}


def test_a_language_without_spaces_is_refused():
    with pytest.raises(PadirError, match="spaces between them, got text in 'zh'"):
        non_words(["你好"], "zh")


def test_text_without_words_is_refused():
    with pytest.raises(PadirError, match="at least one word"):
        non_words(["12 ...", ""])

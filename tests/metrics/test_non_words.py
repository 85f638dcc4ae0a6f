"""Words outside a list, counted by hand."""

import pytest

from padir.errors import PadirError
from padir.metrics.scores import non_words

TEXT = ["Two children play.", "The children’s dog plays, and two well-fed cats."]
OUTPUTS = ["two childrenren play play", "THE DOG, cats 12", "well-fed childrenren", ""]
REFERENCES = ["a dog", "two children", "the cats", "two dogs"]


def test_outputs_and_references():
    scores = [metric(OUTPUTS, REFERENCES) for metric in non_words(TEXT)]
    assert [(score.name, score.value) for score in scores] == [("non_words", 50.0), ("reference_non_words", 50.0)]
    assert scores[0].signature == "case:folded|list:11"


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (["It’s re-read", "IT'S Straße"], {"it's", "re", "read", "strasse"}),  # case is folded, and hyphens part words
        (["tre\u0300s"], {"tr\u00e8s"}),
    ],
)
def test_what_is_a_word(text, known):
    assert non_words(text)[0].known == known


def test_a_language_without_spaces_is_refused():
    with pytest.raises(PadirError, match="spaces between words, got 'zh'"):
        non_words(["你好"], "zh")


def test_text_without_words_is_refused():
    with pytest.raises(PadirError, match="at least one word"):
        non_words(["12 ...", ""])

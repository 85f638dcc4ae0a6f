"""Word pieces of BLEURT's older checkpoints: equal to those of BERT's published tokenizer."""

import pytest
from support.refusals import refuses

from padir.metrics.bleurt import load_word_pieces

pytest.importorskip("tokenizers", reason="tokenizers is not installed (extra bleurt)")
PIECES = "[UNK] [CLS] [SEP] want ##want ##ed wa un runn ##ing , ##aff ##able ##ab able".split()


def vocabulary(folder, pieces, lower_case=True):
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces))
    return load_word_pieces(folder / "vocab.txt", lower_case)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("UNwant\u00e9d,running", "un ##want ##ed , runn ##ing"),  # the first three are the published tokenizer's tests
        ("unwantedX running", "[UNK] runn ##ing"),
        ("", ""),
        ("unaffable", "un ##aff ##able"),  # the longest piece first: ##able before ##ab
        ("wantable able", "want ##able able"),
        ("want" * 50, "want" + " ##want" * 49),  # 200 characters; of more, a word is unknown
        ("want" * 50 + "ed", "[UNK]"),
        ("  \t\n ", ""),
        ("[SEP]", "[UNK] [UNK] [UNK]"),  # text is no special piece
        ("want\ue000ed want", "[UNK] want"),  # a private-use character is not dropped
    ],
)
def test_words_are_split_into_the_published_pieces(tmp_path, text, pieces):
    found = vocabulary(tmp_path, PIECES).encode(text, add_special_tokens=False)
    assert found.tokens == pieces.split()
    assert found.ids == [PIECES.index(piece) for piece in pieces.split()]


@pytest.mark.parametrize(
    ("text", "uncased", "cased"),
    [
        (" \tHeLLo!how  \n Are yoU?  ", "hello ! how are you ?", "HeLLo ! how Are yoU ?"),  # published, as the next
        ("ah\u535a\u63a8zz", "ah \u535a \u63a8 zz", "ah \u535a \u63a8 zz"),
        ("ÄÖÜß Éclair", "aou\u00df eclair", "ÄÖÜß Éclair"),
        ("don't e-mail", "don ' t e - mail", "don ' t e - mail"),
        ("cost: $5^2`", "cost : $ 5 ^ 2 `", "cost : $ 5 ^ 2 `"),
        ("„So“ — nein…", "„ so “ — nein …", "„ So “ — nein …"),
        ("5€ → 6£", "5€ → 6£", "5€ → 6£"),  # symbols beyond ASCII are no punctuation
        ("ねこ한국", "ねこ\u1112\u1161\u11ab\u1100\u116e\u11a8", "ねこ한국"),  # kana and Hangul are not split
        ("a\u0000b\ufffdc\u200bd\x07e", "abcde", "abcde"),  # NUL, U+FFFD, zero width, bell: dropped
        ("a\u00a0b\u3000c\r\nd", "a b c d", "a b c d"),
    ],
)
def test_text_is_split_into_the_published_words(tmp_path, text, uncased, cased):
    for lower_case, words in ((True, uncased.split()), (False, cased.split())):
        pieces = ["[UNK]", "[CLS]", "[SEP]", *dict.fromkeys(words)]  # every word is a piece
        assert vocabulary(tmp_path, pieces, lower_case).encode(text, add_special_tokens=False).tokens == words


def test_a_file_without_the_special_pieces_is_refused(tmp_path):
    refuses(vocabulary, "lacks [CLS], [SEP]", tmp_path, ["the", "[UNK]"])
    refuses(lambda: load_word_pieces(tmp_path / "nothing.txt", lower_case=True), "cannot read the vocabulary")

"""BERT's tokenizer on examples that a person can check."""

import pytest

from padir.errors import PadirError
from padir.metrics.wordpiece import WordPiece, split_words

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "un",
    "##aff",
    "##able",
    "##ab",
    "able",
    "want",
    "##want",
    "##ed",
    "ed",
    ",",
]


@pytest.fixture
def words(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(piece + "\n" for piece in PIECES))
    return WordPiece.load(tmp_path / "vocab.txt", lower_case=True)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("unaffable", ["un", "##aff", "##able"]),  # the longest piece first: ##able before ##ab
        ("UNWANTED,wanted", ["un", "##want", "##ed", ",", "want", "##ed"]),
        ("unaffablex", ["[UNK]"]),  # one part that no piece covers makes the whole word unknown
        ("able", ["able"]),
        ("wantable able", ["want", "##able", "able"]),
        ("a" * 201, ["[UNK]"]),
        ("", []),
        ("  \t\n ", []),
    ],
)
def test_the_longest_pieces_from_the_left(words, text, pieces):
    assert words.pieces(text) == pieces
    assert words.encode(text) == [PIECES.index(piece) for piece in pieces]


@pytest.mark.parametrize(
    ("text", "uncased", "cased"),
    [
        ("Hello, World!", ["hello", ",", "world", "!"], ["Hello", ",", "World", "!"]),
        ("ÄÖÜß Éclair", ["aou\u00df", "eclair"], ["ÄÖÜß", "Éclair"]),
        ("don't e-mail", ["don", "'", "t", "e", "-", "mail"], ["don", "'", "t", "e", "-", "mail"]),
        ("cost: $5^2`", ["cost", ":", "$", "5", "^", "2", "`"], ["cost", ":", "$", "5", "^", "2", "`"]),
        ("„So“ — nein…", ["„", "so", "“", "—", "nein", "…"], ["„", "So", "“", "—", "nein", "…"]),
        ("5€ → 6£", ["5€", "→", "6£"], ["5€", "→", "6£"]),  # symbols beyond ASCII are no punctuation
        ("我爱NLP", ["我", "爱", "nlp"], ["我", "爱", "NLP"]),
        ("ねこ한국", ["ねこ한국"], ["ねこ한국"]),  # kana and Hangul are not split
        ("a\u0000b\ufffdc\u200bd\x07e", ["abcde"], ["abcde"]),  # NUL, U+FFFD, zero width, bell: dropped
        ("a\u00a0b\u3000c\r\nd", ["a", "b", "c", "d"], ["a", "b", "c", "d"]),
    ],
)
def test_words(text, uncased, cased):
    if "한" in text:  # taking accents off decomposes Hangul, as BERT does
        uncased = ["ねこ\u1112\u1161\u11ab\u1100\u116e\u11a8"]
    assert split_words(text, lower_case=True) == uncased
    assert split_words(text, lower_case=False) == cased


def test_what_is_no_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text("the\n[UNK]\n")
    with pytest.raises(PadirError, match=r"lacks \[CLS\], \[SEP\]"):
        WordPiece.load(tmp_path / "vocab.txt", lower_case=True)
    with pytest.raises(PadirError, match="cannot read the vocabulary"):
        WordPiece.load(tmp_path / "nothing.txt", lower_case=True)

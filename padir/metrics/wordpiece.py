"""BERT's tokenizer (Devlin et al., 2019), as the older BLEURT checkpoints want it: words, then the longest pieces.

1. Drop control characters; every white space becomes a space; CJK ideographs stand alone.
2. Split at white space; lower-case and take accents off, for uncased models; every punctuation mark stands alone.
3. Split each word, from its left, into the longest pieces that the vocabulary has; pieces inside a word begin with ##.
   A word that cannot be split, or has over 200 characters, is [UNK].
"""

from __future__ import annotations

import dataclasses
import functools
import unicodedata
from pathlib import Path

from padir.errors import PadirError

UNKNOWN = "[UNK]"
_LONGEST_WORD = 200
# The blocks that BERT takes for ideographs; kana and Hangul, which are written in words, are not among them.
_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


@dataclasses.dataclass(frozen=True)
class WordPiece:
    """A vocabulary and whether it is uncased.

    Attributes:
      ids: of each piece.
      lower_case: whether text is lower-cased and loses its accents.

    >>> words = WordPiece({"[UNK]": 0, "walk": 1, "##ing": 2, "!": 3}, lower_case=True)
    >>> words.pieces("Walking, Wálk!")
    ['walk', '##ing', '[UNK]', 'walk', '!']
    """

    ids: dict[str, int]
    lower_case: bool

    @classmethod
    def load(cls, path: Path, lower_case: bool) -> WordPiece:
        """Reads a `vocab.txt`: one piece a line, its number its id.

        Raises:
          PadirError: no such file, or one that lacks BERT's special pieces.
        """
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise PadirError(f"cannot read the vocabulary {path} ({error.strerror})") from None
        ids = {line.strip(): i for i, line in enumerate(lines) if line.strip()}
        if missing := [piece for piece in (UNKNOWN, "[CLS]", "[SEP]") if piece not in ids]:
            raise PadirError(f"{path} is not a vocabulary of BERT: it lacks {', '.join(missing)}")
        return cls(ids, lower_case)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without [CLS] and [SEP]."""
        return [self.ids[piece] for piece in self.pieces(text)]

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text."""
        return [piece for word in split_words(text, self.lower_case) for piece in self._split(word)]

    def _split(self, word: str) -> list[str]:
        if len(word) > _LONGEST_WORD:
            return [UNKNOWN]
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self.ids), None)
            if end is None:
                return [UNKNOWN]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces


def split_words(text: str, lower_case: bool) -> list[str]:
    """Words and punctuation marks, by BERT's rules.

    >>> split_words("Größe: 3.5\\u00a0m, don't!", lower_case=True)
    ['große', ':', '3', '.', '5', 'm', ',', 'don', "'", 't', '!']
    """
    words = "".join(map(_cleaned, text)).split()
    if lower_case:
        words = [_without_accents(word.lower()) for word in words]
    return "".join(f" {c} " if _is_punctuation(c) else c for c in " ".join(words)).split()


@functools.lru_cache(maxsize=1 << 16)
def _cleaned(character: str) -> str:
    code, category = ord(character), unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return " "
    if code in (0, 0xFFFD) or category in ("Cc", "Cf"):
        return ""
    if any(first <= code <= last for first, last in _IDEOGRAPHS):
        return f" {character} "
    return character


def _without_accents(word: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")


@functools.lru_cache(maxsize=1 << 16)
def _is_punctuation(character: str) -> bool:
    """Whether BERT splits at it: Unicode's punctuation, and every other sign of ASCII, such as $ and ^."""
    if character.isascii():
        return character.isprintable() and not character.isalnum() and not character.isspace()
    return unicodedata.category(character).startswith("P")

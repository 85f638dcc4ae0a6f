"""Splits paragraphs into sentences, and joins the translations with the white space of the paragraph.

The rules come from the package sentencex by the Wikimedia Foundation, which knows the abbreviations of about 300
languages.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from padir.text.languages import CHINESE, JAPANESE, primary, script
from padir.text.spans import find
from padir.text.tokenizer import surrogates_error

_WHITE = re.compile(r"[^\S\n]")
_WINDOW = 4_096  # maximum number of characters that the rules see at once: their time grows with its square
_JOINED = CHINESE | JAPANESE | {"Thai"}  # scripts without spaces between words, and between sentences


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A text as sentences and the white space around them.

    Attributes:
      sentences: the sentences, without white space around them; none if the text has only white space.
      gaps: white space before the first sentence, between sentences, and after the last.

    >>> paragraph = Paragraph.split("Guten Morgen!\\nDr. Alt ist da.", "de")
    >>> paragraph.sentences
    ('Guten Morgen!', 'Dr. Alt ist da.')
    >>> paragraph.joined(["Good morning!", "Dr. Old is here."], "en")
    'Good morning!\\nDr. Old is here.'
    """

    sentences: tuple[str, ...]
    gaps: tuple[str, ...]

    @staticmethod
    def split(text: str, language: str, kinds: Sequence[str] = ()) -> Paragraph:
        """Splits a text by the rules of its language; for a language without rules, by the rules of English.

        No sentence ends within a span of the kinds and patterns of `kinds` (`padir.text.spans.find`).

        Raises:
          PadirError: the text holds surrogate code points.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise surrogates_error() from None
        sentences = []
        gaps = [""]
        begin = 0
        inside = bytearray(len(text) + 1)
        for span in find(text, kinds):
            inside[span.begin + 1 : span.end] = b"1" * (span.end - span.begin - 1)
        plain = _WHITE.sub(" ", text)  # white space of several bytes makes the rules of version 1.0 fail
        for end in _ends(plain, primary(language)):
            if inside[end]:
                continue
            part = text[begin:end]
            begin = end
            sentence = part.strip()
            before, _, after = part.partition(sentence) if sentence else (part, "", "")
            gaps[-1] += before
            if sentence:
                sentences.append(sentence)
                gaps.append(after)
        return Paragraph(tuple(sentences), tuple(gaps))

    @staticmethod
    def whole(text: str) -> Paragraph:
        """The text as one sentence, whatever it holds."""
        return Paragraph((text,), ("", ""))

    def joined(self, translations: Sequence[str], language: str) -> str:
        """Puts translations into the places of the sentences.

        Spaces between sentences follow the language of the translations; line ends stay. White space alone gives an
        empty text.
        """
        if not translations:
            return ""
        instead = {" ": ""} if script(language) in _JOINED else {"": " "}
        inner = [instead.get(gap, gap) for gap in self.gaps[1:-1]]
        pairs = zip(translations, [*inner, self.gaps[-1]][: len(translations)], strict=True)
        return self.gaps[0] + "".join(translation + gap for translation, gap in pairs)


def _ends(text: str, language: str) -> Iterator[int]:
    """Yields the ends of sentences by the rules; a sentence that a window cuts is read again, unless it fills half."""
    import sentencex  # translating a sentence does not need it

    begin = 0
    while begin < len(text):
        cut = begin + _WINDOW
        end = last = begin
        for sentence in sentencex.segment(language, text[begin:cut]):  # pyright: ignore[reportAttributeAccessIssue]
            end += len(sentence)
            if end < cut or end == len(text):
                last = end
                yield end
        begin = last if last - begin > _WINDOW // 2 else cut

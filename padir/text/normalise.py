"""The plain form of a sentence, in which models read it, and the way back for its translation.

Training (`padir prepare`, `padir vocab`, seqio Tasks) and decoding (`Translator`, `padir serve`, padir.mjs) read every
sentence through `normalised`:

1. Spaces, emoji and the marks of Markdown around the sentence are taken off: bullets, headings, **emphasis**.
2. Letters are composed (NFC); full-width letters and digits, and Latin ligatures, become plain ones (NFKC). Every
   other kind of blank becomes a space, and invisible characters are left out.
3. Marks of emphasis within the sentence are left out. A mark without a partner at one end is taken off as in 1.
4. In a sentence in capitals, each word is read in the case that gives the fewest pieces.

`Normalised.restored` puts 1 and 4 back around a translation. padir.mjs repeats these rules, and a test compares both.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from padir.text.spans import Edit, characters, edited, find

FORMS = ("plain", "raw")  # of a model's training text: in the form of this module, or as it was

_SPAN = "\ufdd0"  # stands for a span while the text around it changes; a noncharacter, which no text should have
_ODD_BLANK = "\\x00-\\x1f\\x7f-\\xa0\\u1680\\u2000-\\u200b\\u2028\\u2029\\u202f\\u205f\\u3000"
_BLANK = f" {_ODD_BLANK}"
# Soft hyphens, marks of direction, joiners of words and byte order marks; emoji and some scripts need U+200C, U+200D.
_INVISIBLE = "\\xad\\u061c\\u180e\\u200e\\u200f\\u202a-\\u202e\\u2060-\\u2064\\u2066-\\u206f\\ufeff"
_SYMBOL = "\\xb7\\u2022\\u2023\\u2043\\u2190-\\u2bff\\ufe0f\\u200d\\U0001f000-\\U0001faff"  # bullets, arrows, emoji
_EDGE = f"[{_BLANK}{_INVISIBLE}{_SYMBOL}]"
_BEFORE = re.compile(rf"(?:{_EDGE}+|(?:[-*+–—]|\#{{1,6}}|>+|\[[ xX]\]|\d{{1,3}}\)|[A-Za-z]\))(?=[{_BLANK}]))*+")
_AFTER = re.compile(rf"(?:{_EDGE}+|\#{{1,6}}(?=[{_BLANK}]))*+")  # backwards; the end of a heading
_BLANKS = re.compile(f"[{_BLANK}]+")
_ODD_BLANKS = re.compile(f"(?<! ) *[{_ODD_BLANK}][{_BLANK}]*")
_LEFT_OUT = re.compile(f"[{_INVISIBLE}]+")
# Full-width digits and letters, and Latin ligatures; full-width punctuation is right in Chinese.
_WIDE = re.compile("[\\uff10-\\uff19\\uff21-\\uff3a\\uff41-\\uff5a\\ufb00-\\ufb06]+")
_CHUNK = re.compile("[^ ]{1,256}")  # ordering many marks of one letter takes quadratic time
_RUN = re.compile(r"\*+|`+|~+|_+")
_EMPHASIS = frozenset(["*", "**", "***", "`", "``", "```", "~~", "_"])
# Marks at an end of a sentence that no other word has, such as the ** of a paragraph; `this' is a quotation.
_LONE = r"(?:(\*{1,3}(?![*=])|`{1,3}(?!`|.*')|~~(?!~)|_(?![_ $]))(?!%s.*\1[^*`~_ ]) *){0,4}"
_LONE_BEFORE = re.compile(_LONE % r"[.(]|")
_LONE_AFTER = re.compile(_LONE % "")
_WORD = re.compile(r"[^\W\d_]+")
_SHORT = 5  # a single word in capitals of so many letters may be an acronym


class Normalised(NamedTuple):
    """A sentence as models read it, and what stands around its translation.

    Attributes:
      text: the sentence in plain form; "" if it has no letter, so that nothing needs a translation.
      before, after: the characters around the sentence. A text without a letter is all `before`.
      capitals: True if the original is in capitals.
    """

    text: str
    before: str = ""
    after: str = ""
    capitals: bool = False

    @property
    def words_before(self) -> int:
        """The number of words in front of the sentence that a space ends."""
        return len(f"{self.before}x".split()) - 1

    def restored(self, translation: str, kinds: Sequence[str] = ()) -> str:
        """The translation with what stood around its source, and in capitals if this was; spans of `kinds` stay."""
        if self.capitals:
            masked, spans = _masked(translation.replace(_SPAN, " "), kinds)
            translation = _unmasked(masked.upper(), spans)
        return self.before + translation + self.after


def normalised(
    text: str,
    kinds: Sequence[str] = (),
    count_pieces: Callable[[Sequence[str]], Iterable[int]] = lambda words: map(len, words),
) -> Normalised:
    """Takes a sentence apart, in time that is linear in its length.

    Args:
      kinds: kinds and patterns of spans that stay as they are (`padir.text.spans`).
      count_pieces: the numbers of pieces of words in the model's vocabulary (`Tokenizer.normalised`). By default, words
        in capitals are read in lower case.

    >>> normalised("- **Wo ist der Bahnhof?**")
    Normalised(text='Wo ist der Bahnhof?', before='- **', after='**', capitals=False)
    >>> normalised("WO IST ER?").restored("Where is he?")
    'WHERE IS HE?'
    """
    text = text.replace(_SPAN, " ")
    if "tags" in kinds and "&" in text:
        letters = edited(text, [edit for edit in characters(text) if edit.text.isalpha()])
        if _in_capitals(_masked(letters, kinds)[0]):
            text = letters  # so that these entities get the case of their words
    masked, spans = _masked(text, kinds)
    begin = _match_end(_BEFORE, masked)
    end = len(masked) - _match_end(_AFTER, masked[::-1])
    core = composed(masked[begin:end])
    if not any(map(str.isalpha, core)):
        return Normalised("", before="" if _BLANKS.fullmatch(text) else text)
    around = 0  # characters of emphasis at each end
    marks = []
    for opening, closing in _emphasised(core):
        marks += [Edit(*opening, ""), Edit(*closing, "")]
        if opening[0] == around and closing[1] == len(core) - around:
            around = opening[1]
    plain = edited(core, marks)
    first = _match_end(_LONE_BEFORE, plain)
    last = len(plain) - _match_end(_LONE_AFTER, plain[::-1])
    before = masked[:begin] + core[:around] + plain[:first]
    after = plain[last:] + core[len(core) - around :] + masked[end:]
    core = plain[first:last]
    capitals = _in_capitals(core)
    if capitals:
        core = _recased(core, count_pieces)
    return Normalised(_unmasked(core, spans), before, after, capitals)


def _masked(text: str, kinds: Sequence[str]) -> tuple[str, list[str]]:
    """A text with one noncharacter in place of each span and, with "tags", of each entity; and what it stands for."""
    places = [each[:2] for each in (*find(text, kinds), *(characters(text) if "tags" in kinds else ()))]
    edits = []
    done = 0
    for begin, end in sorted(places):
        if begin >= done:  # other entities are parts of addresses
            edits.append(Edit(begin, end, _SPAN))
            done = end
    return edited(text, edits), [text[begin:end] for begin, end, _ in edits]


def _unmasked(masked: str, spans: Sequence[str]) -> str:
    first, *others = masked.split(_SPAN)
    return first + "".join(span + part for span, part in zip(spans, others, strict=True))


def _match_end(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    assert match is not None  # the patterns match the empty text, too
    return match.end()


def _emphasised(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Places of the opening and closing marks of emphasis, in order of the opening.

    As in Markdown, a mark opens before a word or a mark, and closes behind one; within a word it does neither.
    """
    opened: dict[str, tuple[int, int]] = {}
    pairs = []
    for match in _RUN.finditer(text):
        if match[0] not in _EMPHASIS:
            continue
        left = text[max(0, match.start() - 1) : match.start()]
        right = text[match.end() : match.end() + 1]
        if match[0] in opened and left != " " and not right.isalnum():
            pairs.append((opened.pop(match[0]), match.span()))
        elif right.strip(" ") and not left.isalnum():
            opened[match[0]] = match.span()
    return sorted(pairs)


def composed(text: str) -> str:
    """A text with composed letters, plain letters and blanks, and without invisible characters."""
    plain = _WIDE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    letters = _CHUNK.sub(lambda match: unicodedata.normalize("NFC", match[0]), plain)
    return _ODD_BLANKS.sub(" ", _LEFT_OUT.sub("", letters))


def _in_capitals(text: str) -> bool:
    """True if all letters are capitals, in several words or in one that is too long for an acronym."""
    words = _WORD.findall(text)
    long = sum(len(word) > 1 for word in words) > 1 or max(map(len, words), default=0) > _SHORT
    return long and all(letter.isupper() for letter in text if letter.isalpha())


def _recased(text: str, count_pieces: Callable[[Sequence[str]], Iterable[int]]) -> str:
    """A text in capitals with each word in the case that gives the fewest pieces; the first word stays capitalised."""
    cases = {word: (word.lower(), word[0] + word[1:].lower(), word) for word in _WORD.findall(text)}
    every = [each for own in cases.values() for each in own]
    pieces = dict(zip(every, count_pieces(every), strict=True))
    found = _WORD.search(text)
    first = -1 if found is None else found.start()

    def word(match: re.Match[str]) -> str:
        own = cases[match[0]]
        return min(own if match.start() != first else own[1:], key=pieces.__getitem__)

    return _WORD.sub(word, text)

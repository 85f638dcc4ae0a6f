"""Marks in place of the spans of a source text, and the spans back in its translation.

A model that was trained with placeholders reads and writes them as marks. For other models, a mark is a letter or a
number that stands in (models copy these). Markup is taken out, because models translate the words around marks of tags
worse. `Marked.finished` puts every span back exactly once: a mark that the translation lost, and markup, get their
places by word alignment (`Placing`).
"""

from __future__ import annotations

import collections
import dataclasses
import html
import re
from collections.abc import Mapping, Sequence

from padir.text.placing import VOID, Placing, units
from padir.text.spans import JOINING, MARKS, MARKUP, OWN, TAG, Edit, characters, edited, find

_LETTERS = "XZQYVWKJ"
# Tags that end a word.
_APART = VOID.union(
    "address article aside blockquote dd div dl dt figure footer form h1 h2 h3 h4 h5 h6 header li main nav ol option p"
    " pre section table tbody td tfoot th thead title tr ul".split()
) - {"wbr"}
_SHORT = re.compile(r"\d{1,2}")
_TAG = re.compile(TAG)
# A stand-in that a model joined to a word: Xs, byX; and two of them.
_WORD = re.compile(JOINING)
_JOINED = re.compile(rf"\b[{_LETTERS}](?:s\b|(?=[{_LETTERS}]\b))|(?<=[{_LETTERS}a-zß-ÿ])(?:[{_LETTERS}]|\d\d?)s?\b")
_IN_WORD = re.compile(f"(?<={JOINING})")


@dataclasses.dataclass(frozen=True)
class Marked:
    """A source text with marks in place of spans.

    Attributes:
      text: the text that the model translates; "" if the original has no words beside its spans.
      original: the text with its spans.
      edits: a span in place of each mark of `text`, in order. "" marks a span that was taken out. So does a blank of
        `text` that the translation does not get.
      spaced: numbers of the spans that were taken out with the blank after them.
      entities: by code points, the entity that the original writes for a character.
    """

    text: str
    original: str
    edits: tuple[Edit, ...]
    spaced: frozenset[int] = frozenset()
    entities: Mapping[int, str] = dataclasses.field(default_factory=dict)

    @property
    def marks(self) -> tuple[str, ...]:
        """The mark of each span; "" for a span that was taken out."""
        return tuple(self.text[edit.begin : edit.end].strip() for edit in self.edits)

    def missing(self, text: str) -> list[Edit]:
        """The spans whose marks a translation does not have; spans that were taken out have none."""
        found = zip(self.edits, self.marks, self._occurrences(text), strict=True)
        return [edit for edit, mark, own in found if mark and not own]

    def begun(self, text: str, links: Sequence[int]) -> str:
        """A translation up to the place of its first missing mark, and this mark; `links` are as in `finished`."""
        taken = [Edit(*place, "") for own in self._occurrences(text) for place in own]
        placing = Placing(self.text, text, links, taken)
        places = [placing.word(edit._replace(text=self.text[edit.begin : edit.end])) for edit in self.missing(text)]
        first = min(places, key=lambda place: place.begin)
        return text[: first.begin] + first.text.rstrip()

    def finished(self, text: str, links: Sequence[int] | None = None) -> str:
        """A translation with every span exactly once; further copies of a mark are left out.

        A number that is its own mark keeps further copies that stand apart, because they may translate other words.

        Args:
          links: for each unit of the translation (`units`), the number of the unit of `Marked.text` that it translates;
            None leaves out spans whose mark is lost.
        """
        found = self._occurrences(text)
        edits = []
        tags = []
        words = []
        for k, (edit, mark, own) in enumerate(zip(self.edits, self.marks, found, strict=True)):
            for number, place in enumerate(own):
                blank = " " if mark != edit.text and _IN_WORD.match(text, place[0]) else ""
                edits.append(Edit(*place, "" if self._left_out(text, edit, own, number) else blank + edit.text))
            if not own and MARKUP.fullmatch(edit.text):
                tags.append(edit._replace(text=edit.text + " " * (k in self.spaced)))
            elif not own:
                words.append(edit)
        if links is not None:
            placing = Placing(self.text, text, links, [edit for edit in edits if edit.text])
            edits += placing.tags(tags)
            edits += map(placing.word, words)
        return edited(text, edits, self.entities)

    def faults(self, text: str) -> int:
        """The number of spans that a translation lacks, or that it would have more than once (`finished`)."""
        found = zip(self.edits, self._occurrences(text), strict=True)
        twice = (
            edit for edit, own in found if sum(not self._left_out(text, edit, own, n) for n in range(len(own))) > 1
        )
        return len(self.missing(text)) + len([*twice])

    def _left_out(self, text: str, edit: Edit, own: Sequence[tuple[int, int]], number: int) -> bool:
        """True for a further copy of a mark, except a number that stands apart from the copy before."""
        is_own = self.text[edit.begin : edit.end] == edit.text
        return number > 0 and not (is_own and text[own[number - 1][1] : own[number][0]].strip())

    def _occurrences(self, text: str) -> list[list[tuple[int, int]]]:
        """The places of each mark in a text; a part of a compound (X-ray) or of a number is no mark.

        A part of a word that the source does not have is one if a model joins marks to words that way (`_JOINED`).
        """
        numbers = {mark: k for k, mark in enumerate(self.marks) if mark}
        known = {*numbers, *(self.text[begin:end] for begin, end in units(self.text))}
        places: list[list[tuple[int, int]]] = [[] for _ in self.edits]
        for unit in units(text):
            word = text[slice(*unit)]
            joined = () if word in known else _JOINED.finditer(text, *unit)
            parts = ((*match.span(), match[0].rstrip("s")) for match in joined)
            for begin, end, mark in [(*unit, word), *parts]:
                if mark not in numbers:
                    continue
                edit = self.edits[numbers[mark]]
                is_name = mark.isalpha() and not edit.text[:1].isdigit()  # for a number, X-year-old is right
                if not is_name or _hyphened(self.text, edit.begin, edit.end) or not _hyphened(text, begin, end):
                    places[numbers[mark]].append((begin, end))
        return places


def _hyphened(text: str, begin: int, end: int) -> bool:
    """True if a hyphen joins characters begin .. end - 1 to a word."""
    return bool(re.search(r"\w-$", text[max(0, begin - 2) : begin]) or re.match(r"-\w", text[end : end + 2]))


def mark(text: str, kinds: Sequence[str], placeholders: bool) -> Marked | None:
    """Marks the spans of a text; None for a text without spans and entities.

    Args:
      kinds: kinds of `padir.text.spans.KINDS`, and patterns. With "tags", entities are read as characters.
      placeholders: the model was trained with placeholders; marks that the text itself has are then spans, too.

    >>> mark("Klick <b>hier</b>: 1234 %", ["tags", "numbers"], placeholders=False).text
    'Klick hier: X'
    """
    entities = characters(text) if "tags" in kinds else []
    plain = edited(text, entities)
    found = find(plain, (OWN, *kinds) if placeholders else kinds)
    if not found and not entities:
        return None
    inner = {i for edit in entities for i in range(edit.begin + 1, edit.end)}
    at = [i for i in range(len(text) + 1) if i not in inner]  # the place of each character of the plain text
    spans = [text[at[begin] : at[end]] for begin, end, _ in found]
    bare = edited(plain, [Edit(begin, end, " ") for begin, end, _ in found])
    words = {bare[begin:end] for begin, end in units(bare)}
    count = collections.Counter(spans)
    every = (*(MARKS if placeholders else ()), *_LETTERS, *map(str, range(12, 100)))
    stand_ins = iter([each for each in every if each not in {*words, *spans}])
    begins = {begin for span, (begin, _, _) in zip(spans, found, strict=True) if not MARKUP.fullmatch(span)}  # of marks
    edits: list[Edit] = []
    spaced: list[int] = []
    made = ""
    done = 0
    is_apart = False  # something ends the last word
    for span, (begin, end, _) in zip(spans, found, strict=True):
        made += plain[done:begin]
        is_apart = is_apart and begin == done
        done = end
        follows = plain[end : end + 1]
        own = ""
        gap = ""
        if begin in begins:
            made += " " if _IN_WORD.match(made, len(made)) else ""
            is_short = not placeholders and _SHORT.fullmatch(span) and count[span] == 1 and span not in words
            own = span if is_short else next(stand_ins, "")  # models copy short numbers
            gap = " " if _WORD.match(follows) else ""
            is_apart = True
        else:
            is_apart = is_apart or _ends_word(span)
            if made[-1:].strip() and (end in begins or follows.isalnum()) and (is_apart or made[-1] in ".,:;!?)"):
                own = " " if _ends_word(span) else ""
                gap = "" if own else " "
            elif follows.isspace() and not made[-1:].strip():
                done += 1  # one space of two
                spaced.append(len(edits))
        edits.append(Edit(len(made), len(made) + len(own), span))
        made += own + gap
    names = {ord(edit.text): text[edit.begin : edit.end] for edit in reversed(entities)}
    read = made + plain[done:] if any(map(str.isalnum, bare)) else ""
    return Marked(read, text, tuple(edits), frozenset(spaced), names)


def _ends_word(span: str) -> bool:
    """True for markup between words: tags of paragraphs, <br>, and blanks such as &nbsp;."""
    tag = _TAG.fullmatch(span)
    return tag[2].lower() in _APART or bool(tag[3]) if tag else html.unescape(span).isspace()

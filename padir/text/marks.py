"""Marks in place of the spans of a source text, and the spans back in its translation.

A model that was trained with placeholders reads and writes them as marks. For other models, a mark is a letter or a
number that stands in (models copy these). Markup is taken out, because models translate the words around marks of tags
worse. `Marked.finished` puts every span back exactly once: a mark that the translation lost, and markup, get their
places by word alignment (`Placing`).
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence

from padir.text.spans import MARKS, OWN, TAG, Edit, edited, find

_LETTERS = "XZQYVWKJ"
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_SHORT = re.compile(r"\d{1,2}")
_TAG = re.compile(TAG)
_MARKUP = re.compile(rf"{TAG}|<!--.*-->|&\#?\w+;")
UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # Chinese and Japanese characters
_UNIT = re.compile(rf"[{UNSPACED}]|\d+(?:[.,:/-]\d+)*|[^\W{UNSPACED}]+|[^\w\s]")


def units(text: str) -> list[tuple[int, int]]:
    """Begin and end of each word, number, Chinese or Japanese character, and punctuation mark of a text.

    >>> units("It's 5.")
    [(0, 2), (2, 3), (3, 4), (5, 6), (6, 7)]
    """
    return [match.span() for match in _UNIT.finditer(text)]


@dataclasses.dataclass(frozen=True)
class Marked:
    """A source text with marks in place of spans.

    Attributes:
      text: the text that the model translates; "" if the original has no words beside its spans.
      original: the text with its spans.
      edits: a span in place of each mark of `text`, in order; "" marks a span that was taken out.
    """

    text: str
    original: str
    edits: tuple[Edit, ...]

    @property
    def marks(self) -> tuple[str, ...]:
        """The mark of each span; "" for a span that was taken out."""
        return tuple(self.text[edit.begin : edit.end] for edit in self.edits)

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

    def lost(self, text: str) -> bool:
        """True if a translation does not have every mark exactly once."""
        return any(mark and len(own) != 1 for mark, own in zip(self.marks, self._occurrences(text), strict=True))

    def finished(self, text: str, links: Sequence[int] | None = None) -> str:
        """A translation with every span exactly once; further copies of a mark are left out.

        A number that is its own mark keeps further copies that stand apart, because they may translate other words.

        Args:
          links: for each unit of the translation (`units`), the number of the unit of `Marked.text` that it translates;
            None leaves out spans whose mark is lost.
        """
        found = self._occurrences(text)
        edits = []
        for edit, own in zip(self.edits, found, strict=True):
            for number, place in enumerate(own):
                edits.append(Edit(*place, "" if self._left_out(text, edit, own, number) else edit.text))
        if links is not None:
            missing = [edit for edit, own in zip(self.edits, found, strict=True) if not own]
            tags = [edit for edit in missing if _MARKUP.fullmatch(edit.text)]
            placing = Placing(self.text, text, links, [edit for edit in edits if edit.text])
            edits += placing.tags(tags)
            edits += [placing.word(edit) for edit in missing if edit not in tags]
        return edited(text, edits)

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
        """The places of each mark in a text; a part of a word, of a compound (X-ray) or of a number is no mark."""
        found = units(text)
        places = []
        for edit, mark in zip(self.edits, self.marks, strict=True):
            own = [(begin, end) for begin, end in found if text[begin:end] == mark]
            is_name = mark.isalpha() and not edit.text[:1].isdigit()  # for a number, X-year-old is right
            if is_name and not _hyphened(self.text, edit.begin, edit.end):
                own = [each for each in own if not _hyphened(text, *each)]
            places.append(own)
        return places


def _hyphened(text: str, begin: int, end: int) -> bool:
    """True if a hyphen joins characters begin .. end - 1 to a word."""
    return bool(re.search(r"\w-$", text[max(0, begin - 2) : begin]) or re.match(r"-\w", text[end : end + 2]))


def mark(text: str, kinds: Sequence[str], placeholders: bool) -> Marked | None:
    """Marks the spans of a text; None for a text without spans.

    Args:
      kinds: kinds of `padir.text.spans.KINDS`, and patterns.
      placeholders: the model was trained with placeholders; marks that the text itself has are then spans, too.

    >>> mark("Klick <b>hier</b>: 1234 %", ["tags", "numbers"], placeholders=False).text
    'Klick hier: X'
    """
    found = find(text, (OWN, *kinds) if placeholders else kinds)
    if not found:
        return None
    spans = [text[begin:end] for begin, end, _ in found]
    count = collections.Counter(spans)
    bare = edited(text, [Edit(begin, end, " ") for begin, end, _ in found])
    words = {bare[begin:end] for begin, end in units(bare)}
    every = (*(MARKS if placeholders else ()), *_LETTERS, *map(str, range(12, 100)))
    stand_ins = iter([each for each in every if each not in {*words, *spans}])
    made, edits, done = "", [], 0
    for span, (begin, end, _) in zip(spans, found, strict=True):
        made += text[done:begin]
        done = end
        if _MARKUP.fullmatch(span):
            own = ""
        elif not placeholders and _SHORT.fullmatch(span) and count[span] == 1 and span not in words:
            own = span  # models copy short numbers
        else:
            own = next(stand_ins, "")
        edits.append(Edit(len(made), len(made) + len(own), span))
        made += own
        before, follows = made[-1:], text[end : end + 1]
        if not own and follows.isspace() and not before.strip():
            done += 1  # one space of two
        elif not own and follows.isalnum() and before.strip():
            is_void = _TAG.fullmatch(span) and not _element(span)
            made += " " if is_void or not before.isalnum() else ""
    return Marked(made + text[done:] if any(map(str.isalnum, bare)) else "", text, tuple(edits))


def _element(span: str) -> tuple[str, bool] | None:
    """The name of a tag that has a partner, and whether it closes; None for other spans, such as <br>."""
    tag = _TAG.fullmatch(span)
    if not tag or tag[3] or tag[2].lower() in _VOID:
        return None
    return tag[2].lower(), bool(tag[1])


def _pairs(spans: Iterable[str]) -> dict[int, int]:
    """Numbers of the opening and the closing tag of each element; elements that do not nest are left out."""
    pairs: dict[int, int] = {}
    stack: list[tuple[str, int]] = []
    for k, element in enumerate(map(_element, spans)):
        if element and not element[1]:
            stack.append((element[0], k))
        elif element and any(name == element[0] for name, _ in stack):
            while stack[-1][0] != element[0]:
                stack.pop()
            pairs[stack.pop()[1]] = k
    return pairs


class Placing:
    """Places in a translation for words and tags of its source; edits of the source name both.

    Args:
      source, text: the source and its translation.
      links: for each unit of the translation, the number of the source's unit that it translates.
      taken: edits of the translation whose words stay.
    """

    def __init__(self, source: str, text: str, links: Sequence[int], taken: Iterable[Edit] = ()):
        self._source, self._text, self._links, self._taken = source, text, links, [*taken]
        self._source_units, self._units = units(source), units(text)
        self._begins = [*(begin for begin, _ in self._units), len(text)]
        self._ends = [0, *(end for _, end in self._units)]  # of the unit before
        self._is_word = [text[begin].isalnum() or text[begin] in MARKS for begin, _ in self._units]

    def word(self, edit: Edit) -> Edit:
        """A word in place of the words that translate its source, or else beside the translation of a neighbour."""
        free = {t for t, (begin, _) in enumerate(self._units) if self._outside(begin) == begin}
        run = self._run(edit.begin, edit.end, free)
        if run and self._is_word[run[0]]:
            placed = Edit(self._begins[run[0]], self._ends[run[1]], edit.text)
        else:
            at = self._near(edit, 0, len(self._units))
            while 0 < at and not self._is_word[at - 1]:
                at -= 1  # before punctuation
            place = self._outside(self._ends[at] if at else self._begins[0])
            follows = self._text[place:]
            before = " " if place or (self._taken and not follows) else ""
            after = " " if follows[:1].isalnum() or (follows and not place) else ""
            placed = Edit(place, place, before + edit.text + after)
        self._taken.append(placed)
        return placed

    def _outside(self, place: int) -> int:
        """The place itself, or the end of what is taken there."""
        return next((edit.end for edit in self._taken if edit.begin <= place < edit.end), place)

    def tags(self, tags: Sequence[Edit]) -> list[Edit]:
        """Insertions of tags; elements nest as they do in the source."""
        edits: list[Edit] = []
        self._insert(tags, 0, len(self._units), edits)
        return edits

    def _insert(self, tags: Sequence[Edit], low: int, high: int, edits: list[Edit]) -> None:
        """Adds tags between the units low .. high - 1, each behind the one before."""
        partner, free = _pairs(tag.text for tag in tags), {*range(low, high)}
        full: list[tuple[int, int, int]] = []  # begin and end of units, number of the tag
        empty: list[int] = []
        k = 0
        while k < len(tags):
            run = self._run(tags[k].begin, tags[partner[k]].begin, free) if k in partner else None
            if run is None:
                empty.append(k)
            else:
                free -= {*range(*run)}
                full.append((*run, k))
            k = partner.get(k, k) + 1
        placed = [*full]
        for k in empty:
            at = self._near(tags[k], low, high)
            at = next((end for begin, end, _ in full if begin < at < end), at)
            placed.append((at, at, k))

        def add(k: int, at: int) -> None:
            at = max(min(at, self._ends[high]), edits[-1].begin if edits else 0)
            edits.append(Edit(at, at, tags[k].text))

        for begin, end, k in sorted(placed):
            add(k, self._ends[begin] if begin == end and self._adjoins(tags[k]) else self._begins[begin])
            if k in partner:
                self._insert(tags[k + 1 : partner[k]], begin, end, edits)
                add(partner[k], self._ends[end])

    def _run(self, begin: int, end: int, free: set[int]) -> tuple[int, int] | None:
        """Begin and end of the longest run of free units that translate characters begin .. end - 1 of the source.

        Words of a run may have punctuation between them.
        """
        inside = {s for s, (first, last) in enumerate(self._source_units) if begin <= first and last <= end}
        chosen = [t for t in sorted(free) if self._links[t] in inside]
        runs: list[list[int]] = []
        for t in [t for t in chosen if self._is_word[t]] or chosen:
            if runs and all(u in free and not self._is_word[u] for u in range(runs[-1][-1] + 1, t)):
                runs[-1].append(t)
            else:
                runs.append([t])
        best = max(runs, key=len, default=None)
        return None if best is None else (best[0], best[-1] + 1)

    def _adjoins(self, edit: Edit) -> bool:
        """True if a span adjoins the word to its left in the source."""
        return edit.begin > 0 and not self._source[edit.begin - 1].isspace()

    def _near(self, edit: Edit, low: int, high: int) -> int:
        """The place in low .. high, between two units, that is nearest to a span by its neighbours in the source."""
        before = [(s, 1) for s, (_, end) in enumerate(self._source_units) if end <= edit.begin][::-1]
        after = [(s, 0) for s, (begin, _) in enumerate(self._source_units) if begin >= edit.end]
        for s, is_left in before + after if self._adjoins(edit) else after + before:
            if places := [t + is_left for t in range(low, high) if self._links[t] == s]:
                return places[-1] if is_left else places[0]
        return high

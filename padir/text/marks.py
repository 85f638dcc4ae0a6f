"""Marks in place of the spans of a source text, and the spans back in its translation.

A model that was trained with placeholders reads and writes them as marks. For other models, a mark is a letter or a
number that stands in (models copy these). Markup is taken out, because models translate the words around marks of tags
worse. `Marked.finished` puts every span back exactly once: a mark that the translation lost, and markup, get their
places by word alignment (`Placing`).
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import html
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from padir.text.spans import JOINING, MARKS, MARKUP, OWN, TAG, Edit, characters, edited, find

_LETTERS = "XZQYVWKJ"
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
# Tags that end a word.
_APART = _VOID.union(
    "address article aside blockquote dd div dl dt figure footer form h1 h2 h3 h4 h5 h6 header li main nav ol option p"
    " pre section table tbody td tfoot th thead title tr ul".split()
) - {"wbr"}
_SHORT = re.compile(r"\d{1,2}")
_TAG = re.compile(TAG)
_DEEPEST = 32  # levels of elements that get places of their own
_MOST_LINKS = 64  # of a unit of the source
UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # Chinese and Japanese characters
_UNIT = re.compile(rf"[{UNSPACED}]|\d+(?:[.,:/-]\d+)*|[^\W{UNSPACED}]+|[^\w\s]")
# A stand-in that a model joined to a word: Xs, byX; and two of them.
_WORD = re.compile(JOINING)
_JOINED = re.compile(rf"\b[{_LETTERS}](?:s\b|(?=[{_LETTERS}]\b))|(?<=[{_LETTERS}a-zß-ÿ])(?:[{_LETTERS}]|\d\d?)s?\b")
_IN_WORD = re.compile(f"(?<={JOINING})")


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

    def lost(self, text: str) -> bool:
        """True if a translation does not have every mark exactly once."""
        for mark, own in zip(self.marks, self._occurrences(text), strict=True):
            if mark and [text[begin:end] for begin, end in own].count(mark) != 1:
                return True
        return False

    def finished(self, text: str, links: Sequence[int] | None = None) -> str:
        """A translation with every span exactly once; further copies of a mark are left out.

        A number that is its own mark keeps further copies that stand apart, because they may translate other words.

        Args:
          links: for each unit of the translation (`units`), the number of the unit of `Marked.text` that it translates;
            None leaves out spans whose mark is lost.
        """
        found = self._occurrences(text)
        edits, tags, words = [], [], []
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
    made, done, is_apart, edits, spaced = "", 0, False, [], []
    for span, (begin, end, _) in zip(spans, found, strict=True):
        made += plain[done:begin]
        is_apart = is_apart and begin == done  # something ends the last word
        done = end
        follows = plain[end : end + 1]
        own = ""
        gap = " " if begin in begins and _WORD.match(follows) else ""
        if begin not in begins:
            is_apart |= _ends_word(span)
            if made[-1:].strip() and (end in begins or follows.isalnum()) and (is_apart or made[-1] in ".,:;!?)"):
                own, gap = (" ", "") if _ends_word(span) else ("", " ")
            elif follows.isspace() and not made[-1:].strip():
                done += 1  # one space of two
                spaced.append(len(edits))
        elif not placeholders and _SHORT.fullmatch(span) and count[span] == 1 and span not in words:
            own = span  # models copy short numbers
        else:
            own = next(stand_ins, "")
        if begin in begins:
            made += " " if _IN_WORD.match(made, len(made)) else ""
            is_apart = True
        edits.append(Edit(len(made), len(made) + len(own), span))
        made += own + gap
    names = {ord(edit.text): text[edit.begin : edit.end] for edit in reversed(entities)}
    read = made + plain[done:] if any(map(str.isalnum, bare)) else ""
    return Marked(read, text, tuple(edits), frozenset(spaced), names)


def _ends_word(span: str) -> bool:
    """True for markup between words: tags of paragraphs, <br>, and blanks such as &nbsp;."""
    tag = _TAG.fullmatch(span)
    return tag[2].lower() in _APART or bool(tag[3]) if tag else html.unescape(span).isspace()


def _element(span: str) -> tuple[str, bool] | None:
    """The name of a tag that has a partner, and whether it closes; None for other spans, such as <br>."""
    tag = _TAG.fullmatch(span.strip())
    if not tag or tag[3] or tag[2].lower() in _VOID:
        return None
    return tag[2].lower(), bool(tag[1])


def _pairs(spans: Iterable[str]) -> dict[int, int]:
    """Numbers of the opening and the closing tag of each element; elements that do not nest are left out."""
    pairs: dict[int, int] = {}
    stack: list[tuple[str, int]] = []
    opened: collections.Counter[str] = collections.Counter()
    for k, element in enumerate(map(_element, spans)):
        if element and not element[1]:
            stack.append((element[0], k))
            opened[element[0]] += 1
        elif element and opened[element[0]]:
            while stack[-1][0] != element[0]:
                opened[stack.pop()[0]] -= 1
            opened[element[0]] -= 1
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
        self._source, self._text, self._links = source, text, [*links]
        self._source_begins = [begin for begin, _ in units(source)]
        self._source_ends = [end for _, end in units(source)]
        self._units = units(text)
        self._begins = [*(begin for begin, _ in self._units), len(text)]
        self._ends = [0, *(end for _, end in self._units)]  # of the unit before
        self._is_word = [text[begin].isalnum() or text[begin] in MARKS for begin, _ in self._units]
        self._words_before = [0, *itertools.accumulate(self._is_word)]
        self._translations: list[list[int]] = [[] for _ in self._source_begins]  # of each unit of the source
        for t, s in enumerate(links):
            if s >= 0 and len(self._translations[s]) < _MOST_LINKS:
                self._translations[s].append(t)
            else:
                self._links[t] = -1
        self._outside = [*range(len(text) + 1)]  # each place itself, or the end of what is taken there
        self._is_taken = False
        for edit in taken:
            self._take(edit)

    def _take(self, edit: Edit) -> None:
        self._is_taken = True
        self._outside[edit.begin : edit.end] = [edit.end] * (edit.end - edit.begin)

    def word(self, edit: Edit) -> Edit:
        """A word in place of the words that translate its source, or else beside the translation of a neighbour."""
        run = self._run(edit.begin, edit.end, lambda t: self._outside[self._begins[t]] == self._begins[t])
        if run and self._is_word[run[0]]:
            placed = Edit(self._begins[run[0]], self._ends[run[1]], edit.text)
        else:
            words = self._words_before[self._near(edit, 0, len(self._units), self._linked)]
            at = bisect.bisect_left(self._words_before, words)  # before punctuation
            place = self._outside[self._ends[at] if at else self._begins[0]]
            follows = self._text[place : place + 1]
            before = " " if place or (self._is_taken and not follows) else ""
            after = " " if follows.isalnum() or (follows and not place) else ""
            placed = Edit(place, place, before + edit.text + after)
        self._take(placed)
        return placed

    @functools.cached_property
    def _linked(self) -> list[int]:
        return sorted({*self._links} - {-1})

    def tags(self, tags: Sequence[Edit]) -> list[Edit]:
        """Insertions of tags; elements nest as they do in the source."""
        edits: list[Edit] = []
        partners = _pairs(tag.text for tag in tags)
        self._insert(tags, range(len(tags)), [partners] * _DEEPEST, (0, len(self._units)), edits)
        if edits and edits[-1].begin == len(self._text):
            edits[-1] = edits[-1]._replace(text=edits[-1].text.rstrip())
        return edits

    def _insert(
        self,
        tags: Sequence[Edit],
        numbers: range,
        partners: Sequence[Mapping[int, int]],
        among: tuple[int, int],
        edits: list[Edit],
    ) -> None:
        """Adds tags between the units low .. high - 1, each behind the one before.

        Args:
          numbers: of the tags.
          partners: the partners of opening tags, for each level. Deeper tags have none and keep their order.
        """
        low, high = among
        partner = partners[0] if partners else {}
        free = {*range(low, high)}
        linked = sorted({self._links[t] for t in free} - {-1})
        placed: list[tuple[int, int, int]] = []  # begin and end of units, number of the tag
        inner: dict[int, int] = {}  # the end of the run around a place
        empty: list[int] = []
        k = numbers.start
        while k < numbers.stop:
            run = self._run(tags[k].begin, tags[partner[k]].begin, free.__contains__) if k in partner else None
            if run is None:
                empty.append(k)
            else:
                free -= {*range(*run)}
                inner |= dict.fromkeys(range(run[0] + 1, run[1]), run[1])
                placed.append((*run, k))
            k = partner.get(k, k) + 1
        for k in empty:
            at = self._near(tags[k], low, high, linked)
            at = inner.get(at, at)
            placed.append((at, at, k))

        def add(k: int, at: int) -> None:
            least = edits[-1].end if edits else 0
            at = max(min(at, self._ends[high]), least)
            text = tags[k].text
            if k not in partner and least < at and self._left(tags[k]).isspace() and self._text[at - 1].strip():
                text = " " + text
            begin, end = at, at
            if tags[k].begin < tags[k].end:  # takes the blank
                end += self._text[at : at + 1].isspace()
                begin -= least < at == end and self._text[at - 1].isspace()
            edits.append(Edit(begin, end, text))

        for begin, end, k in sorted(placed) if partners else placed:
            follows = self._source[tags[k].end : tags[k].end + 1]
            is_left = self._left(tags[k]).strip() and (begin == end or follows.isspace())
            add(k, (self._ends if is_left else self._begins)[begin])
            if k in partner:
                self._insert(tags, range(k + 1, partner[k]), partners[1:], (begin, end), edits)
                is_right = self._left(tags[partner[k]]).isspace()
                add(partner[k], (self._begins if is_right else self._ends)[end])

    def _run(self, begin: int, end: int, is_free: Callable[[int], bool]) -> tuple[int, int] | None:
        """Begin and end of the longest run of free units that translate words at characters begin .. end - 1.

        Words of a run may have punctuation between them.
        """
        inside = slice(bisect.bisect(self._source_ends, begin), bisect.bisect_left(self._source_begins, end))
        chosen = sorted(filter(is_free, itertools.chain(*self._translations[inside])))
        runs: list[list[int]] = []
        for t in [t for t in chosen if self._is_word[t]] or chosen:
            after = runs[-1][-1] + 1 if runs else t
            is_next = self._words_before[after] == self._words_before[t] and all(map(is_free, range(after, t)))
            if runs and is_next:
                runs[-1].append(t)
            else:
                runs.append([t])
        best = max(runs, key=len, default=None)
        return None if best is None else (best[0], best[-1] + 1)

    def _left(self, edit: Edit) -> str:
        """The character to the left of a span in the source; "" at the beginning."""
        return self._source[max(0, edit.begin - 1) : edit.begin]

    def _near(self, edit: Edit, low: int, high: int, linked: Sequence[int]) -> int:
        """The place in low .. high, between two units, that is nearest to a span by its neighbours in the source.

        `linked` are the units of the source that have translations there.
        """
        left = bisect.bisect_left(linked, bisect.bisect_left(self._source_begins, edit.begin)) - 1
        right = bisect.bisect_left(linked, bisect.bisect_left(self._source_begins, edit.end))
        if left >= 0 and (self._left(edit).strip() or right == len(linked)):
            own = self._translations[linked[left]]
            return own[bisect.bisect_left(own, high) - 1] + 1
        if right < len(linked):
            own = self._translations[linked[right]]
            return own[bisect.bisect_left(own, low)]
        return high

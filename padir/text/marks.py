"""Marks in place of the spans of a source text, and the spans back in its translation.

A model that was trained with placeholders reads and writes them as marks. For other models, a mark is a letter or a
number that stands in (models copy these), and markup is taken out. `Marked.finished` puts every span back exactly once:
a mark that the translation lost, and markup that was taken out, gets its place by word alignment (`Links`).
"""

from __future__ import annotations

import dataclasses
import functools
import html.parser
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from padir.text.spans import MARKS, OWN, TAG, find, replaced

_LETTERS = "XZQYVWKJ"
_VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
_SHORT = re.compile(r"\d{1,2}")
_MORE, _MORE_BEFORE = re.compile(r"(?:[.,:/-]?\d)*"), re.compile(r"(?:\d[.,:/-]?)*$")
_TAG = re.compile(TAG)
UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # Chinese and Japanese characters
_UNIT = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+|[^\w\s]")

Links = Callable[[], Sequence[int]]
"""Function that gives, for each unit of a translation (`units`), the number of the source's unit that it translates."""


def units(text: str) -> list[tuple[int, int]]:
    """Begin and end of each word, Chinese or Japanese character, and punctuation mark of a text.

    >>> units("It's 5.")
    [(0, 2), (2, 3), (3, 4), (5, 6), (6, 7)]
    """
    return [match.span() for match in _UNIT.finditer(text)]


class Edit(NamedTuple):
    """Characters begin .. end - 1 of a text become `text`."""

    begin: int
    end: int
    text: str


@dataclasses.dataclass(frozen=True)
class Marked:
    """A source text with marks in place of spans.

    Attributes:
      text: the text that the model translates; "" if the original has no words beside its spans.
      original: the text with its spans.
      spans: the spans, in order.
      marks: the mark of each span; "" for a span that was taken out.
      places: the place in `text` of each mark, or the place where a span was taken out.
    """

    text: str
    original: str
    spans: tuple[str, ...]
    marks: tuple[str, ...]
    places: tuple[int, ...]

    def lost(self, text: str) -> bool:
        """True if a translation does not have every mark exactly once, or if its tags would not nest."""
        counts = [len(own) for own in self._occurrences(text)]
        if any(count != 1 for count, mark in zip(counts, self.marks, strict=True) if mark):
            return True
        return bool(self._nests) and not nests(self.spans[k] for k in self._order(text))

    def finished(self, text: str, links: Links | None) -> str:
        """A translation with every span exactly once; further copies of a mark are left out.

        A number that is its own mark keeps its further copies, which may translate other words.
        If `links` is None, spans whose mark is lost are left out, too.
        """
        found = self._occurrences(text)
        missing = {k for k, own in enumerate(found) if not own}
        markup = {k for k, span in enumerate(self.spans) if _is_markup(span)}
        nesting = not self._nests or nests(self.spans[k] for k in self._order(text))
        if links and (missing & markup or not nesting):
            missing |= markup  # tags are placed together
        edits = []
        for k, own in enumerate(found):
            for number, (begin, end) in enumerate(own):
                stays = k not in missing and (number == 0 or self.marks[k] == self.spans[k])
                edits.append(Edit(begin, end, self.spans[k] if stays else ""))
        if missing and links:
            edits += self._placed(text, sorted(missing), links(), edits)
        return edited(text, edits)

    @functools.cached_property
    def _nests(self) -> bool:
        """True if the original has tags, and these nest."""
        return any(map(_TAG.fullmatch, self.spans)) and nests(self.spans)

    def _occurrences(self, text: str) -> list[list[tuple[int, int]]]:
        """The places of each mark in a text."""
        return [[match.span() for match in _mark(mark).finditer(text)] if mark else [] for mark in self.marks]

    def _order(self, text: str) -> list[int]:
        """Numbers of the spans whose marks a text has, in the order of the text."""
        return [k for _, k in sorted((begin, k) for k, own in enumerate(self._occurrences(text)) for begin, _ in own)]

    def _placed(self, text: str, missing: Sequence[int], links: Sequence[int], edits: Sequence[Edit]) -> list[Edit]:
        """Insertions of missing spans, in the order of the text."""
        placing = _Placing(self, text, links, [edit for edit in edits if edit.text])
        markup = [k for k in missing if _is_markup(self.spans[k])]
        return [*placing.tags(markup), *(placing.word(k) for k in missing if k not in markup)]


@functools.cache
def _mark(mark: str) -> re.Pattern[str]:
    """Finds a mark: a placeholder anywhere, a stand-in as a word, and a number that is no part of another."""
    if mark in MARKS:
        return re.compile(mark)
    return re.compile(rf"(?<![^\W_])(?<!\d[.,:/-]){re.escape(mark)}(?![^\W_])(?![.,:/-]\d)")


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits that do not overlap; of insertions at one place, the first comes first."""
    parts, end = [], 0
    for edit in sorted(edits, key=lambda edit: edit[:2]):
        parts += [text[end : edit.begin], edit.text]
        end = max(end, edit.end)
    return "".join([*parts, text[end:]])


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
    spans = tuple(text[begin:end] for begin, end, _ in found)
    words = {text[begin:end] for begin, end in units(replaced(text, found, [" "] * len(found)))}
    letters = iter([letter for letter in _LETTERS if letter not in words])
    numbers = iter([str(n) for n in range(11, 100) if str(n) not in {*words, *spans} and n % 11])
    marks = []
    for k, span in enumerate(spans):
        if placeholders and k < len(MARKS):
            marks.append(MARKS[k])
        elif _is_markup(span):
            marks.append("")
        elif _SHORT.fullmatch(span) and spans.count(span) == 1 and span not in words:
            marks.append(span)  # models copy short numbers
        else:
            marks.append(next(letters, "") or next(numbers, ""))
    parts, places, end = [], [], 0
    for (begin, after, _), own in zip(found, marks, strict=True):
        before = text[end:begin]
        end = after
        if not own and (not before or before[-1].isspace()) and text[end : end + 1].isspace():
            end += 1  # one space of two
        parts.append(before)
        places.append(sum(map(len, parts)))
        tight = not own and before[-1:].strip() and text[end : end + 1].isalnum()
        parts.append(" " if tight and (_is_void(text[begin:after]) or not before[-1].isalnum()) else own)
    marked = "".join([*parts, text[end:]])
    has_words = any(char.isalnum() for char in replaced(text, found, [""] * len(found)))
    return Marked(marked if has_words else "", text, spans, tuple(marks), tuple(places))


def _is_markup(span: str) -> bool:
    """True for a tag, a comment or an entity."""
    return bool(_TAG.fullmatch(span)) or span.startswith("<!--") or bool(re.fullmatch(r"&#?\w+;", span))


def _is_void(span: str) -> bool:
    """True for a tag without a partner, such as <br>."""
    tag = _TAG.fullmatch(span)
    return bool(tag) and (bool(tag[3]) or tag[2].lower() in _VOID)


def nests(spans: Iterable[str]) -> bool:
    """True if the tags among some spans nest, by the parser of the standard library.

    >>> nests(["<b>", "<i>", "</i>", "</b>", "<br>"]), nests(["<b>", "<i>", "</b>", "</i>"])
    (True, False)
    """
    parser = _Nesting()
    parser.feed(" ".join(span for span in spans if _TAG.fullmatch(span)))
    parser.close()
    return parser.fits and not parser.open


class _Nesting(html.parser.HTMLParser):
    """Checks that tags nest."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.fits = True

    def handle_starttag(self, tag, attrs):
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag not in _VOID:
            self.fits &= bool(self.open) and self.open.pop() == tag


def _pairs(tags: Iterable[tuple[int, str]]) -> Iterator[tuple[int, int]]:
    """Numbers of the opening and the closing tag of each element; elements that do not nest are left out."""
    stack: list[tuple[int, str]] = []
    for k, span in tags:
        match = _TAG.fullmatch(span)
        if not match or _is_void(span):
            continue
        if not match[1]:
            stack.append((k, match[2]))
        elif any(name == match[2] for _, name in stack):
            while stack[-1][1] != match[2]:
                stack.pop()
            yield stack.pop()[0], k


@dataclasses.dataclass
class _Node:
    """A tag to place, or an element of two tags, with the units begin .. end - 1 of the translation."""

    open: int
    close: int | None
    children: list[_Node] = dataclasses.field(default_factory=list)
    begin: int = 0
    end: int = 0


class _Placing:
    """Chooses places in a translation for spans of its source; `taken` are edits whose words stay."""

    def __init__(self, marked: Marked, text: str, links: Sequence[int], taken: Sequence[Edit]):
        self._marked, self._text, self._links = marked, text, links
        self._units, self._source = units(text), units(marked.text)
        self._begins = [*(begin for begin, _ in self._units), len(text)]
        self._ends = [0, *(end for _, end in self._units)]  # of the unit before
        self._is_word = [text[begin].isalnum() or text[begin] in MARKS for begin, _ in self._units]
        self._taken = {t for t, (begin, _) in enumerate(self._units) if any(e.begin <= begin < e.end for e in taken)}

    def word(self, k: int) -> Edit:
        """A lost word in place of the units that translate its mark, or else beside the translation of a neighbour."""
        mark = self._marked.marks[k]
        own = [s for s, (begin, _) in enumerate(self._source) if mark and begin == self._marked.places[k]]
        free = {*range(len(self._units))} - self._taken
        run = self._run([t for t in sorted(free) if self._links[t] in own and self._is_word[t]], free)
        span = self._marked.spans[k]
        if run:
            self._taken |= {*range(*run)}
            begin, end = self._begins[run[0]], self._ends[run[1]]
            if mark.isdigit():  # a wrong number may have more digits
                end += len("".join(_MORE.findall(self._text[end:])[:1]))
                begin -= len("".join(_MORE_BEFORE.findall(self._text[:begin])[:1]))
            return Edit(begin, end, span)
        at = self._near(k, 0, len(self._units))
        while 0 < at and not self._is_word[at - 1]:
            at -= 1  # before punctuation
        if at:
            return Edit(self._ends[at], self._ends[at], f" {span}")
        return Edit(self._begins[0], self._begins[0], f"{span} " if self._text else span)

    def tags(self, numbers: Sequence[int]) -> list[Edit]:
        """Insertions of tags; elements nest as they do in the source."""
        pairs = dict(_pairs((k, self._marked.spans[k]) for k in numbers))
        top: list[_Node] = []
        stack: list[_Node] = []
        for k in numbers:
            if stack and stack[-1].close == k:
                stack.pop()
                continue
            node = _Node(k, pairs.get(k))
            (stack[-1].children if stack else top).append(node)
            if node.close is not None:
                stack.append(node)
        self._place(top, 0, len(self._units))
        edits: list[Edit] = []
        self._insert(top, len(self._text), edits)
        return edits

    def _place(self, nodes: list[_Node], low: int, high: int) -> None:
        """Gives each element of one parent units in low .. high - 1 of its own, and sorts the nodes."""
        free = {*range(low, high)}
        empty, full = [], []
        for node in nodes:
            run = None
            if node.close is not None:
                begin, end = self._marked.places[node.open], self._marked.places[node.close]
                inside = {s for s, (first, last) in enumerate(self._source) if begin <= first and last <= end}
                run = self._run([t for t in sorted(free) if self._links[t] in inside], free)
            if run is None:
                empty.append(node)
            else:
                node.begin, node.end = run
                free -= {*range(*run)}
                full.append(node)
        for node in empty:
            place = self._near(node.open, low, high)
            for other in full:
                if other.begin < place < other.end:
                    place = other.end
            node.begin = node.end = place
        nodes.sort(key=lambda node: (node.begin, node.end))
        for node in nodes:
            self._place(node.children, node.begin, node.end)

    def _insert(self, nodes: Sequence[_Node], most: int, edits: list[Edit]) -> None:
        """Adds the tags of nodes to the edits, each behind the one before and none beyond the character `most`."""

        def add(k: int, at: int) -> None:
            at = max(min(at, most), edits[-1].begin if edits else 0)
            edits.append(Edit(at, at, self._marked.spans[k]))

        for node in nodes:
            left = self._to_the_left(node.open)
            add(node.open, self._ends[node.begin] if node.begin == node.end and left else self._begins[node.begin])
            if node.close is not None:
                last = max(self._ends[node.end], edits[-1].begin) if node.begin < node.end else edits[-1].begin
                self._insert(node.children, last, edits)
                add(node.close, last)

    def _run(self, chosen: Sequence[int], free: set[int]) -> tuple[int, int] | None:
        """Begin and end of the longest run of chosen units that are free, with the punctuation between them."""
        words = [t for t in chosen if self._is_word[t]] or chosen
        runs: list[list[int]] = []
        for t in words:
            if runs and all(u in free and not self._is_word[u] for u in range(runs[-1][-1] + 1, t)):
                runs[-1].append(t)
            else:
                runs.append([t])
        best = max(runs, key=len, default=None)
        return None if best is None else (best[0], best[-1] + 1)

    def _to_the_left(self, k: int) -> bool:
        """True if a span adjoins the word to its left in the source."""
        place = self._marked.places[k]
        return place > 0 and not self._marked.text[place - 1].isspace()

    def _near(self, k: int, low: int, high: int) -> int:
        """The place in low .. high, between two units, that is nearest to a span by its neighbours in the source."""
        place, size = self._marked.places[k], len(self._marked.marks[k])
        before = [s for s, (_, end) in enumerate(self._source) if end <= place]
        after = [s for s, (begin, _) in enumerate(self._source) if begin >= place + size]
        ways = [(before[::-1], True), (after, False)]
        for neighbours, is_left in ways if self._to_the_left(k) else ways[::-1]:
            for s in neighbours:
                if chosen := [t for t in range(low, high) if self._links[t] == s]:
                    return chosen[-1] + 1 if is_left else chosen[0]
        return high

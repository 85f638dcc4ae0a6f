"""Places in a translation for words and tags of its source, by word alignment.

The work grows no faster than the texts.
"""

from __future__ import annotations

import bisect
import collections
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from padir.text.spans import JOINING, MARKS, TAG, Edit

VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())  # without a partner
_TAG = re.compile(TAG)
_DEEPEST = 32  # levels of elements that get places of their own
_MOST_LINKS = 64  # of a unit of the source
UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # Chinese and Japanese characters
# A place in I'm, well-known, e.g. and 20th.
_IN_WORD = re.compile(rf"(?:(?<={JOINING})['’.-]?|(?<={JOINING}['’.-]))(?={JOINING})|(?<=[A-Za-z]\.[A-Za-z])(?=\.)")
_UNIT = re.compile(rf"[{UNSPACED}]|\d+(?:[.,:/-]\d+)*|[^\W{UNSPACED}]+|[^\w\s]")


def units(text: str) -> list[tuple[int, int]]:
    """Begin and end of each word, number, Chinese or Japanese character, and punctuation mark of a text.

    >>> units("It's 5.")
    [(0, 2), (2, 3), (3, 4), (5, 6), (6, 7)]
    """
    return [match.span() for match in _UNIT.finditer(text)]


def _element(span: str) -> tuple[str, bool] | None:
    """The name of a tag that has a partner, and whether it closes; None for other spans, such as <br>."""
    tag = _TAG.fullmatch(span.strip())
    if not tag or tag[3] or tag[2].lower() in VOID:
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
        self._source = source
        self._text = text
        self._links = [*links]
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
        self._apart = [*range(len(self._begins))]  # each place between units itself, or the end of the word around it
        for t in reversed(range(len(self._units))):
            if _IN_WORD.match(text, self._begins[t]):
                self._apart[t] = self._apart[t + 1]
        self._outside = [*range(len(text) + 1)]  # each place itself, or the end of what is taken there
        self._is_taken = False
        self._linked = sorted({*self._links} - {-1})  # units of the source
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
            words = self._words_before[self._apart[self._near(edit, 0, len(self._units), self._linked)]]
            at = bisect.bisect_left(self._words_before, words)  # before punctuation
            place = self._outside[self._ends[at] if at else self._begins[0]]
            follows = self._text[place : place + 1]
            before = " " if place or (self._is_taken and not follows) else ""
            after = " " if follows.isalnum() or (follows and not place) else ""
            placed = Edit(place, place, before + edit.text + after)
        self._take(placed)
        return placed

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
            at = min(self._apart[inner.get(at, at)], high)
            placed.append((at, at, k))

        def add(k: int, at: int) -> None:
            least = edits[-1].end if edits else 0
            at = max(min(at, self._ends[high]), least)
            text = tags[k].text
            if k not in partner and least < at and self._left(tags[k]).isspace() and self._text[at - 1].strip():
                text = " " + text
            begin = at
            end = at
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

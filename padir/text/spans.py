"""Spans of a sentence that stand in its translation as they are, and the marks that take their places meanwhile.

A mark is one character. Marks of `MARKS`, from Unicode's private use area, are placeholders: a tokenizer with
placeholders reads each of them as a sentinel id (`padir.text.ids.Ids.num_placeholders`).

1. `padir.data.prepare` puts placeholders into training pairs, for spans that are equal on both sides (`with_marks`).
2. Decoding puts marks into a source, and the spans back into the translation.
"""

from __future__ import annotations

import collections
import functools
import html
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from padir.errors import PadirError, nearest

NUM_PLACEHOLDERS = 16
MARKS = tuple(chr(0xE000 + number) for number in range(NUM_PLACEHOLDERS))

_LATIN = "A-Za-zÀ-ÖØ-öø-ɏ"
_DIGIT = r"\d¼-¾⅐-⅟↉"  # or a fraction
_UNITS = r"°[CF]|°|%(?!\()|€|[kKMGT]B|[kcm]m|[km]g|ml|[kMG]?Hz|[kM]W"
# A tag, with its slash, name and final slash as groups. Attributes hold a "=", or are one word alone: `a<b und c>d` has
# no tag. Quoted values may hold a ">". The quantifier *+ gives nothing back, so that no text takes long.
TAG = (
    r"<(/?)([A-Za-z][\w:.-]*)"
    r"(?:\s(?=[^<>]*=|[a-z]+\s*/?>)(?:=\s*\"[^\"<]*\"|=\s*'[^'<]*'|/(?!>)|[^<>/])*+)?\s*(/?)>"
)
ENTITY = r"&\#?\w{1,40};"
MARKUP = re.compile(rf"{TAG}|<!--.*-->|{ENTITY}")
# Of spans that overlap, the one that contains the other wins, or else the one of the earlier kind.
KINDS = {
    # markup and entities, and the variables of programs' messages
    "tags": rf"{TAG}|<!--(?:(?!<!--).)*?-->|{ENTITY}"
    r"|(?:%(?:\(\w+\))?[sdifu](?![A-Za-z])|%\d+|\$?\{(?:[\w.:-]*|\{?[{%#][^{}]*[}%#]\}?)\})+",
    "urls": r"(?:https?|ftp)://[^\s<>\"]*[^\s<>\"'.,;:!?)\]]|www\.[\w-]+\.[^\s<>\"]*[^\s<>\"'.,;:!?)\]]"
    r"|(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+",
    "numbers": rf"(?<![{_LATIN}{_DIGIT}_.,])[+-]?[{_DIGIT}]+(?:[.,:/⁄-][{_DIGIT}]+){{0,20}}"
    rf"(?:\s?(?:{_UNITS})(?![{_LATIN}{_DIGIT}]))?(?![{_LATIN}{_DIGIT}])",
}
# A capitalised word after another word; only training looks for such names, because German capitalises all nouns.
_NAMES = rf"(?<=[{_LATIN}\d,;)] )[A-ZÀ-ÖØ-Þ][{_LATIN}]+(?:[ -][A-ZÀ-ÖØ-Þ][{_LATIN}]+)*(?![{_LATIN}\d_])"
OWN = f"[{MARKS[0]}-{MARKS[-1]}]"
# Letters and digits of scripts whose words have endings, such as Latin: a span takes in the word that it stands in.
JOINING = r"[^\W\u0590-\u1dff\u2c00-\U0010ffff]"
_BEFORE, _AFTER = re.compile(rf"{JOINING}(?=\S)"), re.compile(rf"(?<=\S){JOINING}")


class Found(NamedTuple):
    """A span of a text: characters begin .. end - 1, of a kind of `KINDS` or a pattern."""

    begin: int
    end: int
    kind: str


class Edit(NamedTuple):
    """Characters begin .. end - 1 of a text become `text`."""

    begin: int
    end: int
    text: str


def edited(text: str, edits: Iterable[Edit], entities: Mapping[int, str] | None = None) -> str:
    """The text after edits; of insertions at one place, the first comes first.

    Args:
      entities: by code points, what replaces characters that no edit touches (as in `str.translate`).

    >>> edited("I saw Tom", [Edit(9, 9, "."), Edit(6, 9, "her")])
    'I saw her.'
    """
    parts = []
    end = 0
    for edit in [*sorted(edits, key=lambda edit: edit[:2]), Edit(len(text), len(text), "")]:
        parts += [text[end : edit.begin].translate(entities or {}), edit.text]
        end = max(end, edit.end)
    return "".join(parts)


def characters(text: str) -> list[Edit]:
    """Characters in place of the entities that models can read; blanks, symbols and unknown names stay entities.

    >>> edited(text := "3 &lt; 5&nbsp;km &amp; M&uuml;ll &copy;", characters(text))
    '3 < 5&nbsp;km & Müll &copy;'
    """
    found = _compiled("tags").finditer(text) if "&" in text else ()
    return [Edit(*match.span(), char) for match in found if (char := _character(match[0]))]


def _character(span: str) -> str:
    """The character of an entity that models can read; "" for other spans."""
    char = html.unescape(span) if span[0] == "&" else ""
    return char if re.fullmatch(r"[^\W_]|[!-~«»‹›‘-„]", char) else ""


@functools.cache
def _compiled(kind: str) -> re.Pattern[str]:
    return re.compile(KINDS.get(kind, kind))


def check_kinds(kinds: Iterable[str]) -> None:
    """Refuses patterns that do not compile, that can match nothing, or that look like a misspelt kind.

    >>> check_kinds(["tag"])
    Traceback (most recent call last):
    padir.errors.PadirError: placeholders: there is no kind 'tag': did you mean 'tags'?
    """
    for kind in kinds:
        if kind in KINDS:
            continue
        if kind.isalpha() and kind.islower() and "did you mean" in (remedy := nearest(kind, list(KINDS))):
            raise PadirError(f"placeholders: there is no kind {kind!r}", remedy=remedy)
        try:
            _compiled(kind)
            least, _ = re._parser.parse(kind).getwidth()  # pyright: ignore[reportAttributeAccessIssue]
        except (re.error, OverflowError, RecursionError) as error:
            expected = f"one of {', '.join(KINDS)}, or a regular expression"
            raise PadirError("placeholders", expected, kind, f"correct the pattern ({error})") from None
        if not least:
            raise PadirError("placeholders", "patterns that match at least one character", kind)


def find(text: str, kinds: Sequence[str]) -> list[Found]:
    """The spans of the kinds and patterns in a text, in order; a span within a word takes in the whole word.

    Each span takes its characters, unless one of them is taken. Spans that lie in no other span come first. Among
    them, and among the others, the kinds come in the order of `KINDS`, and patterns after them in their own order.
    Entities of `characters` are text.

    >>> text = "Siehe <b>www.example.org/{n}</b>, {n}te Seite, 20 km."
    >>> [text[begin:end] for begin, end, _ in find(text, ["tags", "urls", "numbers"])]
    ['<b>', 'www.example.org/{n}', '</b>', '{n}te', '20 km']
    """
    kinds = sorted(kinds, key=lambda kind: [OWN, *KINDS, kind].index(kind))
    numbers: dict[tuple[int, int], int] = {}  # of the kinds, by begin and -end of the spans
    for number, kind in enumerate(kinds):
        least = 0
        for match in _compiled(kind).finditer(text):
            begin, end = match.span()
            if begin < least or (kind == "tags" and _character(match[0])):
                continue
            is_word = not MARKUP.fullmatch(match[0])
            while is_word and begin > least and _BEFORE.match(text, begin - 1):
                begin -= 1
            while is_word and _AFTER.match(text, end):
                end += 1
            numbers.setdefault((begin, -end), number)
            least = end
    ranked = []  # a span in another comes later
    farthest = 0
    for (begin, end), number in sorted(numbers.items()):
        ranked.append((-end <= farthest, number, begin, -end))
        farthest = max(farthest, -end)
    taken = bytearray(len(text))
    found: list[Found] = []
    for _, number, begin, end in sorted(ranked):
        if not any(taken[begin:end]):
            taken[begin:end] = b"x" * (end - begin)
            found.append(Found(begin, end, kinds[number]))
    return sorted(found)


def with_marks(source: str, target: str, first: int = 0) -> tuple[str, str, collections.Counter[str]]:
    """A pair with placeholders for spans that both sides have equally often, and the number of spans of each kind.

    Spans are numbered from `first` on, in the order of the source. Spans beyond `NUM_PLACEHOLDERS` stay.

    >>> source, target, counts = with_marks("Siehe <b>Tom</b>.", "See <b>Tom</b>.", first=15)
    >>> ascii(source), ascii(target), counts.total()
    ("'Siehe \\\\ue00fTom\\\\ue000.'", "'See \\\\ue00fTom\\\\ue000.'", 2)
    """
    kinds = (OWN, *KINDS, _NAMES)
    sides = [[(text[each.begin : each.end], each) for each in find(text, kinds)] for text in (source, target)]
    counts, others = (collections.Counter(span for span, _ in side) for side in sides)
    marks: dict[str, list[str]] = {}
    of_kind: collections.Counter[str] = collections.Counter()
    room = NUM_PLACEHOLDERS
    for span, each in sides[0]:
        if span not in marks and counts[span] == others[span] <= room:
            room -= counts[span]
            marks[span] = []
            of_kind[each.kind if each.kind in KINDS else "names"] += counts[span]
    numbers = itertools.count(first)
    for span, _ in sides[0]:
        if span in marks:
            marks[span].append(MARKS[next(numbers) % NUM_PLACEHOLDERS])

    def marked(text: str, side: list[tuple[str, Found]]) -> str:
        left = {span: iter(own) for span, own in marks.items()}
        return edited(text, [Edit(each.begin, each.end, next(left[span])) for span, each in side if span in left])

    return marked(source, sides[0]), marked(target, sides[1]), of_kind


def marks_of(text: str) -> list[str]:
    """The placeholders in a text, sorted."""
    return sorted(filter(MARKS.__contains__, text))

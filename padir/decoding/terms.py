"""Terms: words of the target language that must stand where words of the source stand.

1. A sentence is translated without its terms. If the translation has all of them, it is the result.
2. Else each missing term is placed by word alignment, in place of the words that translate its source words.
3. A refining model translates the sentence again around the terms, which its canvas holds (`Template`). A model that
   writes from left to right continues after the first missing term.
   A sentence with spans of `Decoding.keep` is not translated again, because the model reads marks in their places.
4. A term that is missing even then replaces its aligned words in the text.

Terms do not apply inside the spans of `Decoding.keep`, which stay as they are.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from padir.decoding.alignment import words
from padir.decoding.options import Decoding
from padir.decoding.templates import Template
from padir.decoding.translation import Translation
from padir.errors import PadirError
from padir.text.marks import Edit, edited, units
from padir.text.spans import find, replaced

Terms = Mapping[str, str]
_ROUNDS = 3  # of a model that writes from left to right, which holds one missing term more in each


def read_terms(path: str | os.PathLike[str]) -> dict[str, str]:
    """Reads a file of terms, source TAB target in each line; empty lines are left out.

    Raises:
      PadirError: there is no such file, or a line has no tab or an empty side.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PadirError(f"cannot read the terms {path} ({error})", remedy="give a UTF-8 file") from None
    terms = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            source, tab, target = line.partition("\t")
            if not tab or not source.strip() or not target.strip() or "\t" in target:
                raise PadirError(f"{path}, line {number}", "SOURCE, a tab and TARGET", line)
            terms[source.strip()] = target.strip()
    return terms


def terms_of(terms: Terms | Sequence[Terms], count: int, n_best: int) -> list[Terms]:
    """The terms of each text, given for each or for all; refuses sides without words or of several lines."""
    if n_best:
        raise PadirError("n_best lists candidates without the terms: leave n_best or the terms out")
    every = [terms] if isinstance(terms, Mapping) else [*terms]
    for each in every:
        if not isinstance(each, Mapping):
            raise PadirError("terms", "a mapping from source words to target words", each, "such as {'Hund': 'hound'}")
        for source, target in each.items():
            if not all(isinstance(side, str) and side.strip() for side in (source, target)):
                raise PadirError("terms", "words on both sides", f"{source!r}: {target!r}")
            if source.splitlines() != [source] or target.splitlines() != [target]:
                raise PadirError("terms", "words of one line", {source: target}, "leave line breaks out")
    if isinstance(terms, Mapping):
        return [terms] * count
    if len(every) != count:
        raise PadirError(f"{count} texts need {count} mappings of terms or one", got=len(every))
    return every


def missing(terms: Terms, source: str, target: str) -> list[tuple[int, int, str]]:
    """Begin and end of source words whose term a translation does not have, with the term; case is ignored.

    >>> missing({"Hund": "hound", "Katze": "cat"}, "Hund und Katze", "Dog and cat")
    [(0, 4, 'hound')]
    """
    found: list[tuple[int, int, str]] = []
    for own in sorted(terms, key=len, reverse=True):
        match = _find(own, source)
        if match and all(match.end() <= begin or end <= match.start() for begin, end, _ in found):
            found.append((*match.span(), terms[own]))
    return sorted(each for each in found if not _find(each[2], target))


def _find(words_of: str, text: str) -> re.Match[str] | None:
    """The first place of words in a text; scripts without spaces have no ends of words."""
    word = re.escape(words_of.strip())
    if words_of.isascii() or len(words(words_of)) < len(words_of.strip()):
        word = rf"(?<![^\W_]){word}(?![^\W_])"
    return re.search(word, text, re.IGNORECASE)


def hold_terms(
    translator: Any,
    texts: Sequence[str],
    results: Sequence[Translation],
    decoding: Decoding,
    terms: Sequence[Terms],
    **how: Any,
) -> list[Translation]:
    """The translations with all terms of their sources.

    Args:
      translator: a `Translator`, which translates again.
      results, decoding: its translations without terms, and their options.
      how: further arguments of `Translator.translate`.
    """
    made = [*results]
    refines = translator.refines(decoding)
    _, marked = translator.loaded.marked(texts, decoding.keep)
    if refines:  # the length is known, so that there is one candidate
        decoding = dataclasses.replace(decoding, top_k=1, adjacent=False, rerank="own", brevity=1.0)
    for _ in range(1 if refines else _ROUNDS):
        edits = _edits(translator, texts, made, terms, decoding.keep)
        if not edits:
            return made
        templates = {
            i: _around(translator, made[i].text, own, refines) for i, own in edits.items() if marked[i] is None
        }
        chosen = {i: own for i, own in templates.items() if own.least <= translator.card.config.max_length}
        if not chosen:
            break
        again = translator.translate([texts[i] for i in chosen], decoding, template=[*chosen.values()], **how)
        for i, result in zip(chosen, again, strict=True):
            made[i] = dataclasses.replace(result, passes=made[i].passes + result.passes)
    else:
        edits = _edits(translator, texts, made, terms, decoding.keep)
    for i, own in edits.items():
        made[i] = dataclasses.replace(made[i], text=edited(made[i].text, own))
    return made


def _edits(
    translator: Any,
    texts: Sequence[str],
    results: Sequence[Translation],
    terms: Sequence[Terms],
    keep: Sequence[str],
) -> dict[int, list[Edit]]:
    """The words of each translation that missing terms replace; translations that miss none are left out."""
    absent = {
        i: missing(terms[i], _without_spans(text, keep), _without_spans(results[i].text, keep))
        for i, text in enumerate(texts)
    }
    absent = {i: own for i, own in absent.items() if own}
    links = translator.align([texts[i] for i in absent], [results[i].text for i in absent], cut=units)
    return {i: _replaced(texts[i], results[i].text, absent[i], own, keep) for i, own in zip(absent, links, strict=True)}


def _without_spans(text: str, keep: Sequence[str]) -> str:
    """The text with spaces in place of the characters of its spans."""
    spans = find(text, keep)
    return replaced(text, spans, [" " * (span.end - span.begin) for span in spans])


def _replaced(
    source: str,
    target: str,
    absent: Sequence[tuple[int, int, str]],
    links: Sequence[tuple[int, int]],
    keep: Sequence[str] = (),
) -> list[Edit]:
    """Terms in place of the first run of words that are linked to their source words, in the order of the target.

    The spans of `keep` stay.
    """
    own, theirs = units(source), units(target)
    spans = find(target, keep)
    is_word = [
        target[begin].isalnum() and all(end <= span.begin or span.end <= begin for span in spans)
        for begin, end in theirs
    ]
    edits: list[Edit] = []
    for begin, end, term in absent:
        inside = {s for s, (first, last) in enumerate(own) if begin <= first and last <= end}
        linked = [t for s, t in links if s in inside and is_word[t]]
        linked = [t for t in linked if all(theirs[t][0] >= e.end or theirs[t][1] <= e.begin for e in edits)]
        if linked:
            last = linked[0]
            while last + 1 in linked:
                last += 1
            edits.append(Edit(theirs[linked[0]][0], theirs[last][1], term))
        else:  # before the punctuation at the end
            ends = [last for (_, last), word in zip(theirs, is_word, strict=True) if word]
            at = max([*ends, *(span.end for span in spans)], default=0)
            edits.append(Edit(at, at, f" {term}" if at else term))
    return sorted(edits)


def _around(translator: Any, text: str, edits: Sequence[Edit], refines: bool) -> Template:
    """A template of the terms: with gaps of the lengths that the text has, or a prefix up to the first term."""
    encode = translator.tokenizer.encode
    if not refines:
        begin, _, term = edits[0]
        return Template((tuple(encode(text[:begin].rstrip() + " " + term.strip() if begin else term)), 0))
    parts: list[tuple[int, ...] | int] = []
    end = 0
    for edit in edits:
        if count := len(encode(text[end : edit.begin].strip())):
            parts.append(count)
        parts.append(tuple(encode(edit.text.strip())))
        end = edit.end
    if rest := text[end:].strip():
        parts.append(max(1, len(encode(rest)) - (not rest[0].isalnum())))
    return Template(tuple(parts))

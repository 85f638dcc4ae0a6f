"""Terms: words of the target language that must stand where words of the source stand.

1. A sentence is translated without its terms. If the translation has all of them, it is the result. Once is enough,
   however often the source words stand in the sentence.
2. Else word alignment finds the words that translate the source words of each missing term (`Placing`).
3. The term replaces these words in the text. To refine the sentence again around its terms gains nothing; to continue
   after the term from left to right costs 3 times as much and gains half a point of BLEU.

Terms do not apply inside the spans of `Decoding.placeholders`, which stay as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from padir import checks
from padir.decoding.options import Decoding
from padir.decoding.sentences import SentenceTranslator
from padir.decoding.translation import Translation
from padir.errors import PadirError
from padir.text.marks import Marked
from padir.text.normalise import composed
from padir.text.placing import UNSPACED, Placing
from padir.text.spans import ENTITY, Edit, edited, find

Terms = Mapping[str, str]
_MOST_TERMS = 100_000  # of a text


def read_terms(path: str | os.PathLike[str]) -> dict[str, str]:
    """Reads a file of terms, source TAB target in each line; empty lines are left out.

    Raises:
      PadirError: there is no such file, a line has no tab or an empty side, or source words have two targets.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PadirError(f"cannot read the terms {path} ({error})", remedy="give a UTF-8 file") from None
    terms = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            source, tab, target = line.partition("\t")
            if not tab or not source.strip() or not target.strip() or "\t" in target:
                raise PadirError(f"{path}, line {number}", "SOURCE, a tab and TARGET", line)
            if terms.setdefault(source.strip(), target.strip()) != target.strip():
                raise PadirError(f"{path}, line {number}", "source words of no earlier line", source.strip())
    return terms


def terms_of(terms: Terms | Sequence[Terms], count: int, n_best: int) -> list[Terms]:
    """The terms of each text, given for each or for all (`_plain`)."""
    if n_best:
        raise PadirError("n_best lists candidates without the terms: leave n_best or the terms out")
    if isinstance(terms, Mapping):
        return [_plain(terms)] * count
    if len(terms) != count:
        raise PadirError(f"{count} texts need {count} mappings of terms or one", got=len(terms))
    return [_plain(each) for each in terms]


def _plain(terms: Terms) -> Terms:
    """Terms with composed letters, and without white space around their words.

    Raises:
      PadirError: a side has no words or several lines, or source words are equal but for their case.
    """
    checks.within(0, _MOST_TERMS, terms=len(terms))
    plain: dict[str, str] = {}
    folded: dict[str, str] = {}
    for given in terms.items():
        source, target = (composed(side).strip() if isinstance(side, str) else "" for side in given)
        if not (source and target):
            raise PadirError("terms", "words on both sides", f"{given[0]!r}: {given[1]!r}")
        if any({*"\r\n"} & {*side} for side in given):
            raise PadirError("terms", "words of one line", dict([given]), "leave line breaks out")
        if (other := folded.setdefault(source.lower(), given[0])) != given[0]:
            raise PadirError("terms", "source words that differ by more than their case", [other, given[0]])
        plain[source] = target
    return plain


def missing(terms: Terms, source: str, target: str) -> list[Edit]:
    """Terms that a translation does not have, in place of their words of the source; case is ignored.

    >>> missing({"Hund": "hound", "Katze": "cat"}, "Hund und Katze", "Dog and cat")
    [Edit(begin=0, end=4, text='hound')]
    """
    return _compared(terms, source, target)[0]


def _compared(terms: Terms, source: str, target: str) -> tuple[list[Edit], list[tuple[int, int]]]:
    """The missing terms, and the places of the others in the translation; no two terms share words of either side."""
    sought: list[Edit] = []
    taken = bytearray(len(source))
    folded = _folded(source)
    likely = [own for own in terms if _folded(own) in folded]  # of many terms, few have their pattern made
    for own in sorted(likely, key=len, reverse=True):
        span = _vacant(own, source, taken)
        sought += [Edit(*span, terms[own])] if span else []
    absent: list[Edit] = []
    present: list[tuple[int, int]] = []
    taken = bytearray(len(target))
    for edit in sorted(sought, key=lambda edit: (-len(edit.text), edit)):
        if (span := _vacant(edit.text, target, taken)) is None:
            absent.append(edit)
        else:
            present.append(span)
    return sorted(absent), present


def _vacant(words_of: str, text: str, taken: bytearray) -> tuple[int, int] | None:
    """Takes the first place of words in a text whose characters are not `taken` yet."""
    for match in _pattern(words_of).finditer(text):
        begin, end = match.span()
        if not any(taken[begin:end]):
            taken[begin:end] = b"1" * (end - begin)
            return begin, end
    return None


def _folded(text: str) -> str:
    """The text without case; whatever is equal in `re.IGNORECASE` is equal here."""
    return text.replace("\u0130", "i").replace("\u0131", "i").casefold()


@functools.lru_cache(10_000)
def _pattern(words_of: str) -> re.Pattern[str]:
    """The words in any case; scripts without spaces have no ends of words."""
    word = re.escape(words_of)
    if not re.search(f"[{UNSPACED}]", words_of):
        word = rf"(?<![^\W_]){word}(?![^\W_])"
    return re.compile(word, re.IGNORECASE)


def hold_terms(
    translator: SentenceTranslator,
    texts: Sequence[str],
    marked: Sequence[Marked | None],
    results: Sequence[Translation],
    decoding: Decoding,
    terms: Sequence[Terms],
) -> list[Translation]:
    """The translations with all terms of their sources.

    Args:
      marked: the spans of the texts that stay, None for a text without any.
      results: the translations of the texts without terms.
      decoding: the options that made these translations.
    """
    made = [*results]
    sources = zip(texts, marked, made, strict=True)
    texts = [_uncut(translator, text, own) if result.truncated else text for text, own, result in sources]
    edits = _edits(translator, texts, made, decoding, terms)
    for i, own in edits.items():
        made[i] = dataclasses.replace(made[i], text=edited(made[i].text, own), whole_text=None)
    return made


def _uncut(translator: SentenceTranslator, text: str, marked: Marked | None) -> str:
    """The beginning of a text that was cut, as far as the model read it."""
    (tokens,), _ = translator.loaded.source_tokens([marked.text if marked else text], truncate=True)
    read = translator.tokenizer.decode(tokens)
    return edited(read, [edit for edit in marked.edits if edit.end <= len(read)]) if marked else read


def _edits(
    translator: SentenceTranslator,
    texts: Sequence[str],
    results: Sequence[Translation],
    decoding: Decoding,
    terms: Sequence[Terms],
) -> dict[int, list[Edit]]:
    """Missing terms in place of words of each translation; translations that miss none are left out."""
    kinds = (*decoding.placeholders, ENTITY) if "tags" in decoding.placeholders else decoding.placeholders

    def bare(text: str) -> str:  # its spans do not count
        return edited(text, [Edit(begin, end, " " * (end - begin)) for begin, end, _ in find(text, kinds)])

    compared = {i: _compared(terms[i], bare(text), bare(results[i].text)) for i, text in enumerate(texts)}
    compared = {i: each for i, each in compared.items() if each[0]}
    pairs = [(texts[i], results[i].text) for i in compared]
    linked = translator.links(pairs, decoding.batch_size)
    edits = {}
    for (i, (absent, present)), pair, numbers in zip(compared.items(), pairs, linked, strict=True):
        kept = [span[:2] for span in find(pair[1], kinds)]
        placing = Placing(*pair, numbers, [Edit(*span, "") for span in present + kept])
        edits[i] = sorted((placing.word(edit) for edit in absent), key=lambda edit: edit[:2])
    return edits

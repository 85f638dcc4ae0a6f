"""The corpus `toy_de_en`: German-English sentences from a grammar, with all right translations of each test sentence.

So `judge` can distinguish a wrong translation from a mixture of two right translations. The German sentence determines
the meaning; English sometimes has several wordings, and the corpus draws one wording for the whole sentence:

    variety      a flat in autumn, on 3 May        | an apartment in the fall, on May 3     70 | 30
    place        Today he works; Because ..., ...  | He works today; ... because ...        60 | 40
    dative       gives the child the book          | gives the book to the child            50 | 50

No two splits share a German sentence. Every tenth pair of a verb and an object noun is kept out of the training split.
Every other validation and test sentence has such an unseen pair; its verb and its noun are each frequent in training.
The files beside this one hold the corpus; `scripts/toy_corpus` wrote them.
"""

from __future__ import annotations

import functools
import itertools
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar

from padir import checks
from padir.data.formats import Corpus
from padir.errors import PadirError


@checks.settings
class ToyDeEn:
    """The corpus, or the first pairs of each split, as a source of pairs; sentences within a split are distinct.

    >>> next(ToyDeEn().pairs("test"))[0].endswith(".")
    True
    """

    num_train: Annotated[int, functools.partial(checks.within, 1, 100_000)] = 100_000
    num_validation: Annotated[int, functools.partial(checks.within, 1, 500)] = 500
    num_test: Annotated[int, functools.partial(checks.within, 1, 1_000)] = 1_000

    name: ClassVar[str] = "toy_de_en"
    source_language: ClassVar[str] = "de"
    target_language: ClassVar[str] = "en"
    splits: ClassVar[tuple[str, ...]] = ("train", "validation", "test")

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The (German, English) pairs of a split.

        Raises:
          PadirError: there is no such split.
        """
        if split not in self.splits:
            raise PadirError(f"toy_de_en has no split {split!r}", remedy=f"use one of {', '.join(self.splits)}")
        return ((german, drawn) for german, drawn, *_ in itertools.islice(_rows(split), getattr(self, f"num_{split}")))

    def corpora(self, split: str) -> list[Corpus]:
        """The whole split as one part."""
        return [Corpus(self.name, self.pairs(split))]


def _rows(split: str) -> Iterator[list[str]]:
    """German and the English that the corpus drew; outside the training split all right translations follow."""
    with lzma.open(Path(__file__).parent / f"{split}.tsv.xz", "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.rstrip("\n").split("\t")


@functools.cache
def _references() -> dict[str, tuple[str, ...]]:
    return {german: tuple(right) for split in ("validation", "test") for german, _, *right in _rows(split)}


def references(source: str) -> tuple[str, ...]:
    """All right translations of a German sentence of the validation or the test split, the likeliest first.

    Raises:
      PadirError: the sentence is not of these splits.
    """
    found = _references().get(source)
    if found is None:
        expected = "a German sentence of its validation or test split, unchanged"
        raise PadirError("a source of toy_de_en to judge", expected, source)
    return found


def are_judged(sources: Iterable[str]) -> bool:
    """True if all sentences are of the validation or the test split, whose right translations are known."""
    return all(source in _references() for source in sources)


def judge(source: str, output: str) -> str:
    """Judges a translation: "right", "mixed" (of parts of several right translations) or "wrong".

    right: the translation is one of `references(source)`.
    mixed: the translation is not right, but has as many words as a right translation. Each of its words stands at the
      same place in some right translation, counted from the first word or from the last.
    wrong: anything else.

    Words are separated by spaces. If each word of a translation is drawn independently from the words that right
    translations have in its place, the translation is never "wrong". If only one translation is right, no translation
    is "mixed".

    Raises:
      PadirError: the source is no sentence of the validation or the test split.
    """
    right = [reference.split() for reference in references(source)]
    words = output.split()
    if words in right:
        return "right"
    if len(words) not in {len(other) for other in right}:
        return "wrong"
    from_start = {(place, word) for other in right for place, word in enumerate(other)}
    from_end = {(place, word) for other in right for place, word in enumerate(reversed(other))}
    fits = (
        (place, word) in from_start or (len(words) - 1 - place, word) in from_end for place, word in enumerate(words)
    )
    return "mixed" if all(fits) else "wrong"


__all__ = ["ToyDeEn", "are_judged", "judge", "references"]

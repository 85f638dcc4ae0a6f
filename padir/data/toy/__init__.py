"""The corpus `toy_de_en`: German-English sentences from a grammar, which gives all right translations of each sentence.

So `judge` can distinguish a wrong translation from a mixture of two right translations. The German sentence determines
the meaning; English sometimes has several wordings, and the corpus draws one wording for the whole sentence:

    variety      a flat in autumn, on 3 May        | an apartment in the fall, on May 3     70 | 30
    place        Today he works; Because ..., ...  | He works today; ... because ...        60 | 40
    dative       gives the child the book          | gives the book to the child            50 | 50

The spelling of a sentence determines its split, so that no two splits share a German sentence, whatever their seeds.
Every tenth pair of a verb and an object noun is kept out of the training split. Every other validation and test
sentence has such an unseen pair; its verb and its noun are each frequent in training.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import zlib
from collections.abc import Iterator
from typing import ClassVar

from padir import checks
from padir.data.formats import Corpus
from padir.data.toy.grammar import NounPhrase, Reference, Sentence
from padir.data.toy.parser import parse
from padir.data.toy.sampler import sample
from padir.errors import PadirError


@dataclasses.dataclass(frozen=True)
class ToyDeEn:
    """The corpus as a source of sentence pairs; sentences within a split are distinct.

    >>> next(ToyDeEn().pairs("test"))[0].endswith(".")
    True
    """

    seed: int = 0
    num_train: int = 100_000
    num_validation: int = 500
    num_test: int = 1_000

    name: ClassVar[str] = "toy_de_en"
    source_language: ClassVar[str] = "de"
    target_language: ClassVar[str] = "en"
    splits: ClassVar[tuple[str, ...]] = ("train", "validation", "test")

    def __post_init__(self):
        checks.counts(1, num_train=self.num_train, num_validation=self.num_validation, num_test=self.num_test)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The (German, English) pairs of a split, the same in every process and version of Python.

        Raises:
          PadirError: there is no such split.
        """
        if split not in self.splits:
            raise PadirError(f"toy_de_en has no split {split!r}", remedy=f"use one of {', '.join(self.splits)}")
        return self._pairs(split)

    def corpora(self, split: str) -> list[Corpus]:
        """The whole split as one part."""
        return [Corpus(self.name, self.pairs(split))]

    def _pairs(self, split: str) -> Iterator[tuple[str, str]]:
        rng = random.Random(f"{self.name} {self.seed} {split}")  # a text seeds by its sha512, not by hash()
        seen: set[str] = set()
        while len(seen) < getattr(self, f"num_{split}"):
            sentence = sample(rng)
            if has_unseen_pair(sentence) != (split != "train" and len(seen) % 2 == 0):
                continue
            german = sentence.german()
            if german in seen or _split_of(german) != split:
                continue
            seen.add(german)
            yield german, _draw(rng, sentence.references())


def _split_of(german: str) -> str:
    return {0: "test", 1: "validation"}.get(zlib.crc32(german.encode()) % 8, "train")


def _draw(rng: random.Random, choices: tuple[Reference, ...]) -> str:
    draw = rng.random()
    for reference in choices:
        draw -= reference.probability
        if draw < 0:
            return reference.text
    return choices[-1].text


def has_unseen_pair(sentence: Sentence) -> bool:
    """True if the sentence has a pair of a verb and an object noun that no training sentence has."""
    pairs = (
        f"{clause.verb.prefix}{clause.verb.infinitive} {clause.object.noun.singular}"
        for clause in (sentence.main, sentence.other)
        if clause is not None and isinstance(clause.object, NounPhrase)
    )
    return any(zlib.crc32(pair.encode()) % 10 == 0 for pair in pairs)


@functools.lru_cache(maxsize=4096)
def references(source: str) -> tuple[Reference, ...]:
    """All right translations of a German sentence, the likeliest first; their probabilities sum to 1.

    The sentence is parsed, so it need not be in the corpus: any sentence of the grammar has its translations.

    >>> [r.text for r in references("Er gibt dem Kind den Ball.")]
    ['He gives the child the ball.', 'He gives the ball to the child.']

    Raises:
      PadirError: the sentence is not of the grammar.
    """
    meanings = parse(source)
    if not meanings:
        remedy = "use a line of its German side, unchanged"
        raise PadirError(f"expected a German sentence of toy_de_en, got {source!r}", remedy=remedy)
    return meanings[0].references()


def judge(source: str, output: str) -> str:
    """Judges a translation: "right", "mixed" (of parts of several right translations) or "wrong".

    right: the translation is one of `references(source)`.
    mixed: the translation is not right, but has as many words as a right translation. Each of its words stands at the
      same place in some right translation, counted from the first word or from the last.
    wrong: anything else.

    Words are separated by spaces. If each word of a translation is drawn independently from the words that right
    translations have in its place, the translation is never "wrong". If only one translation is right, no translation
    is "mixed".

    >>> judge("Er gibt dem Kind den Ball.", "He gives the child to ball.")
    'mixed'

    Raises:
      PadirError: the source is not a sentence of the grammar.
    """
    right = [reference.text.split() for reference in references(source)]
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


__all__ = ["Reference", "ToyDeEn", "has_unseen_pair", "judge", "references"]

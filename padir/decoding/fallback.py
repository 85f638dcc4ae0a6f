"""`Fallback`, a writer of two: the second one writes the sentences in which the first one's translation is no text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from padir.decoding.bigrams import all_known
from padir.decoding.hypothesis import Hypothesis, SourceSentence
from padir.decoding.reading import best_first
from padir.decoding.refiner import Refiner
from padir.decoding.searcher import Searcher
from padir.decoding.writer import Writer, Written
from padir.errors import PadirError
from padir.options import foreign
from padir.text.cleaning import broken, text_of
from padir.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Fallback:
    """Writes sentences again from left to right, where the best hypothesis has a word that nobody ever wrote.

    The best hypothesis is the writer's own, as no rule ranks beside a fallback. Such a sentence has the second writer's
    hypotheses alone, and the passes of both writers. Sentences with a template or a given length keep what the first
    writer wrote. Greedy search has the default `length_penalty`, which options of refining cannot set.

    Attributes:
      known: bitmap of known words (`padir.decoding.bigrams.BigramScore.known`), on the host.
    """

    first: Writer
    second: Writer
    tokenizer: Tokenizer
    known: np.ndarray

    @property
    def most_hypotheses(self) -> int:
        return self.first.most_hypotheses

    def write(self, sources: Sequence[SourceSentence]) -> Written:
        """Writes hypotheses by the first writer, then some by the second."""
        written = self.first.write(sources)
        best = [self._best(*each) for each in zip(sources, written.hypotheses, strict=True)]
        again = [b for b, source in enumerate(sources) if self._falls_back(source, best[b])]
        if not again:
            return written
        hypotheses = [*written.hypotheses]
        rewritten = self.second.write([sources[b] for b in again])
        for b, own in zip(again, rewritten.hypotheses, strict=True):
            hypotheses[b] = [each._replace(passes=each.passes + best[b].passes, fell_back=True) for each in own]
        return written._replace(hypotheses=hypotheses)

    def _best(self, source: SourceSentence, hypotheses: Sequence[Hypothesis]) -> Hypothesis:
        """The hypothesis that is read if nothing is written again."""

        def is_broken(n: int) -> bool:
            return broken(self.tokenizer.decode(hypotheses[n].tokens, source.text), source.text) > 0

        return hypotheses[best_first([float(each.order) for each in hypotheses], is_broken)[0]]

    def _falls_back(self, source: SourceSentence, best: Hypothesis) -> bool:
        if source.template is not None or source.target_length is not None:
            return False
        return not all_known(self.known, text_of(self.tokenizer, best.tokens, source.text), source.text)


def with_fallback(refiner: Refiner) -> Writer:
    """A refiner, and greedy search for sentences with an unknown word.

    Raises:
      PadirError: the table lists no words.
    """
    loaded, decoding = refiner.loaded, refiner.decoding
    known = loaded.table.known
    if known is None:
        what = "fusion's fallback needs a list of words, and languages without spaces have none"
        raise PadirError(what, remedy="leave the fallback out")
    greedy = decoding.without(*foreign("causal")).changed(mode="causal", beam=1)
    searcher = Searcher(loaded.side("causal"), greedy, refiner.shapes)
    return Fallback(refiner, searcher, loaded.tokenizer, np.asarray(known))

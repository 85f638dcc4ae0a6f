"""Times padir's autoregressive models in CTranslate2 (`padir.interop.ctranslate2`)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from padir.benchmark.batches import TimedBatch
from padir.benchmark.decoding import System
from padir.decoding.autoregressive import length_limits
from padir.decoding.pipeline import Observer, unobserved
from padir.decoding.search import Beam, Greedy
from padir.decoding.translation import Translation
from padir.errors import PadirError
from padir.interop.ctranslate2 import Searcher, check_search


def peers(systems: Sequence[System], compute_types: Sequence[str]) -> list[Peer]:
    """Makes a `Peer` of every autoregressive system in each compute type, without drafts.

    Each peer is made once with one thread and once with as many threads as there are cores: the load of the machine
    decides which is faster. CTranslate2's beam search divides by length^alpha where padir's divides by
    ((5 + length) / 6)^alpha, so that the two may choose differently.

    Raises:
      PadirError: no system is autoregressive in float32, CTranslate2 is not installed, or it cannot run the model.
    """
    causal = [system for system in systems if system.causal and system.precision == "float32"]
    causal = [system for system in causal if not system.translator.card.config.dual]
    if compute_types and not causal:
        raise PadirError(
            "CTranslate2 writes from left to right and is converted from float32: give an autoregressive model, too,"
            " and float32 among the precisions (a dual model does not count)"
        )
    whole = [dataclasses.replace(each, decoding=dataclasses.replace(each.decoding, draft=None)) for each in causal]
    threads = sorted({1, os.cpu_count() or 1})
    return [
        Peer.of(each, type_, number) for type_ in compute_types for number in threads for each in dict.fromkeys(whole)
    ]


@dataclasses.dataclass(frozen=True)
class Peer(System):
    """CTranslate2 with a converted model, from text to text; padir's vocabulary tokenises and detokenises.

    Attributes:
      searcher: the converted model.
    """

    searcher: Searcher

    @property
    def precision(self) -> str:
        return self.searcher.compute_type

    @staticmethod
    def of(system: System, compute_type: str, threads: int) -> Peer:
        """Converts the model of a system, and keeps the system's search.

        Raises:
          PadirError: CTranslate2 is not installed or cannot run the model, or the search draws tokens.
        """
        check_search(system.decoding.search)
        shortlist = system.decoding.shortlist
        searcher = Searcher.of(system.translator, compute_type, threads=threads, shortlist=shortlist)
        name = f"{system.model} by CTranslate2, {compute_type}, {threads} thread" + "s" * (threads > 1)
        return Peer(name, system.translator, system.decoding, searcher)

    def __call__(self, batch: TimedBatch) -> list[Translation]:
        return self.run(batch)

    def run(self, batch: TimedBatch, observe: Observer = unobserved) -> list[Translation]:
        search = self.decoding.search
        assert isinstance(search, Beam | Greedy)  # `of` has checked it
        sources = self.source(batch).tokens
        observe("tokenise", sources)
        if batch.target_lengths is not None:
            longest, shortest = max(batch.target_lengths), min(batch.target_lengths)
            if longest != shortest:
                raise PadirError(
                    "CTranslate2 can be made to write a number of tokens for a whole batch only, got lengths from"
                    f" {shortest} to {longest}: use batches of one sentence"
                )
        else:
            limits = length_limits([len(source) for source in sources], self.translator.card.config.max_length)
            longest, shortest = max(limits), 2
        results = self.searcher.write(sources, search, longest=longest, shortest=shortest, scores=False)
        observe("encode and write", results)
        translations = [self.searcher.translation(result, search, longest) for result in results]
        observe("detokenise", translations)
        return translations

"""Times padir's autoregressive models in CTranslate2 (`padir.interop.ctranslate2`)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from padir.decoding.autoregressive import length_limits
from padir.decoding.translation import Translation
from padir.decoding.writer import Written
from padir.errors import PadirError
from padir.interop.ctranslate2 import CTranslate2Engine, beam_of
from padir.measuring.benchmark.decoding_speed import System
from padir.measuring.benchmark.timed_batches import TimedBatch


def peers(systems: Sequence[System], compute_types: Sequence[str]) -> list[Peer]:
    """Makes a `Peer` of every autoregressive system in each compute type.

    Each peer is made once with one thread and once with as many threads as there are cores, because the load of the
    machine decides which is faster. CTranslate2's beam search divides by length^alpha, padir's by ((5 + length) /
    6)^alpha. So the two may choose differently.

    Raises:
      PadirError: no system is autoregressive in float32, CTranslate2 is not installed, or it cannot run the model.
    """
    causal = [system for system in systems if system.causal and system.precision == "float32"]
    causal = [system for system in causal if not system.translator.card.config.dual]
    if compute_types and not causal:
        raise PadirError(
            "CTranslate2 needs an autoregressive model in float32: give one (not a dual model), and float32 among the"
            " precisions"
        )
    threads = sorted({1, os.cpu_count() or 1})
    return [
        Peer.of(each, type_, number) for type_ in compute_types for number in threads for each in dict.fromkeys(causal)
    ]


@dataclasses.dataclass(frozen=True)
class Peer(System):
    """CTranslate2 with a converted model, from text to text; padir's vocabulary tokenises and detokenises.

    Attributes:
      searcher: the converted model.
    """

    searcher: CTranslate2Engine

    @property
    def precision(self) -> str:
        return self.searcher.compute_type

    @staticmethod
    def of(system: System, compute_type: str, threads: int) -> Peer:
        """Converts the model of a system, and keeps the system's search.

        Raises:
          PadirError: CTranslate2 is not installed or cannot run the model, or the search draws tokens.
        """
        beam_of(system.decoding)
        shortlist = system.decoding.shortlist
        searcher = CTranslate2Engine.of(system.translator, compute_type, threads=threads, shortlist=shortlist)
        name = f"{system.model} by CTranslate2, {compute_type}, {threads} thread" + "s" * (threads > 1)
        return Peer(name, system.translator, system.decoding, searcher)

    def __call__(self, batch: TimedBatch) -> list[Translation]:
        return [value for _, value in self.timed_stages(batch)][-1]

    def timed_stages(self, batch: TimedBatch) -> Iterator[tuple[str, Any]]:
        search = beam_of(self.decoding)
        texts = self.sources(batch)
        sources = [source.tokens for source in texts]
        yield "tokenise", sources
        if batch.target_lengths is not None:
            longest = max(batch.target_lengths)
            shortest = min(batch.target_lengths)
            if longest != shortest:
                raise PadirError(
                    "CTranslate2 writes the same number of tokens for all sentences of a batch, got lengths from"
                    f" {shortest} to {longest}: use batches of one sentence"
                )
        else:
            limits = length_limits([len(source) for source in sources], self.translator.card.config.max_length)
            longest = max(limits)
            shortest = 2
        results = self.searcher.write(sources, search, longest=longest, shortest=shortest, scores=False)
        yield "encode and write", results
        written = Written([self.searcher.hypotheses(result, longest) for result in results])
        yield "choose and detokenise", self.batch_translator(batch).read(texts, written)

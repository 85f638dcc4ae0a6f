"""Refined drafts of a test set with all that stood on the canvas at every step, as token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from padir.decoding.lengths import LengthSearch
from padir.decoding.options import Decoding
from padir.decoding.translator import EncodedBatch, Translator
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.text.ids import EOS


class Pass(NamedTuple):
    """A batch that was refined, one draft of each sentence.

    Attributes:
      numbers: of the sentences in the test set.
      batch: what the encoder made of them; rows that fill it up come last.
      length_B: target lengths in tokens, EOS included.
      tokens_TBL, score_TBL: the canvas before the first step and after each (`padir.refinement.loop.Refined`).
      passes_B: decoder passes that each row took.
    """

    numbers: list[int]
    batch: EncodedBatch
    length_B: Int[np.ndarray, " B"]
    tokens_TBL: Int[np.ndarray, "T B L"]
    score_TBL: Float[np.ndarray, "T B L"]
    passes_B: Int[np.ndarray, " B"]

    def rows(self) -> Iterator[tuple[int, int]]:
        """(row, number of its sentence)."""
        return enumerate(self.numbers)


def refined(
    translator: Translator,
    test_set: TestSet,
    decoding: Decoding,
    lengths: Sequence[int] | None = None,
) -> Iterator[Pass]:
    """Refines one draft of each sentence that is not empty, batch by batch, shortest first.

    Sources that are longer than the model takes are cut.

    Args:
      decoding: one length and one draft a sentence are tried, whatever it says.
      lengths: in tokens, EOS included; None: the most likely one.
    """
    decoding = translator.resolved(dataclasses.replace(decoding, lengths=LengthSearch(), prune=None))
    sources, _ = translator.source_tokens(test_set.sources, truncate=True)
    order = sorted((i for i, text in enumerate(test_set.sources) if text.strip()), key=lambda i: len(sources[i]))
    if not order:
        raise PadirError("there are no sentences to analyse: give some")
    for begin in range(0, len(order), decoding.batch_size):
        numbers = order[begin : begin + decoding.batch_size]
        batch = translator.encode([sources[i] for i in numbers], decoding.batch_size)
        given = None if lengths is None else [lengths[i] for i in numbers]
        drafts = translator.refine(batch, translator.try_lengths(batch, decoding, given), numbers, decoding, trace=True)
        assert drafts.trace_TRL is not None
        tokens_TBL, score_TBL = (np.asarray(part)[: decoding.num_steps + 1] for part in drafts.trace_TRL)
        yield Pass(numbers, batch, drafts.length_R, tokens_TBL, score_TBL, drafts.passes_R)


def reference_tokens(translator: Translator, test_set: TestSet) -> list[list[int]]:
    """The references' tokens with EOS, cut to what the model writes."""
    limit = translator.card.config.max_length
    return [[*tokens[: limit - 1], EOS] for tokens in translator.tokenizer.encode_batch(test_set.references)]


def first_sentences(test_set: TestSet, limit: int | None) -> TestSet:
    """The test set's first `limit` sentences; None: all.

    Raises:
      PadirError: the limit is below 1.
    """
    if limit is None:
        return test_set
    if limit < 1:
        raise PadirError(f"the number of sentences must be at least 1, got {limit}")
    return dataclasses.replace(test_set, sources=test_set.sources[:limit], references=test_set.references[:limit])


def pieces(translator: Translator, tokens_L: Any) -> list[str]:
    """Tokens as people read them: without the sign of a word's beginning where there is more to the piece."""
    return [translator.tokenizer.pieces[i].lstrip("▁") or "▁" for i in tokens_L]

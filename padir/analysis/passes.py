"""Refined drafts of a test set, with the canvas of every step as token ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from padir.decoding.batches import EncodedBatch, source_batches
from padir.decoding.lengths import LengthSearch
from padir.decoding.options import Decoding
from padir.decoding.pipeline import RefiningPipeline
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.text.ids import EOS


class Pass(NamedTuple):
    """A refined batch, one draft of each sentence.

    Attributes:
      numbers: the sentences' numbers in the test set.
      batch: the encoded sentences; rows that fill the batch up come last.
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
        """Pairs (row, number of the row's sentence), without the rows that fill the batch up."""
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
      decoding: the options; `lengths` and `prune` have no effect: each sentence gets one length and one draft.
      lengths: target length of each sentence in tokens, EOS included; None: the most likely one.

    Raises:
      PadirError: no sentence has text, the options do not fit the model, or the model is causal.
    """
    decoding = dataclasses.replace(decoding, lengths=LengthSearch(), prune=None)
    pipeline = translator.pipeline(decoding, trace=True)
    assert isinstance(pipeline, RefiningPipeline)
    tokens, _ = translator.loaded.source_tokens(test_set.sources, truncate=True)
    batches = [*source_batches(test_set.sources, tokens, decoding.batch_size, target_lengths=lengths)]
    if not batches:
        raise PadirError("there are no sentences to analyse: give some")
    for places, source in batches:
        last = pipeline.run_to_drafts(source)
        drafts = last.drafts
        assert drafts.trace_TRL is not None
        tokens_TBL, score_TBL = (np.asarray(part)[: decoding.num_steps + 1] for part in drafts.trace_TRL)
        yield Pass(places, last.tried.batch, drafts.length_R, tokens_TBL, score_TBL, drafts.passes_R)


def reference_tokens(translator: Translator, test_set: TestSet) -> list[list[int]]:
    """The references' tokens with EOS; longer references are cut to the model's `max_length`."""
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
        raise PadirError("the number of sentences", "at least 1", limit)
    return dataclasses.replace(test_set, sources=test_set.sources[:limit], references=test_set.references[:limit])


def pieces(translator: Translator, tokens_L: Any) -> list[str]:
    """The pieces of tokens, without the "▁" that marks the beginning of a word; a piece that is only "▁" stays."""
    return [translator.tokenizer.pieces[i].lstrip("▁") or "▁" for i in tokens_L]

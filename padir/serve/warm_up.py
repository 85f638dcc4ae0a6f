"""Warm-up of the server: the shapes of usual batches, compiled before or between requests."""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

from padir.decoding.batches import SourceBatch
from padir.decoding.lengths import Candidate
from padir.decoding.pipeline import CausalPipeline, Pipeline
from padir.decoding.refine_batch import BUCKET
from padir.models.config import ModelConfig
from padir.text.ids import EOS, round_up


class Shape(NamedTuple):
    """A batch that a program is compiled for: padded lengths in tokens, rows, and `trace` if it records every step."""

    source: int
    target: int
    rows: int
    trace: bool = False

    @property
    def is_first(self) -> bool:
        """True for single sentences with translations of equal length; these shapes are compiled before any request."""
        return self.rows == 1 and self.target == self.source and not self.trace


def usual_shapes(config: ModelConfig, batch_size: int, longest_source: int) -> list[Shape]:
    """Shapes of usual requests, the commonest first, for every number of rows; single sentences also with a trace.

    Traced sentences as long as their sources come right after the first shapes, as the page asks for these.

    Args:
      batch_size: maximum number of sentences in a batch.
      longest_source: maximum number of source tokens; targets are about as long as their sources.
    """
    most = min(round_up(longest_source, BUCKET), config.max_length)
    found = []
    for length in range(BUCKET, most + 1, BUCKET):
        near = (length, max(BUCKET, length - BUCKET), min(length + BUCKET, config.max_length))
        targets = dict.fromkeys(near[:1] if config.causal else near)  # a causal model writes until the sentence ends
        for rows, target in itertools.product(batch_shapes(batch_size), targets):
            found.append(Shape(length, target, rows))
            if rows == 1 and not config.causal:
                found.append(Shape(length, target, rows, trace=True))

    def order(shape: Shape) -> tuple[bool, int, bool, bool, int]:
        return not shape.is_first, shape.rows, not shape.trace, shape.target != shape.source, shape.source

    return sorted(found, key=order)


def batch_shapes(batch_size: int) -> list[int]:
    """The numbers of rows that batches of 1 .. batch_size sentences are padded to.

    >>> batch_shapes(12)
    [1, 2, 4, 8, 12]
    """
    return sorted({min(batch_size, 1 << (sentences - 1).bit_length()) for sentences in range(1, batch_size + 1)})


def candidate_counts(top_k: int, most: int, each: int) -> tuple[int, ...]:
    """The numbers of candidates per sentence to which batches are filled up, whatever top_k clients set.

    Args:
      top_k: the default top_k; the numbers include its number of candidates.
      most: the largest top_k of a request.
      each: number of candidates of each length, which is the number of offsets times the number of draws.

    >>> candidate_counts(5, 8, 1)
    (1, 2, 4, 5, 8)
    """
    return tuple(sorted(count * each for count in {*batch_shapes(most), top_k}))


def compile_shape(pipeline: Pipeline, shape: Shape) -> None:
    """Translates made-up sentences of a shape, which compiles its programs."""
    card, tokenizer = pipeline.loaded.card, pipeline.loaded.tokenizer
    piece = card.ids.first_regular
    prefix = [card.ids.length] if card.config.length_token else []
    tokens = [*prefix, *[piece] * (shape.source - len(prefix) - 1), EOS]
    text = tokenizer.decode([piece] * (shape.source - 2))
    source = SourceBatch([text] * shape.rows, [tokens] * shape.rows)
    if isinstance(pipeline, CausalPipeline):
        pipeline.write(source)
        return
    tried = pipeline.try_lengths(pipeline.encode(source))
    count = max(map(len, tried.candidates))
    wanted = [[Candidate(shape.target, draw) for draw in range(count)]] * shape.rows
    pipeline.choose(pipeline.refine(dataclasses.replace(tried, candidates=wanted)))

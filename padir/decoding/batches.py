"""What the stages of decoding hand to each other: a batch of sentences, encoded, with candidates, refined or written.

Every record holds the one of the stage before. Arrays are on the device until a stage is over that reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import flax.struct
import numpy as np
from jaxtyping import Float, Int

from padir.decoding.lengths import Candidate
from padir.decoding.refine_batch import Drafts
from padir.models.encoder import Encoded
from padir.text.batches import sorted_batches


@dataclasses.dataclass(frozen=True)
class SourceBatch:
    """Sentences that are decoded together.

    Attributes:
      texts: one sentence each.
      tokens: the encoder's input of each (`LoadedModel.source_tokens`).
      numbers: each sentence's number in the whole input, which its random draws depend on.
      target_lengths: in tokens, EOS included; None: predicted. For a causal model the most tokens that it may write.
    """

    texts: Sequence[str]
    tokens: Sequence[list[int]]
    numbers: Sequence[int]
    target_lengths: Sequence[int] | None = None


@flax.struct.dataclass
class EncodedBatch:
    """Encoded sentences; rows that fill the batch up come last.

    Attributes:
      source_BS: the tokens, padded.
      encoded: the encoder's output.
      cross_kv: each decoder layer's keys and values of the encoder's output.
    """

    source: SourceBatch = flax.struct.field(pytree_node=False)
    source_BS: Int[np.ndarray, "B S"]
    encoded: Encoded
    cross_kv: Any


@flax.struct.dataclass
class CandidateBatch:
    """Encoded sentences with the candidates of each: most likely length first, no sentence without one."""

    batch: EncodedBatch
    candidates: list[list[Candidate]] = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class RefinedBatch:
    """Candidates with their refined drafts, on the host."""

    tried: CandidateBatch
    drafts: Drafts


@flax.struct.dataclass
class WrittenBatch:
    """What a causal model's search ended with, on the host: N rows a sentence, rows that fill the batch up last.

    Attributes:
      tokens_BNL: EOS included, then padding.
      length_BN: in tokens, EOS included.
      score_BN: the search's score; -inf for an unfinished row.
      passes_B: decoder passes of each sentence.
    """

    source: SourceBatch = flax.struct.field(pytree_node=False)
    tokens_BNL: Int[np.ndarray, "B N L"]
    length_BN: Int[np.ndarray, "B N"]
    score_BN: Float[np.ndarray, "B N"]
    passes_B: Int[np.ndarray, " B"]


def source_batches(
    texts: Sequence[str],
    tokens: Sequence[list[int]],
    batch_size: int,
    *,
    first_number: int = 0,
    target_lengths: Sequence[int] | None = None,
) -> Iterator[SourceBatch]:
    """Sorts sentences by length, without the empty ones, and cuts them into batches.

    Args:
      texts, tokens: one sentence each, as text and as the encoder's input.
      batch_size: sentences of a batch; the last one may have fewer.
      first_number: the number of the first text, where texts are a part of a longer input.
      target_lengths: of each text, if they are given.
    """
    with_text = (i for i, text in enumerate(texts) if text.strip())
    for some in sorted_batches(with_text, batch_size, lambda i: len(tokens[i])):
        yield SourceBatch(
            [texts[i] for i in some],
            [tokens[i] for i in some],
            [first_number + i for i in some],
            None if target_lengths is None else [target_lengths[i] for i in some],
        )

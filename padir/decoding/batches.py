"""Records that the stages of decoding hand to each other: encoded sentences, candidates, refined drafts and hypotheses.

Every record holds the record of the stage before. Arrays stay on the device until a stage has read them to the host.
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
      tokens: the encoder's input for each sentence (`LoadedModel.source_tokens`).
      target_lengths: given target lengths in tokens, EOS included, or None to predict them; length limits for a causal
        model.
    """

    texts: Sequence[str]
    tokens: Sequence[list[int]]
    target_lengths: Sequence[int] | None = None


@flax.struct.dataclass
class EncodedBatch:
    """Encoded sentences; rows that only pad the batch come last.

    Attributes:
      source_BS: the source tokens, padded.
      encoded: the encoder's output.
      cross_kv: each decoder layer's keys and values of the encoder's output.
    """

    source: SourceBatch = flax.struct.field(pytree_node=False)
    source_BS: Int[np.ndarray, "B S"]
    encoded: Encoded
    cross_kv: Any


@flax.struct.dataclass
class CandidateBatch:
    """Encoded sentences with at least one candidate for each sentence, most likely length first."""

    batch: EncodedBatch
    candidates: list[list[Candidate]] = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class RefinedBatch:
    """Candidates with their refined drafts, on the host.

    Attributes:
      pseudo_R: each row's sum of log p(token | all other tokens) if `PseudoLikelihood` chooses, else None.
    """

    tried: CandidateBatch
    drafts: Drafts
    pseudo_R: Any = None


@flax.struct.dataclass
class WrittenBatch:
    """Hypotheses of a causal model's search, on the host: N rows for each sentence; rows that pad the batch come last.

    Attributes:
      tokens_BNL: target tokens, EOS included, then padding.
      length_BN: number of target tokens, EOS included.
      score_BN: the search's score; -inf for an unfinished row.
      passes_B: decoder passes of each sentence.
      draft_passes_B: decoder passes of the drafter's model; None without a draft.
    """

    source: SourceBatch = flax.struct.field(pytree_node=False)
    tokens_BNL: Int[np.ndarray, "B N L"]
    length_BN: Int[np.ndarray, "B N"]
    score_BN: Float[np.ndarray, "B N"]
    passes_B: Int[np.ndarray, " B"]
    draft_passes_B: Int[np.ndarray, " B"] | None = None


def source_batches(
    texts: Sequence[str],
    tokens: Sequence[list[int]],
    batch_size: int,
    *,
    target_lengths: Sequence[int] | None = None,
) -> Iterator[tuple[list[int], SourceBatch]]:
    """Leaves out empty sentences, sorts the others by length and cuts them into batches, with their places in `texts`.

    Args:
      texts, tokens: one sentence each, as text and as the encoder's input.
      batch_size: number of sentences in a batch; the last batch may have fewer.
      target_lengths: target length of each text, or None to predict the lengths.
    """
    with_text = (i for i, text in enumerate(texts) if text.strip())
    for some in sorted_batches(with_text, batch_size, lambda i: len(tokens[i])):
        yield (
            some,
            SourceBatch(
                [texts[i] for i in some],
                [tokens[i] for i in some],
                None if target_lengths is None else [target_lengths[i] for i in some],
            ),
        )

"""Log-probabilities of finished sentences, which a causal model reads in one teacher-forced pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from padir.decoding.autoregressive import PrefixTrees, score_trees
from padir.decoding.encoding import POSITIONS, padded_length
from padir.decoding.hypothesis import Hypothesis, not_finite
from padir.decoding.loaded import EncodedBatch, LoadedModel
from padir.decoding.translation import TargetScore
from padir.decoding.writer import Shapes
from padir.distributed.sharding import on_host
from padir.text.ids import EOS, sorted_batches

_PREFIXES = 2048  # whose logits an accelerator has in memory at a time
_TREE_UNIT = 16  # numbers of prefixes are few multiples of this


def score_pairs(
    loaded: LoadedModel, sources: Sequence[list[int]], targets: Sequence[list[int]], batch_size: int
) -> list[TargetScore]:
    """Log-probability of each target, a token list with EOS, given its source."""
    results = [TargetScore(0.0, 0)] * len(sources)
    for some in sorted_batches(range(len(sources)), batch_size, lambda i: (len(sources[i]), len(targets[i]))):
        batch = loaded.encode([sources[i] for i in some], batch_size)
        trees = [[targets[i]] for i in some] + [[[]]] * (len(batch.source_BS) - len(some))
        width = padded_length(max(len(targets[i]) for i in some))
        memory = batch.cross_kv, batch.encoded.segment_BS
        for i, log_prob in zip(some, _log_probs(loaded, memory, trees, width)[:, 0].tolist(), strict=False):
            if np.isnan(log_prob):
                raise not_finite()
            results[i] = TargetScore(log_prob, len(targets[i]))
    return results


def with_causal_scores(
    loaded: LoadedModel, batch: EncodedBatch, hypotheses: Sequence[Sequence[Hypothesis]], shapes: Shapes
) -> list[list[Hypothesis]]:
    """The hypotheses with `Hypothesis.causal`: the model's causal side reads those of sentences with several.

    One pass reads all; the encoder does not run again. The batch was written with these `shapes`.
    """
    several = [b for b, own in enumerate(hypotheses) if len(own) > 1]
    if not several:
        return [[*own] for own in hypotheses]
    # Few sizes of batches, so that few programs are compiled; sentences that devices share stay where they are.
    size = batch.source_BS.shape[0]
    read = [*range(size)]
    if loaded.mesh is None and (room := 1 << (len(several) - 1).bit_length()) < size:
        read = [*several, *[several[0]] * (room - len(several))]
    most = max(map(len, hypotheses))
    most = min((count for count in shapes.counts if count >= most), default=most)
    targets: list[list[list[int]]] = [[[]] * most for _ in read]
    places = {b: read.index(b) for b in several}
    for b, place in places.items():
        own = [[*each.tokens, EOS] for each in hypotheses[b]]
        targets[place] = own + [[]] * (most - len(own))
    width = _TREE_UNIT
    if shapes.lengths:
        longest = max(len(target) for own in targets for target in own)
        width = padded_length(longest, batch.source_BS.shape[1:])
    memory = batch.cross_kv, batch.encoded.segment_BS
    if len(read) < size:
        memory = jax.tree.map(lambda x: x[np.array(read)], memory)
    log_prob_BN = _log_probs(loaded, memory, targets, width)
    found = [[*own] for own in hypotheses]
    for b, place in places.items():
        found[b] = [
            each._replace(causal=(float(log_prob_BN[place, n]), len(targets[place][n])))
            for n, each in enumerate(hypotheses[b])
        ]
    return found


def _log_probs(
    loaded: LoadedModel, memory: Any, targets: Sequence[Sequence[list[int]]], width: int
) -> Float[np.ndarray, "B N"]:
    """The log-probability of each of the targets of an encoded batch, whose trees are made for rows of a width."""
    trees = loaded.place(PrefixTrees.of(targets, width))
    group = None
    if loaded.mesh is None:
        group = min(trees.token_BU.size, POSITIONS if loaded.platform == "cpu" else _PREFIXES)
    with loaded.on_devices():
        return on_host(score_trees(loaded.side("causal").model, loaded.converted, *memory, trees, group=group))

"""Dependency between the positions of a sentence according to a model.

The measures are those of `padir.analysis.conditionals`, with the probabilities of the model's decoder.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from padir.analysis.conditionals import Dependence, dependence, joined_dependence
from padir.analysis.passes import Pass
from padir.decoding.translator import Translator
from padir.models.transformer import Transformer
from padir.refinement.scores import forbid

_ROWS = 64  # canvases that go through the decoder at once
_DISTRIBUTIONS = 2**25  # probabilities that are in memory at once


def sentence_dependence(
    translator: Translator,
    one: Pass,
    row: int,
    pairs_P2: Int[np.ndarray, "P 2"],
    *,
    values: int = 4,
    given_draft: bool = False,
) -> Dependence:
    """Measures the model's dependency between pairs of positions of one sentence.

    Args:
      one: the batch that holds the sentence, in its row `row`.
      pairs_P2: the pairs of positions.
      values: tokens that are tried at a position.
      given_draft: while a pair is measured, True lets the decoder see the last draft at all other positions; False
        hides these positions, too.

    Raises:
      PadirError: fewer than 2 values, or more than the vocabulary has.
    """
    start_L, tokens_L = one.tokens_TBL[0, row], one.tokens_TBL[-1, row]
    length = int(one.length_B[row])
    hidden_L = (np.arange(len(tokens_L)) < length - 1) & (not given_draft)
    memory = jax.tree.map(lambda x: x[row : row + 1], (one.batch.cross_kv, one.batch.encoded.segment_BS))

    def distribution(tokens_RL, position_R):
        # A canvas goes through the decoder once, however many of its positions are asked for.
        canvas_CL, canvas_R = np.unique(tokens_RL, axis=0, return_inverse=True)
        canvas_R, state_RD = canvas_R.reshape(-1), None
        for at in range(0, len(canvas_CL), _ROWS):
            states_CLD = _states(translator.model, translator.params, _filled(canvas_CL[at:], _ROWS), length, *memory)
            states_CLD = np.asarray(states_CLD)
            if state_RD is None:
                state_RD = np.zeros((len(tokens_RL), states_CLD.shape[-1]), states_CLD.dtype)
            (there,) = np.nonzero((canvas_R >= at) & (canvas_R < at + _ROWS))
            state_RD[there] = states_CLD[canvas_R[there] - at, position_R[there]]
        assert state_RD is not None
        rows = _ROWS * _ROWS // 8
        parts = [
            _log_probs(translator.model, translator.params, _filled(state_RD[at:], rows))
            for at in range(0, len(state_RD), rows)
        ]
        return np.concatenate(jax.device_get(parts))[: len(tokens_RL)]

    # Only as many pairs are measured at once as have distributions that fit in memory: with a large vocabulary and a
    # long sentence, all pairs at once would not fit.
    most = max(1, _DISTRIBUTIONS // (values * translator.card.ids.num_embeddings))
    return joined_dependence(
        [
            dependence(distribution, tokens_L, start_L, hidden_L, pairs_P2[at : at + most], values=values)
            for at in range(0, len(pairs_P2), most)
        ]
    )


def _filled(x, rows: int):
    """The first `rows` rows, padded with copies of the first row, so that one compiled program serves all."""
    x = x[:rows]
    return np.concatenate([x, x[:1].repeat(rows - len(x), 0)])


@functools.partial(jax.jit, static_argnums=0)
def _states(model: Transformer, params, tokens_CL, length, cross_kv, source_segment_BS):
    """The decoder's last states for canvases of one sentence, [C, L, D], before the projection onto the vocabulary."""
    segment_CL = jnp.broadcast_to(jnp.arange(tokens_CL.shape[1]) < length, tokens_CL.shape).astype(jnp.int32)
    return model.bind({"params": params}).draft_states(tokens_CL, segment_CL, cross_kv, source_segment_BS)


@functools.partial(jax.jit, static_argnums=0)
def _log_probs(model: Transformer, params, state_RD):
    """Log-probabilities of the tokens that may be written at positions with these states, [R, V]."""
    logits_R1V = model.bind({"params": params}).logits(state_RD[:, None])
    return jax.nn.log_softmax(forbid(logits_R1V.astype(jnp.float32), model.ids.special)[:, 0], axis=-1)

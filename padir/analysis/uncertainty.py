"""The likelihood that a model loses by writing several tokens in one pass, measured on references.

The tokens of a reference are shown to the model in U steps, a U-th of them more in each. What step k does not yet show
stays masked or random. Let n_kj be the sum of -log p(token) under the pass of step k over the tokens that step j shows
next, j >= k. Writing the tokens of the steps a to b-1 in one pass, after those of all earlier steps, then costs

    sum over j = a .. b-1 of (n_aj - n_jj)

more than writing them step by step. Tokens come in random order, or the most confident ones first: the positions whose
best token has the highest probability, as `padir.refinement.strategies.MaskPredict` and others choose.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from padir import checks
from padir.analysis.passes import reference_tokens, refined
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.evaluation import TestSet
from padir.models.transformer import Transformer
from padir.refinement.draws import CHOICE, position_keys, sentence_keys, uniform_draws
from padir.refinement.segments import worst
from padir.text.ids import pad_rows

ORDERS = ("random", "confident")


def uncertainties(
    translator: Translator, test_set: TestSet, decoding: Decoding, *, order: str, steps: int
) -> Float[np.ndarray, "U U"]:
    """n_kj of this module's docstring, divided by the number of all tokens: nats a token; 0 where j < k.

    The canvas of `decoding` (masks or random pieces) fills hidden positions. EOS is always shown and does not count.

    Args:
      order: one of `ORDERS`.
      steps: U.

    Raises:
      PadirError: the order is unknown, the options do not fit the model, the model is causal, or there are no
        sentences.
    """
    checks.one_of(ORDERS, order=order)
    targets = reference_tokens(translator, test_set)
    lengths = [len(tokens) for tokens in targets]
    summed_UU, number = np.zeros((steps, steps)), 0
    for one in refined(translator, test_set, decoding, lengths):
        start_BL = one.tokens_TBL[0]
        target_BL = pad_rows([targets[i] for i in one.numbers], start_BL.shape[1], len(start_BL))
        there_B = np.arange(len(start_BL)) < len(one.numbers)
        length_B = np.where(there_B, one.length_B, 1)  # rows that fill the batch up count as empty sentences
        canvas, memory = (start_BL, target_BL, length_B), (one.batch.cross_kv, one.batch.encoded.segment_BS)
        shown = _shown_in_steps(
            translator.model, translator.params, canvas, memory, one.batch.source_BS, order=order, steps=steps
        )
        summed_UU += np.asarray(shown)
        number += int((length_B - 1).sum())
    return summed_UU / max(number, 1)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("order", "steps"))
def _shown_in_steps(model: Transformer, params, canvas, memory, source_BS, *, order: str, steps: int):
    """n_kj of a batch in nats, [U, U]."""
    start_BL, target_BL, length_B = canvas
    decode = model.bind({"params": params}).decode
    position_L = jnp.arange(start_BL.shape[1])
    segment_BL = (position_L < length_B[:, None]).astype(jnp.int32)
    free_BL = position_L < length_B[:, None] - 1
    random_BL = uniform_draws(position_keys(sentence_keys(source_BS, 0), segment_BL, CHOICE))

    def step(shown_at_BL, k):
        """Adds the step at which tokens are shown to those that come next; `steps` stands for later ones."""
        hidden_BL = free_BL & (shown_at_BL == steps)
        tokens_BL = jnp.where(hidden_BL, start_BL, target_BL)
        output = decode(tokens_BL, segment_BL, *memory)
        log_prob_BLV = jax.nn.log_softmax(output.logits_BLV.astype(jnp.float32))
        at_target_BL = jnp.take_along_axis(log_prob_BLV, target_BL[..., None], axis=-1)[..., 0]
        hesitation_BL = -log_prob_BLV.max(-1) if order == "confident" else random_BL
        left_B = (length_B - 1) - (length_B - 1) * (k + 1) // steps
        left_BL = jnp.broadcast_to(left_B[:, None], hidden_BL.shape)
        next_BL = hidden_BL & ~worst(-hesitation_BL, hidden_BL, segment_BL, left_BL)
        return jnp.where(next_BL, k, shown_at_BL), jnp.where(hidden_BL, -at_target_BL, 0.0)

    shown_at_BL, nats_UBL = jax.lax.scan(step, jnp.full_like(start_BL, steps), jnp.arange(steps))
    return jnp.einsum("kbl,blj->kj", nats_UBL, jax.nn.one_hot(shown_at_BL, steps))

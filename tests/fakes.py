"""Decoders whose answer is known, for tests of what acts on a canvas."""

import jax
import jax.numpy as jnp
import numpy as np

from padir.tokens import Ids, positions_in_segment

IDS = Ids(vocab_size=64, num_sentinels=32, first_regular=6)  # ids 3, 4 and 5 play the byte pieces


def keys(count, seed=0):
    """One key per row, made from the row's number."""
    return jax.vmap(lambda n: jax.random.fold_in(jax.random.key(seed), n))(jnp.arange(count))


def oracle(answer_BL):
    """A decoder that always knows the answer."""
    return lambda tokens_BL: 20.0 * jax.nn.one_hot(answer_BL, IDS.vocab_size)


def moody(segment_BL, seed=0):
    """A decoder whose logits change with each token, its left neighbour and its place in the segment.

    A position's logits depend on nothing else, so rows, buckets and segments cannot leak into each other through it.
    """
    rng = np.random.RandomState(seed)
    own_VV, left_VV, place_LV = (jnp.asarray(rng.normal(size=(n, IDS.vocab_size)), jnp.float32) for n in (64, 64, 64))
    position_BL = positions_in_segment(segment_BL)

    def logits_fn(tokens_BL):
        left_BL = jnp.pad(tokens_BL, ((0, 0), (1, 0)))[:, :-1]
        left_BL = jnp.where(position_BL == 0, 0, left_BL)
        return own_VV[tokens_BL] + left_VV[left_BL] + 2 * place_LV[position_BL]

    return logits_fn

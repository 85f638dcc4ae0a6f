"""Refinement with a model that is one function, from tokens to logits, as LLaDA's and Dream's are.

The prompt stands at the beginning of the canvas and is held fixed. The answer begins as masks. The model writes its own
EOS, so the canvas keeps no position for it, and `answers` cuts at the first one.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from padir.refinement import Canvas, Decoder, DecoderIds, Mask, draft, hold, until


def decoder(
    model: Callable[[np.ndarray, np.ndarray], np.ndarray], ids: DecoderIds, *, shifted: bool = False
) -> Decoder:
    """Makes padir's decoder of a model that runs outside JAX, such as one of PyTorch.

    Args:
      model: (tokens_BL, present_BL) -> logits_BLV; `present_BL`, an attention mask, is 0 at padding.
      shifted: the logits at a position are of the token to its right, as Dream's are.
    """

    def on_host(tokens_BL, present_BL):
        logits_BLV = np.asarray(model(np.asarray(tokens_BL, np.int64), np.asarray(present_BL, np.int64)), np.float32)
        return np.concatenate([logits_BLV[:, :1], logits_BLV[:, :-1]], axis=1) if shifted else logits_BLV

    def call(canvas: Canvas) -> jax.Array:
        shape = jax.ShapeDtypeStruct((*canvas.tokens_BL.shape, ids.vocab_size), jnp.float32)
        return jax.pure_callback(on_host, shape, canvas.tokens_BL, canvas.segment_BL)

    return call


def prompted(key_B: jax.Array, prompts: list[list[int]], answer_length: int, ids: DecoderIds) -> Canvas:
    """A row for each prompt: the prompt, held fixed, and `answer_length` masks."""
    length_B = np.array([len(prompt) + answer_length for prompt in prompts])
    canvas = draft(key_B, jnp.array(length_B), int(length_B.max()), Mask(), ids)
    prompt_BL = np.zeros(canvas.tokens_BL.shape, np.int32)
    for row_L, prompt in zip(prompt_BL, prompts, strict=True):
        row_L[: len(prompt)] = prompt
    given_BL = np.arange(prompt_BL.shape[1]) < (length_B - answer_length)[:, None]
    return hold(canvas, jnp.array(given_BL), jnp.array(prompt_BL))


def answers(canvas: Canvas, eos: int) -> list[list[int]]:
    """The tokens that were written for each prompt, up to the first EOS and without it."""
    kept_BL = canvas.editable_BL & until(canvas, eos) & (canvas.tokens_BL != eos)
    return [
        tokens_L[kept_L].tolist()
        for tokens_L, kept_L in zip(np.asarray(canvas.tokens_BL), np.asarray(kept_BL), strict=True)
    ]

"""The length head, which predicts the number of target tokens of each segment, EOS included."""

from __future__ import annotations

import functools

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from padir import checks
from padir.errors import PadirError
from padir.models.layers import Embed


@flax.struct.dataclass
class LengthOutput:
    """Prediction of each segment's target length: a distribution, the canvas's length, or nothing in a causal model.

    `logits_BGM` are logits of the lengths 1 .. M (index i means length i + 1), of the length head. `canvas_BG` is the
    length that a readout's geometry gives, which is no prediction.
    """

    logits_BGM: Float[Array, "B G M"] | None = None
    canvas_BG: Int[Array, "B G"] | None = None


class TokenLength(nn.Module):
    """The length head: a classifier on the encoder's output at each segment's [LENGTH] token.

    A class stands for `unit` neighbouring lengths, which get equal shares of its probability.
    """

    width: int
    max_length: int
    unit: int = 1

    def setup(self):
        classes = -(-self.max_length // self.unit)
        self.length_embed = Embed(classes, self.width, jnp.float32, axes=("length", "embed"))

    def __call__(self, memory_BSD, is_length_BS, segment_BS, num_segments: int) -> LengthOutput:
        segment_G = jnp.arange(1, num_segments + 1)
        at_BGS = is_length_BS[:, None, :] & (segment_BS[:, None, :] == segment_G[:, None])
        index_BG = at_BGS.argmax(-1)  # a missing segment reads position 0 and has no weight in the loss
        vector_BGD = jnp.take_along_axis(memory_BSD, index_BG[..., None], axis=1)
        logits_BGC = self.length_embed.attend(vector_BGD.astype(jnp.float32))
        return LengthOutput(logits_BGM=jnp.repeat(logits_BGC, self.unit, axis=-1)[..., : self.max_length])


@functools.partial(jax.jit, static_argnums=(1, 2))
def top_lengths(
    output: LengthOutput, k: int, length_window: bool = False, min_p: float | Float[Array, ""] = 0.0
) -> Int[Array, "B K"]:
    """The k most likely lengths of each row's first segment, best first.

    Lengths with less than `min_p` times the probability of the most likely one become 0.

    With `length_window`, the lengths are neighbours: first the most likely length, then each time the likelier of the
    two neighbours of the lengths so far. Without `length_window`, the k most likely lengths often include implausible
    ones, because a classifier that is sure of one length spreads the rest of its probability over all others. The
    published implementation can also try the lengths l - 1, l and l + 1 for each l of the k most likely ones; this
    function cannot. Where the readout gives the canvas's length, it is the only length.

    Raises:
      PadirError: there are fewer than k lengths.

    >>> top_lengths(LengthOutput(jnp.log(jnp.array([[[0.1, 0.2, 0.7]]]))), 2).tolist()
    [[3, 2]]
    >>> top_lengths(LengthOutput(jnp.log(jnp.array([[[0.1, 0.2, 0.7]]]))), 3, min_p=0.2).tolist()
    [[3, 2, 0]]
    """
    if output.canvas_BG is not None:
        checks.within(1, 1, "the source gives the canvas's length", num_lengths=k)
        return output.canvas_BG[:, :1]
    assert output.logits_BGM is not None
    log_prob_BM = jax.nn.log_softmax(output.logits_BGM[:, 0])
    if k > log_prob_BM.shape[-1]:
        raise PadirError("num_lengths", f"at most the {log_prob_BM.shape[-1]} lengths that the model knows", k)
    index_BK = _outwards(log_prob_BM)[:, :k] if length_window else jax.lax.top_k(log_prob_BM, k)[1]
    share_BK = jnp.exp(jnp.take_along_axis(log_prob_BM, index_BK, axis=1) - log_prob_BM.max(-1, keepdims=True))
    return jnp.where(share_BK < min_p, 0, 1 + index_BK)  # NaN stays in


def _outwards(log_prob_BM: Float[Array, "B M"]) -> Int[Array, "B M"]:
    """All indices of each row, in the order in which a window grows from the most likely index to its likelier side.

    The window reaches an index after all indices between it and the most likely index. So the smallest probability on
    the way to an index decides its place.
    """
    index_M, most_B1 = jnp.arange(log_prob_BM.shape[1]), log_prob_BM.argmax(-1, keepdims=True)
    lower = jax.lax.cummin(jnp.where(index_M > most_B1, jnp.inf, log_prob_BM), axis=1, reverse=True)
    higher = jax.lax.cummin(jnp.where(index_M < most_B1, jnp.inf, log_prob_BM), axis=1)
    least_BM = jnp.where(index_M < most_B1, lower, higher)
    return jnp.lexsort((jnp.abs(index_M - most_B1), -least_BM))

"""Length heads, which predict the number of target tokens of each segment, EOS included, from the encoder's output."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from padir.errors import PadirError
from padir.models.layers import Dense, Embed, named_param
from padir.readout import Readout
from padir.text.ids import segment_lengths


@flax.struct.dataclass
class LengthOutput:
    """A length head's prediction for each segment: a distribution, one number, or nothing (head "oracle").

    `logits_BGM` are logits of the lengths 1 .. M (index i means length i + 1), `mean_BG` is a predicted real number.
    """

    logits_BGM: Float[Array, "B G M"] | None = None
    mean_BG: Float[Array, "B G"] | None = None


class TokenLength(nn.Module):
    """Length head "token", the default: a classifier on the encoder's output at each segment's [LENGTH] token.

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


class AffineLength(nn.Module):
    """Length head "affine": learned factor * number of source tokens + learned bias, initially 1 and 0."""

    @nn.compact
    def __call__(self, memory_BSD, is_length_BS, segment_BS, num_segments: int) -> LengthOutput:
        factor = named_param(self, "len_factor", nn.initializers.ones, (1,), ("embed",))
        bias = named_param(self, "len_bias", nn.initializers.zeros, (1,), ("embed",))
        return LengthOutput(mean_BG=factor * segment_lengths(segment_BS, num_segments) + bias)


class FertilityLength(nn.Module):
    """Length head "fertility": predicts the number of target tokens per source token and sums over the source.

    An MLP on the encoder's output gives each source token a distribution over changes from one target token,
    -(max_fertility + 1) .. max_fertility; the fertility is 1 plus the expected change. No gradient flows back into the
    encoder. Unlike the fertilities of Gu et al. (ICLR 2018), only the sum is trained, without a word aligner.
    """

    width: int
    max_fertility: int

    @nn.compact
    def __call__(self, memory_BSD, is_length_BS, segment_BS, num_segments: int) -> LengthOutput:
        hidden = 4 * self.width
        offset = named_param(self, "mlp_offset", nn.initializers.zeros, (hidden,), ("mlp",))
        factor = named_param(self, "len_factor", nn.initializers.ones, (1,), ("embed",))
        bias = named_param(self, "offset", nn.initializers.ones, (1,), ("embed",))
        memory_BSD = jax.lax.stop_gradient(memory_BSD)
        x = jax.nn.gelu(Dense(hidden, ("embed", "mlp"), jnp.float32, name="mlp")(memory_BSD) + offset)
        change = np.arange(-self.max_fertility - 1, self.max_fertility + 1)
        logits = Dense(len(change), ("embed", "vocab"), jnp.float32, name="logits_dense")(x)
        fertility_BS = 1.0 + jax.nn.softmax(logits) @ jnp.asarray(change, jnp.float32)
        in_BGS = segment_BS[:, None, :] == jnp.arange(1, num_segments + 1)[:, None]
        return LengthOutput(mean_BG=factor * (fertility_BS[:, None, :] * in_BGS).sum(-1) + bias)


class OracleLength(nn.Module):
    """Length head "oracle": no prediction; the caller gives the lengths, such as the reference's lengths."""

    def __call__(self, memory_BSD, is_length_BS, segment_BS, num_segments: int) -> LengthOutput:
        return LengthOutput()


class ReadoutLength(nn.Module):
    """The size of the canvas that a readout gives to a source."""

    readout: Readout

    def __call__(self, memory_BSD, is_length_BS, segment_BS, num_segments: int) -> LengthOutput:
        room_BG = self.readout.room(segment_lengths(segment_BS, num_segments))
        return LengthOutput(mean_BG=room_BG.astype(jnp.float32))


LENGTH_HEADS: dict[str, Callable[[Any], nn.Module]] = {
    "token": lambda config: TokenLength(config.width, config.max_length, config.length_unit),
    "affine": lambda config: AffineLength(),
    "fertility": lambda config: FertilityLength(config.width, config.max_fertility),
    "oracle": lambda config: OracleLength(),
}


def make_length_head(config: Any) -> nn.Module:
    """Makes the length head of a `ModelConfig`; without one, the readout gives the size, or the decoder ends itself."""
    if not config.geometry.sized_by_target:
        return ReadoutLength(config.geometry)
    return LENGTH_HEADS[config.length_head or ("token" if config.predicts_length else "oracle")](config)


@functools.partial(jax.jit, static_argnums=(1, 2))
def top_lengths(output: LengthOutput, k: int, length_window: bool = False) -> Int[Array, "B K"]:
    """The k most likely lengths of each row's first segment, best first.

    With `length_window`, the lengths are neighbours: first the most likely length, then each time the likelier of the
    two neighbours of the lengths so far. Without `length_window`, the k most likely lengths often include implausible
    ones, because a classifier that is sure of one length spreads the rest of its probability over all others. For a
    head that predicts one number, the lengths are the k nearest whole numbers. The published implementation can also
    try the lengths l - 1, l and l + 1 for each l of the k most likely ones; this function cannot.

    Raises:
      PadirError: the head predicts nothing, or has fewer than k classes.

    >>> top_lengths(LengthOutput(jnp.log(jnp.array([[[0.1, 0.2, 0.7]]]))), 2).tolist()
    [[3, 2]]
    """
    if output.logits_BGM is not None:
        log_prob_BM = jax.nn.log_softmax(output.logits_BGM[:, 0])
        if k > log_prob_BM.shape[-1]:
            raise PadirError("num_lengths", f"at most the {log_prob_BM.shape[-1]} lengths that the model knows", k)
        return 1 + (_outwards(log_prob_BM)[:, :k] if length_window else jax.lax.top_k(log_prob_BM, k)[1])
    if output.mean_BG is None:
        raise PadirError("the model's length head is 'oracle': give the target lengths")
    rounded_B1 = jnp.rint(output.mean_BG[:, :1])
    near_BK = rounded_B1 + jnp.arange(-k, k + 1)
    near_BK = jnp.where(near_BK < 1, jnp.inf, jnp.abs(near_BK - output.mean_BG[:, :1]))
    # The rounded number comes first, also where it is below 1.
    order_BK = jnp.argsort(near_BK.at[:, k].set(-1.0), axis=1, stable=True)[:, :k]
    return (rounded_B1 + order_BK - k).astype(jnp.int32)


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

"""Decoder outputs, and the most likely token of each position with its log-probability."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int

JUDGED = ("token", "prediction")


@runtime_checkable
class Chooser(Protocol):
    """A rule of a decoder that chooses the tokens that a strategy writes on one canvas, in place of the argmax.

    A call gets logits in which forbidden ids are -inf, and the positions that the strategy may write; None for all
    editable ones. It returns a token for each position and, at open positions, the token's log-probability.
    """

    def __call__(
        self, logits_BLV: Float[Array, "B L V"], open_BL: Bool[Array, "B L"] | None
    ) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]: ...


@flax.struct.dataclass
class Output:
    """The output of one decoder pass.

    Attributes:
      logits_BLV: logits of every id.
      keep_logits_BL: logit of keeping the token that `judges` names at each position, if the model has a rejecter head.
      found_BL: the best ids outside `canvas.ids.special` and their log-probabilities, if the decoder has found them. If
        then no code reads logits_BLV, jit does not compute this array.
      chooser: chooses the tokens that `best` returns; None for the argmax.
      judges: "token" if keep_logits_BL judges the tokens shown to the decoder, "prediction" for its argmax (static).
    """

    logits_BLV: Float[Array, "B L V"]
    keep_logits_BL: Float[Array, "B L"] | None = None
    found_BL: tuple[Int[Array, "B L"], Float[Array, "B L"]] | None = None
    chooser: Chooser | None = None
    judges: str = flax.struct.field(pytree_node=False, default="token")

    def best(self, open_BL: Bool[Array, "B L"] | None = None) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
        """The id that a strategy writes at each position and its log-probability: the argmax, or the chooser's.

        Args:
          open_BL: the positions that may be written; a chooser expects the canvas's tokens at all others. None for all
            editable positions.
        """
        if self.chooser is not None:
            return self.chooser(self.logits_BLV, open_BL)
        return best_tokens(self.logits_BLV) if self.found_BL is None else self.found_BL


def best_tokens(logits_BLV: Float[Array, "B L V"]) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
    """The argmax of each position and its log-probability, without a softmax over V in memory.

    There is no gradient.

    >>> token_BL, score_BL = best_tokens(jnp.log(jnp.array([[[0.2, 0.5, 0.3]]])))
    >>> token_BL.tolist(), round(float(jnp.exp(score_BL[0, 0])), 3)
    ([[1]], 0.5)
    """
    return jax.lax.platform_dependent(stop_gradient(logits_BLV), cpu=_best_by_maximum, default=_best_in_one_reduction)


def best_ids(logits: Float[Array, "*B V"]) -> Int[Array, "*B"]:
    """The argmax of each position, as in `best_tokens`."""
    return jax.lax.platform_dependent(stop_gradient(logits), cpu=_first, default=_argmax)


def _best_by_maximum(logits_BLV):
    """Finds the maximum, then the first id with this logit: XLA vectorises both on a CPU, but not an argmax."""
    return _first(logits_BLV), _scores(logits_BLV, logits_BLV.max(-1))


def _best_in_one_reduction(logits_BLV):
    """Finds maximum, first id and normaliser in one reduction, which reads the logits once.

    XLA on a TPU does this within the product that makes the logits, so the logits are never in memory.
    """
    lowest = jnp.finfo(jnp.float32).min  # not -inf: -inf - -inf would give NaN
    logits_BLV = jnp.maximum(logits_BLV.astype(jnp.float32), lowest)
    id_BLV = jax.lax.broadcasted_iota(jnp.int32, logits_BLV.shape, logits_BLV.ndim - 1)

    def join(left, right):
        (a, i, a_sum), (b, j, b_sum) = left, right
        first = jnp.where(a == b, jnp.minimum(i, j), jnp.where(a > b, i, j))
        smaller = jnp.exp(-jnp.abs(a - b))
        return jnp.maximum(a, b), first, jnp.where(a >= b, a_sum + b_sum * smaller, a_sum * smaller + b_sum)

    start = (jnp.float32(lowest), jnp.int32(jnp.iinfo(jnp.int32).max), jnp.float32(0))
    parts = (logits_BLV, id_BLV, jnp.ones_like(logits_BLV))
    _, token_BL, sum_BL = jax.lax.reduce(parts, start, join, (logits_BLV.ndim - 1,))
    return token_BL, -jnp.log(sum_BL)


def _first(logits):
    ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.where(logits == logits.max(-1, keepdims=True), ids, logits.shape[-1] - 1).min(-1)


def _argmax(logits):
    return logits.argmax(-1).astype(jnp.int32)


def best_logits(logits: Float[Array, "*B V"], count: int) -> tuple[Float[Array, "*B N"], Int[Array, "*B N"]]:
    """The largest logits in falling order, and their ids; among equal logits the first id comes first.

    >>> best_logits(jnp.array([1.0, 3.0, 3.0]), 2)[1].tolist()
    [1, 2]
    """
    by_maxima, by_top_k = (functools.partial(each, count=count) for each in (_maxima, _top_k))
    on_gpu = by_maxima if count == 1 else by_top_k
    return jax.lax.platform_dependent(logits, tpu=by_maxima, cuda=on_gpu, rocm=on_gpu, default=by_top_k)


def _maxima(logits, count: int):
    """Finds one maximum after the other: XLA on a TPU would sort all logits for `jax.lax.top_k`."""
    lowest, found = jnp.finfo(logits.dtype).min, []
    ids = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    logits = jnp.maximum(logits, lowest)  # -inf is for ids that were found
    for _ in range(count):
        found.append((logits.max(-1), _argmax(logits)))
        logits = jnp.where(ids == found[-1][1][..., None], -jnp.inf, logits)
    values, ids = (jnp.stack(each, -1) for each in zip(*found, strict=True))
    return jnp.where(values > lowest, values, -jnp.inf), ids


def _top_k(logits, count: int):
    values, ids = jax.lax.top_k(logits, count)
    return values, ids


def best_by_block(
    project: Callable[[Any, int], Float[Array, "B L v"]],
    vocab_size: int,
    banned_ids: tuple[int, ...],
    block: int = 2_048,
) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
    """Finds the best id that is not banned at each position, one block of the vocabulary at a time.

    `best_tokens` gives the same result, up to the rounding of scores. The logits of all ids are never in memory at
    once.

    Args:
      project: (begin, size) -> logits of the ids begin .. begin + size - 1.
      banned_ids: ids that are left out of the maximum and of the normalisation.

    >>> logits_BLV = jnp.array([[[0.1, 2.0, 0.3, 1.0, 3.0]]])
    >>> project = lambda begin, size: jax.lax.dynamic_slice_in_dim(logits_BLV, begin, size, axis=-1)
    >>> best_by_block(project, 5, banned_ids=(4,), block=2)[0].tolist()
    [[1]]
    """
    blocks = -(-vocab_size // block)
    size = -(-vocab_size // blocks)
    banned_V = jnp.zeros(vocab_size, bool).at[jnp.array(banned_ids, int)].set(True, mode="drop")
    lowest = jnp.finfo(jnp.float32).min  # not -inf: if all ids of a block are banned, -inf - -inf would give NaN

    def visit(best, i):
        logit_BL, token_BL, sum_BL = best
        begin = jnp.minimum(i * size, vocab_size - size)  # the last block overlaps the one before
        left_out = jax.lax.dynamic_slice_in_dim(banned_V, begin, size) | (jnp.arange(size) + begin < i * size)
        logits = jnp.where(left_out, -jnp.inf, project(begin, size).astype(jnp.float32))
        highest_BL = logits.max(-1)
        first_BL = _first(logits) + begin
        now_BL = jnp.maximum(logit_BL, highest_BL)
        sum_BL = sum_BL * jnp.exp(logit_BL - now_BL) + jnp.exp(logits - now_BL[..., None]).sum(-1)
        return (now_BL, jnp.where(highest_BL > logit_BL, first_BL, token_BL), sum_BL), None

    shape = jax.eval_shape(lambda: project(0, size)).shape[:-1]
    start = (jnp.full(shape, lowest), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))
    (_, token_BL, sum_BL), _ = jax.lax.scan(visit, start, jnp.arange(blocks))
    return token_BL, -jnp.log(sum_BL)


def likely(logits: Float[Array, "*B V"], top_k: int, top_p: float) -> Float[Array, "*B V"]:
    """Sets the logits of improbable tokens to -inf, by top_k first, then by top_p.

    Args:
      top_k: keep the k most likely tokens; 0 for all tokens.
      top_p: keep the fewest most likely tokens that together have at least this probability; 1 for all tokens.

    >>> likely(jnp.array([0.0, 2.0, 1.0]), top_k=2, top_p=1.0).tolist()
    [-inf, 2.0, 1.0]
    """
    if 0 < top_k < logits.shape[-1]:
        least = jax.lax.top_k(logits, top_k)[0][..., -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if top_p < 1:
        falling = jnp.flip(jnp.sort(logits, axis=-1), -1)
        prob = jax.nn.softmax(falling, axis=-1)
        kept = jnp.cumsum(prob, axis=-1) - prob < top_p  # likelier tokens do not yet reach top_p
        least = jnp.where(kept, falling, jnp.inf).min(-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits


def token_scores(logits_BLV: Float[Array, "B L V"], token_BL: Int[Array, "B L"]) -> Float[Array, "B L"]:
    """The log-probability of a token at each position."""
    return _scores(logits_BLV, jnp.take_along_axis(logits_BLV, token_BL[..., None], axis=-1)[..., 0])


def _scores(logits_BLV, logit_BL):
    """The log-probability of the token whose logit is given at each position."""
    return logit_BL.astype(jnp.float32) - jax.nn.logsumexp(logits_BLV.astype(jnp.float32), axis=-1)


def forbid(logits_BLV: Float[Array, "B L V"], banned_ids: tuple[int, ...]) -> Float[Array, "B L V"]:
    """Sets the logits of banned ids to -inf."""
    if not banned_ids:
        return logits_BLV
    banned_V = jnp.zeros(logits_BLV.shape[-1], bool).at[jnp.array(banned_ids)].set(True, mode="drop")
    return jnp.where(banned_V, -jnp.inf, logits_BLV)

"""The canvas that a decoder refines, and the protocols of what may act on it.

A `Canvas` holds a draft of every target position. A `Corruption` makes one from clean tokens; a `Strategy` turns a
canvas and the decoder's output into the next canvas, in decoding; a `Between` does so between two training stages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from padir.text.ids import Ids, positions_in_segment, sequence_mask


@flax.struct.dataclass
class Canvas:
    """A draft of the target, one row per hypothesis (decoding) or per packed row (training).

    Attributes:
      tokens_BL: the draft; padding where segment_BL is 0.
      score_BL: log-probability of each token when it was last written, below 0; 0 where nothing was written.
      free_BL: positions that may be rewritten: neither EOS nor padding.
      start_BL: what the canvas began as; hiding a position puts this back (random, mask or mask_range tokens alike).
      segment_BL: 1, 2, ... for the sentence pairs of a packed row, 0 for padding.
      done_B: set by the strategy when a row is finished, because a further pass would change nothing or, for those that
        only fill masks, because nothing is hidden any more; `refine` then keeps the row as it is.
      visible_BLL: which positions [query, key] a decontextualised decoder may see, kept by `write` and `hide`; None
        for all other decoders, which see the whole segment.
      ids: the vocabulary's special ids (static).
    """

    tokens_BL: Int[Array, "B L"]
    score_BL: Float[Array, "B L"]
    free_BL: Bool[Array, "B L"]
    start_BL: Int[Array, "B L"]
    segment_BL: Int[Array, "B L"]
    done_B: Bool[Array, " B"]
    visible_BLL: Bool[Array, "B L L"] | None = None
    ids: Ids = flax.struct.field(pytree_node=False, default=None)  # type: ignore[assignment]


@flax.struct.dataclass
class Output:
    """What one decoder pass gives.

    Attributes:
      logits_BLV: of every id.
      keep_logits_BL: of keeping what the decoder was shown, where the model has a rejecter head.
      found_BL: the best ids but for `canvas.ids.special`, and their log-probabilities, from a decoder that found them
        without the logits; where nothing else reads these, jit leaves them out.
    """

    logits_BLV: Float[Array, "B L V"]
    keep_logits_BL: Float[Array, "B L"] | None = None
    found_BL: tuple[Int[Array, "B L"], Float[Array, "B L"]] | None = None

    def best(self) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
        """The best id of each position and its log-probability (`best_tokens`)."""
        return best_tokens(self.logits_BLV) if self.found_BL is None else self.found_BL


@runtime_checkable
class Corruption(Protocol):
    """A frozen dataclass that hides what stands at some free positions, with its hyperparameters as fields.

    Returns (noisy_BL, chosen_BL): chosen positions are free and hold the noise; all others are as they were. Draws use
    one key per row, are made per segment and position within it, and so do not change with L or with the packing.
    """

    @property
    def deterministic(self) -> bool:
        """True if `full` gives the same canvas for every key, so that parallel draws would be equal."""
        ...

    def full(self) -> Corruption:
        """The same corruption at rate 1: what decoding starts from."""
        ...

    def __call__(
        self,
        key_B: Key[Array, " B"],
        tokens_BL: Int[Array, "B L"],
        free_BL: Bool[Array, "B L"],
        segment_BL: Int[Array, "B L"],
        *,
        ids: Ids,
    ) -> tuple[Int[Array, "B L"], Bool[Array, "B L"]]: ...


@runtime_checkable
class Strategy(Protocol):
    """A frozen dataclass that makes one step of refinement, with its hyperparameters as fields.

    `init` gives the strategy's memory, a pytree whose leaves all begin with axis B (`()` for most). `step` is told
    which of `num_steps` steps it makes (from 0) and sees logits in which forbidden ids are -inf. It leaves padding and
    EOS as they are, and no start token where a position was never written when it sets done_B or at the last step.
    A strategy that not every model can run says so in a class attribute `needs` (see `strategies.check_strategy`).
    """

    def init(self, key_B: Key[Array, " B"], canvas: Canvas) -> PyTree: ...

    def step(
        self, key_B: Key[Array, " B"], canvas: Canvas, output: Output, memory: PyTree, *, step: Any, num_steps: Any
    ) -> tuple[Canvas, PyTree]: ...


# What a row's key is folded with for its draft: no number of a refinement step, whose draws must not be the same.
_DRAFT = 2**31 - 1


@runtime_checkable
class Between(Protocol):
    """A frozen dataclass: what training puts between two stages.

    It is given the canvas that the stage saw, its output without gradient and with forbidden ids at -inf, the target,
    the positions that count as chosen (at first those that the corruption chose) and progress, the share of the
    training that is done, in [0, 1). It returns the next stage's canvas and chosen positions, which are free; the
    weights "noised" and "masked" follow them. Where it imitates a decoding strategy it may name that as `strategy`: the
    model is then decoded so unless told otherwise. What it makes of a row depends on that row alone, since it may be
    given a part of a batch's rows.
    """

    def __call__(
        self,
        key_B: Key[Array, " B"],
        canvas: Canvas,
        output: Output,
        target_BL: Int[Array, "B L"],
        chosen_BL: Bool[Array, "B L"],
        *,
        progress: Any,
    ) -> tuple[Canvas, Bool[Array, "B L"]]: ...


def draft(
    key_B: Key[Array, " B"], length_B: Int[Array, " B"], max_length: int, corruption: Corruption, ids: Ids
) -> Canvas:
    """A fresh canvas of given lengths: noise everywhere, EOS at the last position of each row.

    Args:
      key_B: one key per row.
      length_B: target lengths in tokens, EOS included.
      max_length: L, at least every length.
      corruption: decides what the noise is; used at rate 1.
    """
    present_BL = sequence_mask(length_B, max_length)
    free_BL = sequence_mask(length_B - 1, max_length)  # EOS is placed by the length model and never rewritten
    blank_BL = jnp.where(free_BL, ids.first_regular, jnp.where(present_BL, ids.eos, ids.padding)).astype(jnp.int32)
    segment_BL = present_BL.astype(jnp.int32)
    key_B = jax.vmap(lambda key: jax.random.fold_in(key, _DRAFT))(key_B)
    tokens_BL, _ = corruption.full()(key_B, blank_BL, free_BL, segment_BL, ids=ids)
    return from_tokens(tokens_BL, tokens_BL, free_BL, segment_BL, ids)


def from_tokens(
    tokens_BL: Int[Array, "B L"],
    start_BL: Int[Array, "B L"],
    free_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    ids: Ids,
) -> Canvas:
    """A canvas that holds given tokens, nothing scored and no row done."""
    return Canvas(
        tokens_BL=tokens_BL,
        score_BL=jnp.zeros(tokens_BL.shape, jnp.float32),
        free_BL=free_BL,
        start_BL=start_BL,
        segment_BL=segment_BL,
        done_B=jnp.zeros(tokens_BL.shape[0], bool),
        ids=ids,
    )


def write(
    canvas: Canvas, where_BL: Bool[Array, "B L"], tokens_BL: Int[Array, "B L"], score_BL: Float[Array, "B L"]
) -> Canvas:
    """Writes tokens and their log-probabilities at the free positions among `where_BL`, for all others to see."""
    seen_BLL = None if canvas.visible_BLL is None else _others(canvas.segment_BL)
    return _put(canvas, where_BL, tokens_BL, score_BL, seen_BLL)


def hide(canvas: Canvas, where_BL: Bool[Array, "B L"]) -> Canvas:
    """Puts back what the canvas began with at the free positions among `where_BL`, for no one to see."""
    seen_BLL = None if canvas.visible_BLL is None else jnp.zeros_like(canvas.visible_BLL)
    return _put(canvas, where_BL, canvas.start_BL, jnp.zeros_like(canvas.score_BL), seen_BLL)


def restore(canvas: Canvas, where_BL: Bool[Array, "B L"], earlier: Canvas) -> Canvas:
    """Puts back what another canvas of the same rows holds at the free positions among `where_BL`, as visible."""
    return _put(canvas, where_BL, earlier.tokens_BL, earlier.score_BL, earlier.visible_BLL)


def veil(canvas: Canvas, hidden_BL: Bool[Array, "B L"]) -> Canvas:
    """A canvas for a decontextualised decoder: each position sees the others of its segment that are not hidden."""
    return dataclasses.replace(canvas, visible_BLL=_others(canvas.segment_BL) & ~hidden_BL[:, None, :])


def _put(canvas: Canvas, where_BL, tokens_BL, score_BL, seen_BLL) -> Canvas:
    """Writes at free positions; `seen_BLL` says who sees them then."""
    where_BL = where_BL & canvas.free_BL
    visible_BLL = canvas.visible_BLL
    if visible_BLL is not None:
        visible_BLL = jnp.where(where_BL[:, None, :], seen_BLL, visible_BLL)
    return dataclasses.replace(
        canvas,
        tokens_BL=jnp.where(where_BL, tokens_BL, canvas.tokens_BL),
        score_BL=jnp.where(where_BL, score_BL, canvas.score_BL),
        visible_BLL=visible_BLL,
    )


def _others(segment_BL) -> Bool[Array, "B L L"]:
    return same_segment(segment_BL) & ~jnp.eye(segment_BL.shape[1], dtype=bool)


def best_tokens(logits_BLV: Float[Array, "B L V"]) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
    """The argmax of each position and its log-probability, without a softmax over V in memory.

    A maximum and the first place that holds it: for XLA on a CPU several times as fast as an argmax, which carries the
    index through the reduction and is not vectorised. The log-probability is below 0 even where it rounds to it, so
    that a score of 0 says: not written.

    >>> token_BL, score_BL = best_tokens(jnp.log(jnp.array([[[0.2, 0.5, 0.3]]])))
    >>> token_BL.tolist(), round(float(jnp.exp(score_BL[0, 0])), 3)
    ([[1]], 0.5)
    """
    best_BL = logits_BLV.max(-1)
    id_BLV = jax.lax.broadcasted_iota(jnp.int32, logits_BLV.shape, logits_BLV.ndim - 1)
    token_BL = jnp.where(logits_BLV == best_BL[..., None], id_BLV, logits_BLV.shape[-1] - 1).min(-1)
    return token_BL, _scores(logits_BLV, best_BL)


def best_by_block(
    project: Callable[[Any, int], Float[Array, "B L v"]],
    vocab_size: int,
    banned_ids: tuple[int, ...],
    block: int = 2_048,
) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
    """`best_tokens` of the ids that are not banned, over blocks of the vocabulary one after the other.

    Logits of all ids are never in memory at once. Scores differ by rounding.

    Args:
      project: (begin, size) -> the logits of that many ids from `begin` on.
      block: ids at once, at most.

    >>> logits_BLV = jnp.array([[[0.1, 2.0, 0.3, 1.0, 3.0]]])
    >>> project = lambda begin, size: jax.lax.dynamic_slice_in_dim(logits_BLV, begin, size, axis=-1)
    >>> best_by_block(project, 5, banned_ids=(4,), block=2)[0].tolist()
    [[1]]
    """
    blocks = -(-vocab_size // block)
    size = -(-vocab_size // blocks)
    banned_V = jnp.zeros(vocab_size, bool).at[jnp.array(banned_ids, int)].set(True, mode="drop")
    lowest = jnp.finfo(jnp.float32).min  # and not -inf, of which there may be a block

    def visit(best, i):
        logit_BL, token_BL, sum_BL = best
        begin = jnp.minimum(i * size, vocab_size - size)  # the last block reaches back into the one before
        left_out = jax.lax.dynamic_slice_in_dim(banned_V, begin, size) | (jnp.arange(size) + begin < i * size)
        logits = jnp.where(left_out, -jnp.inf, project(begin, size).astype(jnp.float32))
        highest_BL = logits.max(-1)
        id_BLv = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
        first_BL = jnp.where(logits == highest_BL[..., None], id_BLv, size - 1).min(-1) + begin
        now_BL = jnp.maximum(logit_BL, highest_BL)
        sum_BL = sum_BL * jnp.exp(logit_BL - now_BL) + jnp.exp(logits - now_BL[..., None]).sum(-1)
        return (now_BL, jnp.where(highest_BL > logit_BL, first_BL, token_BL), sum_BL), None

    shape = jax.eval_shape(lambda: project(0, size)).shape[:-1]
    start = (jnp.full(shape, lowest), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))
    (_, token_BL, sum_BL), _ = jax.lax.scan(visit, start, jnp.arange(blocks))
    return token_BL, _below_zero(-jnp.log(sum_BL))


def token_scores(logits_BLV: Float[Array, "B L V"], token_BL: Int[Array, "B L"]) -> Float[Array, "B L"]:
    """The log-probability of a token at each position, below 0 as in `best_tokens`."""
    return _scores(logits_BLV, jnp.take_along_axis(logits_BLV, token_BL[..., None], axis=-1)[..., 0])


def _scores(logits_BLV, logit_BL):
    """The log-probability of what has a logit at each position."""
    return _below_zero(logit_BL.astype(jnp.float32) - jax.nn.logsumexp(logits_BLV.astype(jnp.float32), axis=-1))


def _below_zero(score_BL):
    """A score of 0 says: not written."""
    return jnp.minimum(score_BL, -jnp.finfo(jnp.float32).tiny)


def forbid(logits_BLV: Float[Array, "B L V"], banned_ids: tuple[int, ...]) -> Float[Array, "B L V"]:
    """Logits with -inf at ids that may never be written."""
    if not banned_ids:
        return logits_BLV
    banned_V = jnp.zeros(logits_BLV.shape[-1], bool).at[jnp.array(banned_ids)].set(True, mode="drop")
    return jnp.where(banned_V, -jnp.inf, logits_BLV)


def repeats(tokens_BL: Int[Array, "B L"], canvas: Canvas) -> Bool[Array, "B L"]:
    """Token-level stutter: free positions whose token equals the token to their left in the same segment."""
    left_BL = jnp.pad(tokens_BL, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return canvas.free_BL & (tokens_BL == left_BL) & (positions_in_segment(canvas.segment_BL) > 0)


def same_segment(segment_BL: Int[Array, "B L"]) -> Bool[Array, "B L L"]:
    """Whether two positions belong to one sentence pair; padding is alone with padding."""
    return segment_BL[:, :, None] == segment_BL[:, None, :]


def precedes(
    score_BL: Float[Array, "B L"], among_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]
) -> Bool[Array, "B L L"]:
    """For [query, key]: whether the key, one of `among_BL`, has a lower score than the query of its segment.

    Of equal scores the leftmost comes first.
    """
    index_L = jnp.arange(score_BL.shape[1])
    lower_BLL = (score_BL[:, None, :] < score_BL[:, :, None]) | (
        (score_BL[:, None, :] == score_BL[:, :, None]) & (index_L[None, :] < index_L[:, None])
    )
    return lower_BLL & same_segment(segment_BL) & among_BL[:, None, :]


def worst(
    score_BL: Float[Array, "B L"],
    among_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    count_BL: Int[Array, "B L"] | int,
) -> Bool[Array, "B L"]:
    """The `count_BL` lowest-scored positions of each segment among `among_BL`; ties go to the leftmost position.

    `count_BL` is one number, or holds the segment's count at every position of the segment.
    """
    return among_BL & (precedes(score_BL, among_BL, segment_BL).sum(-1) < count_BL)


def count_in_segment(where_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """At each position, how many positions of its segment are True."""
    return (same_segment(segment_BL) & where_BL[:, None, :]).sum(-1)


def share_of(share: float, where_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """A share of the positions of each segment, rounded up to a whole number.

    >>> share_of(0.5, jnp.ones((1, 3), bool), jnp.ones((1, 3), int)).tolist()
    [[2, 2, 2]]
    """
    exact_BL = share * count_in_segment(where_BL, segment_BL)
    return jnp.ceil(exact_BL - 1e-4).astype(jnp.int32)  # 0.3 of 10 is 3, whatever float32 makes of 0.3

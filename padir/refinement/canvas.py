"""The canvas, a draft of every target position that a decoder refines, and the functions that change it."""

from __future__ import annotations

import dataclasses

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir.refinement.segments import same_segment
from padir.text.ids import Ids, positions_in_segment


@flax.struct.dataclass
class Canvas:
    """A draft of the target, one row per hypothesis (decoding) or per packed row (training).

    Attributes:
      tokens_BL: the draft; padding where segment_BL is 0.
      score_BL: log-probability of each token when it was last written, below 0; 0 where nothing was written.
      free_BL: positions that may be rewritten: neither EOS nor padding.
      start_BL: tokens that the canvas began with; hiding a position puts its start token back (random, mask or
        mask_range tokens alike).
      segment_BL: 1, 2, ... for the sentence pairs of a packed row, 0 for padding.
      done_B: rows that the strategy has finished: another pass would change nothing or, for a strategy that only fills
        masks, nothing is hidden any more. `refine` keeps done rows as they are.
      visible_BLL: [query, key], True where a decontextualised decoder may see the key position; kept up to date by
        `write` and `hide`. None for all other decoders, which see the whole segment.
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


def from_tokens(
    tokens_BL: Int[Array, "B L"],
    start_BL: Int[Array, "B L"],
    free_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    ids: Ids,
) -> Canvas:
    """Makes a canvas of given tokens, nothing scored and no row done."""
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
    """Writes tokens and their log-probabilities at the free positions among `where_BL`, visible to all others."""
    seen_BLL = None if canvas.visible_BLL is None else _others(canvas.segment_BL)
    return _put(canvas, where_BL, tokens_BL, score_BL, seen_BLL)


def hide(canvas: Canvas, where_BL: Bool[Array, "B L"]) -> Canvas:
    """Puts the start tokens back at the free positions among `where_BL`, visible to no position."""
    seen_BLL = None if canvas.visible_BLL is None else jnp.zeros_like(canvas.visible_BLL)
    return _put(canvas, where_BL, canvas.start_BL, jnp.zeros_like(canvas.score_BL), seen_BLL)


def restore(canvas: Canvas, where_BL: Bool[Array, "B L"], earlier: Canvas) -> Canvas:
    """Copies tokens, scores and visibility of `earlier`, a canvas of the same rows, at free positions of `where_BL`."""
    return _put(canvas, where_BL, earlier.tokens_BL, earlier.score_BL, earlier.visible_BLL)


def veil(canvas: Canvas, hidden_BL: Bool[Array, "B L"]) -> Canvas:
    """Adds visibility for a decontextualised decoder: each position sees the others of its segment but hidden ones."""
    return dataclasses.replace(canvas, visible_BLL=_others(canvas.segment_BL) & ~hidden_BL[:, None, :])


def _put(canvas: Canvas, where_BL, tokens_BL, score_BL, seen_BLL) -> Canvas:
    """Writes at free positions; `seen_BLL` [query, key] is their new visibility."""
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


def repeats(tokens_BL: Int[Array, "B L"], canvas: Canvas) -> Bool[Array, "B L"]:
    """Token-level stutter: free positions whose token equals the token to their left in the same segment."""
    left_BL = jnp.pad(tokens_BL, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return canvas.free_BL & (tokens_BL == left_BL) & (positions_in_segment(canvas.segment_BL) > 0)

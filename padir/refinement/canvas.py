"""The canvas, the draft of a target sentence that a decoder refines, and the functions that change a canvas."""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir.refinement.segments import other_positions
from padir.text.ids import Ids, positions_in_segment


@flax.struct.dataclass
class Canvas:
    """Drafts of target sentences, one row per hypothesis in decoding or per packed row in training.

    Attributes:
      tokens_BL: the drafts; padding where segment_BL is 0.
      score_BL: log-probability that each token had when it was last written, always below 0; 0 where nothing was
        written.
      free_BL: positions that may be rewritten, which are all but EOS and padding.
      start_BL: tokens that the canvas began with. Hiding a position restores its start token, a random piece or a
        mask.
      segment_BL: 1, 2, ... for the sentence pairs of a packed row, 0 for padding.
      done_BL: positions of finished sentences, which `refine` does not change any more. The strategy's stopping rule
        (`padir.refinement.stop`) marks them.
      visible_BLL: [query, key], True where a decontextualised decoder may see the key position. `write` and `hide`
        update this mask. None for all other decoders, which see the whole segment.
      row_B: numbers of the rows in this canvas, if the decoder gets only some rows of a batch. A number beyond the last
        row stands for the last row. None if the decoder gets all rows.
      ids: the vocabulary's special ids (static).
    """

    tokens_BL: Int[Array, "B L"]
    score_BL: Float[Array, "B L"]
    free_BL: Bool[Array, "B L"]
    start_BL: Int[Array, "B L"]
    segment_BL: Int[Array, "B L"]
    done_BL: Bool[Array, "B L"]
    visible_BLL: Bool[Array, "B L L"] | None = None
    row_B: Int[Array, " B"] | None = None
    ids: Ids = flax.struct.field(pytree_node=False, kw_only=True)

    @property
    def hidden_BL(self) -> Bool[Array, "B L"]:
        """Free positions at which nothing has been written, or whose token was hidden again."""
        return self.free_BL & (self.score_BL == 0)

    @property
    def done_B(self) -> Bool[Array, " B"]:
        """True for rows whose sentences are all finished."""
        return self.done_BL.all(-1)


def from_tokens(
    tokens_BL: Int[Array, "B L"],
    start_BL: Int[Array, "B L"],
    free_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    ids: Ids,
) -> Canvas:
    """Makes a canvas of given tokens, with no scores and no sentence finished."""
    return Canvas(
        tokens_BL=tokens_BL,
        score_BL=jnp.zeros(tokens_BL.shape, jnp.float32),
        free_BL=free_BL,
        start_BL=start_BL,
        segment_BL=segment_BL,
        done_BL=jnp.zeros(tokens_BL.shape, bool),
        ids=ids,
    )


def given(tokens_BL: Int[Array, "B L"], segment_BL: Int[Array, "B L"], ids: Ids) -> Canvas:
    """Makes a canvas that begins with given tokens; all positions except EOS and padding are free."""
    return from_tokens(tokens_BL, tokens_BL, (segment_BL > 0) & (tokens_BL != ids.eos), segment_BL, ids)


def write(
    canvas: Canvas, where_BL: Bool[Array, "B L"], tokens_BL: Int[Array, "B L"], score_BL: Float[Array, "B L"]
) -> Canvas:
    """Writes tokens and their log-probabilities at the free positions of `where_BL`; all other positions may see them.

    "May see" concerns `visible_BLL` alone, the mask of a decontextualised decoder.
    """
    return _put(canvas, where_BL, tokens_BL, score_BL, other_positions)


def hide(canvas: Canvas, where_BL: Bool[Array, "B L"]) -> Canvas:
    """Puts the start tokens back at the free positions of `where_BL`, and makes these positions visible to no other."""
    return _put(canvas, where_BL, canvas.start_BL, jnp.zeros_like(canvas.score_BL), lambda segment_BL: False)


def renoise(canvas: Canvas, where_BL: Bool[Array, "B L"], noise_BL: Int[Array, "B L"]) -> Canvas:
    """Hides the free positions of `where_BL` and gives them the noise `noise_BL` instead of their start tokens.

    A start token that is a mask stays the mask. `start_BL` does not change.
    """
    piece_BL = (canvas.start_BL >= canvas.ids.first_regular) & (canvas.start_BL < canvas.ids.end_regular)
    fresh = dataclasses.replace(canvas, start_BL=jnp.where(piece_BL, noise_BL, canvas.start_BL))
    return dataclasses.replace(hide(fresh, where_BL), start_BL=canvas.start_BL)


def hold(canvas: Canvas, fixed_BL: Int[Array, "B L"]) -> Canvas:
    """Writes the ids of `fixed_BL`, 0 for none, at free positions; these positions are then not free any more."""
    held_BL = (fixed_BL > 0) & canvas.free_BL
    return dataclasses.replace(
        canvas,
        tokens_BL=jnp.where(held_BL, fixed_BL, canvas.tokens_BL),
        start_BL=jnp.where(held_BL, fixed_BL, canvas.start_BL),
        free_BL=canvas.free_BL & ~held_BL,
    )


def choose_rows(where_B: Bool[Array, " B"], yes: Any, no: Any) -> Any:
    """Takes each row from the pytree `yes` where `where_B` is True, else from `no`; their leaves begin with axis B."""
    return jax.tree.map(lambda y, n: jnp.where(where_B.reshape(-1, *[1] * (y.ndim - 1)), y, n), yes, no)


def restore(canvas: Canvas, where_BL: Bool[Array, "B L"], earlier: Canvas) -> Canvas:
    """Copies the free positions of `where_BL` (tokens, scores, visibility) from another canvas of the same rows."""
    return _put(canvas, where_BL, earlier.tokens_BL, earlier.score_BL, lambda segment_BL: earlier.visible_BLL)


def veil(canvas: Canvas, hidden_BL: Bool[Array, "B L"]) -> Canvas:
    """Adds `visible_BLL`: a position sees all other positions of its segment, except those in `hidden_BL`."""
    return dataclasses.replace(canvas, visible_BLL=other_positions(canvas.segment_BL) & ~hidden_BL[:, None, :])


def _put(canvas: Canvas, where_BL, tokens_BL, score_BL, seen) -> Canvas:
    """Writes tokens and scores at free positions; `seen` gives the new visibility [query, key] of these positions."""
    where_BL = where_BL & canvas.free_BL
    visible_BLL = canvas.visible_BLL
    if visible_BLL is not None:
        visible_BLL = jnp.where(where_BL[:, None, :], seen(canvas.segment_BL), visible_BLL)
    return dataclasses.replace(
        canvas,
        tokens_BL=jnp.where(where_BL, tokens_BL, canvas.tokens_BL),
        score_BL=jnp.where(where_BL, score_BL, canvas.score_BL),
        visible_BLL=visible_BLL,
    )


def repeats(tokens_BL: Int[Array, "B L"], canvas: Canvas) -> Bool[Array, "B L"]:
    """Marks token-level stutter: free positions whose token equals the token to their left in the same segment."""
    left_BL = jnp.pad(tokens_BL, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return canvas.free_BL & (tokens_BL == left_BL) & (positions_in_segment(canvas.segment_BL) > 0)

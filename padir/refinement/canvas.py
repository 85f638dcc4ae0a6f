"""The canvas, the draft of a target sentence that a decoder refines, and the functions that change a canvas."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir.refinement.ids import CanvasIds
from padir.refinement.segments import is_noise, other_positions, same_segment
from padir.text.ids import equals_left, positions_in_segment

Tree = TypeVar("Tree")


@flax.struct.dataclass
class Canvas:
    """Drafts of target sentences, one row per hypothesis in decoding or per packed row in training.

    Attributes:
      tokens_BL: the drafts; padding where segment_BL is 0.
      score_BL: log-probability that each token had when it was last written; 0 where nothing was written.
      written_BL: positions at which a token was written and was not masked again.
      editable_BL: positions that may be rewritten, which are all but EOS and padding.
      initial_BL: tokens that the canvas began with. `remask` restores a position's initial token, a random piece or a
        mask.
      segment_BL: 1, 2, ... for the sentence pairs of a packed row, 0 for padding.
      done_BL: positions of finished sentences, which `refine` does not change any more. The strategy's stopping rule
        (`padir.refinement.stop`) marks them.
      visible_BLL: [query, key], True where a decontextualised decoder may see the key position. `write` and `remask`
        update this mask. None for all other decoders, which see the whole segment.
      row_B: numbers of the rows in this canvas, if the decoder gets only some rows of a batch. A number beyond the last
        row stands for the last row. None if the decoder gets all rows.
      ids: the vocabulary's special ids (static).
    """

    tokens_BL: Int[Array, "B L"]
    score_BL: Float[Array, "B L"]
    written_BL: Bool[Array, "B L"]
    editable_BL: Bool[Array, "B L"]
    initial_BL: Int[Array, "B L"]
    segment_BL: Int[Array, "B L"]
    done_BL: Bool[Array, "B L"]
    visible_BLL: Bool[Array, "B L L"] | None = None
    row_B: Int[Array, " B"] | None = None
    ids: CanvasIds = flax.struct.field(pytree_node=False, kw_only=True)

    @property
    def masked_BL(self) -> Bool[Array, "B L"]:
        """Editable positions at which nothing has been written, or whose token was masked again."""
        return self.editable_BL & ~self.written_BL

    @property
    def known_score_BL(self) -> Float[Array, "B L"]:
        """The scores, NaN where nothing was written."""
        return jnp.where(self.written_BL, self.score_BL, jnp.nan)

    @property
    def done_B(self) -> Bool[Array, " B"]:
        """True for rows whose sentences are all finished."""
        return self.done_BL.all(-1)


def from_tokens(
    tokens_BL: Int[Array, "B L"],
    initial_BL: Int[Array, "B L"],
    editable_BL: Bool[Array, "B L"],
    segment_BL: Int[Array, "B L"],
    ids: CanvasIds,
) -> Canvas:
    """Makes a canvas of given tokens, with no scores and no sentence finished."""
    return Canvas(
        tokens_BL=tokens_BL,
        score_BL=jnp.zeros(tokens_BL.shape, jnp.float32),
        written_BL=jnp.zeros(tokens_BL.shape, bool),
        editable_BL=editable_BL,
        initial_BL=initial_BL,
        segment_BL=segment_BL,
        done_BL=jnp.zeros(tokens_BL.shape, bool),
        ids=ids,
    )


def write(
    canvas: Canvas, where_BL: Bool[Array, "B L"], tokens_BL: Int[Array, "B L"], score_BL: Float[Array, "B L"]
) -> Canvas:
    """Writes tokens and their log-probabilities at the editable positions of `where_BL`.

    All other positions may see them. This concerns `visible_BLL` alone, the mask of a decontextualised decoder.
    """
    visible_BLL = None if canvas.visible_BLL is None else other_positions(canvas.segment_BL)
    return _put(canvas, where_BL, tokens_BL, score_BL, jnp.array(True), visible_BLL)


def remask(canvas: Canvas, where_BL: Bool[Array, "B L"]) -> Canvas:
    """Puts the initial tokens back at the editable positions of `where_BL`, which no other position then sees."""
    return _put(canvas, where_BL, canvas.initial_BL, jnp.array(0.0), jnp.array(False), jnp.array(False))


def renoise(canvas: Canvas, where_BL: Bool[Array, "B L"], noise_BL: Int[Array, "B L"]) -> Canvas:
    """Remasks the editable positions of `where_BL` and gives them the noise `noise_BL` instead of their initial tokens.

    An initial token that is a mask stays the mask. `initial_BL` does not change.
    """
    piece_BL = is_noise(canvas.initial_BL, canvas.ids)
    fresh = dataclasses.replace(canvas, initial_BL=jnp.where(piece_BL, noise_BL, canvas.initial_BL))
    return dataclasses.replace(remask(fresh, where_BL), initial_BL=canvas.initial_BL)


def hold(canvas: Canvas, where_BL: Bool[Array, "B L"], tokens_BL: Int[Array, "B L"]) -> Canvas:
    """Fixes the editable positions of `where_BL`, such as a prompt's, at given tokens, which no strategy rewrites."""
    held_BL = where_BL & canvas.editable_BL
    return dataclasses.replace(
        canvas,
        tokens_BL=jnp.where(held_BL, tokens_BL, canvas.tokens_BL),
        initial_BL=jnp.where(held_BL, tokens_BL, canvas.initial_BL),
        editable_BL=canvas.editable_BL & ~held_BL,
    )


def until(canvas: Canvas, end: int) -> Bool[Array, "B L"]:
    """True at a sentence's positions up to the first editable one that holds `end`, or at all if none does.

    `end` is the EOS of a decoder that writes it like any other token.
    """
    end_BL = canvas.editable_BL & (canvas.tokens_BL == end)
    first_BLL = end_BL[:, None, :] & same_segment(canvas.segment_BL)
    index_L = jnp.arange(canvas.tokens_BL.shape[1])
    return (canvas.segment_BL > 0) & ~(first_BLL & (index_L < index_L[:, None])).any(-1)


def choose_rows(where_B: Bool[Array, " B"], yes: Tree, no: Tree) -> Tree:
    """Takes each row from the pytree `yes` where `where_B` is True, else from `no`; their leaves begin with axis B."""
    return jax.tree.map(lambda y, n: jnp.where(where_B.reshape(-1, *[1] * (y.ndim - 1)), y, n), yes, no)


def restore(canvas: Canvas, where_BL: Bool[Array, "B L"], earlier: Canvas) -> Canvas:
    """Copies the editable positions of `where_BL` (tokens, scores, visibility) from another canvas of the same rows."""
    return _put(canvas, where_BL, earlier.tokens_BL, earlier.score_BL, earlier.written_BL, earlier.visible_BLL)


def restrict_visibility(canvas: Canvas, masked_BL: Bool[Array, "B L"]) -> Canvas:
    """Adds `visible_BLL`: a position sees all other positions of its segment, except those in `masked_BL`."""
    return dataclasses.replace(canvas, visible_BLL=other_positions(canvas.segment_BL) & ~masked_BL[:, None, :])


def _put(
    canvas: Canvas,
    where_BL: Bool[Array, "B L"],
    tokens_BL: Int[Array, "B L"],
    score_BL: Float[Array, "B L"] | Float[Array, ""],
    written_BL: Bool[Array, "B L"] | Bool[Array, ""],
    visible_BLL: Bool[Array, "B L L"] | Bool[Array, ""] | None,
) -> Canvas:
    """Replaces what the editable positions of `where_BL` hold, and from where these positions are visible."""
    where_BL = where_BL & canvas.editable_BL
    if canvas.visible_BLL is not None:
        assert visible_BLL is not None
        visible_BLL = jnp.where(where_BL[:, None, :], visible_BLL, canvas.visible_BLL)
    return dataclasses.replace(
        canvas,
        tokens_BL=jnp.where(where_BL, tokens_BL, canvas.tokens_BL),
        score_BL=jnp.where(where_BL, score_BL, canvas.score_BL),
        written_BL=jnp.where(where_BL, written_BL, canvas.written_BL),
        visible_BLL=None if canvas.visible_BLL is None else visible_BLL,
    )


def repeats(tokens_BL: Int[Array, "B L"], canvas: Canvas) -> Bool[Array, "B L"]:
    """Marks token-level stutter: editable positions whose token equals the token to their left in the same segment."""
    return canvas.editable_BL & equals_left(tokens_BL) & (positions_in_segment(canvas.segment_BL) > 0)

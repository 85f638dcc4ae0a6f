"""The one loop that refines a canvas, for every strategy and any decoder.

1. Ask the decoder for logits at every position; forbidden ids get -inf.
2. Let the strategy make its step.
3. Keep rows that were done before as they were; count a pass for the others.
4. Stop after `num_steps` passes, or when every row is done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from padir.errors import PadirError
from padir.refinement.canvas import Canvas
from padir.refinement.protocols import Strategy
from padir.refinement.scores import Output, forbid
from padir.text.ids import at_most

LogitsFn = Callable[..., "jax.Array | Output"]
"""tokens_BL -> logits_BLV or Output; called with visible_BLL as well where the canvas has one, and with `rows`, their
numbers, where `refine` takes some rows at a time."""


@flax.struct.dataclass
class Refined:
    """What `refine` gives.

    Attributes:
      canvas: the last canvas; `canvas.tokens_BL` is the answer.
      passes_B: decoder passes that each row really took, at most num_steps.
      tokens_TBL, scores_TBL: if traced, the canvas after each step, [num_steps + 1, B, L], or of as many steps as the
        trace has room for; entry 0 is the draft, and a finished row repeats its answer. Scores are NaN where nothing
        was written: hidden positions, EOS, padding.
      memory: the strategy's, as the last step left it.
    """

    canvas: Canvas
    passes_B: Int[Array, " B"]
    tokens_TBL: Int[Array, "T B L"] | None = None
    scores_TBL: Float[Array, "T B L"] | None = None
    memory: PyTree = None

    @property
    def tokens_BL(self) -> Int[Array, "B L"]:
        return self.canvas.tokens_BL


def _rows(where_B, yes, no):
    """Chooses rows of two pytrees whose leaves begin with axis B."""
    return jax.tree.map(lambda y, n: jnp.where(where_B.reshape(-1, *[1] * (y.ndim - 1)), y, n), yes, no)


def _by_group(advance, size: int, step, key_B, canvas: Canvas, memory):
    """A step of all rows that are not done, `size` at a time."""
    rows_B = jnp.argsort(canvas.done_B, stable=True)
    # What fills the last group up is beyond the rows: read as the last one, and written nowhere.
    rows_B = jnp.concatenate([rows_B, jnp.full(size, canvas.done_B.size)])

    def visit(i, state):
        rows = jax.lax.dynamic_slice_in_dim(rows_B, i * size, size)
        some = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), (key_B, *state))
        stepped = advance(step, *some, rows=rows)
        return jax.tree.map(lambda whole, part: whole.at[rows].set(part, mode="drop"), state, stepped)

    groups = -(-(~canvas.done_B).sum() // size)
    return jax.lax.fori_loop(0, groups, visit, (canvas, memory))


def refine(
    key_B: Key[Array, " B"],
    canvas: Canvas,
    logits_fn: LogitsFn,
    strategy: Strategy,
    *,
    num_steps: int | Int[Array, ""],
    banned_ids: tuple[int, ...] | None = None,
    trace: bool | int = False,
    span: tuple[int | Int[Array, ""], int | Int[Array, ""]] | None = None,
    memory: PyTree = None,
    rows_at_once: int | None = None,
) -> Refined:
    """Refines a canvas for at most `num_steps` decoder passes (the paper's section L.1.1).

    With spans the loop can be left and entered again, with other rows: `span=(0, 1)`, then `span=(1, num_steps)` with
    the canvas and the memory that the first gave. What a row becomes is the same.

    Args:
      key_B: one key per row, made from sentence and hypothesis numbers, so that a row does not depend on its batch.
      canvas: the draft, usually from `padir.refinement.draft.draft`.
      logits_fn: the decoder, tokens_BL -> logits_BLV (or `Output`).
      strategy: one of `padir.refinement.strategies`.
      num_steps: T, at least 1; one-shot decoding is 1. Inside jit it may be traced, unless `trace` is True: then a
        change of it compiles nothing.
      banned_ids: ids that are never written; None means `canvas.ids.special`.
      trace: also return the canvas after every step; a number makes room for so many steps, which num_steps may not
        exceed, and what is beyond num_steps repeats the answer.
      span: (first, end): take the steps first .. end - 1 of the num_steps only; passes are of these.
      memory: the strategy's, from the span before; needed where `first` is not 0.
      rows_at_once: how many rows go through the decoder together; None: all. Then rows that are done are left out, as
        many at a time: this changes nothing but the time and the memory that a pass takes.

    Raises:
      PadirError: num_steps is below 1, or a span is traced.

    >>> import jax, jax.numpy as jnp
    >>> from padir.refinement.draft import draft
    >>> from padir.refinement.corruption import Uniform
    >>> from padir.refinement.strategies import Padir
    >>> from padir.text.ids import Ids
    >>> ids, key_B = Ids(vocab_size=16, num_sentinels=4, first_regular=3), jax.random.split(jax.random.key(0), 1)
    >>> canvas = draft(key_B, jnp.array([4]), 4, Uniform(), ids)
    >>> fake = lambda tokens_BL: 20.0 * jax.nn.one_hot(jnp.array([[7, 8, 9, 1]]), 16)
    >>> refine(key_B, canvas, fake, Padir(), num_steps=4).tokens_BL.tolist()
    [[7, 8, 9, 1]]
    """
    if isinstance(num_steps, int) and num_steps < 1:
        raise PadirError(f"num_steps must be at least 1, got {num_steps}: use 1 for one-shot decoding")
    if trace is not False and trace is not True and isinstance(num_steps, int) and num_steps > trace:
        raise PadirError(f"the trace has room for {trace} steps, got num_steps={num_steps}: give it more, or True")
    if span is not None and trace:
        raise PadirError("a trace is of all steps: refine without a span")
    first, end = (0, num_steps) if span is None else span
    banned_ids = canvas.ids.special if banned_ids is None else banned_ids

    def advance(step, key_B, canvas, memory, **rows):
        """One step of some rows; those that were done before stay as they were."""
        seen = (canvas.tokens_BL,) if canvas.visible_BLL is None else (canvas.tokens_BL, canvas.visible_BLL)
        output = logits_fn(*seen, **rows)
        if not isinstance(output, Output):
            output = Output(logits_BLV=output)
        output = dataclasses.replace(
            output,
            logits_BLV=forbid(output.logits_BLV.astype(jnp.float32), banned_ids),
            found_BL=output.found_BL if banned_ids == canvas.ids.special else None,
        )
        key_step_B = jax.vmap(lambda key: jax.random.fold_in(key, step))(key_B)
        stepped, next_memory = strategy.step(key_step_B, canvas, output, memory, step=step, num_steps=num_steps)
        return _rows(canvas.done_B, (canvas, memory), (stepped, next_memory))

    def body(state):
        step, canvas, memory, passes_B, traced = state
        if rows_at_once is None or at_most(canvas.done_B.size, rows_at_once):
            next_canvas, next_memory = advance(step, key_B, canvas, memory)
        else:
            next_canvas, next_memory = _by_group(advance, rows_at_once, step, key_B, canvas, memory)
        if trace:
            tokens_TBL, scores_TBL = traced
            later_T = (jnp.arange(tokens_TBL.shape[0]) > step)[:, None, None]
            traced = (
                jnp.where(later_T, next_canvas.tokens_BL, tokens_TBL),
                jnp.where(later_T, next_canvas.score_BL, scores_TBL),
            )
        return step + 1, next_canvas, next_memory, passes_B + ~canvas.done_B, traced

    traced = ()
    if trace:
        shape = (int(num_steps if trace is True else trace) + 1, *canvas.tokens_BL.shape)
        traced = (jnp.broadcast_to(canvas.tokens_BL, shape), jnp.broadcast_to(canvas.score_BL, shape))
    passes_B = jnp.zeros(canvas.tokens_BL.shape[0], jnp.int32)
    if memory is None:
        key_init_B = jax.vmap(lambda key: jax.random.fold_in(key, num_steps))(key_B)  # steps use 0 .. num_steps - 1
        memory = strategy.init(key_init_B, canvas)
    _, canvas, memory, passes_B, traced = jax.lax.while_loop(
        lambda state: (state[0] < end) & ~state[1].done_B.all(),
        body,
        (jnp.int32(first), canvas, memory, passes_B, traced),
    )
    if traced:
        tokens_TBL, scores_TBL = traced
        traced = (tokens_TBL, jnp.where(scores_TBL < 0, scores_TBL, jnp.nan))
    return Refined(canvas, passes_B, *traced, memory=memory)

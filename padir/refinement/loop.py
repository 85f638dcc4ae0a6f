"""The loop that refines a canvas with any strategy and any decoder.

1. The decoder gives logits at every position; the logits of forbidden ids are set to -inf.
2. The strategy makes one step.
3. Sentences that were finished before the step stay unchanged. A row is done when all its sentences are finished; a
   pass is counted for each row that was not done.
4. The loop stops after `num_steps` passes, or when every row is done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from padir import checks
from padir.errors import PadirError
from padir.refinement.canvas import Canvas, choose_rows, restore
from padir.refinement.protocols import Strategy
from padir.refinement.scores import Output, forbid
from padir.text.ids import at_most

LogitsFn = Callable[..., "jax.Array | Output"]
"""The decoder as a function tokens_BL -> logits_BLV or `Output`. If the canvas has visible_BLL, this mask is the second
argument; if it has belief_BLD, this is a keyword argument, and the `Output` has the belief for the next pass. With
`Part.rows_at_once`, tokens_BL holds only some rows; the keyword argument `rows` gives their numbers."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The steps that one call of `refine` makes, and the number of rows in one decoder pass.

    A refinement may be split into calls: `Part(end=2)`, then `Part(first=2, memory=refined.memory)` on
    `refined.canvas`. The tokens are the same as those of a single call. Rows may be dropped or reordered between calls.

    Attributes:
      first, end: the call makes steps first .. end - 1 of num_steps; `end=None` means num_steps.
      memory: the strategy's memory after the previous part; None makes the initial memory.
      rows_at_once: number of rows in one decoder call; None puts all rows into one call. With a number, the calls leave
        out rows that are done. This number changes the time and memory of a pass, but not the results.
    """

    first: int | Int[Array, ""] = 0
    end: int | Int[Array, ""] | None = None
    memory: PyTree = None
    rows_at_once: int | None = None


@flax.struct.dataclass
class Refined:
    """The result of `refine`.

    Attributes:
      canvas: the last canvas; `canvas.tokens_BL` holds the refined tokens.
      passes_B: number of decoder passes that each row took, at most num_steps.
      tokens_TBL, scores_TBL: with `trace`, the tokens and scores after each step, [num_steps + 1, B, L], or
        [trace + 1, B, L] if `trace` is a number; otherwise None. Entry 0 is the draft, and a row that is done repeats
        its last tokens. Scores are NaN where nothing was written: at hidden positions, EOS and padding.
      memory: the strategy's memory after the last step.
    """

    canvas: Canvas
    passes_B: Int[Array, " B"]
    tokens_TBL: Int[Array, "T B L"] | None = None
    scores_TBL: Float[Array, "T B L"] | None = None
    memory: PyTree = None

    @property
    def tokens_BL(self) -> Int[Array, "B L"]:
        return self.canvas.tokens_BL


def refine(
    key_B: Key[Array, " B"],
    canvas: Canvas,
    logits_fn: LogitsFn,
    strategy: Strategy,
    *,
    num_steps: int | Int[Array, ""],
    banned_ids: tuple[int, ...] | None = None,
    trace: bool | int = False,
    part: Part = Part(),
) -> Refined:
    """Refines a canvas for at most `num_steps` decoder passes (the paper's section L.1.1).

    Args:
      key_B: one key per row. In decoding a key is made from the sentence and its hypothesis (`padir.refinement.draws`),
        so that a row does not depend on its batch.
      canvas: the draft, usually from `padir.refinement.draft`.
      logits_fn: the decoder, tokens_BL -> logits_BLV (or `Output`).
      strategy: one of `padir.refinement.STRATEGIES`.
      num_steps: T, at least 1; one-shot decoding is 1. Unless `trace` is True, num_steps may be a traced value inside
        jit, so that another number of steps needs no compilation.
      banned_ids: ids that are never written; None means `canvas.ids.special`.
      trace: also return the tokens and scores after every step. A number instead of True makes room for that many
        steps, at least num_steps; entries beyond num_steps repeat the last tokens.
      part: the steps that this call makes, and the number of rows in one decoder call; by default all steps and all
        rows.

    Raises:
      PadirError: num_steps is below 1 or above `trace`, or `trace` is set and `part` leaves out steps.

    >>> import jax, jax.numpy as jnp
    >>> from padir.refinement import Padir, Uniform, draft
    >>> from padir.text.ids import Ids
    >>> ids, key_B = Ids(vocab_size=16, num_sentinels=4, first_regular=3), jax.random.split(jax.random.key(0), 1)
    >>> canvas = draft(key_B, jnp.array([4]), 4, Uniform(), ids)
    >>> fake = lambda tokens_BL: 20.0 * jax.nn.one_hot(jnp.array([[7, 8, 9, 1]]), 16)
    >>> refine(key_B, canvas, fake, Padir(), num_steps=4).tokens_BL.tolist()
    [[7, 8, 9, 1]]
    """
    _check(num_steps, trace, part)
    end = num_steps if part.end is None else part.end
    banned_ids = canvas.ids.special if banned_ids is None else banned_ids
    advance = _step_function(logits_fn, strategy, num_steps, banned_ids)
    size = part.rows_at_once

    def body(state):
        step, canvas, memory, passes_B, traced = state
        if size is None or at_most(canvas.done_B.size, size):
            next_canvas, next_memory = advance(step, key_B, canvas, memory)
        else:
            next_canvas, next_memory = _advance_in_groups(advance, size, step, key_B, canvas, memory)
        if traced is not None:
            later_T = (jnp.arange(traced[0].shape[0]) > step)[:, None, None]
            now = (next_canvas.tokens_BL, next_canvas.score_BL)
            traced = jax.tree.map(lambda new_BL, old_TBL: jnp.where(later_T, new_BL, old_TBL), now, traced)
        return step + 1, next_canvas, next_memory, passes_B + ~canvas.done_B, traced

    traced = None
    if trace:
        shape = (int(num_steps if trace is True else trace) + 1, *canvas.tokens_BL.shape)
        traced = (jnp.broadcast_to(canvas.tokens_BL, shape), jnp.broadcast_to(canvas.score_BL, shape))
    memory = part.memory
    if memory is None:
        memory = strategy.init(_fold(key_B, num_steps), canvas)  # the steps fold in 0 .. num_steps - 1
    passes_B = jnp.zeros(canvas.tokens_BL.shape[0], jnp.int32)
    _, canvas, memory, passes_B, traced = jax.lax.while_loop(
        lambda state: (state[0] < end) & ~state[1].done_B.all(),
        body,
        (jnp.int32(part.first), canvas, memory, passes_B, traced),
    )
    tokens_TBL, scores_TBL = (None, None) if traced is None else traced
    if scores_TBL is not None:
        scores_TBL = jnp.where(scores_TBL < 0, scores_TBL, jnp.nan)
    return Refined(canvas, passes_B, tokens_TBL, scores_TBL, memory)


def _check(num_steps: Any, trace: bool | int, part: Part) -> None:
    if isinstance(num_steps, int):
        checks.at_least(1, "use 1 for one-shot decoding", num_steps=num_steps)
        if not isinstance(trace, bool) and num_steps > trace:
            room = f"at most the {trace} steps that the trace has room for"
            raise PadirError("num_steps", room, num_steps, "give trace=True or a larger number")
    whole = isinstance(part.first, int) and part.first == 0 and part.end is None
    if trace and not whole:
        raise PadirError("trace", "False for a part of the steps", trace, "trace all steps in one call")


def _step_function(logits_fn: LogitsFn, strategy: Strategy, num_steps: Any, banned_ids: tuple[int, ...]) -> Callable:
    """Makes the function of one step, (step, key_B, canvas, memory, **rows) -> (canvas, memory).

    The function does not change rows that are done.
    """

    def advance(step, key_B, canvas: Canvas, memory, **rows):
        seen = (canvas.tokens_BL,) if canvas.visible_BLL is None else (canvas.tokens_BL, canvas.visible_BLL)
        believing = canvas.belief_BLD is not None
        output = logits_fn(*seen, **rows, **({"belief_BLD": canvas.belief_BLD} if believing else {}))
        if not isinstance(output, Output):
            output = Output(logits_BLV=output)
        output = dataclasses.replace(
            output,
            logits_BLV=forbid(output.logits_BLV.astype(jnp.float32), banned_ids),
            found_BL=output.found_BL if banned_ids == canvas.ids.special else None,
        )
        after, memory_after = strategy.step(_fold(key_B, step), canvas, output, memory, step=step, num_steps=num_steps)
        if believing:
            after = dataclasses.replace(after, belief_BLD=output.belief_BLD)
        after = restore(after, canvas.done_BL, canvas)  # a packed row goes on until all its sentences are finished
        return choose_rows(canvas.done_B, (canvas, memory), (after, memory_after))

    return advance


def _advance_in_groups(advance: Callable, size: int, step, key_B, canvas: Canvas, memory):
    """Makes one step for all rows that are not done, `size` rows at a time."""
    rows_B = jnp.argsort(canvas.done_B, stable=True)
    # Row numbers beyond the last row fill up the last group. They read the last row, and their results are dropped.
    rows_B = jnp.concatenate([rows_B, jnp.full(size, canvas.done_B.size)])

    def visit(i, state):
        rows = jax.lax.dynamic_slice_in_dim(rows_B, i * size, size)
        some = jax.tree.map(lambda x: x.at[rows].get(mode="clip"), (key_B, *state))
        stepped = advance(step, *some, rows=rows)
        return jax.tree.map(lambda whole, part: whole.at[rows].set(part, mode="drop"), state, stepped)

    groups = -(-(~canvas.done_B).sum() // size)
    return jax.lax.fori_loop(0, groups, visit, (canvas, memory))


def _fold(key_B, number):
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(key_B)

"""The loop that refines a canvas with any strategy and any decoder.

1. The decoder gives logits at every position; the logits of forbidden ids are set to -inf.
2. The strategy proposes the next canvas, and its stopping rule says which sentences are finished.
3. Sentences that were finished before the pass stay unchanged. A row is done when all its sentences are finished; a
   pass is counted for each row that was not done.
4. The loop stops after `num_steps` passes, or when every row is done.

A position whose logits are NaN keeps its id and its score: no id is written from NaN. Shapes and types are checked when
a program is traced, which costs a compiled program nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import flax.struct
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from padir import checks
from padir.errors import PadirError
from padir.refinement.canvas import Canvas, Tree, choose_rows, restore
from padir.refinement.protocols import Decoder, Number, Proposal, Stop, Strategy
from padir.refinement.scores import Output, best_ids, forbid
from padir.refinement.segments import Keys, check_array, check_keys, fold_keys
from padir.text.ids import at_most


@flax.struct.dataclass
class State:
    """A refinement after `step` passes; the leaves of all other attributes begin with axis B.

    Rows may be dropped or reordered between passes, in all these attributes alike.

    Attributes:
      key_B: one key per row.
      canvas: the canvas that the next pass is given.
      memory, stop_memory: memory of the strategy and of its stopping rule.
      passes_B: number of passes that each row took.
      failed_B: True for rows in which a pass gave NaN where the strategy wrote.
      unwritable_B: number of editable positions whose best id in the first pass is one of `canvas.ids.special`, which
        nothing writes.
    """

    step: Int[Array, ""]
    key_B: Keys
    canvas: Canvas
    memory: PyTree
    stop_memory: PyTree
    passes_B: Int[Array, " B"]
    failed_B: Bool[Array, " B"]
    unwritable_B: Int[Array, " B"]

    @property
    def cycled_B(self) -> Bool[Array, " B"]:
        """True for rows with a sentence that was finished because it oscillated between two canvases."""
        cycled_BL = getattr(self.stop_memory, "cycled_BL", None)
        return jnp.zeros(self.passes_B.shape, bool) if cycled_BL is None else cycled_BL.any(-1)


@flax.struct.dataclass
class Refined:
    """The result of `refine`.

    Attributes:
      canvas: the last canvas; `canvas.tokens_BL` holds the refined tokens.
      passes_B: number of decoder passes that each row took, at most num_steps.
      cycled_B: True for rows with a sentence that was finished because it oscillated between two canvases.
      tokens_TBL, scores_TBL: the tokens and scores after each step, [traced_steps + 1, B, L]; None without
        `traced_steps`. Entry 0 is the draft, and a row that is done repeats its last tokens. Scores are NaN where
        nothing was written: at masked positions, EOS and padding.
    """

    canvas: Canvas
    passes_B: Int[Array, " B"]
    cycled_B: Bool[Array, " B"]
    tokens_TBL: Int[Array, "T B L"] | None = None
    scores_TBL: Float[Array, "T B L"] | None = None

    @property
    def tokens_BL(self) -> Int[Array, "B L"]:
        return self.canvas.tokens_BL


def refine(
    key_B: Key[Array, " B"],
    canvas: Canvas,
    decoder: Decoder,
    strategy: Strategy,
    *,
    num_steps: Number,
    traced_steps: int | None = None,
    rows_at_once: int | None = None,
) -> Refined:
    """Refines a canvas for at most `num_steps` decoder passes (the paper's section L.1.1).

    Args:
      key_B: one key per row; in decoding from `sentence_keys`, so that a row does not depend on its batch.
      canvas: the draft, usually from `padir.refinement.draft`.
      decoder, strategy: a canvas -> logits_BLV (or `Output`), and one of `padir.refinement.STRATEGIES`. The ids of
        `canvas.ids.special` are never written, and a decoder whose best ids are mostly among them is refused.
      num_steps: T, at least 1; one-shot decoding is 1. It may be a traced value inside jit, so that another number of
        steps needs no compilation.
      traced_steps: also return the tokens and scores after every step, in arrays for this number of steps, at least
        num_steps; entries beyond num_steps repeat the last tokens.
      rows_at_once: number of rows in one decoder call; None puts all rows into one call. With a number, the calls leave
        out rows that are done. This number changes the time and memory of a pass, but not the results.

    Raises:
      PadirError: num_steps is below 1 or above `traced_steps`; keys, canvas, strategy or the decoder's output are of
        another shape or type; or, outside jit, logits are NaN (inside jit, `checkify.nan_checks` finds them), or most
        of the decoder's best ids for the first canvas are never written.

    >>> import jax, jax.numpy as jnp
    >>> from padir.refinement import Padir, Uniform, draft
    >>> from padir.text.ids import Ids
    >>> ids, key_B = Ids(vocab_size=16, num_sentinels=4, first_regular=3), jax.random.split(jax.random.key(0), 1)
    >>> canvas = draft(key_B, jnp.array([4]), 4, Uniform(), ids)
    >>> fake = lambda canvas: 20.0 * jax.nn.one_hot(jnp.array([[7, 8, 9, 1]]), 16)
    >>> refine(key_B, canvas, fake, Padir(), num_steps=4).tokens_BL.tolist()
    [[7, 8, 9, 1]]
    """
    _check_decoder(decoder)
    if rows_at_once is not None:
        checks.counts(1, rows_at_once=rows_at_once)
    begun = begin(key_B, canvas, strategy, num_steps)
    traced = None
    if traced_steps is not None:
        checks.counts(1, traced_steps=traced_steps)
        if not isinstance(num_steps, Tracer) and num_steps > traced_steps:
            room = f"at most {traced_steps}, the number of steps that the trace holds"
            raise PadirError("num_steps", room, int(num_steps), "raise traced_steps")
        shape = (traced_steps + 1, *canvas.tokens_BL.shape)
        traced = (jnp.broadcast_to(canvas.tokens_BL, shape), jnp.broadcast_to(canvas.known_score_BL, shape))

    def body(carry):
        state, traced = carry
        after = advance(state, decoder, strategy, num_steps, rows_at_once)
        if traced is not None:
            later_T = (jnp.arange(traced[0].shape[0]) > state.step)[:, None, None]
            now = (after.canvas.tokens_BL, after.canvas.known_score_BL)
            traced = jax.tree.map(lambda new_BL, old_TBL: jnp.where(later_T, new_BL, old_TBL), now, traced)
        return after, traced

    state, traced = jax.lax.while_loop(
        lambda carry: (carry[0].step < num_steps) & ~carry[0].canvas.done_B.all(),
        body,
        (begun, traced),
    )
    _refuse_failures(state)
    tokens_TBL, scores_TBL = (None, None) if traced is None else traced
    return Refined(state.canvas, state.passes_B, state.cycled_B, tokens_TBL, scores_TBL)


def steps(
    key_B: Key[Array, " B"],
    canvas: Canvas,
    decoder: Decoder,
    strategy: Strategy,
    *,
    num_steps: int,
) -> Iterator[State]:
    """Yields the state before the first pass and after each pass; takes the arguments of `refine`.

    The last state has the canvas that `refine` returns. A pass is one jitted program. If the decoder is a
    `jax.tree_util.Partial`, its arrays are arguments of this program; arrays that another decoder closes over are
    constants. It raises the errors of `refine`.
    """
    _check_decoder(decoder)
    decoder = decoder if isinstance(decoder, Partial) else Partial(decoder)
    state = begin(key_B, canvas, strategy, num_steps)
    yield state
    while state.step < num_steps and not state.canvas.done_B.all():
        state = _advance_jitted(state, decoder, strategy, num_steps)
        _refuse_failures(state)
        yield state


def begin(key_B: Key[Array, " B"], canvas: Canvas, strategy: Strategy, num_steps: Number) -> State:
    """The state before the first of `num_steps` passes."""
    checks.instance("strategy", strategy, Strategy, "write it as Padir()")
    of, stop = type(strategy).__name__, strategy.stop
    checks.instance(f"{of}.stop", stop, Stop, "write it as NothingOpen()")
    checks.takes(f"{of}.init", strategy.init, "key_B, canvas")
    checks.takes(f"{of}.step", strategy.step, "key_B, canvas, output, memory, *, step, num_steps")
    checks.takes(f"{type(stop).__name__}.init", stop.init, "canvas")
    checks.takes(f"{type(stop).__name__}.step", stop.step, "before, output, proposal, memory")
    if not isinstance(canvas, Canvas):
        raise PadirError("canvas", "a Canvas", type(canvas), "make one with padir.refinement.draft")
    kinds = {"tokens_BL": jnp.integer, "score_BL": jnp.floating, "initial_BL": jnp.integer, "segment_BL": jnp.integer}
    for name in ("tokens_BL", "score_BL", "written_BL", "editable_BL", "initial_BL", "segment_BL", "done_BL"):
        check_array(f"canvas.{name}", getattr(canvas, name), canvas.tokens_BL.shape, kinds.get(name, jnp.bool_))
    check_keys(key_B, canvas.tokens_BL.shape[0])
    if isinstance(num_steps, jax.Array):
        check_array("num_steps", num_steps, (), jnp.integer)
    if not isinstance(num_steps, Tracer):
        number = int(num_steps) if isinstance(num_steps, jax.Array) else num_steps
        checks.counts(1, "use 1 for one-shot decoding", num_steps=number)
    memory = strategy.init(fold_keys(key_B, num_steps), canvas)  # the steps fold in 0 .. num_steps - 1
    stop_memory = stop.init(canvas)
    passes_B = jnp.zeros(canvas.tokens_BL.shape[0], jnp.int32)
    for leaf in jax.tree.leaves((memory, stop_memory)):
        shape = (*passes_B.shape, *jnp.shape(leaf)[1:])  # all leaves begin with axis B
        check_array(f"a leaf of the memory that {of}.init or its stop rule gives", leaf, shape)
    return State(jnp.int32(0), key_B, canvas, memory, stop_memory, passes_B, passes_B > 0, passes_B)


def _check_decoder(decoder: Decoder) -> None:
    if isinstance(decoder, type) or not callable(decoder):
        raise PadirError("decoder", "a function of a Canvas", decoder)
    checks.takes("decoder", decoder, "canvas")


def _check_output(output: Output, canvas: Canvas) -> None:
    shape, ids = canvas.tokens_BL.shape, canvas.ids
    wide = getattr(output.logits_BLV, "shape", ())[-1:] == (ids.num_embeddings,)
    shape_BLV = (*shape, ids.num_embeddings if wide else ids.vocab_size)
    check_array("the decoder's logits", output.logits_BLV, shape_BLV, jnp.floating)
    if output.keep_logits_BL is not None:
        check_array("the decoder's keep_logits_BL", output.keep_logits_BL, shape, jnp.floating)
    for array in output.found_BL or ():
        check_array("the decoder's found_BL", array, shape)


def _refuse_failures(state: State) -> None:
    """Raises if a pass gave NaN, or if most best ids may never be written; does nothing if the state is traced."""
    if isinstance(state.failed_B, Tracer):
        return
    if state.failed_B.any():
        what = "the decoder's logits are NaN where the strategy writes"
        raise PadirError(what, remedy="check the decoder's parameters and its input")
    unwritable, editable = int(state.unwritable_B.sum()), int(state.canvas.editable_BL.sum())
    if 2 * unwritable > editable:
        shown = ", ".join(map(str, state.canvas.ids.special[:6]))
        what = (
            f"the decoder's best id may never be written at {unwritable} of {editable} positions: its ids are not those"
            f" of the canvas, where {shown}{', ...' if len(state.canvas.ids.special) > 6 else ''} are special"
        )
        raise PadirError(what, remedy="describe the decoder's ids with DecoderIds, or have it give them -inf")


def advance(
    state: State,
    decoder: Decoder,
    strategy: Strategy,
    num_steps: Number,
    rows_at_once: int | None = None,
) -> State:
    """Makes one of `num_steps` passes; rows that are done do not change. The arguments are as in `refine`."""
    one_pass = functools.partial(_advance, decoder=decoder, strategy=strategy, num_steps=num_steps)
    if rows_at_once is None or at_most(state.passes_B.size, rows_at_once):
        after = one_pass(state)
    else:

        def some_rows(row_G, some: State) -> State:
            after = one_pass(dataclasses.replace(some, canvas=dataclasses.replace(some.canvas, row_B=row_G)))
            return dataclasses.replace(after, canvas=dataclasses.replace(after.canvas, row_B=None))

        after = in_groups(some_rows, state, ~state.canvas.done_B, rows_at_once)
    return dataclasses.replace(after, step=state.step + 1)


_advance_jitted = jax.jit(advance, static_argnames="strategy")


def propose(
    key_B: Keys,
    canvas: Canvas,
    output: Output,
    strategy: Strategy,
    memories: tuple[PyTree, PyTree],
    *,
    step: Number,
    num_steps: Number,
) -> tuple[Canvas, tuple[PyTree, PyTree]]:
    """Applies one step to a canvas, given the decoder's output: the strategy's proposal, then its stopping rule.

    `memories` are the strategy's and its stopping rule's.
    """
    proposal = strategy.step(key_B, canvas, output, memories[0], step=step, num_steps=num_steps)
    if not isinstance(proposal, Proposal):
        raise PadirError(f"{type(strategy).__name__}.step", "a function that gives a Proposal", type(proposal))
    for made in (proposal.next, proposal.last):
        if not isinstance(made, Canvas):
            raise PadirError(f"next and last of {type(strategy).__name__}.step", "a Canvas each", type(made))
    check_array(
        f"open positions of {type(strategy).__name__}", proposal.still_open(), canvas.tokens_BL.shape, jnp.bool_
    )
    _check_memory(strategy, memories[0], proposal.memory)
    stop = strategy.stop
    stopped = stop.step(canvas, output, proposal, memories[1])
    finished_BL, stop_memory = checks.pair(f"{type(stop).__name__}.step", "finished_BL, memory", stopped)
    check_array(f"finished_BL of {stop}", finished_BL, canvas.tokens_BL.shape, jnp.bool_)
    _check_memory(stop, memories[1], stop_memory)
    is_last = jnp.equal(step, num_steps - 1)
    after = restore(proposal.next, finished_BL | is_last, proposal.last)
    after = dataclasses.replace(after, done_BL=after.done_BL | finished_BL)
    return after, (proposal.memory, stop_memory)


def _check_memory(owner: Strategy | Stop, *memories: PyTree) -> None:
    """Refuses a step's memory of another structure than the memory before."""
    expected, got = (
        (jax.tree.structure(memory), [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(memory)])
        for memory in memories
    )
    if expected != got:
        raise PadirError(f"the memory of {type(owner).__name__}.step", f"like init's memory, {expected}", got)


def _advance(state: State, decoder: Decoder, strategy: Strategy, num_steps: Number) -> State:
    """The state after a pass, with the same `step`."""
    canvas, memories = state.canvas, (state.memory, state.stop_memory)
    output = decoder(canvas)
    if not isinstance(output, Output):
        output = Output(logits_BLV=output)
    _check_output(output, canvas)
    raw_BLV, unwritable_B = output.logits_BLV, state.unwritable_B
    if output.found_BL is None:
        unwritable_B = jax.lax.cond(state.step == 0, lambda: _unwritable(raw_BLV, canvas), lambda: unwritable_B)
    logits_BLV = forbid(raw_BLV.astype(jnp.float32), canvas.ids.special)
    output = dataclasses.replace(output, logits_BLV=logits_BLV)
    key_B = fold_keys(state.key_B, state.step)
    after, memories_after = propose(key_B, canvas, output, strategy, memories, step=state.step, num_steps=num_steps)
    failed_BL = jnp.isnan(after.score_BL) & ~canvas.done_BL
    # A packed row goes on until all its sentences are finished.
    after = restore(after, canvas.done_BL | failed_BL, canvas)
    canvas, memories = choose_rows(canvas.done_B, (canvas, memories), (after, memories_after))
    passes_B = state.passes_B + ~state.canvas.done_B
    failed_B = state.failed_B | failed_BL.any(-1)
    return State(state.step, state.key_B, canvas, memories[0], memories[1], passes_B, failed_B, unwritable_B)


def _unwritable(logits_BLV: Float[Array, "B L V"], canvas: Canvas) -> Int[Array, " B"]:
    """Number of editable positions of each row at which a special id has the largest logit."""
    special_V = jnp.zeros(logits_BLV.shape[-1], bool).at[jnp.array(canvas.ids.special, int)].set(True, mode="drop")
    return (canvas.editable_BL & special_V[best_ids(logits_BLV)]).sum(-1)


def in_groups(
    function: Callable[[Int[Array, " G"], Tree], Tree], rows: Tree, where_B: Bool[Array, " B"], size: int
) -> Tree:
    """Replaces the rows of `where_B` by what a function makes of them, `size` rows at a time; others cost nothing.

    Args:
      function: from numbers of rows, and these rows of `rows`, to their new values. A number beyond the last row stands
        for the last row, and its result is dropped.
      rows: a pytree of arrays that begin with axis B, and of numbers, which all rows share.
    """
    row_B = jnp.argsort(~where_B, stable=True)
    row_B = jnp.concatenate([row_B, jnp.full(size, row_B.size)])  # fills up the last group

    def visit(i, whole: Tree) -> Tree:
        row_G = jax.lax.dynamic_slice_in_dim(row_B, i * size, size)
        after = function(row_G, jax.tree.map(lambda x: x.at[row_G].get(mode="clip") if x.ndim else x, whole))
        return jax.tree.map(lambda x, part: x.at[row_G].set(part, mode="drop") if x.ndim else x, whole, after)

    return jax.lax.fori_loop(0, -(-where_B.sum() // size), visit, rows)

"""Jitted programs of a batch, from encoded sources (`padir.decoding.encoding`) to refined drafts.

1. `lay_out` makes N drafts of each sentence, each of its own length.
2. `refine_drafts` calls `lay_out` and refines all drafts in one loop.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from padir.decoding.fusion import FusedChoice, FusedScore
from padir.decoding.program_cache import PROGRAMS
from padir.decoding.shortlist import compact, expand
from padir.models.params import in_model_dtype
from padir.models.transformer import Transformer
from padir.refinement.canvas import Canvas, hold, restrict_visibility
from padir.refinement.corruption import noise_canvas
from padir.refinement.loop import Refined, refine
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.scores import Output
from padir.refinement.segments import sentence_keys


class DraftInputs(NamedTuple):
    """Encoded sentences and the N planned drafts of each.

    Attributes:
      cross_kv, source_segment_BS: cross-attention keys and values of the sources, and the sources' segment ids.
      source_BS: the sources; a draft's key is made from its source, the seed, its length and its draw.
      length_BN, draw_BN: each draft's length in tokens, EOS included, and the number of its draw. A length of 0 is no
        draft: its row takes no pass.
      num_steps, seed, blank_penalty: as in `Decoding`; other values compile no new program.
      fixed_RL: ids that drafts must hold at their positions, 0 for none; None if no draft holds any.
      kept_v: ids that drafts and results may contain (`Shortlist.restrict`); None for all ids.
      fused: the table that decoding weighs in (`padir.decoding.fusion`); None for none.
    """

    cross_kv: Any
    source_segment_BS: Int[Array, "B S"]
    source_BS: Int[Array, "B S"]
    length_BN: Int[Array, "B N"]
    draw_BN: Int[Array, "B N"]
    num_steps: Any
    seed: Any = 0
    blank_penalty: Any = 0.0
    fixed_RL: Any = None
    kept_v: Any = None
    fused: FusedScore | None = None


class Drafts(NamedTuple):
    """Refined drafts; NumPy arrays once they are on the host.

    The R = B * N rows are sentence-major; with a prefix beam, each draft has as many rows as the beam.

    Attributes:
      editable_RL: True at positions that are neither EOS nor padding. They include the ones that `DraftInputs.fixed_RL`
        fixes, unlike `Canvas.editable_BL`.
      log_prob_R: sum of the row's log-probabilities; NaN if a position was never written.
      oscillated_R: True for rows that were ended because they oscillated between two canvases.
      trace_TRL: tokens and log-probabilities of the draft and of every step; None if the steps were not traced.
    """

    tokens_RL: Int[np.ndarray, "R L"]
    editable_RL: Bool[np.ndarray, "R L"]
    length_R: Int[np.ndarray, " R"]
    log_prob_R: Float[np.ndarray, " R"]
    passes_R: Int[np.ndarray, " R"]
    oscillated_R: Bool[np.ndarray, " R"]
    trace_TRL: tuple[Any, Any] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RefineOptions:
    """The static options of `refine_drafts`; different values compile different programs.

    `Refiner.steps` makes the same passes by `lay_out` and its own call of the loop. An option added here that changes a
    pass must be read there, too.

    Attributes:
      max_target_length: L, the width of the canvas.
      rows_at_once: number of rows that the decoder processes together; None means all rows.
      traced_steps: number of steps that the trace has room for, at least the number of steps; None for no trace.
      prefix_beam: as in `Decoding`; 1 reads the tokens that the strategy wrote.
    """

    max_target_length: int
    strategy: Strategy
    corruption: Corruption
    rows_at_once: int | None = None
    traced_steps: int | None = None
    prefix_beam: int = 1


@PROGRAMS.add
@functools.partial(jax.jit, static_argnames=("model", "options"))
def refine_drafts(model: Transformer, params, inputs: DraftInputs, options: RefineOptions) -> Drafts:
    """Makes the planned drafts of a batch and refines all of them."""
    model, params = compact(model, params, inputs.kept_v)
    params = in_model_dtype(model.config, params)  # once, not at every pass
    key_R, canvas, decoder = lay_out(model, params, inputs, options)
    written = options.prefix_beam == 1
    refined = refine(
        key_R,
        canvas,
        decoder,
        options.strategy,
        num_steps=inputs.num_steps if written else inputs.num_steps - 1,  # the search is the last pass
        traced_steps=options.traced_steps,
        rows_at_once=options.rows_at_once,
    )
    drafts = _written(refined, inputs) if written else _best_sentences(refined, inputs, decoder, options.prefix_beam)
    if (traced := drafts.trace_TRL) is not None:
        traced = expand(traced[0], inputs.kept_v), traced[1]
    tokens: Any = drafts.tokens_RL  # NumPy arrays only on the host
    return drafts._replace(tokens_RL=expand(tokens, inputs.kept_v), trace_TRL=traced)


def _written(refined: Refined, inputs: DraftInputs) -> Drafts:
    """The drafts that the loop wrote, one of each canvas."""
    editable_RL = refined.canvas.editable_BL
    arrays: Any = (
        refined.tokens_BL,
        editable_RL if inputs.fixed_RL is None else editable_RL | (inputs.fixed_RL > 0),
        inputs.length_BN.reshape(-1),
        # Where logits are NaN in every pass, nothing is written.
        jnp.where(refined.canvas.masked_BL.any(-1), jnp.nan, (refined.canvas.score_BL * editable_RL).sum(-1)),
        refined.passes_B,
        refined.cycled_B,
    )
    return Drafts(*arrays, trace_TRL=_trace(refined))


def _best_sentences(refined: Refined, inputs: DraftInputs, decoder: ModelDecoder, size: int) -> Drafts:
    """The drafts after one more pass: the `size` best sentences of each canvas, best first.

    A sentence has one canvas (N = 1).
    """
    canvas = refined.canvas
    tokens_BNL, log_prob_BN = decoder.prefix_beam(canvas, size)
    tokens_RL = tokens_BNL.reshape(-1, tokens_BNL.shape[-1])
    of_canvas = canvas.editable_BL, inputs.length_BN[:, 0], refined.passes_B + 1, refined.cycled_B
    editable_RL, length_R, passes_R, cycled_R = (jnp.repeat(each, size, axis=0) for each in of_canvas)
    if (traced := _trace(refined)) is not None:
        tokens_TRL, scores_TRL = (jnp.repeat(each, size, axis=1) for each in traced)
        last_TR1 = (jnp.arange(tokens_TRL.shape[0])[:, None] >= passes_R)[..., None]
        traced = jnp.where(last_TR1, tokens_RL, tokens_TRL), jnp.where(last_TR1, jnp.nan, scores_TRL)
    arrays: Any = (tokens_RL, editable_RL, length_R, log_prob_BN.reshape(-1), passes_R, cycled_R)
    return Drafts(*arrays, trace_TRL=traced)


def _trace(refined: Refined) -> tuple[Any, Any] | None:
    return None if refined.tokens_TBL is None else (refined.tokens_TBL, refined.scores_TBL)


def joined(parts: Sequence[Drafts]) -> Drafts:
    """Joins untraced drafts of the same rows, widest last; each row is in the part that has a length for it."""
    *others, widest = parts
    whole = jax.tree.map(np.array, widest) if others else widest
    for part in others:
        rows = part.length_R > 0
        for array, narrow in zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True):
            array[(rows, *map(slice, narrow.shape[1:]))] = narrow[rows]
    return whole


def lay_out(
    model: Transformer, params, inputs: DraftInputs, options: RefineOptions
) -> tuple[Any, Canvas, ModelDecoder]:
    """Makes the drafts of a batch before the first step, rows R = B * N sentence-major: (key_R, canvas, decoder)."""
    sentence_B = sentence_keys(inputs.source_BS, inputs.seed)
    length_R = inputs.length_BN.reshape(-1)
    # A draft's key depends on its length and draw alone, so that other drafts do not change it.
    fold = jax.vmap(lambda key, length, draw: jax.random.fold_in(jax.random.fold_in(key, length), draw))
    key_R = fold(jnp.repeat(sentence_B, inputs.length_BN.shape[1]), length_R, inputs.draw_BN.reshape(-1))
    canvas = noise_canvas(key_R, length_R, options.max_target_length, options.corruption, model.ids)
    canvas = dataclasses.replace(canvas, done_BL=canvas.done_BL | (length_R == 0)[:, None])
    if inputs.fixed_RL is not None:
        canvas = hold(canvas, inputs.fixed_RL > 0, inputs.fixed_RL)
    if model.config.decontextualised:
        canvas = restrict_visibility(canvas, canvas.editable_BL)
    decoder = ModelDecoder(
        model=model,
        params=params,
        memory=(inputs.cross_kv, inputs.source_segment_BS),
        positional=model.bind({"params": params}).positional(options.max_target_length),
        blank_penalty=inputs.blank_penalty,
        fused=None if inputs.fused is None else inputs.fused.with_sources(inputs.source_BS),
        rows_of_each=inputs.length_BN.shape[1],
    )
    return key_R, canvas, decoder


@flax.struct.dataclass
class ModelDecoder:
    """A model as the decoder of canvases that have the same number of rows for every sentence.

    Attributes:
      memory: cross-attention keys and values, and segment ids, of the sources.
      positional: from `Transformer.positional`, the same in every pass.
      blank_penalty: as in `Decoding`.
      fused: the table that the choice of tokens weighs in; None for none.
      rows_of_each: number of rows of a sentence, which an export leaves open.
    """

    model: Transformer = flax.struct.field(pytree_node=False)
    params: Any
    memory: Any
    positional: Any
    blank_penalty: Any
    fused: FusedScore | None
    rows_of_each: Any = flax.struct.field(pytree_node=False)

    def __call__(self, canvas: Canvas) -> Output:
        """The output for a canvas; with a table, a chooser of its tokens if these are the sentence's."""
        bound, states_BLD = self._states(canvas)
        fused = self.fused if self.model.config.geometry.is_sentence else None
        output = bound.output(
            states_BLD, canvas.segment_BL > 0, find_best=fused is None, blank_penalty=self.blank_penalty
        )
        if fused is None:
            return output
        return dataclasses.replace(output, chooser=FusedChoice(fused.of_rows(self._sentence_R(canvas)), canvas))

    def prefix_beam(self, canvas: Canvas, size: int):
        """The `size` best sentences of each canvas (`Transformer.prefix_beam`)."""
        bound, states_BLD = self._states(canvas)
        return bound.prefix_beam(states_BLD, canvas, self.blank_penalty, size, self.fused)

    def _sentence_R(self, canvas: Canvas) -> Int[Array, " R"]:
        """The sentence of each row."""
        row_R = jnp.arange(canvas.tokens_BL.shape[0]) if canvas.row_B is None else canvas.row_B
        return row_R // self.rows_of_each

    def _states(self, canvas: Canvas):
        memory = self.memory
        if canvas.row_B is not None:
            sentence_R = self._sentence_R(canvas)
            memory = jax.tree.map(lambda x: x.at[sentence_R].get(mode="clip"), memory)
        bound = self.model.bind({"params": self.params})
        states_BLD = bound.draft_states(
            canvas.tokens_BL,
            canvas.segment_BL,
            *memory,
            visible_BLL=canvas.visible_BLL,
            positional=self.positional,
        )
        return bound, states_BLD

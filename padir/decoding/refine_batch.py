"""Jitted programs of a batch, from source tokens to refined drafts.

1. `encode` encodes the sources, once for all candidates.
2. `lay_out` makes the drafts: N candidates of each sentence, each of its own length.
3. `refine_drafts` calls `lay_out` and refines all drafts in one loop.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from padir.decoding.options import Prune
from padir.decoding.shortlist import compact, expand
from padir.models.params import in_model_dtype
from padir.models.transformer import Transformer
from padir.refinement.canvas import Canvas, unbelieving, veil
from padir.refinement.drafting import draft
from padir.refinement.draws import sentence_keys
from padir.refinement.loop import LogitsFn, Part, refine
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.scores import forbid, token_scores
from padir.text.ids import pad_rows, round_up

BUCKET = 8  # lengths are rounded up to a multiple of this
POSITIONS = 512  # maximum number of positions that the decoder processes at once on a CPU


class DraftInputs(NamedTuple):
    """Encoded sentences and the N candidates of each.

    Attributes:
      cross_kv, source_segment_BS: cross-attention keys and values of the sources, and their segment ids; each sentence
        has one row.
      source_BS: the sources; a candidate's key is made from its source, the seed, its length and its draw.
      length_BN, draw_BN: each candidate's length in tokens, EOS included, and the number of its draw.
    """

    cross_kv: Any
    source_segment_BS: Int[Array, "B S"]
    source_BS: Int[Array, "B S"]
    length_BN: Int[Array, "B N"]
    draw_BN: Int[Array, "B N"]


class Drafts(NamedTuple):
    """Refined drafts, R = B * N rows, sentence-major; NumPy arrays once they are on the host.

    Attributes:
      free_RL: True at positions that the decoder writes, which are neither EOS nor padding.
      length_R: length of each row in tokens, EOS included.
      log_prob_R: sum of the row's log-probabilities.
      passes_R: number of decoder passes of the row.
      oscillated_R: True for rows that the strategy ended because they oscillated between two canvases.
      kept_BN: numbers of the sentence's candidates that its rows hold; all candidates unless `Prune` left some out.
      trace_TRL: tokens and log-probabilities of the draft and of every step; None if the steps were not traced.
    """

    tokens_RL: Int[np.ndarray, "R L"]
    free_RL: Bool[np.ndarray, "R L"]
    length_R: Int[np.ndarray, " R"]
    log_prob_R: Float[np.ndarray, " R"]
    passes_R: Int[np.ndarray, " R"]
    oscillated_R: Bool[np.ndarray, " R"]
    kept_BN: Int[np.ndarray, "B N"]
    trace_TRL: tuple[Any, Any] | None


@dataclasses.dataclass(frozen=True)
class RefineOptions:
    """The static options of `refine_drafts`; different values compile different programs.

    Attributes:
      max_target_length: L, the width of the canvas.
      corruption: the corruption that makes the drafts.
      prune: leaves out candidates after the first steps, or None.
      rows_at_once: number of rows that the decoder processes together; None means all rows.
      traced_steps: number of steps that the trace has room for, at least the number of steps; None for no trace.
    """

    max_target_length: int
    strategy: Strategy
    corruption: Corruption
    prune: Prune | None = None
    rows_at_once: int | None = None
    traced_steps: int | None = None


def padded(rows: Sequence[list[int]], batch_size: int, row_multiple: int = 1) -> np.ndarray:
    """Pads token lists to an array of one of few shapes, so that few programs are compiled.

    Args:
      batch_size: maximum number of rows, before rounding up to a multiple of `row_multiple`.
      row_multiple: the number of devices that share the rows; the number of rows becomes a multiple of this number.
    """
    num_rows = round_up(min(batch_size, 1 << (len(rows) - 1).bit_length()), row_multiple)
    return pad_rows(list(rows), round_up(max(map(len, rows)), BUCKET), num_rows)


@functools.partial(jax.jit, static_argnums=0)
def encode(model: Transformer, params, source_BS, memory_BSD=None):
    """Computes the encoder's output of a batch of sources, and each decoder layer's keys and values of this output.

    `memory_BSD` is the encoder's output, if another model with the same encoder has computed it.
    """
    segment_BS = (source_BS > 0).astype(jnp.int32)
    bound = model.bind({"params": params})
    encoded = bound.encode(source_BS, segment_BS, memory_BSD=memory_BSD)
    return encoded, bound.cross_kv(encoded.memory_BSD)


@functools.partial(jax.jit, static_argnums=0, static_argnames="options")
def refine_drafts(
    model: Transformer, params, inputs: DraftInputs, *, options: RefineOptions, num_steps, seed, kept_v=None
) -> Drafts:
    """Makes a draft of every candidate of a batch and refines all drafts.

    Args:
      num_steps: maximum number of decoder passes; a different number does not compile a new program.
      seed: seed of the drafts.
      kept_v: the ids that drafts and results may contain (`Shortlist.restrict`); None for all ids.
    """
    model, params = compact(model, params, kept_v)
    params = in_model_dtype(model.config, params)  # once, not at every pass
    key_R, canvas, logits_fn = lay_out(
        model,
        params,
        inputs,
        max_target_length=options.max_target_length,
        corruption=options.corruption,
        seed=seed,
    )
    batch, candidates = inputs.length_BN.shape
    kept_BN = jnp.broadcast_to(jnp.arange(candidates), (batch, candidates))
    length_R = inputs.length_BN.reshape(-1)
    refining = functools.partial(refine, strategy=options.strategy, num_steps=num_steps)
    part, prune = Part(rows_at_once=options.rows_at_once), options.prune
    if prune is None or candidates <= prune.keep:
        refined = refining(key_R, canvas, logits_fn, trace=options.traced_steps or False, part=part)
        passes_R = refined.passes_B
    else:
        early = refining(key_R, canvas, logits_fn, part=dataclasses.replace(part, end=prune.steps))
        kept_BN = _best(early.canvas, inputs, prune.keep)
        rows = (kept_BN + candidates * jnp.arange(batch)[:, None]).reshape(-1)
        key_R, canvas, memory, passes_R, length_R = jax.tree.map(
            lambda x: x[rows], (key_R, early.canvas, early.memory, early.passes_B, length_R)
        )
        logits_fn = _decoder(model, params, canvas.segment_BL, inputs)
        refined = refining(key_R, canvas, logits_fn, part=dataclasses.replace(part, first=prune.steps, memory=memory))
        passes_R = passes_R + refined.passes_B
    log_prob_R = (refined.canvas.score_BL * canvas.free_BL).sum(-1)
    traced = None
    if refined.tokens_TBL is not None and refined.scores_TBL is not None:
        traced = (expand(refined.tokens_TBL, kept_v), refined.scores_TBL)
    tokens_RL = expand(refined.tokens_BL, kept_v)
    oscillated_R = getattr(refined.memory, "oscillated_B", jnp.zeros(length_R.shape, bool))
    arrays: Any = (
        tokens_RL,
        canvas.free_BL,
        length_R,
        log_prob_R,
        passes_R,
        oscillated_R,
        kept_BN,
    )  # NumPy arrays only on the host
    return Drafts(*arrays, trace_TRL=traced)


@functools.partial(jax.jit, static_argnums=0, static_argnames="corruption")
def pseudo_likelihoods(
    model: Transformer, params, inputs: DraftInputs, tokens_RL: Int[Array, "R L"], *, corruption: Corruption, seed
) -> Float[Array, " R"]:
    """Sum over the free positions of each row of the token's log-probability while this position alone is hidden.

    A hidden position shows the noise of the row's first draft; a decontextualised decoder does not see it at all.
    """
    params = in_model_dtype(model.config, params)
    length = tokens_RL.shape[1]
    _, canvas, logits_fn = lay_out(model, params, inputs, max_target_length=length, corruption=corruption, seed=seed)
    seen = {"belief_BLD": canvas.belief_BLD}
    if model.config.decontextualised:
        seen["visible_BLL"] = veil(canvas, jnp.zeros_like(canvas.free_BL)).visible_BLL

    def add(sum_R, place):
        hidden_RL = (jnp.arange(length) == place) & canvas.free_BL
        output: Any = logits_fn(jnp.where(hidden_RL, canvas.start_BL, tokens_RL), **seen)
        log_prob_RL = token_scores(forbid(output.logits_BLV, model.ids.special), tokens_RL)
        return sum_R + jnp.where(hidden_RL, log_prob_RL, 0.0).sum(-1), None

    return jax.lax.scan(add, jnp.zeros(tokens_RL.shape[0]), jnp.arange(length))[0]


def rows_together(length: int) -> int | None:
    """Number of rows of a length that the decoder processes at once on this machine; None for all rows.

    A few hundred positions keep a CPU busy, and groups whose rows are all done cost nothing.
    """
    return rows_on_a_cpu(length) if jax.default_backend() == "cpu" else None


def rows_on_a_cpu(length: int) -> int:
    """Result of `rows_together` on a CPU, for exporting CPU programs from any machine."""
    return max(1, POSITIONS // length)


def _best(canvas: Canvas, inputs: DraftInputs, keep: int):
    """Numbers of each sentence's candidates with the highest mean log-probability, [B, keep], increasing.

    The mean is over written positions, as hidden ones have no probability; a candidate without any is the worst.
    """
    written_RL = canvas.free_BL & (canvas.score_BL < 0)
    sum_R, count_R = (canvas.score_BL * written_RL).sum(-1), written_RL.sum(-1)
    score_R = jnp.where(count_R == 0, jnp.finfo(jnp.float32).min, sum_R / jnp.maximum(count_R, 1))
    same_BNN = inputs.length_BN[:, :, None] == inputs.length_BN[:, None]
    same_BNN &= inputs.draw_BN[:, :, None] == inputs.draw_BN[:, None]
    # A repeated candidate only pads the sentence's rows.
    again_BN = (same_BNN & jnp.tri(same_BNN.shape[-1], k=-1, dtype=bool)).any(-1)
    score_BN = jnp.where(again_BN, -jnp.inf, score_R.reshape(again_BN.shape))
    return jnp.sort(jax.lax.top_k(score_BN, keep)[1], axis=-1)


def lay_out(
    model: Transformer, params, inputs: DraftInputs, *, max_target_length: int, corruption: Corruption, seed
) -> tuple[Any, Canvas, LogitsFn]:
    """Makes the drafts of a batch before the first step, rows R = B * N sentence-major: (key_R, canvas, decoder)."""
    sentence_B = sentence_keys(inputs.source_BS, seed)
    length_R = inputs.length_BN.reshape(-1)
    # A candidate's key depends on its length and draw alone, so that other candidates do not change it.
    fold = jax.vmap(lambda key, length, draw: jax.random.fold_in(jax.random.fold_in(key, length), draw))
    key_R = fold(jnp.repeat(sentence_B, inputs.length_BN.shape[1]), length_R, inputs.draw_BN.reshape(-1))
    canvas = draft(key_R, length_R, max_target_length, corruption, model.ids)
    if model.config.decontextualised:
        canvas = veil(canvas, canvas.free_BL)
    if model.config.self_conditioning:
        canvas = unbelieving(canvas, model.config.width)
    return key_R, canvas, _decoder(model, params, canvas.segment_BL, inputs)


def _decoder(model: Transformer, params, segment_BL, inputs: DraftInputs) -> LogitsFn:
    """Makes the decoder function for N rows of each sentence, with segments [B * N, L]."""

    def logits_fn(tokens_BL, visible_BLL=None, rows=None, belief_BLD=None):
        segments, memory = segment_BL, (inputs.cross_kv, inputs.source_segment_BS)
        if rows is not None:
            segments = segment_BL.at[rows].get(mode="clip")
            sentences = rows // (segment_BL.shape[0] // inputs.source_segment_BS.shape[0])
            memory = jax.tree.map(lambda x: x.at[sentences].get(mode="clip"), memory)
        return model.bind({"params": params}).decode(
            tokens_BL, segments, *memory, visible_BLL=visible_BLL, belief_BLD=belief_BLD, find_best=True
        )

    return logits_fn

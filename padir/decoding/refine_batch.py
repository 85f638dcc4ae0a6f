"""A batch on the device, from source tokens to refined drafts.

1. `encode` the sources, once for all hypotheses.
2. `lay_out` the drafts: N hypotheses of each sentence, each of its own length.
3. `refine_drafts`: all of them in one jitted loop.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from padir.decoding.options import Prune
from padir.decoding.shortlist import compact, expand
from padir.models.transformer import Transformer
from padir.refinement.canvas import Canvas, veil
from padir.refinement.drafting import draft
from padir.refinement.loop import LogitsFn, Part, refine
from padir.refinement.protocols import Corruption, Strategy
from padir.text.ids import pad_rows, round_up

BUCKET = 8  # lengths are rounded up to it
POSITIONS = 512  # that go through the decoder at once


class Tried(NamedTuple):
    """Encoded sentences and the N hypotheses that are tried of each.

    Attributes:
      cross_kv, source_segment_BS: of the encoded sources, one row a sentence.
      number_B: of each sentence; with the seed, its length and its draw it makes a hypothesis' key.
      length_BN, draw_BN: of each hypothesis.
    """

    cross_kv: Any
    source_segment_BS: Any
    number_B: Any
    length_BN: Any
    draw_BN: Any


class Drafts(NamedTuple):
    """Refined drafts, R = B * N rows, sentence-major, less what only the loop needs.

    log_prob_R is the sum of a row's log-probabilities; kept_BN says which of a sentence's hypotheses its rows are;
    trace_TRL holds tokens and log-probabilities, or is None.
    """

    tokens_RL: Any
    free_RL: Any
    length_R: Any
    log_prob_R: Any
    passes_R: Any
    kept_BN: Any
    trace_TRL: tuple[Any, Any] | None


def in_the_input(numbers: list[int], rows: int) -> np.ndarray:
    """The sentences' numbers in the whole input; 0, as any, for rows that fill the batch up."""
    return np.array([*numbers, *[0] * (rows - len(numbers))], np.uint32)


def padded(sources: list[list[int]], batch_size: int, row_multiple: int = 1) -> np.ndarray:
    """Token lists as an array of one of few shapes, so that few programs are compiled.

    Args:
      row_multiple: the rows are a multiple of it: devices that share them.
    """
    rows = round_up(min(batch_size, 1 << (len(sources) - 1).bit_length()), row_multiple)
    return pad_rows(sources, round_up(max(map(len, sources)), BUCKET), rows)


@functools.partial(jax.jit, static_argnums=0)
def encode(model: Transformer, params, source_BS):
    """The encoder's output for a batch of sources, and each decoder layer's keys and values of it."""
    segment_BS = (source_BS > 0).astype(jnp.int32)
    bound = model.bind({"params": params})
    encoded = bound.encode(source_BS, segment_BS)
    return encoded, bound.cross_kv(encoded.memory_BSD)


@functools.partial(
    jax.jit,
    static_argnums=0,
    static_argnames=("max_target_length", "strategy", "corruption", "prune", "rows_at_once", "traced_steps"),
)
def refine_drafts(
    model: Transformer,
    params,
    tried: Tried,
    *,
    max_target_length: int,
    strategy: Strategy,
    corruption: Corruption,
    num_steps,
    seed,
    prune: Prune | None,
    rows_at_once: int | None,
    traced_steps: int | None,
    kept_v=None,
) -> Drafts:
    """Refines every draft of a batch. A trace has a shape, so the room that it has is static; `num_steps` is not.

    Args:
      traced_steps: steps that the trace has room for, `num_steps` or more; None: no trace.
      kept_v: the ids that may be written and drafted with (`Shortlist.restrict`); None: all.
    """
    model, params = compact(model, params, kept_v)
    key_R, canvas, logits_fn = lay_out(
        model, params, tried, max_target_length=max_target_length, corruption=corruption, seed=seed
    )
    batch, hypotheses = tried.length_BN.shape
    kept_BN = jnp.broadcast_to(jnp.arange(hypotheses), (batch, hypotheses))
    length_R = tried.length_BN.reshape(-1)
    if prune is None or hypotheses <= prune.keep:
        part = Part(rows_at_once=rows_at_once)
        refined = refine(
            key_R, canvas, logits_fn, strategy, num_steps=num_steps, trace=traced_steps or False, part=part
        )
        passes_R = refined.passes_B
    else:
        part = Part(end=prune.steps, rows_at_once=rows_at_once)
        early = refine(key_R, canvas, logits_fn, strategy, num_steps=num_steps, part=part)
        kept_BN = _best(early.canvas, tried, prune.keep)
        rows = (kept_BN + hypotheses * jnp.arange(batch)[:, None]).reshape(-1)
        key_R, canvas, memory, passes_R, length_R = jax.tree.map(
            lambda x: x[rows], (key_R, early.canvas, early.memory, early.passes_B, length_R)
        )
        logits_fn = _decoder(model, params, canvas.segment_BL, tried)
        part = Part(first=prune.steps, memory=memory, rows_at_once=rows_at_once)
        refined = refine(key_R, canvas, logits_fn, strategy, num_steps=num_steps, part=part)
        passes_R = passes_R + refined.passes_B
    log_prob_R = (refined.canvas.score_BL * canvas.free_BL).sum(-1)
    traced = None
    if refined.tokens_TBL is not None and refined.scores_TBL is not None:
        traced = (expand(refined.tokens_TBL, kept_v), refined.scores_TBL)
    tokens_RL = expand(refined.tokens_BL, kept_v)
    return Drafts(tokens_RL, canvas.free_BL, length_R, log_prob_R, passes_R, kept_BN, traced)


def rows_together(length: int) -> int | None:
    """How many rows of a length go through the decoder at once; None: all.

    On a CPU a few hundred positions are enough to keep it busy, and then rows that are done cost nothing.
    """
    return rows_on_a_cpu(length) if jax.default_backend() == "cpu" else None


def rows_on_a_cpu(length: int) -> int:
    """The same of a CPU, whatever this machine has."""
    return max(1, POSITIONS // length)


def _best(canvas: Canvas, tried: Tried, keep: int):
    """Which hypotheses of each sentence have the highest mean log-probability, [B, keep], in the order they were in."""
    free_BL = canvas.free_BL
    score_R = (canvas.score_BL * free_BL).sum(-1) / jnp.maximum(free_BL.sum(-1), 1)
    same_BNN = tried.length_BN[:, :, None] == tried.length_BN[:, None]
    same_BNN &= tried.draw_BN[:, :, None] == tried.draw_BN[:, None]
    again_BN = (same_BNN & jnp.tri(same_BNN.shape[-1], k=-1, dtype=bool)).any(-1)  # what fills a sentence's rows up
    score_BN = jnp.where(again_BN, -jnp.inf, score_R.reshape(again_BN.shape))
    return jnp.sort(jax.lax.top_k(score_BN, keep)[1], axis=-1)


def lay_out(
    model: Transformer, params, tried: Tried, *, max_target_length: int, corruption: Corruption, seed
) -> tuple[Any, Canvas, LogitsFn]:
    """The drafts of a batch before the first step, rows R = B * N sentence-major: (key_R, canvas, decoder)."""
    sentence_B = jax.vmap(lambda n: jax.random.fold_in(jax.random.key(seed), n))(tried.number_B)
    length_R = tried.length_BN.reshape(-1)
    # A hypothesis is its length and its draw: a key of these does not change when other candidates come or go.
    fold = jax.vmap(lambda key, length, draw: jax.random.fold_in(jax.random.fold_in(key, length), draw))
    key_R = fold(jnp.repeat(sentence_B, tried.length_BN.shape[1]), length_R, tried.draw_BN.reshape(-1))
    canvas = draft(key_R, length_R, max_target_length, corruption, model.ids)
    if model.config.decontextualised:
        canvas = veil(canvas, canvas.free_BL)

    return key_R, canvas, _decoder(model, params, canvas.segment_BL, tried)


def _decoder(model: Transformer, params, segment_BL, tried: Tried) -> LogitsFn:
    """The decoder for rows of these segments, as many for each sentence."""

    def logits_fn(tokens_BL, visible_BLL=None, rows=None):
        segments, memory = segment_BL, (tried.cross_kv, tried.source_segment_BS)
        if rows is not None:
            segments = segment_BL.at[rows].get(mode="clip")
            sentences = rows // (segment_BL.shape[0] // tried.source_segment_BS.shape[0])
            memory = jax.tree.map(lambda x: x.at[sentences].get(mode="clip"), memory)
        return model.bind({"params": params}).decode(
            tokens_BL, segments, *memory, visible_BLL=visible_BLL, find_best=True
        )

    return logits_fn

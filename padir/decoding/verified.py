"""Verified decoding (speculative decoding): a drafter proposes tokens, and an autoregressive model accepts its own.

Each round

1. the drafter proposes the next K tokens of every sentence;
2. the model gives the logits of these positions and of one more, in one pass with its cache;
3. the longest prefix that the model agrees with is accepted, and the model's own next token after it;
4. the drafter learns what was accepted.

Sentences advance on their own. Greedy search gives the tokens of plain greedy search, but for ties in the last bits,
which 8-bit and bfloat16 weights make more frequent. Samples have the distribution of plain sampling (Leviathan et al.,
ICML 2023): a token that the drafter drew from q is accepted with probability min(1, p / q), where p is the model's
distribution, else a token is drawn from max(p - q, 0), normalised. A token that was not drawn has q = 1.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from padir.decoding.autoregressive import SearchInputs, allowed
from padir.decoding.draft import Drafter, Proposal, Verified, window
from padir.decoding.search import Beam, Greedy, Sampling
from padir.models.params import in_model_dtype
from padir.models.transformer import Transformer
from padir.refinement.draws import sentence_keys
from padir.refinement.scores import best_logit, forbid, likely

_COINS = 2**31 - 1  # folded into the keys of sentences: a drafter may draw from the keys themselves


class Rounds(NamedTuple):
    """Verified translations, and numbers of each sentence.

    Attributes:
      score_B: the search's score; -inf for an unfinished sentence.
      rounds_B: number of rounds, each of which is a decoder pass of the model.
      draft_passes_B: number of decoder passes of the drafter's model (`passes_B` of its memory; 0 if it has none).
    """

    rows: Verified
    score_B: Float[Array, " B"]
    rounds_B: Int[Array, " B"]
    draft_passes_B: Int[Array, " B"]


@dataclasses.dataclass(frozen=True)
class VerifyOptions:
    """The static options of `write_verified`; different values compile different programs.

    Attributes:
      search: greedy search (or a beam of one, which scores otherwise), or sampling with one sample for each sentence.
      max_length: L, at least every limit.
      tolerance: as in `Draft`.
      one_encoder: the drafter's model has the same encoder, which then reads the sources once for both.
    """

    drafter: Drafter
    search: Greedy | Beam | Sampling
    max_length: int
    tolerance: float = 0.0
    one_encoder: bool = False


@functools.partial(jax.jit, static_argnums=0, static_argnames="options")
def write_verified(
    model: Transformer,
    params: Any,
    inputs: SearchInputs,
    drafter_params: Any = None,
    *,
    options: VerifyOptions,
    seed: Any,
) -> Rounds:
    """Translates source sentences by verified decoding.

    Args:
      inputs: the sources, with the length limits.
      drafter_params: parameters of the drafter's model; None for a drafter without one.
      seed: seed of random draws.
    """
    drafter, search, max_length = options.drafter, options.search, options.max_length
    source_BS, limit_B, _ = inputs
    params = in_model_dtype(model.config, params)  # once, not at every round
    bound = model.bind({"params": params})
    encoded = bound.encode(source_BS, (source_BS > 0).astype(jnp.int32))
    cross_kv = bound.cross_kv(encoded.memory_BSD)
    key_B = _fold(sentence_keys(source_BS, seed), _COINS)
    banned = tuple(i for i in model.ids.special if i != model.ids.eos)

    def body(state):
        rows, memory, cache, rounds_B = state
        proposal = drafter.propose(memory, rows)
        known_BK = jnp.clip(proposal.tokens_BK, 0, model.ids.num_embeddings - 1)
        read_BJ = jnp.concatenate([window(rows.tokens_BL, rows.length_B - 1, 1), known_BK], axis=1)
        logits_BJV, cache = bound.block_logits(read_BJ, rows.length_B, cache, cross_kv, encoded.segment_BS)
        log_z_BJ = jax.nn.logsumexp(logits_BJV, axis=-1)
        position_BJ = rows.length_B[:, None] + jnp.arange(read_BJ.shape[1])
        logits_BJV = allowed(forbid(logits_BJV, banned), position_BJ, limit_B, model.ids.eos)
        choice_BJ, agrees_BK = _judge(_fold(key_B, rounds_B), logits_BJV, proposal, search, options.tolerance)
        value_BJ = jnp.take_along_axis(logits_BJV, choice_BJ[..., None], axis=-1)[..., 0] - log_z_BJ
        accepted_B = _accepted(agrees_BK, choice_BJ == model.ids.eos) * ~rows.done_B
        rounds_B = rounds_B + ~rows.done_B
        rows = _extended(rows, choice_BJ, value_BJ, accepted_B, model.ids.eos)
        memory = drafter.learn(drafter_params, memory, rows, choice_BJ, accepted_B, seed=seed)
        return rows, memory, cache, rounds_B

    batch, room = source_BS.shape[0], max_length + drafter.block + 1
    rows = Verified(
        tokens_BL=jnp.zeros((batch, max_length), jnp.int32),
        length_B=jnp.zeros(batch, jnp.int32),
        log_prob_B=jnp.zeros(batch),
        done_B=jnp.zeros(batch, bool),
    )
    if model.config.length_token:  # a dual model's sources; a drafter's model adds its own
        source_BS = source_BS[:, 1:]
    inputs = SearchInputs(source_BS, limit_B, encoded.memory_BSD if options.one_encoder else None)
    memory = drafter.begin(drafter_params, inputs, max_length=max_length, seed=seed)
    state = rows, memory, bound.empty_cache(batch, 1, room), jnp.zeros(batch, jnp.int32)
    rows, memory, _, rounds_B = jax.lax.while_loop(
        lambda state: ~state[0].done_B.all() & (state[3].max() < max_length), body, state
    )
    score_B = jnp.where(rows.done_B, search.score(rows.log_prob_B, rows.length_B), -jnp.inf)
    return Rounds(rows, score_B, rounds_B, getattr(memory, "passes_B", jnp.zeros_like(rounds_B)))


def _judge(
    key_B: Key[Array, " B"],
    logits_BJV: Float[Array, "B J V"],
    proposal: Proposal,
    search: Greedy | Beam | Sampling,
    tolerance: float,
) -> tuple[Int[Array, "B J"], Bool[Array, "B K"]]:
    """The model's choice at each position, given the proposal to its left, and whether it is the proposed token."""
    proposal_BK = proposal.tokens_BK
    here_BKV = proposal_BK[..., None] == jnp.arange(logits_BJV.shape[-1])
    if not isinstance(search, Sampling):
        best_BJ, choice_BJ = best_logit(logits_BJV)
        agrees_BK = choice_BJ[:, :-1] == proposal_BK
        if tolerance:
            value_BK = jnp.where(here_BKV, logits_BJV[:, :-1], -jnp.inf).max(-1)
            agrees_BK |= value_BK >= best_BJ[:, :-1] - tolerance
        return choice_BJ.at[:, :-1].set(jnp.where(agrees_BK, proposal_BK, choice_BJ[:, :-1])), agrees_BK
    p_BJV = jax.nn.softmax(likely(logits_BJV / search.temperature, search.top_k, search.top_p), axis=-1)
    p_BKV = p_BJV[:, :-1]
    q_BKV = here_BKV.astype(p_BKV.dtype) if proposal.prob_BKV is None else _of_width(proposal.prob_BKV, p_BKV.shape[-1])
    p_BK, q_BK = ((here_BKV * each_BKV).sum(-1) for each_BKV in (p_BKV, q_BKV))
    coin_B, draw_B = _fold(key_B, 0), _fold(key_B, 1)
    coin_BK = jax.vmap(lambda key: jax.random.uniform(key, proposal_BK.shape[1:]))(coin_B)
    agrees_BK = coin_BK * q_BK < p_BK
    rest_BKV = jnp.maximum(p_BKV - q_BKV, 0)
    rest_BKV = jnp.where(rest_BKV.any(-1, keepdims=True), rest_BKV, p_BKV)  # p = q but for rounding
    log_BJV = jnp.log(p_BJV.at[:, :-1].set(rest_BKV))
    drawn_BJ = jax.vmap(lambda key, logits: jax.random.categorical(key, logits, axis=-1))(draw_B, log_BJV)
    choice_BJ = drawn_BJ.astype(jnp.int32)
    return choice_BJ.at[:, :-1].set(jnp.where(agrees_BK, proposal_BK, choice_BJ[:, :-1])), agrees_BK


def _of_width(prob_BKV: Float[Array, "B K W"], width: int) -> Float[Array, "B K V"]:
    """Distributions over as many ids as another model's table has rows; rows that only pad a table have none."""
    prob_BKV = prob_BKV[..., :width]
    return jnp.pad(prob_BKV, ((0, 0), (0, 0), (0, width - prob_BKV.shape[-1])))


def _accepted(agrees_BK: Bool[Array, "B K"], ends_BJ: Bool[Array, "B J"]) -> Int[Array, " B"]:
    """Number of choices that are written: the agreeing prefix and one more, but nothing after the first EOS.

    >>> _accepted(jnp.array([[True, False, True]]), jnp.zeros((1, 4), bool)).tolist()
    [2]
    >>> _accepted(jnp.array([[True, True, True]]), jnp.array([[False, True, False, True]])).tolist()
    [2]
    """
    follows_BJ = jnp.pad(agrees_BK & ~ends_BJ[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return jnp.cumprod(follows_BJ, axis=1).sum(1)


def _extended(rows: Verified, choice_BJ, value_BJ, accepted_B, eos: int) -> Verified:
    """Writes the first `accepted_B` choices behind each row."""
    index_BL = jnp.arange(rows.tokens_BL.shape[1]) - rows.length_B[:, None]
    new_BL = (index_BL >= 0) & (index_BL < accepted_B[:, None])
    at_BL = window(choice_BJ, -rows.length_B, rows.tokens_BL.shape[1])
    new_BJ = jnp.arange(choice_BJ.shape[1]) < accepted_B[:, None]
    return Verified(
        tokens_BL=jnp.where(new_BL, at_BL, rows.tokens_BL),
        length_B=rows.length_B + accepted_B,
        log_prob_B=rows.log_prob_B + jnp.where(new_BJ, value_BJ, 0).sum(-1),
        done_B=rows.done_B | (new_BJ & (choice_BJ == eos)).any(-1),
    )


def _fold(key_B, number):
    """Folds one number, or one for each row, into the keys."""
    return jax.vmap(jax.random.fold_in, in_axes=(0, None if jnp.ndim(number) == 0 else 0))(key_B, number)

"""Autoregressive decoding with a causal model: searches, verified drafts, and scores of given targets.

One loop runs all three searches. At each step,

1. the decoder gives logits of the next position of all rows, N rows for each sentence, with cached keys and values;
2. the search chooses which row each new row extends, and by which token;
3. a row that wrote EOS is finished and keeps its place;
4. a sentence is over when all of its rows are finished, or when no unfinished row can win.

Log-probabilities are the model's own, over its whole vocabulary, or over the batch's ids if a shortlist is given. The
search never chooses special ids, nor EOS at the first position. At its length limit a row must write EOS.

Verified decoding (speculative decoding, `write_verified`): a draft proposes tokens, and the model accepts its own. Each
round

1. the draft's next `BLOCK` tokens are proposed for every sentence;
2. the model gives the logits of these positions and of one more, in one pass with its cache;
3. the longest prefix that the model agrees with is accepted, and the model's own next token after it;
4. the draft continues after its nearest token that equals the last accepted token; without such a token, it continues
  at the same position.

Each sentence advances at its own pace. A draft may hold any tokens, because only tokens that the model agrees with are
written. With greedy search the result equals plain greedy search, except at ties in the last bits; 8-bit and bfloat16
weights make such ties more frequent. Samples have the distribution of plain sampling (Leviathan et al., ICML 2023): a
proposed token is accepted with its probability under the model. Otherwise another token is drawn from the model's
distribution without the proposed token.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from padir.decoding.search import Greedy, Hypotheses, Sampling, Search
from padir.decoding.shortlist import compact, expand
from padir.models.params import in_model_dtype
from padir.models.transformer import Transformer
from padir.refinement.scores import best_logit, forbid
from padir.refinement.segments import sentence_keys
from padir.text.ids import Ids

# The limit of a sentence's target tokens, EOS included, is LENGTH_FACTOR * source tokens + LENGTH_EXTRA, which exceeds
# the length of usual translations.
LENGTH_FACTOR, LENGTH_EXTRA = 2, 16

NextFn = Callable[..., tuple[Any, Any]]
"""Decoder function from (tokens_BNL, slot_BNL, position, cache) to (logits_BNV, cache): `tokens_BNL` holds the tokens
written before `position`, then padding; `slot_BNL` holds the slot of the cache for each position of a row."""


def length_limits(source_tokens: list[int], max_length: int) -> list[int]:
    """The maximum number of target tokens of each sentence, EOS included; it depends on this sentence alone.

    >>> length_limits([3, 100], max_length=128)
    [22, 128]
    """
    return [min(LENGTH_FACTOR * tokens + LENGTH_EXTRA, max_length) for tokens in source_tokens]


def generate(
    key_B: Key[Array, " B"],
    next_fn: NextFn,
    cache: Any,
    limit_B: Int[Array, " B"],
    search: Search,
    *,
    max_length: int,
    ids: Ids,
    prefix_BL: Int[Array, "B L"] | None = None,
) -> tuple[Hypotheses, Int[Array, " B"]]:
    """Writes N hypotheses of each sentence; returns the hypotheses and each sentence's number of decoder passes.

    Args:
      key_B: one key per sentence, made from the sentence, so that a result does not depend on its batch.
      next_fn, cache: the decoder, and the cache that it gets at the first position.
      limit_B: maximum length of each sentence in tokens, EOS included, 2 .. max_length (L).
      prefix_BL: ids that each sentence must begin with, then 0; None for no prefixes.
    """
    batch, size = limit_B.shape[0], search.size
    key_BN = jax.vmap(lambda key: jax.vmap(lambda n: jax.random.fold_in(key, n))(jnp.arange(size)))(key_B)
    banned = tuple(i for i in ids.special if i != ids.eos)

    def over(rows):
        return search.over(rows, limit_B) | (rows.done_BN | (rows.log_prob_BN == -jnp.inf)).all(-1)

    def body(state):
        position, rows, slot_BNL, passes_B, cache = state
        active_B1 = ~over(rows)[:, None]
        slot_BNL = jnp.where(jnp.arange(max_length) == position, jnp.arange(size)[:, None], slot_BNL)
        logits_BNV, cache = next_fn(rows.tokens_BNL, slot_BNL, position, cache)
        logits_BNV = logits_BNV.astype(jnp.float32)
        log_z_BN = jax.nn.logsumexp(logits_BNV, axis=-1)
        logits_BNV = allowed(forbid(logits_BNV, banned), position[None, None], limit_B, ids.eos)
        if prefix_BL is not None:
            token_B11 = prefix_BL[:, position, None, None]
            other_BNV = (token_B11 > 0) & (jnp.arange(logits_BNV.shape[-1]) != token_B11)
            logits_BNV = jnp.where(other_BNV, -jnp.inf, logits_BNV)
        key_step_BN = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, position)))(key_BN)
        extension = search.extend(key_step_BN, logits_BNV, log_z_BN, rows)
        parent_BN = jnp.where(active_B1, extension.parent_BN, jnp.arange(size))
        rows, slot_BNL = jax.tree.map(
            lambda x: jnp.take_along_axis(x, parent_BN.reshape(*parent_BN.shape, *[1] * (x.ndim - 2)), axis=1),
            (rows, slot_BNL),
        )
        goes_on_BN = active_B1 & ~rows.done_BN
        log_prob_BN = jnp.where(goes_on_BN, extension.log_prob_BN, rows.log_prob_BN)
        here_BNL = goes_on_BN[..., None] & (jnp.arange(max_length) == position)
        rows = Hypotheses(
            tokens_BNL=jnp.where(here_BNL, extension.token_BN[..., None], rows.tokens_BNL),
            length_BN=rows.length_BN + goes_on_BN,
            log_prob_BN=log_prob_BN,
            # A row with probability 0 only fills a free place; it is not done, so that another row may replace it.
            done_BN=rows.done_BN | (goes_on_BN & (extension.token_BN == ids.eos) & (log_prob_BN > -jnp.inf)),
        )
        return position + 1, rows, slot_BNL, passes_B + active_B1[:, 0], cache

    rows = Hypotheses(
        tokens_BNL=jnp.full((batch, size, max_length), ids.padding, jnp.int32),
        length_BN=jnp.zeros((batch, size), jnp.int32),
        log_prob_BN=jnp.zeros((batch, size)),
        done_BN=jnp.zeros((batch, size), bool),
    )
    slot_BNL = jnp.zeros((batch, size, max_length), jnp.int32)
    _, rows, _, passes_B, _ = jax.lax.while_loop(
        lambda state: (state[0] < max_length) & ~over(state[1]).all(),
        body,
        (jnp.int32(0), rows, slot_BNL, jnp.zeros(batch, jnp.int32), cache),
    )
    return rows, passes_B


def allowed(
    logits_BNV: Float[Array, "B N V"], position_BN: Int[Array, "#B #N"], limit_B: Int[Array, " B"], eos: int
) -> Float[Array, "B N V"]:
    """Forbids EOS at the first position, so that no translation is empty, and all ids but EOS from the limit on."""
    eos_V = jnp.arange(logits_BNV.shape[-1]) == eos
    position_BN1 = position_BN[..., None]
    inner_BN1 = position_BN1 < limit_B[:, None, None] - 1
    return jnp.where(jnp.where(eos_V, position_BN1 > 0, inner_BN1), logits_BNV, -jnp.inf)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("search", "max_length"))
def write_targets(
    model: Transformer,
    params: Any,
    source_BS: Int[Array, "B S"],
    limit_B: Int[Array, " B"],
    *,
    search: Search,
    max_length: int,
    seed,
    kept_v=None,
    prefix_BL=None,
) -> tuple[Hypotheses, Float[Array, "B N"], Int[Array, " B"]]:
    """Searches for translations: hypotheses, their scores (-inf for unfinished ones), passes of each sentence.

    Args:
      source_BS: one sentence with its EOS in each row, then padding; random draws depend on it and on the seed.
      limit_B, search, max_length, prefix_BL: as in `generate`.
      kept_v: the ids that may be written (`Shortlist.restrict`); None for all ids.
    """
    params = in_model_dtype(model.config, params)  # once, not for every token
    bound = model.bind({"params": params})
    encoded = bound.encode(source_BS, (source_BS > 0).astype(jnp.int32))
    cross_kv = bound.cross_kv(encoded.memory_BSD)
    model, params = compact(model, params, kept_v)
    bound = model.bind({"params": params})

    def next_fn(tokens_BNL, slot_BNL, position, cache):
        token_BN = jnp.where(position == 0, 0, tokens_BNL[:, :, position - 1])
        return bound.next_logits(token_BN, position, slot_BNL, cache, cross_kv, encoded.segment_BS)

    key_B = sentence_keys(source_BS, seed)
    cache = bound.empty_cache(source_BS.shape[0], search.size, max_length)
    how = {"max_length": max_length, "ids": model.ids, "prefix_BL": prefix_BL}
    rows, passes_B = generate(key_B, next_fn, cache, limit_B, search, **how)
    score_BN = jnp.where(rows.done_BN, search.score(rows.log_prob_BN, rows.length_BN), -jnp.inf)
    return dataclasses.replace(rows, tokens_BNL=expand(rows.tokens_BNL, kept_v)), score_BN, passes_B


@functools.partial(jax.jit, static_argnums=0)
def score_targets(
    model: Transformer,
    params: Any,
    source_BS: Int[Array, "B S"] | np.ndarray,
    target_RL: Int[Array, "R L"] | np.ndarray,
) -> Float[Array, "R L"]:
    """A causal model's log-probability of each token of given targets, in one teacher-forced pass; 0 at padding.

    Args:
      source_BS: one sentence with its EOS in each row.
      target_RL: targets with EOS, R = B * N rows: N hypotheses of the first sentence, then of the second, and so on.
    """
    source_BS, target_RL = jnp.asarray(source_BS), jnp.asarray(target_RL)
    bound = model.bind({"params": params})
    encoded = bound.encode(source_BS, (source_BS > 0).astype(jnp.int32))
    return score_drafts(model, params, bound.cross_kv(encoded.memory_BSD), encoded.segment_BS, target_RL)


@functools.partial(jax.jit, static_argnums=0)
def score_drafts(
    model: Transformer, params: Any, cross_kv: Any, source_segment_BS: Int[Array, "B S"], target_RL: Int[Array, "R L"]
) -> Float[Array, "R L"]:
    """Computes `score_targets` for sources that are encoded already (see `Transformer.decode`); targets may be empty.

    Only the logits of one hypothesis of each sentence, [B, L, V], are in memory at a time.
    """
    bound, present_RL = model.bind({"params": params}), target_RL > 0
    states_RLD = bound.target_states(target_RL, present_RL.astype(jnp.int32), cross_kv, source_segment_BS)
    # A group has one row of each sentence, so that devices that share the sentences share every group.
    batch = source_segment_BS.shape[0]
    groups = jax.tree.map(lambda x: x.reshape(batch, -1, *x.shape[1:]).swapaxes(0, 1), (states_RLD, target_RL))

    def read(group):
        states_BLD, target_BL = group
        logits_BLV = model.bind({"params": params}).logits(states_BLD)
        at_target_BL = jnp.take_along_axis(logits_BLV, target_BL[..., None], axis=-1)[..., 0]
        return at_target_BL - jax.nn.logsumexp(logits_BLV, axis=-1)

    log_prob_RL = jax.lax.map(read, groups).swapaxes(0, 1).reshape(target_RL.shape)
    return jnp.where(present_RL, log_prob_RL, 0.0)


BLOCK = 3  # number of proposed tokens; a pass has one position more, and XLA multiplies rows in fours
_COINS = 2**31 - 1  # folded into the keys of sentences: the draft was drawn from the keys themselves


@flax.struct.dataclass
class Verified:
    """Translations in progress: accepted tokens (EOS included), then padding; their number and log-probability.

    `done_B` is True if the row has written EOS. A round is a decoder pass of the model.
    """

    tokens_BL: Int[Array, "B L"]
    length_B: Int[Array, " B"]
    log_prob_B: Float[Array, " B"]
    done_B: Bool[Array, " B"]
    rounds_B: Int[Array, " B"]


@functools.partial(jax.jit, static_argnums=0, static_argnames="search")
def write_verified(
    model: Transformer,
    params: Any,
    source_BS: Int[Array, "B S"],
    limit_B: Int[Array, " B"],
    memory: tuple[Any, Int[Array, "B M"]],
    draft_BL: Int[Array, "B L"],
    *,
    search: Greedy | Sampling,
    seed: Any,
) -> tuple[Verified, Float[Array, " B"]]:
    """Translates source sentences by verified decoding: the translations, and their scores (-inf for unfinished ones).

    Args:
      limit_B: maximum length of each sentence in tokens, EOS included.
      memory: cross-attention keys and values of the sources, and their segment ids, as in `Transformer.decode`. The
        encoder may have read the sources at another padded width M, as it does in a dual model.
      draft_BL: tokens of the drafts, with as many columns as the greatest limit. Numbers that are no tokens are
        allowed, and never accepted.
      search: greedy search, or sampling with one sample for each sentence.
    """
    params = in_model_dtype(model.config, params)  # once, not at every round
    bound, eos = model.bind({"params": params}), model.ids.eos
    batch, max_length = draft_BL.shape
    key_B = _fold(sentence_keys(source_BS, seed), _COINS)
    banned = tuple(i for i in model.ids.special if i != eos)

    def body(state):
        rows, shift_B, cache = state
        proposed_BK = window(draft_BL, rows.length_B + shift_B, BLOCK)
        known_BK = jnp.clip(proposed_BK, 0, model.ids.num_embeddings - 1)
        read_BJ = jnp.concatenate([window(rows.tokens_BL, rows.length_B - 1, 1), known_BK], axis=1)
        logits_BJV, cache = bound.block_logits(read_BJ, rows.length_B, cache, *memory)
        log_z_BJ = jax.nn.logsumexp(logits_BJV, axis=-1)
        position_BJ = rows.length_B[:, None] + jnp.arange(read_BJ.shape[1])
        logits_BJV = allowed(forbid(logits_BJV, banned), position_BJ, limit_B, eos)
        choice_BJ, agrees_BK = judge(_fold(key_B, rows.rounds_B), logits_BJV, proposed_BK, search)
        value_BJ = jnp.take_along_axis(logits_BJV, choice_BJ[..., None], axis=-1)[..., 0] - log_z_BJ
        accepted_B = accepted(agrees_BK, choice_BJ == eos) * ~rows.done_B
        rows = _extended(rows, choice_BJ, value_BJ, accepted_B, eos)
        return rows, jnp.where(accepted_B > 0, follow(draft_BL, shift_B, rows), shift_B), cache

    zero_B = jnp.zeros(batch, jnp.int32)
    tokens_BL = jnp.zeros((batch, max_length), jnp.int32)
    rows = Verified(tokens_BL, zero_B, jnp.zeros(batch), jnp.zeros(batch, bool), zero_B)
    rows, _, _ = jax.lax.while_loop(
        lambda state: ~state[0].done_B.all() & (state[0].rounds_B.max() < max_length),
        body,
        (rows, zero_B, bound.empty_cache(batch, 1, max_length + BLOCK + 1)),
    )
    return rows, jnp.where(rows.done_B, search.score(rows.log_prob_B, rows.length_B), -jnp.inf)


def judge(
    key_B: Key[Array, " B"],
    logits_BJV: Float[Array, "B J V"],
    proposed_BK: Int[Array, "B K"],
    search: Greedy | Sampling,
) -> tuple[Int[Array, "B J"], Bool[Array, "B K"]]:
    """The model's choice at each position, given the proposal to its left, and whether it is the proposed token."""
    if not isinstance(search, Sampling):
        _, choice_BJ = best_logit(logits_BJV)
        return choice_BJ, choice_BJ[:, :-1] == proposed_BK
    p_BJV = jax.nn.softmax(logits_BJV / search.temperature, axis=-1)
    p_BKV = p_BJV[:, :-1]
    here_BKV = proposed_BK[..., None] == jnp.arange(logits_BJV.shape[-1])
    coin_B, draw_B = _fold(key_B, 0), _fold(key_B, 1)
    coin_BK = jax.vmap(lambda key: jax.random.uniform(key, proposed_BK.shape[1:]))(coin_B)
    agrees_BK = coin_BK * here_BKV.any(-1) < (here_BKV * p_BKV).sum(-1)
    rest_BKV = jnp.where(here_BKV, 0, p_BKV)
    rest_BKV = jnp.where(rest_BKV.any(-1, keepdims=True), rest_BKV, p_BKV)  # p is 1 up to rounding
    log_BJV = jnp.log(p_BJV.at[:, :-1].set(rest_BKV))
    drawn_BJ = jax.vmap(lambda key, logits: jax.random.categorical(key, logits, axis=-1))(draw_B, log_BJV)
    choice_BJ = drawn_BJ.astype(jnp.int32)
    return choice_BJ.at[:, :-1].set(jnp.where(agrees_BK, proposed_BK, choice_BJ[:, :-1])), agrees_BK


def accepted(agrees_BK: Bool[Array, "B K"], ends_BJ: Bool[Array, "B J"]) -> Int[Array, " B"]:
    """Number of choices that are written: the agreeing prefix and one more, but nothing after the first EOS.

    >>> accepted(jnp.array([[True, False, True]]), jnp.zeros((1, 4), bool)).tolist()
    [2]
    >>> accepted(jnp.array([[True, True, True]]), jnp.array([[False, True, False, True]])).tolist()
    [2]
    """
    follows_BJ = jnp.pad(agrees_BK & ~ends_BJ[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return jnp.cumprod(follows_BJ, axis=1).sum(1)


def follow(draft_BL: Int[Array, "B L"], shift_B: Int[Array, " B"], rows: Verified) -> Int[Array, " B"]:
    """The shift of each row: from now on it reads the draft at its own position plus this number.

    The draft continues after its nearest token that equals the row's last token. Without such a token, the shift stays.
    """
    last_B = rows.length_B - 1
    distance_BL = jnp.abs(jnp.arange(draft_BL.shape[1]) - (last_B + shift_B)[:, None])
    same_BL = draft_BL == window(rows.tokens_BL, last_B, 1)
    nearest_B = jnp.where(same_BL, distance_BL, draft_BL.shape[1]).argmin(-1)
    return jnp.where(same_BL.any(-1), nearest_B - last_B, shift_B)


def window(tokens_BL: Int[Array, "B L"], begin_B: Int[Array, " B"], size: int) -> Int[Array, "B K"]:
    """The tokens at places begin_B .. begin_B + size - 1 of each row; 0 outside the row.

    >>> window(jnp.array([[7, 8, 9]]), jnp.array([-1]), 3).tolist()
    [[0, 7, 8]]
    """
    place_BK = begin_B[:, None] + jnp.arange(size)
    inside_BK = (place_BK >= 0) & (place_BK < tokens_BL.shape[1])
    return jnp.where(inside_BK, jnp.take_along_axis(tokens_BL, place_BK, axis=1, mode="clip"), 0)


def _extended(rows: Verified, choice_BJ, value_BJ, accepted_B, eos: int) -> Verified:
    """Writes the first `accepted_B` choices behind each row, and counts a round for each row that is not done."""
    index_BL = jnp.arange(rows.tokens_BL.shape[1]) - rows.length_B[:, None]
    new_BL = (index_BL >= 0) & (index_BL < accepted_B[:, None])
    at_BL = window(choice_BJ, -rows.length_B, rows.tokens_BL.shape[1])
    new_BJ = jnp.arange(choice_BJ.shape[1]) < accepted_B[:, None]
    return Verified(
        tokens_BL=jnp.where(new_BL, at_BL, rows.tokens_BL),
        length_B=rows.length_B + accepted_B,
        log_prob_B=rows.log_prob_B + jnp.where(new_BJ, value_BJ, 0).sum(-1),
        done_B=rows.done_B | (new_BJ & (choice_BJ == eos)).any(-1),
        rounds_B=rows.rounds_B + ~rows.done_B,
    )


def _fold(key_B, number):
    """Folds one number, or one for each row, into the keys."""
    return jax.vmap(jax.random.fold_in, in_axes=(0, None if jnp.ndim(number) == 0 else 0))(key_B, number)

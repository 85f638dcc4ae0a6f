"""Verified decoding (speculative decoding): a draft proposes tokens, and an autoregressive model accepts its own.

Each round

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

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from padir.decoding.autoregressive import allowed
from padir.decoding.search import Greedy, Sampling
from padir.models.params import in_model_dtype
from padir.models.transformer import Transformer
from padir.refinement.scores import best_logit, forbid
from padir.refinement.segments import sentence_keys

BLOCK = 3  # number of proposed tokens; a pass has one row more, and XLA multiplies rows in fours
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
    memory: tuple[Any, Int[Array, "B S"]],
    draft_BL: Int[Array, "B L"],
    *,
    search: Greedy | Sampling,
    seed: Any,
) -> tuple[Verified, Float[Array, " B"]]:
    """Translates source sentences by verified decoding: the translations, and their scores (-inf for unfinished ones).

    Args:
      limit_B: maximum length of each sentence in tokens, EOS included.
      memory: cross-attention keys and values of the sources, and their segment ids, as in `Transformer.decode`.
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
    """Writes the first `accepted_B` choices behind each row, which takes a round unless the row is done."""
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

"""Autoregressive decoding with a causal model: searches, and scores of given targets.

One loop runs every search (`padir.decoding.search`). At each step,

1. the decoder gives logits of the next position of all rows, N rows for each sentence, with cached keys and values;
2. the search chooses which row each new row extends, and by which token;
3. a row that wrote EOS is finished and keeps its place;
4. a sentence is over when all of its rows are finished, or when no unfinished row can win.

Log-probabilities are the model's own, over its whole vocabulary, or over the batch's ids if a shortlist is given. The
search never chooses special ids, nor EOS at the first position. At its length limit a row must write EOS.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from padir.decoding.fusion import FusedScore, FusedSearch
from padir.decoding.program_cache import PROGRAMS
from padir.decoding.search import Hypotheses, Search
from padir.decoding.shortlist import compact, expand
from padir.models.params import in_model_dtype
from padir.models.transformer import Transformer
from padir.refinement.loop import in_groups
from padir.refinement.scores import forbid
from padir.refinement.segments import sentence_keys
from padir.text.ids import Ids

# The limit of a sentence's target tokens, EOS included, is LENGTH_FACTOR * source tokens + LENGTH_EXTRA, which exceeds
# the length of usual translations.
LENGTH_FACTOR, LENGTH_EXTRA = 2, 16
_NODES = 16  # prefixes of each row whose logits several devices have in memory at a time
# A tree has one of these multiples of a row's size, so that few programs are compiled: 1, 2, 3, 4, 6, 8, 12, 16, ...
_MULTIPLES = (1, 2, 3, 4, *(n << k for k in range(1, 30) for n in (3, 4)))

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


@PROGRAMS.add
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
    fused: FusedScore | None = None,
) -> tuple[Hypotheses, Float[Array, "B N"], Int[Array, " B"]]:
    """Searches for translations: hypotheses, their scores (-inf for unfinished ones), passes of each sentence.

    Args:
      source_BS: one sentence with its EOS in each row, then padding; random draws depend on it and on the seed.
      limit_B, search, max_length, prefix_BL: as in `generate`.
      kept_v: the ids that may be written (`Shortlist.restrict`); None for all ids.
      fused: the table that greedy search weighs in; None for none.
    """
    params = in_model_dtype(model.config, params)  # once, not for every token; parameters of a `LoadedModel` stay
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
    rows, passes_B = generate(
        key_B,
        next_fn,
        cache,
        limit_B,
        search if fused is None else FusedSearch(fused, search),
        max_length=max_length,
        ids=model.ids,
        prefix_BL=prefix_BL,
    )
    score_BN = jnp.where(rows.done_BN, search.score(rows.log_prob_BN, rows.length_BN), -jnp.inf)
    return dataclasses.replace(rows, tokens_BNL=expand(rows.tokens_BNL, kept_v)), score_BN, passes_B


class PrefixTrees(NamedTuple):
    """The N targets of each sentence as a tree: a node for each of their prefixes, in the order of a depth-first walk.

    Attributes:
      token_BU: the last token of each prefix; 0 for the empty prefix, which is the first node, and for padding.
      depth_BU: the number of tokens of each prefix; 0 for padding.
      next_BNU: the token that each target has after a prefix of its own; 0 after prefixes of other targets.
    """

    token_BU: Any
    depth_BU: Any
    next_BNU: Any

    @staticmethod
    def of(targets: Sequence[Sequence[list[int]]], row: int) -> PrefixTrees:
        """The trees of each sentence's targets, which are tokens with EOS; some may be empty.

        U is one of few multiples of `row`, whether or not targets are longer than that.

        >>> trees = PrefixTrees.of([[[7, 8, 1], [7, 9, 1]]], 4)  # the prefixes are (), 7, 7 8 and 7 9
        >>> trees.token_BU.tolist(), trees.next_BNU.tolist()
        ([[0, 7, 8, 9]], [[[7, 8, 1, 0], [7, 9, 0, 1]]])
        """
        trees = [_tree(own) for own in targets]
        most = max(len(nodes) for nodes, _ in trees)
        width = next(times * row for times in _MULTIPLES if times * row >= most)
        token_BU, depth_BU = np.zeros((2, len(trees), width), np.int32)
        next_BNU = np.zeros((len(trees), max(map(len, targets)), width), np.int32)
        for b, (nodes, following) in enumerate(trees):
            for u, node in enumerate(nodes):
                token_BU[b, u], depth_BU[b, u] = node
            for n, u, token in following:
                next_BNU[b, n, u] = token
        return PrefixTrees(token_BU, depth_BU, next_BNU)


def _tree(targets: Sequence[list[int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
    """The last token and the depth of each node, and the token (target, node, token) that follows in each target."""
    nodes: list[tuple[int, int]] = []
    following: list[tuple[int, int, int]] = []
    before: list[int] = []
    path: list[int] = []  # the nodes of the target's prefixes
    for n in sorted(range(len(targets)), key=targets.__getitem__):
        target = targets[n]
        path = path[: len(os.path.commonprefix([before, target])) + 1]
        for depth in range(len(path), len(target)):
            path.append(len(nodes))
            nodes.append((target[depth - 1] if depth else 0, depth))
        following += [(n, node, token) for node, token in zip(path, target, strict=False)]
        before = target
    return nodes, following


@PROGRAMS.add
@functools.partial(jax.jit, static_argnums=0, static_argnames="group")
def score_trees(
    model: Transformer,
    params: Any,
    cross_kv: Any,
    source_segment_BS: Int[Array, "B S"],
    trees: PrefixTrees,
    group: int | None,
) -> Float[Array, "B N"]:
    """A causal model's log-probability of each target, in one pass that reads each prefix once; 0 for empty targets.

    Only the logits of `group` prefixes are in memory at a time, and padding is skipped. None, for several devices,
    takes the same few prefixes of all rows at a time, those of padding, too.
    """
    bound = model.bind({"params": params})
    states_BUD = bound.prefix_states(trees.token_BU, trees.depth_BU, cross_kv, source_segment_BS)
    next_BUN = trees.next_BNU.swapaxes(1, 2)

    def log_prob(states_RLD, next_RLN):
        logits_RLV = model.bind({"params": params}).logits(states_RLD)
        at_next_RLN = jnp.take_along_axis(logits_RLV, next_RLN, axis=-1)
        return at_next_RLN - jax.nn.logsumexp(logits_RLV, axis=-1, keepdims=True)

    if group is None:
        by_prefix = jax.tree.map(lambda x: x.swapaxes(0, 1)[:, :, None], (states_BUD, next_BUN))
        log_prob_UBN = jax.lax.map(lambda each: log_prob(*each), by_prefix, batch_size=_NODES)[:, :, 0]
        log_prob_BUN = log_prob_UBN.swapaxes(0, 1)
    else:
        rows_P = [x.reshape(-1, x.shape[-1]) for x in (states_BUD, next_BUN)]  # P = B * U prefixes

        def read(place_G, _):
            return log_prob(*(x.at[place_G].get(mode="clip")[None] for x in rows_P))[0]

        log_prob_PN = in_groups(read, jnp.zeros(rows_P[1].shape), (rows_P[1] > 0).any(-1), group)
        log_prob_BUN = log_prob_PN.reshape(next_BUN.shape)
    return jnp.where(next_BUN > 0, log_prob_BUN, 0.0).sum(1)

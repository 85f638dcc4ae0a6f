"""The exact law of a strategy's outputs, for decoders that know a distribution.

The strategy is given `Choices` in place of keys, an object that makes the choices it is told at the random draws of a
pass, and multiplies up their probabilities. A draw may depend on the draws before it, so a pass is run again for each
draw: the first run says how many choices the first draw has, the next run, with each of them told, how many the second
draw has, and so on. Equal states are joined after each pass. Nothing is sampled, so the law is exact up to float32.

States are compared without the arrays that cannot change a token, such as scores that the strategy does not read. The
strategy's program says which these are (`_that_matter`).

Axis letters here: B states, D draws of a pass, G targets.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from padir.refinement import Output, Strategy, advance, from_tokens, restrict_visibility
from padir.refinement.loop import State
from padir.refinement.segments import Draws
from padir.studies.analysis.truth import ExactDecoder

MOST = 1 << 20
"""Most states and choices of a pass, of all targets together; a strategy with more of them has no law here."""
_DRAWS = 9  # more than a strategy makes in a pass
_ROWS = (1 << 8, 1 << 13)  # numbers of states that the programs of a pass handle at once


class Choices:
    """Decides the draws of a pass by numbers, one a draw, and the first choice once these are used up.

    Attributes:
      counts: the number of choices that each draw has, given the earlier ones; one array [B] a draw.
      probability_B: the probability of the choices that were told by number.
    """

    def __init__(self, number_BD: Int[Array, "B D"], pieces: range):
        self._number_BD, self._pieces = number_BD, pieces
        self.counts: list[Int[Array, " B"]] = []
        self.probability_B = jnp.ones(number_BD.shape[0])

    def _next(self, count_B: Int[Array, " B"]) -> Int[Array, " B"]:
        self.counts.append(count_B)
        return self._number_BD[:, len(self.counts) - 1] if self._is_told else jnp.zeros_like(count_B)

    @property
    def _is_told(self) -> bool:
        return len(self.counts) <= self._number_BD.shape[1]

    def _digits(self, where_BL: Bool[Array, "B L"], base: int) -> Int[Array, "B L"]:
        """One of 0 .. base - 1 for each position of `where_BL`, 0 elsewhere."""
        number_B = self._next(base ** where_BL.sum(-1))
        rank_BL = jnp.cumsum(where_BL, axis=-1) - 1
        return jnp.where(where_BL, number_B[:, None] // base ** jnp.maximum(rank_BL, 0) % base, 0)

    def _weigh(self, probability_B: Float[Array, " B"]) -> None:
        """Counts the probability of the last draw."""
        if self._is_told:
            self.probability_B *= probability_B

    def tokens(self, logits_BLV, temperature, open_BL):
        token_BL = self._pieces.start + self._digits(open_BL, len(self._pieces))
        prob_BLV = jax.nn.softmax(logits_BLV / temperature, axis=-1)
        prob_BL = jnp.take_along_axis(prob_BLV, token_BL[..., None], axis=-1)[..., 0]
        self._weigh(jnp.where(open_BL, prob_BL, 1.0).prod(-1))
        return token_BL

    def subset(self, among_BL, count_BL):
        size_B = among_BL.sum(-1)
        count_B = jnp.minimum(jnp.broadcast_to(count_BL, among_BL.shape)[:, 0], size_B)
        table_NNM = jnp.array(_subsets(among_BL.shape[1]))
        ways_B = jnp.array(_ways(among_BL.shape[1]))[size_B, count_B]
        set_B = table_NNM[size_B, count_B, self._next(ways_B)]
        self._weigh(1 / ways_B)
        return among_BL & (set_B[:, None] >> jnp.maximum(jnp.cumsum(among_BL, axis=-1) - 1, 0) & 1 > 0)

    def share(self, among_BL, rate):
        rate_BL = jnp.broadcast_to(rate, among_BL.shape)
        open_BL = among_BL & (rate_BL > 0) & (rate_BL < 1)
        chosen_BL = self._digits(open_BL, 2) > 0
        self._weigh(jnp.where(open_BL, jnp.where(chosen_BL, rate_BL, 1 - rate_BL), 1.0).prod(-1))
        return jnp.where(open_BL, chosen_BL, among_BL & (rate_BL >= 1))

    def pieces(self, where_BL, ids):
        noise = jnp.array([*ids.noise])
        piece_BL = noise[self._digits(where_BL, len(noise))]
        self._weigh(1.0 / len(noise) ** where_BL.sum(-1))
        return piece_BL


@functools.cache
def _subsets(length: int) -> Int[np.ndarray, "N N M"]:
    """The sets of k of the first n positions as bits, at [n, k, number of the set]."""
    most = math.comb(length, length // 2)
    table_NNM = np.zeros((length + 1, length + 1, most), np.int32)
    for n in range(length + 1):
        for k in range(n + 1):
            sets = [sum(1 << i for i in chosen) for chosen in itertools.combinations(range(n), k)]
            table_NNM[n, k, : len(sets)] = sets
    return table_NNM


@functools.cache
def _ways(length: int) -> Int[np.ndarray, "N N"]:
    """The number of sets of k of n positions, at [n, k]."""
    numbers = range(length + 1)
    return np.array([[math.comb(n, k) for k in numbers] for n in numbers], np.int32)


@dataclasses.dataclass(frozen=True)
class Law:
    """The law of a strategy's outputs at each of G targets.

    Attributes:
      target_K, tokens_KL, prob_K: each output of positive probability, its target and its probability given the target.
      passes_G: mean number of passes at each target.
    """

    target_K: Int[np.ndarray, " K"]
    tokens_KL: Int[np.ndarray, "K L"]
    prob_K: Float[np.ndarray, " K"]
    passes_G: Float[np.ndarray, " G"]


@runtime_checkable
class Chain(Protocol):
    """Protocol of the states that a sampler goes through, lists of arrays [B, ...]; each state has a target.

    Attributes:
      matter: for each array, whether it can change a token of a later pass; states are compared by these.
    """

    matter: list[bool]

    def begun(self) -> tuple[Int[np.ndarray, " B"], list[np.ndarray]]:
        """The first states of all targets, equally many and equally likely for each: (target of each, arrays)."""
        ...

    def passed(
        self, target_B: Int[np.ndarray, " B"], leaves: list[np.ndarray], step: int, num_steps: int
    ) -> Branches | None:
        """The states after a pass; None if there are more than `MOST` choices."""
        ...

    def ended(self, leaves: list[np.ndarray]) -> tuple[Int[np.ndarray, "B L"], Bool[np.ndarray, " B"]]:
        """The tokens of states, without EOS, and whether a state is an output before the last pass."""
        ...


class Branches(NamedTuple):
    """States after a pass: the state before each, their arrays, the probabilities of the choices that led to them."""

    from_B: Int[np.ndarray, " B"]
    leaves: list[np.ndarray]
    prob_B: Float[np.ndarray, " B"]


def law(strategy: Strategy, oracle: ExactDecoder, num_steps: int, *, masked: bool) -> Law | None:
    """The exact law of `refine` with a strategy and the exact decoder of each target.

    Args:
      num_steps: T; another number compiles no program.
      masked: the first canvas consists of masks; else of random pieces, all of them equally likely.

    Returns:
      The law, or None if a pass has more than `MOST` states and choices.

    Raises:
      PadirError: the strategy draws in a way that `Draws` cannot decide.
    """
    return law_of(_StrategyChain(strategy, oracle, masked), num_steps)


def law_of(chain: Chain, num_steps: int) -> Law | None:
    """The exact law of a chain's outputs after at most `num_steps` passes; None if a pass has too many choices."""
    target_B, leaves = chain.begun()
    groups = int(target_B.max()) + 1
    prob_B = np.full(len(target_B), groups / len(target_B))
    passes_G, ended = np.zeros(groups), []
    for step in range(num_steps):
        passes_G += np.bincount(target_B, prob_B, groups)
        branches = chain.passed(target_B, leaves, step, num_steps)
        if branches is None:
            return None
        leaves = branches.leaves
        target_B, prob_B = target_B[branches.from_B], prob_B[branches.from_B] * branches.prob_B
        tokens_BL, done_B = chain.ended(leaves)
        done_B = (done_B | (step == num_steps - 1)) & (prob_B > 0)
        ended.append((target_B[done_B], tokens_BL[done_B], prob_B[done_B]))
        at_B = np.flatnonzero(~done_B & (prob_B > 0))
        compared = [target_B[at_B], *(leaf[at_B] for leaf, used in zip(leaves, chain.matter, strict=True) if used)]
        first_B, prob_B = _sums(compared, prob_B[at_B])
        target_B, leaves = target_B[at_B][first_B], [leaf[at_B][first_B] for leaf in leaves]
        if not len(prob_B):
            break
    target_K, tokens_KL, prob_K = (np.concatenate(each) for each in zip(*ended, strict=True))
    first_K, prob_K = _sums([target_K, tokens_KL], prob_K)
    return Law(target_K[first_K], tokens_KL[first_K], prob_K, passes_G)


def branched(
    move: Callable[[Int[np.ndarray, "B D"], Int[np.ndarray, " B"]], Sequence[np.ndarray]], states: int
) -> Branches | None:
    """The states after a pass for all choices.

    Args:
      move: (numbers of choices that are told [B, D], numbers of states [B]) -> probability of the told choices [B],
        number of choices of each draw [B, at least D], arrays of the states after the pass.
      states: number of states before the pass.
    """
    from_B = np.arange(states)
    number_BD = np.zeros((states, 0), np.int32)
    while True:
        prob_B, count_BD, *after = move(number_BD, from_B)
        draw = number_BD.shape[1]
        if count_BD.shape[1] == draw:
            return Branches(from_B, after, prob_B)
        count_B = np.where(prob_B > 0, count_BD[:, draw], 0)
        if count_B.sum() > MOST:
            return None
        parent_B = np.repeat(np.arange(len(count_B)), count_B)
        choice_B = np.arange(count_B.sum()) - np.repeat(np.cumsum(count_B) - count_B, count_B)
        number_BD = np.column_stack([number_BD[parent_B], choice_B]).astype(np.int32)
        from_B = from_B[parent_B]


class _StrategyChain:
    """The states of a strategy with the exact decoder of each target: canvas, its memory, its stopping rule's memory.

    Attributes:
      tree: the structure of these.
      tokens, done: numbers of the arrays `Canvas.tokens_BL` and `Canvas.done_BL`.
    """

    def __init__(self, strategy: Strategy, oracle: ExactDecoder, masked: bool):
        self.strategy, self.oracle, self.masked = strategy, oracle, masked
        groups, _, length = oracle.answer_GKL.shape
        ids = oracle.ids
        rows = [[ids.mask] * length] if masked else [*itertools.product(ids.noise, repeat=length)]
        tokens_BL = jnp.array([[*row, ids.eos] for row in rows] * groups)
        segment_BL = jnp.ones_like(tokens_BL)
        editable_BL = jnp.broadcast_to(jnp.arange(length + 1) < length, tokens_BL.shape)
        canvas = from_tokens(tokens_BL, tokens_BL, editable_BL, segment_BL, ids)
        if "decontextualised" in getattr(strategy, "needs", frozenset()):
            canvas = restrict_visibility(canvas, editable_BL)
        first: Draws = Choices(jnp.zeros((len(tokens_BL), 1), jnp.int32), ids.noise)
        state = (canvas, strategy.init(first, canvas), strategy.stop.init(canvas))
        named, self.tree = jax.tree_util.tree_flatten_with_path(state)
        places = {jax.tree_util.keystr(path): place for place, (path, _) in enumerate(named)}
        self.tokens, self.done = places["[0].tokens_BL"], places["[0].done_BL"]
        self._first = np.repeat(np.arange(groups), len(rows)), [np.asarray(leaf) for _, leaf in named]
        self.matter = _that_matter(self, self._first[1])

    def begun(self):
        return self._first

    def ended(self, leaves):
        return leaves[self.tokens][:, :-1], leaves[self.done].all(-1)

    def passed(self, target_B, leaves, step, num_steps):
        decode = functools.partial(_decoded, tree=self.tree, strategy=self.strategy, masked=self.masked)
        one_pass = functools.partial(_moved, tree=self.tree, strategy=self.strategy, pieces=self.oracle.ids.noise)
        outputs = _in_parts(lambda *rows: decode(self.oracle, *rows), [target_B, *leaves])

        def move(number_BD, from_B):
            rows = [number_BD, *(each[from_B] for each in (*outputs, *leaves))]
            return _in_parts(lambda *rows: one_pass(step, num_steps, *rows), rows)

        return branched(move, len(target_B))


def _in_parts(function: Callable[..., Sequence[jax.Array]], rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Calls a function of arrays [B, ...] by programs for few numbers of rows."""
    results = []
    small, large = _ROWS
    for begin in range(0, len(rows[0]), large):
        count = min(large, len(rows[0]) - begin)
        at_B = np.minimum(begin + np.arange(small if count <= small else large), begin + count - 1)
        results.append([np.asarray(each)[:count] for each in function(*(each[at_B] for each in rows))])
    return [np.concatenate(parts) for parts in zip(*results, strict=True)]


@functools.partial(jax.jit, static_argnames=("tree", "strategy", "masked"))
def _decoded(oracle: ExactDecoder, target_B, *leaves, tree, strategy: Strategy, masked: bool):
    """The exact decoder's logits and keep logits for each state of a target."""
    mine = dataclasses.replace(oracle, answer_GKL=oracle.answer_GKL[target_B], log_prob_GK=oracle.log_prob_GK[target_B])
    output = mine.decoder_of(strategy, masked)(tree.unflatten(leaves)[0])
    assert isinstance(output, Output) and output.keep_logits_BL is not None
    return output.logits_BLV, output.keep_logits_BL


@functools.partial(jax.jit, static_argnames=("tree", "strategy", "pieces"))
def _moved(step, num_steps, number_BD, logits_BLV, keep_BL, *leaves, tree, strategy: Strategy, pieces: range):
    """Probability of the choices, number of choices [B, D] of each draw, and the leaves of the states after a pass."""
    choices, zero_B = Choices(number_BD, pieces), jnp.zeros(number_BD.shape[0], jnp.int32)
    output = Output(logits_BLV, keep_BL, judges=getattr(strategy, "head_judges", "token"))
    canvas, memory, stop_memory = tree.unflatten(leaves)
    before = State(jnp.int32(step), choices, canvas, memory, stop_memory, zero_B, zero_B > 0, zero_B)
    after = advance(before, lambda canvas: output, strategy, num_steps)
    count_BD = jnp.stack(choices.counts, axis=1) if choices.counts else number_BD[:, :0]
    after_leaves = jax.tree.leaves((after.canvas, after.memory, after.stop_memory))
    return choices.probability_B, count_BD, *after_leaves


def _that_matter(chain: _StrategyChain, leaves: list[np.ndarray]) -> list[bool]:
    """For each leaf of the states, whether it can change a token of this pass or of a later one."""
    few = [leaf[[0, 0]] for leaf in leaves]

    def one_pass(*leaves):
        settings: dict[str, Any] = {"tree": chain.tree, "strategy": chain.strategy}
        target_B, number_BD = jnp.zeros(2, int), jnp.zeros((2, _DRAWS), jnp.int32)
        output = inspect.unwrap(_decoded)(chain.oracle, target_B, *leaves, masked=chain.masked, **settings)
        prob_B, count_BD, *after = inspect.unwrap(_moved)(
            1, 9, number_BD, *output, *leaves, pieces=chain.oracle.ids.noise, **settings
        )
        return *after, prob_B, count_BD

    sources = _sources(jax.make_jaxpr(one_pass)(*few).jaxpr)
    matter = {chain.tokens, chain.done, len(leaves), len(leaves) + 1}
    while True:
        more = matter.union(*(sources[i] for i in matter))
        if more == matter:
            return [i in matter for i in range(len(leaves))]
        matter = more


def _sources(jaxpr) -> list[set[int]]:
    """The inputs of a program that each of its outputs may depend on."""
    found = {var: {i} for i, var in enumerate(jaxpr.invars)}

    def of(variables) -> set[int]:
        return set().union(*(found.get(each, set()) for each in variables if not hasattr(each, "val")))

    for equation in jaxpr.eqns:
        tests_for_nan = equation.primitive.name == "ne" and len({*map(id, equation.invars)}) == 1
        found |= dict.fromkeys(equation.outvars, set() if tests_for_nan else of(equation.invars))
    return [of([each]) for each in jaxpr.outvars]


def _sums(columns: Sequence[np.ndarray], prob_B: Float[np.ndarray, " B"]) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each kind of equal rows, and the sum of their probabilities."""
    if not len(prob_B):
        return np.zeros(0, int), prob_B
    bytes_BX = np.concatenate(
        [np.ascontiguousarray(each).reshape(len(prob_B), -1).view(np.uint8) for each in columns], axis=1
    )
    keys_B = np.ascontiguousarray(bytes_BX).view(np.dtype((np.void, bytes_BX.shape[1])))[:, 0]
    _, first, kind_B = np.unique(keys_B, return_index=True, return_inverse=True)
    return first, np.bincount(kind_B.reshape(-1), prob_B)

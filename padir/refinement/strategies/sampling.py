"""Sampling strategies, which are Markov chains over the canvas with one decoder pass per step.

Each token is drawn from the model's distribution at a temperature, with a random key for its position, and scored by
its log-probability at temperature 1. Temperature 0 gives the argmax.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from padir import checks
from padir.refinement.canvas import Canvas, end, hide, write
from padir.refinement.draws import choose, position_keys, uniform_draws
from padir.refinement.scores import Output, best_tokens, token_scores
from padir.refinement.segments import count_in_segment, same_segment, share_of, worst

# The key of a step is folded with one of these numbers, so that the choices of positions and tokens are independent.
_TOKEN, _WHERE = range(2)


def sample_tokens(
    key_B: Key[Array, " B"], logits_BLV: Float[Array, "B L V"], segment_BL: Int[Array, "B L"], temperature: float
) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
    """Draws a token for each position by Gumbel-max, one key a position; returns log-probabilities at temperature 1."""
    if temperature == 0:
        return best_tokens(logits_BLV)
    draw = jax.vmap(jax.vmap(lambda key: jax.random.gumbel(key, logits_BLV.shape[-1:])))
    gumbel_BLV = draw(position_keys(key_B, segment_BL, _TOKEN))
    token_BL = (logits_BLV + temperature * gumbel_BLV).argmax(-1).astype(jnp.int32)
    return token_BL, token_scores(logits_BLV, token_BL)


def _leftmost(where_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]) -> Bool[Array, "B L"]:
    """Marks the first position of each segment among `where_BL`."""
    return worst(jnp.zeros(where_BL.shape), where_BL, segment_BL, 1)


@dataclasses.dataclass(frozen=True)
class SundaeSampling:
    """SUNDAE's sampler (Savinov et al., ICLR 2022): each step draws a share of the positions again.

    The first step writes every position. With order "uncertain" and temperature 0 the strategy is the argmax unroll:
    each step chooses the tokens that were least certain when they were written, and replaces them by the argmax given
    all tokens. At temperature 0 a sentence ends when the argmax agrees with every token; at other temperatures all
    steps are taken.

    Attributes:
      share: share of a sentence's free positions that a step draws again, rounded up, in (0, 1].
      temperature: temperature of the draws, at least 0.
      order: the choice of positions to draw again: "random", or "uncertain" for those whose tokens had the lowest
        log-probability when they were written.
      argmax_last: write the argmax everywhere at the last step, so that the decoder has seen every drawn token.
    """

    share: float = 0.3
    temperature: float = 0.4
    order: str = "random"
    argmax_last: bool = True

    def __post_init__(self):
        checks.one_of(("random", "uncertain"), **checks.fields_of(self, "order"))
        checks.above(0, **checks.fields_of(self, "share"))
        checks.within(0, 1, **checks.fields_of(self, "share"))
        checks.below(0, math.inf, **checks.fields_of(self, "temperature"))

    def init(self, key_B, canvas: Canvas) -> tuple[()]:
        del key_B, canvas
        return ()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps):
        free_BL, segment_BL = canvas.free_BL, canvas.segment_BL
        order_BL = canvas.score_BL
        if self.order == "random":
            order_BL = uniform_draws(position_keys(key_B, segment_BL, _WHERE))
        chosen_BL = worst(order_BL, free_BL, segment_BL, share_of(self.share, free_BL, segment_BL)) | (step == 0)
        written = write(canvas, chosen_BL, *sample_tokens(key_B, output.logits_BLV, segment_BL, self.temperature))
        token_BL, score_BL = output.best()
        settled_BL = free_BL & (self.argmax_last & (step == num_steps - 1))
        if self.temperature == 0:
            agreed_BL = count_in_segment(free_BL & (token_BL != canvas.tokens_BL), segment_BL) == 0
            written, settled_BL = end(written, agreed_BL), settled_BL | agreed_BL
        return write(written, settled_BL, token_BL, score_BL), memory


@dataclasses.dataclass(frozen=True)
class BlockGibbs:
    """k-Gibbs (the paper's Definition 10): hides k positions of a sentence, then draws them one after the other.

    The first step writes every position. From then on a block of positions is hidden and written from left to right,
    one position per pass, each draw given the earlier draws. If the model's conditionals belong to one joint
    distribution, the block is thus drawn from its joint distribution given all other positions. Then the next block is
    chosen. If the last step comes within a block, the hidden positions of the block get the argmax of the last pass. No
    row is done early. The memory is (hidden positions of the block, all positions of the block).

    Attributes:
      block: k, number of positions in a block; a shorter sentence is one block.
      order: the choice of a block's positions: "random", or "margin", which chooses, outside the previous block, the
        positions whose two likeliest tokens differ least in probability. This difference depends on the tokens, so that
        "margin" changes the stationary distribution of the chain.
      temperature: temperature of the draws, at least 0.
      parallel: draw all positions of a block in one pass, independently of each other, which is an approximation.
    """

    block: int = 2
    order: str = "random"
    temperature: float = 1.0
    parallel: bool = False
    needs: ClassVar[frozenset[str]] = frozenset({"mask"})

    def __post_init__(self):
        checks.at_least(1, **checks.fields_of(self, "block"))
        checks.one_of(("random", "margin"), **checks.fields_of(self, "order"))
        checks.below(0, math.inf, **checks.fields_of(self, "temperature"))

    def init(self, key_B, canvas: Canvas) -> tuple[Bool[Array, "B L"], Bool[Array, "B L"]]:
        del key_B
        return canvas.free_BL, canvas.free_BL

    def step(self, key_B, canvas: Canvas, output: Output, memory, *, step, num_steps):
        (hidden_BL, block_BL), free_BL = memory, canvas.free_BL
        segment_BL, last = canvas.segment_BL, jnp.equal(step, num_steps - 1)
        at_once = (step == 0) | self.parallel
        chosen_BL = hidden_BL & (_leftmost(hidden_BL, segment_BL) | at_once)
        written = write(canvas, chosen_BL, *sample_tokens(key_B, output.logits_BLV, segment_BL, self.temperature))
        left_BL = hidden_BL & ~chosen_BL
        if self.order == "margin":
            # The previous block's positions are left out: at temperature 0 the same block would be chosen forever.
            others_BL = free_BL & ~block_BL
            among_BL = jnp.where(count_in_segment(others_BL, segment_BL) == 0, free_BL, others_BL)
            next_BL = worst(margins(output.logits_BLV), among_BL, segment_BL, self.block)
        else:
            next_BL = choose(key_B, free_BL, segment_BL, self.block, _WHERE)
        whole_BL = count_in_segment(left_BL, segment_BL) == 0
        hidden_BL = jnp.where(whole_BL, next_BL, left_BL) & ~last
        written = write(written, left_BL & last, *output.best())
        return hide(written, hidden_BL), (hidden_BL, jnp.where(whole_BL, next_BL, block_BL))


def margins(logits_BLV: Float[Array, "B L V"]) -> Float[Array, "B L"]:
    """Difference between the probabilities of the likeliest and the second likeliest token at each position.

    >>> margins(jnp.log(jnp.array([[[0.5, 0.2, 0.3]]]))).round(3).tolist()
    [[0.20000000298023224]]
    """
    top_BL2, _ = jax.lax.top_k(logits_BLV, 2)
    prob_BL2 = jnp.exp(top_BL2 - jax.nn.logsumexp(logits_BLV, axis=-1, keepdims=True))
    return prob_BL2[..., 0] - prob_BL2[..., 1]


@flax.struct.dataclass
class Sweep:
    """Memory of `IndependentParallel`: the current state of the chain, and the part of the next state already drawn.

    The canvas shows the current state with one position of each segment hidden.

    Attributes:
      tokens_BL, score_BL: the current state, which changes at the end of a sweep.
      drawn_tokens_BL, drawn_score_BL: the next state at the positions that this sweep has drawn.
      pending_BL: positions that this sweep has still to draw; the leftmost of each segment is hidden.
      ended_BL: positions of segments whose state will not change any more (at temperature 0).
    """

    tokens_BL: Int[Array, "B L"]
    score_BL: Float[Array, "B L"]
    drawn_tokens_BL: Int[Array, "B L"]
    drawn_score_BL: Float[Array, "B L"]
    pending_BL: Bool[Array, "B L"]
    ended_BL: Bool[Array, "B L"]


@dataclasses.dataclass(frozen=True)
class IndependentParallel:
    """The independent parallel sampler (the paper's Definition 11): draws each position given all other positions.

    The first step writes every position. From then on a sweep draws each position given the tokens that all other
    positions had before the sweep, and all positions change together at the end of the sweep. An ordinary decoder takes
    one pass for each free position of a sentence, with that position alone hidden. A decontextualised decoder takes one
    pass for all positions, because none sees its own token. An unfinished sweep changes no token. At temperature 0 a
    sentence ends when a sweep changes none of its tokens.

    Attributes:
      temperature: temperature of the draws, at least 0.
    """

    temperature: float = 1.0
    needs: ClassVar[frozenset[str]] = frozenset({"mask"})

    def __post_init__(self):
        checks.below(0, math.inf, **checks.fields_of(self, "temperature"))

    def init(self, key_B, canvas: Canvas) -> Sweep:
        del key_B
        tokens_BL, score_BL, nowhere_BL = canvas.tokens_BL, canvas.score_BL, jnp.zeros_like(canvas.free_BL)
        return Sweep(tokens_BL, score_BL, tokens_BL, score_BL, canvas.free_BL, nowhere_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: Sweep, *, step, num_steps):
        free_BL, segment_BL = canvas.free_BL, canvas.segment_BL
        token_BL, score_BL = sample_tokens(key_B, output.logits_BLV, segment_BL, self.temperature)
        now_BL = free_BL & (_leftmost(memory.pending_BL, segment_BL) | (step == 0))
        if canvas.visible_BLL is not None:
            now_BL = free_BL
        drawn_tokens_BL = jnp.where(now_BL, token_BL, memory.drawn_tokens_BL)
        drawn_score_BL = jnp.where(now_BL, score_BL, memory.drawn_score_BL)
        pending_BL = memory.pending_BL & ~now_BL
        whole_BL = count_in_segment(pending_BL, segment_BL) == 0
        state = dataclasses.replace(canvas, tokens_BL=memory.tokens_BL, score_BL=memory.score_BL)
        state = write(state, whole_BL & ~memory.ended_BL, drawn_tokens_BL, drawn_score_BL)
        ended_BL = memory.ended_BL
        if self.temperature == 0:
            changed_BL = count_in_segment(state.tokens_BL != memory.tokens_BL, segment_BL) > 0
            ended_BL = ended_BL | (whole_BL & ~changed_BL & (step > 0))
        pending_BL = jnp.where(whole_BL, free_BL, pending_BL)
        if canvas.visible_BLL is None:
            shown = hide(state, _leftmost(pending_BL, segment_BL) & ~ended_BL & (step < num_steps - 1))
        else:
            # The positions that see EOS stay the same, because training does not change them either.
            others_BLL = same_segment(segment_BL) & ~jnp.eye(free_BL.shape[1], dtype=bool)
            visible_BLL = jnp.where(free_BL[:, None, :], others_BLL, canvas.visible_BLL)
            shown = dataclasses.replace(state, visible_BLL=visible_BLL)
        sweep = Sweep(state.tokens_BL, state.score_BL, drawn_tokens_BL, drawn_score_BL, pending_BL, ended_BL)
        return end(shown, ended_BL), sweep

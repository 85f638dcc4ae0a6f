"""Sampling strategies, which are Markov chains over the canvas with one decoder pass per step.

Each token is drawn from the model's distribution at a temperature, with a random key for its position, and scored by
its log-probability at temperature 1. Temperature 0 gives the argmax. The last two strategies, for masked canvases, hide
written positions again: at random, or when others look better.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Annotated, ClassVar

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir import checks
from padir.refinement.canvas import Canvas, remask, write
from padir.refinement.protocols import Memoryless, Proposal, Stop
from padir.refinement.scores import Output, token_scores
from padir.refinement.segments import (
    PLACE,
    TOKEN,
    Draws,
    Keys,
    choose,
    choose_share,
    count_in_segment,
    other_positions,
    position_keys,
    share_of,
    worst,
)
from padir.refinement.stop import Agreed, Never, NothingOpen, Repetition
from padir.refinement.strategies.schedules import Schedule, still_masked


def sample_tokens(
    key_B: Keys,
    output: Output,
    segment_BL: Int[Array, "B L"],
    temperature: float | Float[Array, ""],
    open_BL: Bool[Array, "B L"] | None = None,
) -> tuple[Int[Array, "B L"], Float[Array, "B L"]]:
    """Draws a token for each position by Gumbel-max, one key a position; returns log-probabilities at temperature 1.

    `open_BL` are the positions whose token or score the strategy uses; None for all. At temperature 0 it gives the best
    tokens for them (`Output.best`). A temperature that depends on the step is an array above 0.
    """
    if not isinstance(temperature, jax.Array) and temperature == 0:
        return output.best(open_BL)
    logits_BLV = output.logits_BLV
    if isinstance(key_B, Draws):
        token_BL = key_B.tokens(logits_BLV, temperature, segment_BL > 0 if open_BL is None else open_BL)
        return token_BL, token_scores(logits_BLV, token_BL)
    draw = jax.vmap(jax.vmap(lambda key: jax.random.gumbel(key, logits_BLV.shape[-1:])))
    gumbel_BLV = draw(position_keys(key_B, segment_BL, TOKEN))
    token_BL = (logits_BLV + temperature * gumbel_BLV).argmax(-1).astype(jnp.int32)
    return token_BL, token_scores(logits_BLV, token_BL)


def _leftmost(where_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"]) -> Bool[Array, "B L"]:
    """Marks the first position of each segment among `where_BL`."""
    return worst(jnp.zeros(where_BL.shape), where_BL, segment_BL, 1)


@checks.settings
class SundaeSampling(Memoryless):
    """Sampling in the manner of SUNDAE (Savinov et al., ICLR 2022): each step draws a share of the positions again.

    The first step writes every position. At temperature 0 a sentence ends when the argmax agrees with every token; at
    other temperatures all steps are taken. The paper's decoders are like order "random" at a low temperature, and like
    order "uncertain" at temperature 0 (its argmax unroll). The values of `share` and `temperature`, the last argmax and
    the end of a sentence are padir's own. No implementation is published to compare with.

    Attributes:
      share: share of a sentence's editable positions that a step draws again, rounded up, in (0, 1].
      temperature: temperature of the draws, at least 0.
      order: the choice of positions to draw again: "random", or "uncertain" for the positions whose tokens had the
        lowest log-probability when they were written.
      argmax_last: write the argmax everywhere at the last step, so that the decoder has seen every drawn token.
    """

    share: checks.ShareAbove0 = 0.3
    temperature: checks.NotNegative = 0.4
    order: Annotated[str, partial(checks.one_of, ("random", "uncertain"))] = "random"
    argmax_last: bool = True

    @property
    def redrawn(self) -> float:
        """The share of positions that a pass draws again; their tokens count as noise for the decoder."""
        return self.share

    @property
    def stop(self) -> Stop:
        return Agreed(of_written=False) if self.temperature == 0 else Never()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps) -> Proposal:
        editable_BL, segment_BL = canvas.editable_BL, canvas.segment_BL
        count_BL = share_of(self.share, editable_BL, segment_BL)
        if self.order == "random":
            chosen_BL = choose(key_B, editable_BL, segment_BL, count_BL, PLACE)
        else:
            chosen_BL = worst(canvas.score_BL, editable_BL, segment_BL, count_BL)
        chosen_BL |= editable_BL & (step == 0)
        written = write(canvas, chosen_BL, *sample_tokens(key_B, output, segment_BL, self.temperature, chosen_BL))
        last = write(written, editable_BL, *output.best()) if self.argmax_last else written
        return Proposal(written, last, memory)


@checks.settings
class BlockGibbs:
    """k-Gibbs (the paper's Definition 10): hides k positions of a sentence, then draws them one after the other.

    The first step writes every position. Then a block of positions is masked and written from left to right, one
    position per pass, each draw given the earlier draws. If the model's conditionals belong to one joint distribution,
    this draws the block given all other positions. If the last step comes within a block, its masked positions get the
    argmax of the last pass. No row is done early. The memory is the positions of the block.

    Attributes:
      block: k, number of positions in a block; a shorter sentence is one block.
      order: the choice of a block's positions: "random", or "margin" for the positions outside the previous block whose
        two likeliest tokens differ least in probability, which changes the stationary distribution of the chain.
      temperature: temperature of the draws, at least 0.
      parallel: draw all positions of a block in one pass, independently of each other, which is an approximation.
    """

    block: checks.Count = 2
    order: Annotated[str, partial(checks.one_of, ("random", "margin"))] = "random"
    temperature: checks.NotNegative = 1.0
    parallel: bool = False
    needs: ClassVar[frozenset[str]] = frozenset({"mask"})
    stop = Never()

    def init(self, key_B, canvas: Canvas) -> Bool[Array, "B L"]:
        return canvas.editable_BL

    def step(self, key_B, canvas: Canvas, output: Output, memory: Bool[Array, "B L"], *, step, num_steps) -> Proposal:
        masked_BL, editable_BL, segment_BL = canvas.masked_BL, canvas.editable_BL, canvas.segment_BL
        at_once = (step == 0) | self.parallel
        chosen_BL = masked_BL & (_leftmost(masked_BL, segment_BL) | at_once)
        written = write(canvas, chosen_BL, *sample_tokens(key_B, output, segment_BL, self.temperature, chosen_BL))
        left_BL = masked_BL & ~chosen_BL
        if self.order == "margin":
            # The previous block's positions are left out: at temperature 0 the same block would be chosen forever.
            others_BL = editable_BL & ~memory
            among_BL = jnp.where(count_in_segment(others_BL, segment_BL) == 0, editable_BL, others_BL)
            next_BL = worst(margins(output.logits_BLV), among_BL, segment_BL, self.block)
        else:
            next_BL = choose(key_B, editable_BL, segment_BL, self.block, PLACE)
        whole_BL = count_in_segment(left_BL, segment_BL) == 0
        shown = remask(written, jnp.where(whole_BL, next_BL, left_BL))
        return Proposal(shown, write(written, left_BL, *output.best(masked_BL)), jnp.where(whole_BL, next_BL, memory))


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

    This sweep has still to draw `pending_BL`. The canvas shows the current state, in which the leftmost pending
    position of each segment is masked.
    """

    tokens_BL: Int[Array, "B L"]
    score_BL: Float[Array, "B L"]
    drawn_tokens_BL: Int[Array, "B L"]
    drawn_score_BL: Float[Array, "B L"]
    pending_BL: Bool[Array, "B L"]


@checks.settings
class IndependentParallel:
    """The independent parallel sampler (the paper's Definition 11): draws each position given all other positions.

    The first step writes every position. Then sweeps follow. A sweep draws every position given the old tokens of all
    others, and all positions change at its end. An ordinary decoder takes one pass for each editable position, with
    that position alone masked. A decontextualised one takes one pass, because no position sees its own token. An
    unfinished sweep changes no token. At temperature 0 a sentence ends when a sweep changes none of its tokens.

    Attributes:
      temperature: temperature of the draws, at least 0.
    """

    temperature: checks.NotNegative = 1.0
    needs: ClassVar[frozenset[str]] = frozenset({"mask"})

    @property
    def stop(self) -> Stop:
        return Repetition(sweep=True) if self.temperature == 0 else Never()

    def init(self, key_B, canvas: Canvas) -> Sweep:
        tokens_BL, score_BL = canvas.tokens_BL, canvas.score_BL
        return Sweep(tokens_BL, score_BL, tokens_BL, score_BL, canvas.editable_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: Sweep, *, step, num_steps) -> Proposal:
        editable_BL, segment_BL = canvas.editable_BL, canvas.segment_BL
        now_BL = editable_BL & (_leftmost(memory.pending_BL, segment_BL) | (step == 0))
        if canvas.visible_BLL is not None:
            now_BL = editable_BL
        token_BL, score_BL = sample_tokens(key_B, output, segment_BL, self.temperature, now_BL)
        drawn_tokens_BL = jnp.where(now_BL, token_BL, memory.drawn_tokens_BL)
        drawn_score_BL = jnp.where(now_BL, score_BL, memory.drawn_score_BL)
        pending_BL = memory.pending_BL & ~now_BL
        whole_BL = count_in_segment(pending_BL, segment_BL) == 0
        # The first step draws every position, so that none of the chain's states has an unwritten one.
        chain = dataclasses.replace(
            canvas, tokens_BL=memory.tokens_BL, score_BL=memory.score_BL, written_BL=canvas.editable_BL
        )
        state = write(chain, whole_BL, drawn_tokens_BL, drawn_score_BL)
        pending_BL = jnp.where(whole_BL, editable_BL, pending_BL)
        if canvas.visible_BLL is None:
            shown = remask(state, _leftmost(pending_BL, segment_BL))
        else:
            # The positions that see EOS stay the same, because training does not change them either.
            visible_BLL = jnp.where(editable_BL[:, None, :], other_positions(segment_BL), canvas.visible_BLL)
            shown = state = dataclasses.replace(state, visible_BLL=visible_BLL)
        sweep = Sweep(state.tokens_BL, state.score_BL, drawn_tokens_BL, drawn_score_BL, pending_BL)
        return Proposal(shown, state, sweep)


@checks.settings
class Remdm(Memoryless):
    """Writes masked positions at random, and hides each written position again with a stated probability.

    After t of T passes each position is written with probability a = t / T, which the next pass raises to b = (t + 1) /
    T. It hides a written position with probability s = min(sigma, (1 - b) / a), and writes a masked position with
    probability (b - (1 - s) a) / (1 - a). So the model sees as many masks as without remasking, for every sigma. The
    last pass writes all masked positions. Without remasking a sentence ends when no position is masked.

    These are the schedules ReMDM-cap and, with `rescale`, ReMDM-rescale (arXiv 2503.00307); ReMDM-conf and ReMDM-loop
    are not here. Its authors take sigma = 0.008 (cap) or 0.015 (rescale), many more passes, and draw from the likeliest
    tokens alone. With sigma = 0 this is the ancestral sampling of masked diffusion models (MDLM).

    Attributes:
      sigma: largest probability of hiding a written position, in [0, 1]; 0 never hides one.
      temperature: temperature of the draws, at least 0; 0 for the argmax.
      rescale: s is sigma times its largest possible value min(1, (1 - b) / a), not the smaller of the two.
    """

    sigma: checks.Share = 0.1
    temperature: checks.NotNegative = 1.0
    rescale: bool = False

    @property
    def stop(self) -> Stop:
        return NothingOpen() if self.sigma == 0 else Never()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps) -> Proposal:
        masked_BL = canvas.masked_BL
        before, after = step / num_steps, (step + 1) / num_steps
        most = (1 - after) / jnp.maximum(before, 1e-9)
        sigma = self.sigma * jnp.minimum(1.0, most) if self.rescale else jnp.minimum(self.sigma, most)
        shown = (after - (1 - sigma) * before) / (1 - before)
        share_BL = jnp.where(masked_BL, shown, sigma)
        changed_BL = choose_share(key_B, canvas.editable_BL, canvas.segment_BL, share_BL, PLACE)
        drawn = sample_tokens(key_B, output, canvas.segment_BL, self.temperature, masked_BL)
        after = remask(write(canvas, masked_BL & changed_BL, *drawn), changed_BL & ~masked_BL)
        return Proposal(after, write(canvas, masked_BL, *drawn), memory)


@checks.settings
class PathPlanning(Memoryless):
    """Lets written and masked positions compete for a place in the canvas, by their log-probabilities in each pass.

    The score of a masked position is the log-probability of the token that is drawn for it. The score of a written
    position is eta times the log-probability that the pass gives to its token. The positions of lowest score are
    masked, as many as the schedule says. `MaskPredict` instead compares log-probabilities from the passes that wrote
    the tokens, and so keeps a token that was certain at first, even if later tokens contradict it. A sentence ends when
    no position is masked.

    P2 with self-planning (arXiv 2502.03540) is `judges="drawn"`; the default "written" is padir's own. The two rules
    differ from the third pass on. With eta = 0, "drawn" is LLaDA's low-confidence remasking (arXiv 2502.09992), and
    "random" its random remasking.

    Attributes:
      eta: at least 0; 0 keeps every written token, larger numbers hide written positions more readily.
      temperature: temperature of the draws, at least 0; 0 for the argmax.
      schedule: the number of masked positions, as in `MaskPredict`.
      judges: the token that scores a written position: the "written" token, or the token that the pass has "drawn" at
        this position (and does not write). With "random" no score counts: chance alone says which positions are hidden,
        and of eta only whether it is 0 matters.
    """

    eta: checks.NotNegative = 1.0
    temperature: checks.NotNegative = 0.0
    schedule: Schedule = "linear"
    judges: Annotated[str, partial(checks.one_of, ("written", "drawn", "random"))] = "written"
    stop = NothingOpen()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps) -> Proposal:
        editable_BL, segment_BL, was_masked_BL = canvas.editable_BL, canvas.segment_BL, canvas.masked_BL
        open_BL = editable_BL if self.judges == "drawn" and self.eta else was_masked_BL
        token_BL, score_BL = sample_tokens(key_B, output, segment_BL, self.temperature, open_BL)
        count_BL = still_masked(self.schedule, count_in_segment(editable_BL, segment_BL), step + 1, num_steps)
        among_BL = editable_BL if self.eta else was_masked_BL
        if self.judges == "random":
            masked_BL = choose(key_B, among_BL, segment_BL, count_BL, PLACE)
        else:
            judged_BL = token_scores(output.logits_BLV, canvas.tokens_BL) if self.judges == "written" else score_BL
            scores_BL = jnp.where(was_masked_BL, score_BL, self.eta * judged_BL)
            masked_BL = worst(scores_BL, among_BL, segment_BL, count_BL)
        after = remask(write(canvas, was_masked_BL & ~masked_BL, token_BL, score_BL), masked_BL)
        return Proposal(after, write(canvas, was_masked_BL, token_BL, score_BL), memory)

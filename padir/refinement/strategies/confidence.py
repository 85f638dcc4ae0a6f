"""Strategies in which the model's confidence decides how many positions a step writes, or in which order."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from padir import checks
from padir.errors import PadirError
from padir.refinement.canvas import Canvas, renoise, write
from padir.refinement.protocols import Memoryless, Proposal, Stop
from padir.refinement.scores import Output
from padir.refinement.segments import count_in_segment, is_noise, precedes, random_pieces, sum_in_segment, worst
from padir.refinement.stop import Agreed, NothingOpen, Repetition
from padir.refinement.strategies.sampling import sample_tokens
from padir.refinement.strategies.schedules import Schedule, still_masked


@checks.settings
class Threshold(Memoryless):
    """Writes the masked positions whose confidence exceeds a threshold, and always a sentence's most confident one.

    A written token stays; the last step writes all masked positions. A sentence ends when no position is masked. So
    easy sentences take fewer passes.

    Attributes:
      tau: probability that a token must exceed, in [0, 1]; 0 is one-shot decoding, 1 writes one position a step. A
        model trained with label smoothing of 0.1 learns to give at most 0.9: take a lower tau.
      final_tau: in [0, tau]; the threshold falls linearly from tau at the first step to final_tau at the last step.
        None means tau at every step.
      schedule: a name or shares (`padir.refinement.strategies.schedules.still_masked`). A step then also writes the
        most confident positions below the threshold, until at most as many are masked as the schedule says. With None,
        a step writes at most one position below the threshold.
    """

    tau: checks.Share = 0.9
    final_tau: float | None = None
    schedule: Schedule | None = None
    stop = NothingOpen()

    def __post_init__(self):
        if self.final_tau is not None:
            checks.within(0, self.tau, "it must not exceed tau", **{"Threshold.final_tau": self.final_tau})

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps) -> Proposal:
        best = output.best(canvas.masked_BL)
        score_BL = best[1]
        final_tau = self.tau if self.final_tau is None else self.final_tau
        tau = self.tau + (final_tau - self.tau) * step / jnp.maximum(num_steps - 1, 1)
        least: Any = 1
        if self.schedule is not None:
            editable_BL, masked_BL = (
                count_in_segment(where_BL, canvas.segment_BL) for where_BL in (canvas.editable_BL, canvas.masked_BL)
            )
            least = jnp.maximum(1, masked_BL - still_masked(self.schedule, editable_BL, step + 1, num_steps))
        confident_BL = (jnp.exp(score_BL) > tau) | worst(-score_BL, canvas.masked_BL, canvas.segment_BL, least)
        return commit(canvas, best, confident_BL, memory)


def entropies(logits_BLV: Float[Array, "B L V"]) -> Float[Array, "B L"]:
    """Entropy in nats of each position's distribution over the ids whose logits are not -inf.

    >>> f"{entropies(jnp.array([[[0.0, 0.0, -jnp.inf]]]))[0, 0]:.4f}"  # log 2
    '0.6931'
    """
    log_prob_BLV = jax.nn.log_softmax(logits_BLV.astype(jnp.float32))
    return -jnp.where(log_prob_BLV > -jnp.inf, jnp.exp(log_prob_BLV) * log_prob_BLV, 0.0).sum(-1)


def within_entropy(
    entropy_BL: Float[Array, "B L"], among_BL: Bool[Array, "B L"], segment_BL: Int[Array, "B L"], gamma: float
) -> Bool[Array, "B L"]:
    """Marks the positions of lowest entropy whose entropies, without the largest of them, sum to at most gamma.

    Only positions of `among_BL` compete; a segment's position of lowest entropy is always marked.
    """
    # In ascending order the largest entropy of a set comes last, so the sum before a position must be within gamma.
    before_BLL = precedes(entropy_BL, among_BL, segment_BL)
    return among_BL & (jnp.where(before_BLL, entropy_BL[:, None, :], 0.0).sum(-1) <= gamma)


def commit(
    canvas: Canvas,
    best: tuple[Int[Array, "B L"], Float[Array, "B L"]],
    where_BL: Bool[Array, "B L"],
    memory: PyTree,
) -> Proposal:
    """Proposes to write the best tokens at the masked positions of `where_BL`, and at all masked ones in the end."""
    masked_BL = canvas.masked_BL
    some, every = (write(canvas, masked_BL & each, *best) for each in (where_BL, True))
    return Proposal(some, every, memory)


@dataclasses.dataclass(frozen=True)
class EasyFirst:
    """Parallel easy-first (Kasai et al., ICML 2020, DisCo): each position sees the positions easier than itself.

    The first pass predicts every position from the source alone, and its confidences fix an order. Every later pass
    predicts all positions at once, each from the current tokens of the positions before it in that order. So after k
    passes the k easiest tokens equal the result of greedy decoding in that order. A sentence ends when a pass changes
    none of its tokens. The memory is the confidence of each position at step 0.

    Raises:
      PadirError (in `init`): the canvas has no visible_BLL, as the model is not decontextualised.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"decontextualised"})
    stop = Repetition()

    def init(self, key_B, canvas: Canvas) -> Float[Array, "B L"]:
        if canvas.visible_BLL is None:
            remedy = "use a model with decontextualised=True, whose canvases have it"
            raise PadirError("easy_first needs a canvas with visible_BLL", remedy=remedy)
        return jnp.zeros_like(canvas.score_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: Float[Array, "B L"], *, step, num_steps) -> Proposal:
        written = write(canvas, canvas.editable_BL, *output.best())
        confidence_BL = jnp.where(step == 0, written.score_BL, memory)
        easier_BLL = precedes(-confidence_BL, canvas.editable_BL, canvas.segment_BL)
        assert canvas.visible_BLL is not None  # init refuses others
        # EOS has no place in the order, so the positions that see EOS stay the same.
        visible_BLL = jnp.where(canvas.editable_BL[:, None, :], easier_BLL, canvas.visible_BLL)
        return Proposal(dataclasses.replace(written, visible_BLL=visible_BLL), written, confidence_BL)


@checks.settings
class Factor(Memoryless):
    """Writes the k most confident masked positions, with k + 1 times their largest doubt below a bound.

    A position's doubt is 1 minus the probability of its most likely token. With the bound 1, the tokens of a step are
    also the most likely combination, even if the positions depend on each other (docs/theory.md). One position is
    always written, and the last step writes all. A sentence ends when no position is masked. It is the rule of
    Fast-dLLM's paper (arXiv 2505.22618). Its public code also accepts a step's last masked position, if the rule
    accepts all others.

    Attributes:
      bound: above 0; a larger bound writes more positions in a step and guarantees nothing.
    """

    bound: checks.Positive = 1.0
    stop = NothingOpen()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps) -> Proposal:
        best = output.best(canvas.masked_BL)
        score_BL = best[1]
        before_BLL = precedes(-score_BL, canvas.masked_BL, canvas.segment_BL)
        within_BL = (before_BLL.sum(-1) + 2) * -jnp.expm1(score_BL) < self.bound
        return commit(canvas, best, within_BL | ~before_BLL.any(-1), memory)


@checks.settings
class Renoise(Memoryless):
    """Accepts the tokens of lowest entropy within a bound, and gives all other positions fresh random pieces.

    Each step judges all editable positions anew, so it can remask a token that later tokens contradict. Where the noise
    is a mask, a position is masked again instead. A sentence ends when the decoder saw no noise and its argmax equals
    the tokens that it saw. The last step writes the argmax everywhere.

    With Renoise(0.1, 0.8, 0.4, 0.005) each step makes DiffusionGemma's canvas and ends its sentences
    (google-deepmind/gemma). There the result is the last canvas, random pieces included; in the library transformers it
    is the argmax, as here.

    Attributes:
      gamma: bound in nats on the sum of the accepted positions' entropies without the largest of them, above 0. With a
        bound near 0 every step accepts only one position. Label smoothing of 0.1 over 8,000 ids leaves 1.2 nats at each
        position, even where the model is certain: take a larger bound for such a model (docs/results.md).
      temperature: temperature of the accepted tokens' draws and of the entropies. With 0 the tokens are the argmax, and
        the entropies are for temperature 1.
      final_temperature: in [0, temperature]; after t of T passes the temperature has fallen by t / T of the way from
        `temperature` to this one. None means `temperature` in every pass.
      stop_entropy: if given, a sentence ends when the argmax equals the tokens that the decoder saw, noise or not, and
        the entropies have at most this mean, in nats.
    """

    gamma: checks.Positive = 0.5
    temperature: checks.NotNegative = 0.0
    final_temperature: float | None = None
    stop_entropy: checks.NotNegative | None = None

    def __post_init__(self):
        if self.final_temperature is not None:
            remedy = "it must not exceed the temperature"
            checks.within(0, self.temperature, remedy, **{"Renoise.final_temperature": self.final_temperature})

    @property
    def stop(self) -> Stop:
        return Agreed() if self.stop_entropy is None else NothingOpen()

    def step(self, key_B, canvas: Canvas, output: Output, memory: tuple[()], *, step, num_steps) -> Proposal:
        editable_BL, segment_BL = canvas.editable_BL, canvas.segment_BL
        temperature: Any = self.temperature
        if self.final_temperature not in (None, temperature):
            temperature += (self.final_temperature - temperature) * step / num_steps
        entropy_BL = entropies(output.logits_BLV / temperature if self.temperature else output.logits_BLV)
        accepted_BL = within_entropy(entropy_BL, editable_BL, segment_BL, self.gamma)
        drawn = sample_tokens(key_B, output, segment_BL, temperature, accepted_BL)
        noise_BL = canvas.initial_BL
        if canvas.ids.noise:
            noisy_BL = editable_BL & ~accepted_BL & is_noise(canvas.initial_BL, canvas.ids)
            noise_BL = random_pieces(key_B, segment_BL, canvas.ids, noisy_BL)
        noisy = renoise(write(canvas, accepted_BL, *drawn), ~accepted_BL, noise_BL)
        best = output.best()
        open_BL = None
        if self.stop_entropy is not None:
            excess_BL = jnp.where(editable_BL, entropy_BL - self.stop_entropy, 0.0)
            doubted_BL = (best[0] != canvas.tokens_BL) | (sum_in_segment(excess_BL, segment_BL) > 0)
            open_BL = editable_BL & (count_in_segment(editable_BL & doubted_BL, segment_BL) > 0)
        return Proposal(noisy, write(canvas, editable_BL, *best), memory, open_BL)

"""Strategies in which the model's confidence decides how many positions a step writes, or in which order."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir import checks
from padir.errors import PadirError
from padir.refinement.canvas import Canvas, end_without, write
from padir.refinement.scores import Output
from padir.refinement.segments import count_in_segment, precedes, worst
from padir.refinement.strategies.schedules import check_schedule, still_hidden


@dataclasses.dataclass(frozen=True)
class Threshold:
    """Writes the hidden positions whose confidence exceeds a threshold, and always a sentence's most confident one.

    A written token stays; the last step writes all hidden positions. A sentence ends when no position is hidden, so
    that easy sentences take fewer passes. The memory is hidden_BL, the positions that are not yet written.

    Attributes:
      tau: probability that a token must exceed, in [0, 1]; 0 is one-shot decoding, 1 writes one position a step. A
        model trained with label smoothing of 0.1 learns to give at most 0.9: take a lower tau.
      final_tau: in [0, tau]; the threshold falls linearly from tau at the first step to final_tau at the last. None
        means tau at every step.
      schedule: a name or shares (`padir.refinement.strategies.schedules.still_hidden`); the most confident positions
        are written, even below the threshold, until no more are hidden than the schedule says, so that fewer are left
        for the last step. None writes only one position below the threshold.
    """

    tau: float = 0.9
    final_tau: float | None = None
    schedule: str | tuple[float, ...] | None = None

    def __post_init__(self):
        if self.schedule is not None:
            check_schedule(**checks.fields_of(self, "schedule"))
        checks.within(0, 1, **checks.fields_of(self, "tau"))
        if self.final_tau is not None:
            checks.within(0, self.tau, "it must not exceed tau", **checks.fields_of(self, "final_tau"))

    def init(self, key_B, canvas: Canvas) -> Bool[Array, "B L"]:
        del key_B
        return canvas.free_BL

    def step(self, key_B, canvas: Canvas, output: Output, memory: Bool[Array, "B L"], *, step, num_steps):
        del key_B
        token_BL, score_BL = output.best()
        final_tau = self.tau if self.final_tau is None else self.final_tau
        tau = self.tau + (final_tau - self.tau) * step / jnp.maximum(num_steps - 1, 1)
        least: Any = 1
        if self.schedule is not None:
            free_BL, hidden_BL = (
                count_in_segment(where_BL, canvas.segment_BL) for where_BL in (canvas.free_BL, memory)
            )
            least = jnp.maximum(1, hidden_BL - still_hidden(self.schedule, free_BL, step + 1, num_steps))
        confident_BL = (jnp.exp(score_BL) > tau) | worst(-score_BL, memory, canvas.segment_BL, least)
        return commit(canvas, memory, confident_BL | (step == num_steps - 1), token_BL, score_BL)


@dataclasses.dataclass(frozen=True)
class EntropyBound:
    """Writes as many hidden positions at once as their entropies allow (Ben-Hamu et al., 2025, EB-Sampler).

    A step takes the hidden positions of a sentence in order of entropy, lowest first. It writes as many as it can while
    the sum of their entropies, without the largest of them, is at most gamma. This sum bounds the mutual information
    that is lost because the positions are written independently. One position is always written, and the last step
    writes all hidden positions. A sentence ends when no position is hidden. The memory is hidden_BL, the positions that
    are not yet written.

    Attributes:
      gamma: the bound in nats, at least 0; with 0 a step writes one position, or several if their entropies are 0.
        Label smoothing of 0.1 over 8,000 ids leaves 1.2 nats at each position, even where the model is certain: take a
        larger gamma for such a model (docs/findings.md).
    """

    gamma: float = 0.5

    def __post_init__(self):
        checks.at_least(0, **checks.fields_of(self, "gamma"))

    def init(self, key_B, canvas: Canvas) -> Bool[Array, "B L"]:
        del key_B
        return canvas.free_BL

    def step(self, key_B, canvas: Canvas, output: Output, memory: Bool[Array, "B L"], *, step, num_steps):
        del key_B
        bounded_BL = within_entropy(entropies(output.logits_BLV), memory, canvas.segment_BL, self.gamma)
        return commit(canvas, memory, bounded_BL | (step == num_steps - 1), *output.best())


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


def commit(canvas: Canvas, hidden_BL, where_BL, token_BL, score_BL) -> tuple[Canvas, Bool[Array, "B L"]]:
    """Writes the hidden positions among `where_BL`; returns the canvas and the positions that are still hidden.

    A sentence is finished if none of its positions is hidden any more.
    """
    written = write(canvas, hidden_BL & where_BL, token_BL, score_BL)
    hidden_BL = hidden_BL & ~where_BL
    return end_without(written, hidden_BL), hidden_BL


@dataclasses.dataclass(frozen=True)
class EasyFirst:
    """Parallel easy-first (Kasai et al., ICML 2020, DisCo): each position sees the positions easier than itself.

    The first pass predicts every position from the source alone, and its confidences fix an order. Every later pass
    predicts all positions at once, each from the current tokens of the positions before it in that order. So after k
    passes the k easiest tokens equal those of greedy decoding in that order. A sentence ends when a pass changes none
    of its tokens. The memory is the confidence of each position at step 0.

    Raises:
      PadirError (in `init`): the canvas has no visible_BLL, as the model is not decontextualised.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"decontextualised"})

    def init(self, key_B, canvas: Canvas) -> Float[Array, "B L"]:
        del key_B
        if canvas.visible_BLL is None:
            raise PadirError(
                "easy_first needs a canvas with visible_BLL: use a model with decontextualised=True, whose canvases"
                " have it"
            )
        return jnp.zeros_like(canvas.score_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: Float[Array, "B L"], *, step, num_steps):
        del key_B, num_steps
        written = write(canvas, canvas.free_BL, *output.best())
        confidence_BL = jnp.where(step == 0, written.score_BL, memory)
        easier_BLL = precedes(-confidence_BL, canvas.free_BL, canvas.segment_BL)
        assert canvas.visible_BLL is not None  # init refuses others
        # EOS has no place in the order, so the positions that see EOS stay the same.
        visible_BLL = jnp.where(canvas.free_BL[:, None, :], easier_BLL, canvas.visible_BLL)
        changed_BL = (written.tokens_BL != canvas.tokens_BL) | (step == 0)
        after = dataclasses.replace(written, visible_BLL=visible_BLL)
        return end_without(after, changed_BL), confidence_BL

"""Strategies in which the model's confidence decides how many positions are written at a step, or in which order."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from padir.errors import PadirError
from padir.refinement.canvas import Canvas, write
from padir.refinement.scores import Output
from padir.refinement.segments import precedes, worst


@dataclasses.dataclass(frozen=True)
class Threshold:
    """Writes the hidden positions whose confidence is above a threshold, and in any case a sentence's most confident.

    What is written stays; the last step writes all that is left. A row is done when nothing is hidden, so that easy
    sentences take fewer passes. Its memory is hidden_BL.

    Attributes:
      tau: the probability that a token must exceed; 0 is one-shot decoding, 1 writes one position a step.
      final_tau: if given, the threshold falls linearly by step, from tau at the first to this at the last.
    """

    tau: float = 0.9
    final_tau: float | None = None

    def __post_init__(self):
        if not 0 <= self.tau <= 1:
            raise PadirError(f"tau must be a probability in [0, 1], got {self.tau}")
        if self.final_tau is not None and not 0 <= self.final_tau <= self.tau:
            raise PadirError(f"final_tau must lie in [0, tau] = [0, {self.tau}], got {self.final_tau}")

    def init(self, key_B, canvas: Canvas) -> Bool[Array, "B L"]:
        del key_B
        return canvas.free_BL

    def step(self, key_B, canvas: Canvas, output: Output, memory: Bool[Array, "B L"], *, step, num_steps):
        del key_B
        token_BL, score_BL = output.best()
        final_tau = self.tau if self.final_tau is None else self.final_tau
        tau = self.tau + (final_tau - self.tau) * step / jnp.maximum(num_steps - 1, 1)
        confident_BL = (jnp.exp(score_BL) > tau) | worst(-score_BL, memory, canvas.segment_BL, 1)
        return _commit(canvas, memory, confident_BL | (step == num_steps - 1), token_BL, score_BL)


@dataclasses.dataclass(frozen=True)
class EntropyBound:
    """Writes as many hidden positions at once as their entropies allow (Ben-Hamu et al., 2025, EB-Sampler).

    A step writes the largest set of lowest-entropy positions of a sentence whose entropies, less the largest of them,
    sum up to at most gamma: the sum bounds the mutual information that is lost by writing them independently. One
    position is always written. The last step writes all that is left. A row is done when nothing is hidden. Its memory
    is hidden_BL.

    Attributes:
      gamma: the bound in nats; 0 writes one position a step (more only where entropies are 0).
    """

    gamma: float = 0.5

    def __post_init__(self):
        if not self.gamma >= 0:
            raise PadirError(f"gamma must be at least 0 nats, got {self.gamma}")

    def init(self, key_B, canvas: Canvas) -> Bool[Array, "B L"]:
        del key_B
        return canvas.free_BL

    def step(self, key_B, canvas: Canvas, output: Output, memory: Bool[Array, "B L"], *, step, num_steps):
        del key_B
        entropy_BL = entropies(output.logits_BLV)
        # Entropies ascend, so the largest of a set is its last: what a position must fit under is the sum before it.
        before_BLL = precedes(entropy_BL, memory, canvas.segment_BL)
        bounded_BL = jnp.where(before_BLL, entropy_BL[:, None, :], 0.0).sum(-1) <= self.gamma
        return _commit(canvas, memory, bounded_BL | (step == num_steps - 1), *output.best())


def entropies(logits_BLV: Float[Array, "B L V"]) -> Float[Array, "B L"]:
    """The entropy in nats of each position's distribution; ids at -inf have no part in it.

    >>> f"{entropies(jnp.array([[[0.0, 0.0, -jnp.inf]]]))[0, 0]:.4f}"  # log 2
    '0.6931'
    """
    log_prob_BLV = jax.nn.log_softmax(logits_BLV.astype(jnp.float32))
    return -jnp.where(log_prob_BLV > -jnp.inf, jnp.exp(log_prob_BLV) * log_prob_BLV, 0.0).sum(-1)


def _commit(canvas: Canvas, hidden_BL, where_BL, token_BL, score_BL) -> tuple[Canvas, Bool[Array, "B L"]]:
    """Writes those of the hidden positions; done when none is left. Returns what is still hidden, too."""
    written = write(canvas, hidden_BL & where_BL, token_BL, score_BL)
    hidden_BL = hidden_BL & ~where_BL
    return dataclasses.replace(written, done_B=canvas.done_B | ~hidden_BL.any(-1)), hidden_BL


@dataclasses.dataclass(frozen=True)
class EasyFirst:
    """Parallel easy-first (Kasai et al., ICML 2020, DisCo): each position sees those easier than itself.

    The first pass predicts every position from the source alone. Its confidences fix an order; at every later pass
    each position is predicted from the current tokens of the positions before it in that order, all at once. So the
    k easiest are right for good after k passes, as if written one after the other. A row is done when a pass changes
    nothing. Its memory is the confidence at step 0.

    Raises:
      PadirError (when started): the canvas does not say what each position sees, as a decontextualised model needs.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"decontextualised"})

    def init(self, key_B, canvas: Canvas) -> Float[Array, "B L"]:
        del key_B
        if canvas.visible_BLL is None:
            raise PadirError(
                "easy_first must say what each position sees, got a canvas without visible_BLL: use a model with"
                " decontextualised=True, whose canvases have it"
            )
        return jnp.zeros_like(canvas.score_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: Float[Array, "B L"], *, step, num_steps):
        del key_B, num_steps
        written = write(canvas, canvas.free_BL, *output.best())
        confidence_BL = jnp.where(step == 0, written.score_BL, memory)
        easier_BLL = precedes(-confidence_BL, canvas.free_BL, canvas.segment_BL)
        assert canvas.visible_BLL is not None  # init refuses others
        # EOS is no part of the order: who sees it stays as it was.
        visible_BLL = jnp.where(canvas.free_BL[:, None, :], easier_BLL, canvas.visible_BLL)
        unchanged_B = (written.tokens_BL == canvas.tokens_BL).all(-1) & (step > 0)
        after = dataclasses.replace(written, visible_BLL=visible_BLL, done_B=canvas.done_B | unchanged_B)
        return after, confidence_BL

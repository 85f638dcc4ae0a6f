"""Strategies that write as many positions at once as their confidences guarantee to belong together.

The guarantee. Let positions 1 .. k have the argmax tokens a_i with probabilities 1 - e_i under the model, and suppose
that these are the marginals of some joint distribution P of the k tokens, about which nothing else is known.

- A draw of P differs from a = (a_1, .., a_k) only if some position differs, so P(a) >= 1 - sum_i e_i, the lower bound
  of Frechet. It is reached if at most one position differs at a time.
- Any other choice x has some x_i != a_i, so P(x) <= P(X_i != a_i) = e_i <= max_i e_i.

So the tokens that are most likely one by one are the most likely ones together if

    sum_i e_i + max_i e_i < 1.

No weaker condition on the e_i suffices: the joint distribution in which position i alone differs with probability e_i,
always with the same other token, reaches both bounds. If the largest e of the k positions replaces each e_i, the
condition becomes (k + 1) max_i e_i < 1. With the positions in order of confidence both left sides grow with k, so that
there is a largest k.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from padir import checks
from padir.refinement.canvas import Canvas
from padir.refinement.scores import Output
from padir.refinement.segments import precedes
from padir.refinement.strategies.confidence import commit


@dataclasses.dataclass(frozen=True)
class Frechet:
    """Writes the most confident hidden positions while their doubts and the largest doubt, in sum, are below a bound.

    A position's doubt is 1 minus the probability of its most likely token. With the bound 1, the tokens that a step
    writes together are the most likely combination, whatever the dependence between their positions; this module's
    docstring derives the rule. A sentence's most confident position is always written, and the last step writes all
    hidden positions. A sentence ends when no position is hidden. The memory is hidden_BL, the positions that are not
    yet written. arXiv 2606.02955 proposes this rule for diffusion language models (its project page states it).

    Attributes:
      bound: above 0; a larger bound writes more positions in a step and guarantees nothing.
    """

    bound: float = 1.0

    def __post_init__(self):
        checks.above(0, **checks.fields_of(self, "bound"))

    def init(self, key_B, canvas: Canvas) -> Bool[Array, "B L"]:
        del key_B
        return canvas.free_BL

    def step(self, key_B, canvas: Canvas, output: Output, memory: Bool[Array, "B L"], *, step, num_steps):
        del key_B
        token_BL, score_BL = output.best()
        before_BLL = precedes(-score_BL, memory, canvas.segment_BL)
        within_BL = self._doubts(-jnp.expm1(score_BL), before_BLL) < self.bound
        return commit(canvas, memory, within_BL | ~before_BLL.any(-1) | (step == num_steps - 1), token_BL, score_BL)

    def _doubts(self, doubt_BL: Float[Array, "B L"], before_BLL: Bool[Array, "B L L"]) -> Float[Array, "B L"]:
        """The sum of the doubts of a position and all more confident ones, the position's own counting twice."""
        return jnp.where(before_BLL, doubt_BL[:, None, :], 0.0).sum(-1) + 2 * doubt_BL


@dataclasses.dataclass(frozen=True)
class Factor(Frechet):
    """Writes the k most confident hidden positions while k + 1 times the largest of their doubts is below a bound.

    This is `Frechet` with the largest doubt in place of every doubt, so that it never writes more in a step. It is the
    rule of Fast-dLLM (arXiv 2505.22618), as the project page of arXiv 2606.02955 quotes it.
    """

    def _doubts(self, doubt_BL: Float[Array, "B L"], before_BLL: Bool[Array, "B L L"]) -> Float[Array, "B L"]:
        """k + 1 times a position's doubt, if it is the k-th most confident one."""
        return (before_BLL.sum(-1) + 2) * doubt_BL

"""Strategies that write as many masked positions in a pass as a bound on their uncertainty allows.

They differ from `Factor` and `Renoise` of padir in the bound alone, and no table of the pages has them in its best row.
"""

from functools import partial
from typing import Annotated

import jax.numpy as jnp

from padir import checks
from padir.refinement import Canvas, NothingOpen, Output, Proposal
from padir.refinement.protocols import Memoryless
from padir.refinement.segments import precedes
from padir.refinement.strategies.confidence import commit, entropies, within_entropy


@checks.settings
class EntropyBound(Memoryless):
    """Writes as many masked positions at once as their entropies allow (Ben-Hamu et al., 2025, EB-Sampler).

    A step writes the masked positions of lowest entropy whose entropies, without the largest of them, sum to at most
    gamma. This sum bounds the mutual information that is lost because the positions are written independently. One
    position is always written, and the last step writes all. A sentence ends when no position is masked.

    Attributes:
      gamma: the bound in nats, at least 0; with 0 a step writes one position, or several if their entropies are 0.
        Label smoothing needs a larger gamma (`Renoise`).
    """

    gamma: Annotated[float, partial(checks.at_least, 0)] = 0.5
    stop = NothingOpen()

    def step(self, key_B, canvas: Canvas, output: Output, memory, *, step, num_steps) -> Proposal:
        entropy_BL = entropies(output.logits_BLV)
        bounded_BL = within_entropy(entropy_BL, canvas.masked_BL, canvas.segment_BL, self.gamma)
        return commit(canvas, output.best(canvas.masked_BL), bounded_BL, memory)


@checks.settings
class Frechet(Memoryless):
    """Writes the most confident masked positions, as many as a bound on the sum of their doubts allows.

    A position's doubt is 1 minus the probability of its most likely token. The sum of the doubts of the written
    positions, with the largest doubt counted twice, must be below the bound. With the bound 1, the tokens of a step are
    also the most likely combination, even if the positions depend on each other (docs/theory.md). One position is
    always written, and the last step writes all. A sentence ends when no position is masked. arXiv 2606.02955 proposes
    this rule for diffusion language models (its project page states it).

    Attributes:
      bound: above 0; a larger bound writes more positions in a step and guarantees nothing.
    """

    bound: checks.Positive = 1.0
    stop = NothingOpen()

    def step(self, key_B, canvas: Canvas, output: Output, memory, *, step, num_steps) -> Proposal:
        best = output.best(canvas.masked_BL)
        score_BL = best[1]
        doubt_BL = -jnp.expm1(score_BL)
        before_BLL = precedes(-score_BL, canvas.masked_BL, canvas.segment_BL)
        sum_BL = jnp.where(before_BLL, doubt_BL[:, None, :], 0.0).sum(-1) + 2 * doubt_BL
        return commit(canvas, best, (sum_BL < self.bound) | ~before_BLL.any(-1), memory)

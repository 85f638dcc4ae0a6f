"""A strategy of one's own in one class: writes the canvas from left to right, a few positions in each pass."""

import jax.numpy as jnp

from padir import checks
from padir.refinement import Canvas, NothingOpen, Output, Proposal, write
from padir.refinement.segments import worst


@checks.settings
class LeftToRight:
    """Writes the `count` leftmost masked positions of a sentence in each pass."""

    count: checks.Count = 2
    stop = NothingOpen()  # a sentence ends when no position is masked

    def init(self, key_B, canvas: Canvas):
        return ()  # no memory: the canvas knows which positions are masked

    def step(self, key_B, canvas: Canvas, output: Output, memory, *, step, num_steps) -> Proposal:
        masked_BL = canvas.masked_BL
        first_BL = worst(jnp.zeros(masked_BL.shape), masked_BL, canvas.segment_BL, self.count)  # ties go to the left
        best = output.best(masked_BL)
        return Proposal(write(canvas, first_BL, *best), write(canvas, masked_BL, *best), memory)

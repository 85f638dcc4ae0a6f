"""Transitions between two training stages (the protocol `StageTransition`): the paper's, SMART's, GLAT's and SUNDAE's.

The configurations in configs/objective/ give each transition its stage weights: SMART and GLAT have no loss on the
first stage, SUNDAE has a loss on both stages.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Float

from padir import checks
from padir.refinement.canvas import Canvas, remask, write
from padir.refinement.protocols import Strategy
from padir.refinement.scores import Output
from padir.refinement.segments import choose, choose_share, choose_some, count_in_segment
from padir.refinement.strategies.rewriting import MaskPredict, Padir
from padir.refinement.strategies.sampling import sample_tokens


@dataclasses.dataclass(frozen=True)
class FromStrategy:
    """The paper's transition: the first of two steps of a decoding strategy, whose rule ends no sentence here.

    The published implementation does the same between two stages. With S stages, its linear rejecter makes the steps 1,
    2, ... of S, and each `FromStrategy` the first of 2. Its "start" tokens are the first stage's input, which may hold
    right tokens; here they are noise.

    Attributes:
      strategy: the decoding strategy; the trained model is decoded with it by default.
    """

    strategy: Strategy = Padir()

    def __call__(self, key_B, canvas: Canvas, output: Output, target_BL, chosen_BL, *, progress):
        nothing_BL = jnp.zeros_like(canvas.written_BL)
        canvas = dataclasses.replace(canvas, score_BL=jnp.zeros_like(canvas.score_BL), written_BL=nothing_BL)
        memory = self.strategy.init(key_B, canvas)
        proposal = self.strategy.step(key_B, canvas, output, memory, step=0, num_steps=2)
        return proposal.next, chosen_BL


@dataclasses.dataclass(frozen=True)
class Smart:
    """SMART (Ghazvininejad et al., 2020): fills in the model's own argmax, then hides a random part of the tokens.

    The argmax is written where the corruption had hidden the target. Then n random editable positions of each segment
    are masked, whether they hold target tokens or predictions; n is uniform over 1 .. L. The next stage thus sees a
    mixture of right tokens, the model's own mistakes and masks, as in Mask-Predict.
    """

    strategy = MaskPredict()  # the model's default strategy in decoding

    def __call__(self, key_B, canvas: Canvas, output: Output, target_BL, chosen_BL, *, progress):
        filled = write(canvas, chosen_BL, *output.best())
        masked_BL = choose_some(key_B, canvas.editable_BL, canvas.segment_BL)
        return remask(filled, masked_BL), masked_BL


@checks.settings
class Glat:
    """GLAT's glancing (Qian et al., ACL 2021, section 3.2): shows more target tokens where the prediction was worse.

    Each of the n editable positions of a segment shows its target token with probability p * d / n. Here d is the
    Hamming distance between argmax and target, so p * d tokens are shown on average. All other editable positions get
    their initial tokens. The ratio p goes linearly from `start` to `end` over the training run. In the paper, the
    number of shown tokens is p * d rounded down (`exact`), and the decoder's other inputs are copies of encoder states,
    not initial tokens.

    Attributes:
      start, end: p at the beginning and at the end of the training run, in [0, 1].
      exact: show floor(p * d) random positions of a segment, as in the paper; otherwise each position by itself.
    """

    start: checks.Share = 0.5
    end: checks.Share = 0.3
    exact: bool = False

    @property
    def follows_progress(self) -> bool:
        return self.start != self.end

    def ratio(self, progress: Float[Array, ""] | float) -> Float[Array, ""] | float:
        """The ratio p when a share `progress` of the training run is done."""
        return self.start + (self.end - self.start) * progress

    def __call__(self, key_B, canvas: Canvas, output: Output, target_BL, chosen_BL, *, progress):
        wrong_BL = canvas.editable_BL & (output.best()[0] != target_BL)
        distance_BL = count_in_segment(wrong_BL, canvas.segment_BL)
        shown = self.ratio(progress) * distance_BL
        if self.exact:
            count_BL = jnp.floor(shown + 1e-4).astype(jnp.int32)
            shown_BL = choose(key_B, canvas.editable_BL, canvas.segment_BL, count_BL)
        else:
            free = jnp.maximum(count_in_segment(canvas.editable_BL, canvas.segment_BL), 1)
            shown_BL = choose_share(key_B, canvas.editable_BL, canvas.segment_BL, shown / free)
        blank = remask(canvas, canvas.editable_BL)
        return write(blank, shown_BL, target_BL, blank.score_BL), canvas.editable_BL & ~shown_BL


@checks.settings
class SampledUnroll:
    """SUNDAE's unroll (Savinov et al., ICLR 2022, section 3): samples every editable position from the model at once.

    Attributes:
      temperature: divisor of the logits before sampling, above 0.
    """

    temperature: Annotated[float, partial(checks.above, 0, "use FromStrategy() for the argmax")] = 1.0

    def __call__(self, key_B, canvas: Canvas, output: Output, target_BL, chosen_BL, *, progress):
        sampled = sample_tokens(key_B, output, canvas.segment_BL, self.temperature)
        return write(canvas, canvas.editable_BL, *sampled), chosen_BL

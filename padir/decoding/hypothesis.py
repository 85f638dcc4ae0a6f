"""A sentence as writers read it (`SourceSentence`), and a translation that they offer for it (`Hypothesis`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from padir.decoding.templates import Template
from padir.errors import PadirError


class SourceSentence(NamedTuple):
    """A sentence as a writer reads it.

    Attributes:
      text: the whole sentence in the form that the model was trained with.
      tokens: the encoder's input (`LoadedModel.source_tokens`), cut if the sentence is too long for the model.
      target_length: number of target tokens, EOS included, or from left to right their limit; None to predict it.
      template: fixed tokens and gaps of the translation; None leaves every token open.
    """

    text: str
    tokens: list[int]
    target_length: int | None = None
    template: Template | None = None


class Hypothesis(NamedTuple):
    """A translation that a writer offers for one sentence.

    Attributes:
      tokens: target ids without EOS, after repeated ones were dropped.
      score: the writer's own score; higher is better. It may be NaN if the sentence has no other hypothesis.
      rank: orders the hypotheses of a sentence where no rule does, highest first; None for the score.
      passes: decoder passes that the hypothesis took.
      oscillated: True if the strategy ended it because it oscillated between two canvases.
      fell_back: True if another writer had left an unknown word in the sentence (`padir.decoding.fallback`).
      whole: target ids before repeated ones were dropped; None if none are dropped.
      trace: ids and log-probabilities of the draft and of every step, each [T, L], NaN where nothing is written yet;
        None without a trace.
      text: the clean text; None until a rule needs it.
      causal: log-probability and number of tokens, EOS included, by the model's own causal side; None until a rule
        needs it.
    """

    tokens: list[int]
    score: float
    passes: int
    oscillated: bool = False
    fell_back: bool = False
    whole: list[int] | None = None
    trace: tuple[Int[np.ndarray, "T L"], Float[np.ndarray, "T L"]] | None = None
    rank: float | None = None
    text: str | None = None
    causal: tuple[float, int] | None = None

    @property
    def order(self) -> float | np.floating:
        """The number that orders the hypotheses of a sentence, highest first, where no rule does."""
        return self.score if self.rank is None else self.rank

    @property
    def length(self) -> int:
        """Number of target tokens that were written, EOS included."""
        return 1 + len(self.tokens if self.whole is None else self.whole)


def not_finite() -> PadirError:
    what = "the log-probability of a hypothesis is not finite, so that its text means nothing"
    remedy = "a strategy of your own must write each position, with its score; else check the weights, or use float32"
    return PadirError(what, remedy=remedy)

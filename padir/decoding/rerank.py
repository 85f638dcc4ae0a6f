"""How one of a sentence's hypotheses is chosen, one frozen dataclass a rule; the best score wins, ties go to the first.

The hypotheses are what decoding wrote at several lengths or from several drafts. `OwnScore` asks the model that wrote
them, `Rescore` another one (an autoregressive model reads a finished sentence in one teacher-forced pass), and
`MinimumBayesRisk` asks which of them the others agree with.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from padir.errors import PadirError

ScoreFn = Callable[[Sequence[str], Sequence[str]], Sequence[tuple[float, int]]]
"""(sources, targets) -> of each target its log-probability, and the number of tokens that this is the sum of."""


class Hypothesis(NamedTuple):
    """One finished draft of a sentence.

    Attributes:
      text: what it says; "" for a rule that does not read it.
      log_prob: sum of its tokens' log-probabilities, each as of when it was last written; EOS, which the length places,
        is not among them.
      tokens: how many tokens that sum has.
      length_log_prob: log-probability of its length; None where the length head is no classifier.
    """

    text: str
    log_prob: float
    tokens: int
    length_log_prob: float | None = None


@runtime_checkable
class Rerank(Protocol):
    """A frozen dataclass that scores every hypothesis of every sentence of a batch; higher is better.

    `reads_text` says whether it needs the texts, which are only made where somebody reads them.
    """

    @property
    def reads_text(self) -> bool: ...

    def __call__(
        self, sources: Sequence[str], hypotheses: Sequence[Sequence[Hypothesis]], *, target_language: str
    ) -> list[list[float]]: ...


@dataclasses.dataclass(frozen=True)
class OwnScore:
    """(log-probability of the tokens + length_weight * log-probability of the length) / tokens ** brevity.

    brevity=1 is the mean per token, 0 the sum; brevity=0 with length_weight=1 is the joint log-probability of length
    and tokens. The smaller the exponent, the shorter the winners.

    Attributes:
      brevity: exponent of the number of tokens.
      length_weight: how much the length head's own opinion counts.

    Raises:
      PadirError: a negative number; when called, length_weight for a length head that gives no probabilities.
    """

    brevity: float = 1.0
    length_weight: float = 0.0
    reads_text = False

    def __post_init__(self):
        _check_brevity(self.brevity)
        if not 0 <= self.length_weight < math.inf:  # nan, too
            raise PadirError("length_weight", "at least 0 and finite", self.length_weight)

    def __call__(self, sources, hypotheses, *, target_language) -> list[list[float]]:
        return [[self._score(hypothesis) for hypothesis in row] for row in hypotheses]

    def _score(self, hypothesis: Hypothesis) -> float:
        return self.of(hypothesis.log_prob, hypothesis.tokens, hypothesis.length_log_prob)

    def of(self, log_prob: Any, tokens: Any, length_log_prob: Any = None) -> Any:
        """The score of a `Hypothesis`' numbers, or of arrays of them."""
        if self.length_weight:
            if length_log_prob is None:
                raise PadirError(
                    "length_weight needs a length head that gives probabilities ('token'), this model has none: use"
                    " length_weight=0"
                )
            log_prob = log_prob + self.length_weight * length_log_prob
        return _normalised(log_prob, tokens, self.brevity)


@dataclasses.dataclass(frozen=True)
class Rescore:
    """Another model's log-probability of the text / tokens ** brevity, as in noisy parallel decoding (Gu et al., 2018).

    `padir.decoding.rescorer.rescorer` makes one of an autoregressive model's directory.

    Attributes:
      score_fn: (sources, targets) -> (log-probability, tokens) of each target.
      brevity: exponent of the number of tokens, in that model's pieces; 1 is the mean.
      name: of the model, for tables.
      target_language: that it knows; "" for any.

    Raises:
      PadirError: a negative exponent; when called, texts of another language.
    """

    score_fn: ScoreFn
    brevity: float = 1.0
    name: str = ""
    target_language: str = ""
    reads_text = True

    def __post_init__(self):
        _check_brevity(self.brevity)

    def __call__(self, sources, hypotheses, *, target_language) -> list[list[float]]:
        if self.target_language not in ("", target_language):
            raise PadirError(
                f"{self.name} rescores translations into {self.target_language!r}, got {target_language!r}: name a"
                " model of the same languages"
            )
        repeated = [source for source, row in zip(sources, hypotheses, strict=True) for _ in row]
        texts = [hypothesis.text for row in hypotheses for hypothesis in row]
        scored = iter(self.score_fn(repeated, texts))
        return [
            [_normalised(log_prob, tokens, self.brevity) for _, (log_prob, tokens) in zip(row, scored, strict=False)]
            for row in hypotheses
        ]


@dataclasses.dataclass(frozen=True)
class MinimumBayesRisk:
    """The mean utility of a text with all hypotheses of the sentence as its references (Kumar and Byrne, 2004).

    Every hypothesis has the same weight, so that a text which several of them share counts as often.

    Attributes:
      utility: "chrf" or "bleu", both at sentence level by SacreBLEU (BLEU with effective order and the tokenizer of
        the target language).
    """

    utility: str = "chrf"
    reads_text = True

    def __post_init__(self):
        if self.utility not in ("chrf", "bleu"):
            raise PadirError(f"utility must be chrf or bleu, got {self.utility!r}")

    def __call__(self, sources, hypotheses, *, target_language) -> list[list[float]]:
        from padir.metrics.scores import sentence_metric  # SacreBLEU is only wanted by those who score

        metric = sentence_metric(self.utility, target_language)
        results = []
        for row in hypotheses:
            votes = collections.Counter(hypothesis.text for hypothesis in row)
            utility = {
                text: sum(
                    count * (100.0 if text == other else metric.sentence_score(text, [other]).score)
                    for other, count in votes.items()
                )
                / len(row)
                for text in votes
            }
            results.append([utility[hypothesis.text] for hypothesis in row])
        return results


def _normalised(log_prob: Any, tokens: Any, brevity: float) -> Any:
    return log_prob / (tokens + (tokens == 0)) ** brevity  # numbers or arrays, which `max` would not take


def _check_brevity(brevity: float) -> None:
    if not 0 <= brevity < math.inf:  # nan, too
        raise PadirError("brevity", "at least 0 (1 is the mean per token, 0 the sum) and finite", brevity)

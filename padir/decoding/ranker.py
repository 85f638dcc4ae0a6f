"""Rules that choose one of a sentence's hypotheses, one frozen dataclass each; the first of equal scores wins.

Without a rule, the scores of the writer decide. `CausalScore` uses the autoregressive side of the same dual model,
`Rescore` another autoregressive model; both read a finished sentence in one teacher-forced pass. `MinimumBayesRisk`
prefers the hypothesis that the others agree with.
"""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Protocol, runtime_checkable

from padir import checks
from padir.decoding.hypothesis import Hypothesis
from padir.errors import OWN_CLASS, PadirError, nearest
from padir.from_text import module_of
from padir.pretrained import PRETRAINED, model_folder
from padir.text.languages import lacks_spaces

ScoreFn = Callable[[Sequence[str], Sequence[str]], Sequence[tuple[float, int]]]
"""Function from (sources, targets) to each target's (log-probability, number of tokens that are summed)."""


@runtime_checkable
class Ranker(Protocol):
    """Protocol of rules: a frozen dataclass that scores the hypotheses of every sentence of a batch; higher is better.

    It is called only for sentences with several hypotheses; others keep their writer's score. `needs` names the fields
    of `Hypothesis` that it reads beside those that writers fill in: "text", "causal". A field that it does not name is
    None. On a CPU two threads may call padir's own rules; a rule of somebody's own is called in the caller's thread.
    """

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(
        self, sources: Sequence[str], hypotheses: Sequence[Sequence[Hypothesis]], *, target_language: str
    ) -> list[list[float]]: ...


NEEDS = frozenset({"text", "causal"})


@checks.settings
class CausalScore:
    """Score by a dual model's own autoregressive side: log-probability / tokens ** length_normalization.

    One teacher-forced pass of the decoder reads all hypotheses, after the clean-up of repeated tokens. A beginning that
    several share is computed once (`padir.decoding.autoregressive.PrefixTrees`). The encoder does not run again.

    Attributes:
      length_normalization: exponent of the number of tokens; 1 is the mean.
    """

    length_normalization: checks.NotNegative = 1.0
    needs = frozenset({"causal"})

    def __call__(self, sources, hypotheses, *, target_language) -> list[list[float]]:
        return [[self._of(each) for each in row] for row in hypotheses]

    def _of(self, hypothesis: Hypothesis) -> float:
        assert hypothesis.causal is not None
        log_prob, tokens = hypothesis.causal
        return length_normalised(log_prob, tokens, self.length_normalization)


@checks.settings
class Rescore:
    """Score by another model: log-probability / tokens ** length_normalization, or noisy parallel decoding (Gu et al.,
    2018).

    `padir.translator.rescorer` makes this rule from an autoregressive model's directory. Texts in another
    language than `target_language` ("" for any) are refused.

    Attributes:
      score_fn: the other model as a function from (sources, targets) to (log-probability, tokens) of each target; None
        for a rule that only names a model.
      length_normalization: exponent of the number of tokens, in the other model's pieces; 1 is the mean.
      name: the other model's name in tables.
    """

    score_fn: ScoreFn | None
    length_normalization: checks.NotNegative = 1.0
    name: str = ""
    target_language: str = ""
    needs = frozenset({"text"})

    def __call__(self, sources, hypotheses, *, target_language) -> list[list[float]]:
        if self.target_language not in ("", target_language):
            what = f"{self.name} rescores translations into {self.target_language!r}"
            raise PadirError(what, got=target_language, remedy="name a model of the same languages")
        repeated = [source for source, row in zip(sources, hypotheses, strict=True) for _ in row]
        texts = [hypothesis.text or "" for row in hypotheses for hypothesis in row]
        if self.score_fn is None:
            what = f"this rule only names the model {self.name}"
            raise PadirError(what, remedy="make it by padir.translator.rescorer, or translate by a Translator")
        scored = iter(self.score_fn(repeated, texts))
        return [
            [
                length_normalised(log_prob, tokens, self.length_normalization)
                for _, (log_prob, tokens) in zip(row, scored, strict=False)
            ]
            for row in hypotheses
        ]


@checks.settings
class MinimumBayesRisk:
    """Score by the mean utility of a text with all hypotheses of the sentence as references (Kumar and Byrne, 2004).

    Every hypothesis has the same weight, so a text that several hypotheses share counts several times.

    Attributes:
      utility: "chrf" or "bleu", both at sentence level by SacreBLEU (BLEU with effective order and the tokenizer of
        the target language; for texts without spaces, characters if that tokenizer splits at spaces).
    """

    utility: Annotated[str, partial(checks.one_of, ("chrf", "bleu"))] = "chrf"
    needs = frozenset({"text"})

    def __call__(self, sources, hypotheses, *, target_language) -> list[list[float]]:
        from padir.metrics.scores import sentence_metric  # needs SacreBLEU, which takes long to import

        metrics = [sentence_metric(self.utility, target_language, unspaced=unspaced) for unspaced in (False, True)]
        results = []
        for row in hypotheses:
            votes = collections.Counter(hypothesis.text or "" for hypothesis in row)
            metric = metrics[lacks_spaces(votes)]
            utility = dict.fromkeys(votes, 0.0)
            for text, (other, count) in itertools.product(votes, votes.items()):
                utility[text] += count * (100.0 if text == other else metric.sentence_score(text, [other]).score)
            results.append([utility[hypothesis.text or ""] / len(row) for hypothesis in row])
        return results


def length_normalised(log_prob: Any, tokens: Any, length_normalization: float) -> Any:
    """The score log_prob / tokens ** length_normalization, of numbers or of arrays; no token counts as one.

    >>> length_normalised(-3.0, 6, 0.0)
    -3.0
    """
    return log_prob / (tokens + (tokens == 0)) ** length_normalization


RULES: dict[str, Callable[[float], Ranker | None]] = {
    "own": lambda length_normalization: None,
    "causal": CausalScore,
    "mbr": lambda length_normalization: MinimumBayesRisk("chrf"),
    "mbr_bleu": lambda length_normalization: MinimumBayesRisk("bleu"),
}
"""Makers of the rules that need no other model, by name, from `Decoding.length_normalization`; None is the writer's.

If a rule has the field `length_normalization`, its maker must pass the number on: users may set it beside such a rule.
"""


def reads_normalization(rerank: Ranker | str) -> bool:
    """True if a rule reads `Decoding.length_normalization`: a named one of padir that scores by log-probabilities."""
    if not isinstance(rerank, str) or module_of(rerank):
        return False
    rule = RULES[rerank](1.0) if rerank in RULES else Rescore(None)
    return rule is None or hasattr(rule, "length_normalization")


def ranker_of(name: str, length_normalization: float = 1.0) -> Ranker | None:
    """Makes a rule of `RULES`, None for "own", or one that rescores with a model, which `Translator.resolved` loads.

    >>> ranker_of("causal", length_normalization=0.5)
    CausalScore(length_normalization=0.5)
    """
    if name in RULES:
        return RULES[name](length_normalization)
    if os.sep not in name and not model_folder(name).exists():
        what = f"rerank {name!r} is neither a rule nor a model directory"
        fields = "a rule's name takes no fields; " if name.partition(":")[0] in RULES else ""
        raise PadirError(what, remedy=f"{fields}{nearest(name, [*RULES, *PRETRAINED])}; {OWN_CLASS}")
    return Rescore(None, length_normalization, name)

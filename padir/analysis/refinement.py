"""Metrics of refinement: changes, calibration and correctness by step, and quality by strategy and number of passes.

`steps` measures one decoding run of T steps: tokens that change, calibration, and the share of right sentences. Every
sentence has its reference's length, and a token is right if the reference has the same token at the same position.
References of the built-in corpus are drawn from the right translations; there, a calibrated model that gives a token
0.7 at step 1 is right 7 times in 10. At later steps the model reads its own draft.

`outcomes` measures every strategy at several numbers of passes: exact match and, on the built-in corpus, right
translations and mode mixing. Each number of passes is decoded anew, because a strategy's schedule depends on it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from padir.analysis.attention import check_model
from padir.analysis.calibration import Reliability, reliability
from padir.analysis.passes import Pass, reference_tokens, refined
from padir.data.toy import judge
from padir.decoding.choice import draft_text
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.evaluation import TestSet, evaluate
from padir.refinement.corruption import Mask, noise_kinds
from padir.refinement.protocols import Strategy
from padir.refinement.strategies import STRATEGIES, parse_strategy

METRICS = ("bleu", "exact_match", "toy_right", "toy_mixed", "stutter", "passes")
TOY = "toy_de_en"
MOST_TOKENS = 16  # longest sentence that is shown, if there are shorter ones
# At temperature 0, so that strategies do not differ by chance.
CORRECTORS = (
    "block_gibbs:temperature=0.0",
    "block_gibbs:block=4,temperature=0.0",
    "block_gibbs:block=4,temperature=0.0,parallel=True",
    "independent_parallel:temperature=0.0",
)


@dataclasses.dataclass(frozen=True)
class StepMetrics:
    """Metrics of one step over all sentences; shares are of 1.

    Attributes:
      changed: share of free tokens that the step changed.
      settled: share of sentences that the step did not change.
      reliability: reliability curve of the tokens written so far; None if there are none.
      equal: share of sentences that equal the reference, token by token, after the step.
      right, mixed: share of sentences that are right translations after the step, or mixtures of right translations;
        None where the right translations are unknown. Sentences with hidden tokens are neither.
    """

    changed: float
    settled: float
    reliability: Reliability | None
    equal: float
    right: float | None = None
    mixed: float | None = None

    def row(self) -> dict[str, Any]:
        """The metrics as columns of a table."""
        found: dict[str, Any] = {"changed": self.changed, "settled": self.settled}
        if self.reliability is not None:
            found |= {"confidence": self.reliability.confidence, "accuracy": self.reliability.accuracy}
            found["calibration_error"] = self.reliability.error
        found["equal"] = self.equal
        return found if self.right is None else found | {"right": self.right, "mixed": self.mixed}


class SentenceRun(NamedTuple):
    """One sentence through T steps.

    Attributes:
      tokens_TL, score_TL: tokens of the free positions before the first step and after each step, and the
        log-probability of each when it was written; NaN where nothing has been written.
      target_L: the reference's tokens.
      verdict_T: "right", "mixed" or "wrong" after each step; None where the right translations are unknown.
    """

    tokens_TL: Int[np.ndarray, "T1 L"]
    score_TL: Float[np.ndarray, "T1 L"]
    target_L: Int[np.ndarray, " L"]
    verdict_T: Sequence[str] | None = None


def tally(runs: Iterable[SentenceRun]) -> list[StepMetrics]:
    """Metrics of every step over all sentences.

    Raises:
      PadirError: no sentences.
    """
    runs = list(runs)
    if not runs:
        raise PadirError("there are no sentences to analyse: give some")
    found = []
    for t in range(1, len(runs[0].tokens_TL)):
        differs = [run.tokens_TL[t] != run.tokens_TL[t - 1] for run in runs]
        written = [~np.isnan(run.score_TL[t]) for run in runs]
        right = [run.tokens_TL[t] == run.target_L for run in runs]
        confidence_P = np.exp(np.concatenate([run.score_TL[t] for run in runs]))
        written_P, right_P = np.concatenate(written), np.concatenate(right)
        verdicts = [run.verdict_T[t - 1] for run in runs if run.verdict_T is not None]
        found.append(
            StepMetrics(
                changed=float(np.concatenate(differs).mean()) if len(written_P) else 0.0,
                settled=float(np.mean([not each_L.any() for each_L in differs])),
                reliability=reliability(confidence_P[written_P], right_P[written_P]) if written_P.any() else None,
                equal=float(np.mean([(hit_L & there_L).all() for hit_L, there_L in zip(right, written, strict=True)])),
                right=verdicts.count("right") / len(runs) if verdicts else None,
                mixed=verdicts.count("mixed") / len(runs) if verdicts else None,
            )
        )
    return found


def steps(translator: Translator, test_set: TestSet, decoding: Decoding) -> list[StepMetrics]:
    """Metrics of every step of a decoding run with the references' lengths.

    Raises:
      PadirError: the model's passes cannot be analysed, or there are no sentences.
    """
    check_model(translator.card.config)
    decoding = translator.resolved(decoding)
    targets = reference_tokens(translator, test_set)
    judged = test_set.task == TOY and test_set.source_language == "de"
    verdicts: dict[tuple[int, str], str] = {}  # most steps leave a draft as it is

    def verdict(number: int, tokens_L, score_L) -> str:
        if np.isnan(score_L).any():
            return "wrong"
        text = draft_text(translator.loaded, decoding, tokens_L, np.ones(len(tokens_L), bool))
        if (number, text) not in verdicts:
            verdicts[number, text] = judge(test_set.sources[number], text)
        return verdicts[number, text]

    def runs():
        for one in refined(translator, test_set, decoding, [len(tokens) for tokens in targets]):
            for row, number in one.rows():
                length = int(one.length_B[row]) - 1
                tokens_TL, score_TL = one.tokens_TBL[:, row, :length], one.score_TBL[:, row, :length]
                after = zip(tokens_TL[1:], score_TL[1:], strict=True)
                said_T = [verdict(number, *each) for each in after] if judged else None
                yield SentenceRun(tokens_TL, score_TL, np.array(targets[number][:length], int), said_T)

    return tally(runs())


def outcomes(
    translator: Translator,
    test_set: TestSet,
    decoding: Decoding,
    strategies: Sequence[str],
    num_steps: Sequence[int],
    progress: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """Metrics of translations, a row for every strategy and number of steps.

    Args:
      decoding: decoding options other than strategy and number of steps.
      strategies: strategies as the command line names them.
      num_steps: numbers of steps.
      progress: receives each row.

    Raises:
      PadirError: an unknown strategy, or one that the model cannot run.
    """
    rows = []
    for name in strategies:
        for count in num_steps:
            one = with_strategy(translator, decoding, parse_strategy(name))
            metrics = evaluate(translator, test_set, dataclasses.replace(one, num_steps=count)).metrics
            row = {"strategy": name, "steps": count} | {k: metrics[k] for k in METRICS if k in metrics}
            rows.append(row)
            progress(row)
    return rows


def with_strategy(translator: Translator, decoding: Decoding, strategy: Strategy) -> Decoding:
    """Decoding options with this strategy and, if the strategy needs masks that the model knows, a canvas of masks.

    Raises:
      PadirError: the model cannot run the strategy.
    """
    canvas = decoding.canvas
    if "mask" in getattr(strategy, "needs", ()) and not translator.card.config.decontextualised:
        assert translator.card.corruption is not None
        kinds = noise_kinds(translator.card.corruption)
        canvas = Mask() if canvas is None and kinds is not None and "mask" in kinds else canvas
    changed = dataclasses.replace(decoding, strategy=strategy, canvas=canvas)
    translator.resolved(changed)
    return changed


def runnable(translator: Translator, decoding: Decoding) -> tuple[list[str], dict[str, str]]:
    """(strategies that a model can run, reasons against the others); strategies are at temperature 0."""
    names, refused = [], collections.OrderedDict()
    for name, cls in STRATEGIES.items():
        text = name
        if any(field.name == "temperature" for field in dataclasses.fields(cls)):  # type: ignore[arg-type]
            text = f"{name}:temperature=0.0"
        if name == "sundae":
            text += ",order=uncertain"
        try:
            with_strategy(translator, decoding, parse_strategy(text))
            names.append(text)
        except PadirError as error:
            refused[name] = str(error)
    return names, refused


def examples(translator: Translator, test_set: TestSet, decoding: Decoding, count: int) -> list[tuple[Pass, int, int]]:
    """(batch, row, sentence) of the sentences that took the most steps, longest first.

    Sentences above `MOST_TOKENS`, too wide for a picture, are returned only if there are no others, shortest first.
    """
    found: list[tuple[tuple[int, ...], Pass, int]] = []
    for one in refined(translator, test_set, decoding):
        for row, number in one.rows():
            passes, length = int(one.passes_B[row]), int(one.length_B[row])
            if length > 2:
                order = (1, passes, length) if length <= MOST_TOKENS else (0, -length, 0)
                found.append(((*order, -number), one, row))
        # Batches without examples are dropped, because they hold the encoder's memory.
        found = sorted(found, key=lambda each: each[0], reverse=True)[:count]
    return [(one, row, -order[-1]) for order, one, row in found if order[0] == found[0][0][0]]

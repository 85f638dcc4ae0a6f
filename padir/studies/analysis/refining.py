"""Metrics of refinement: changes, calibration and correctness after every step, and outcomes of every strategy.

`step_metrics` measures one decoding run of T steps: the tokens that each step changes, calibration, and the share of
sentences that are right after each step. Each sentence gets its reference's length. A token is right if the reference
has the same token at the same position. If references are drawn from the right translations, as in the built-in corpus,
a calibrated model is right for about 7 in 10 of the tokens to which it gives probability 0.7. This is true only for
step 1, because later steps also see the model's own draft.

`outcomes` measures every strategy at every number of steps: exact match and, on the built-in corpus, right translations
and mode mixing. Sentences are decoded again for every number of steps, because a strategy's schedule depends on it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from padir.data.toy import are_judged, judge
from padir.decoding.options import Decoding
from padir.errors import PadirError
from padir.evaluation import TestSet, evaluate
from padir.refinement.corruption import Mask
from padir.refinement.protocols import Strategy
from padir.refinement.strategies import STRATEGIES, parse_strategy
from padir.reporting.page import Section, cell
from padir.studies.analysis import plotting, study
from padir.studies.analysis.association import Reliability, reliability
from padir.studies.analysis.study import (
    AnalysisOptions,
    Findings,
    Row,
    Tell,
    check_model,
    pieces,
    reference_tokens,
    refined,
)
from padir.text.cleaning import text_of, without_repeats
from padir.translator import Translator

METRICS = ("bleu", "exact_match", "toy_right", "toy_mixed", "stutter", "stutter_before", "passes")
TOY = "toy_de_en"


@dataclasses.dataclass(frozen=True)
class StepMetrics:
    """Metrics of one step over all sentences; shares are between 0 and 1.

    Attributes:
      changed: share of the editable tokens that differ from the tokens before the step.
      settled: share of the sentences in which no token differs.
      reliability: reliability of the tokens that were written by the end of the step; None if no token was written.
      equal: share of the sentences that equal the reference, token by token, at the end of the step.
      right, mixed: share of the sentences that are right translations after the step, or mixtures of them; None where
        the right translations are not known. A sentence with a masked position is neither.
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
      tokens_TL, score_TL: the sentence's editable positions before the first step and after each step; a score is the
        log-probability with which a token was written, NaN where no token has been written.
      target_L: the reference's tokens.
      verdict_T: "right", "mixed" or "wrong" after each step; None where the right translations are not known.
    """

    tokens_TL: Int[np.ndarray, "T1 L"]
    score_TL: Float[np.ndarray, "T1 L"]
    target_L: Int[np.ndarray, " L"]
    verdict_T: Sequence[str] | None = None


def tally(runs: Iterable[SentenceRun]) -> list[StepMetrics]:
    """Metrics of every step, over all sentences.

    Raises:
      PadirError: there are no sentences.
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
        written_P = np.concatenate(written)
        right_P = np.concatenate(right)
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


def step_metrics(translator: Translator, test_set: TestSet, decoding: Decoding) -> list[StepMetrics]:
    """Metrics of every step of one decoding run, at the references' lengths.

    Raises:
      PadirError: the model's passes cannot be analysed, or there are no sentences.
    """
    check_model(translator.card.config)
    decoding = translator.resolved(decoding)
    targets = reference_tokens(translator, test_set)
    judged = test_set.task == TOY and test_set.source_language == "de" and are_judged(test_set.sources)
    verdicts: dict[tuple[int, str], str] = {}  # most steps leave a draft as it is

    def verdict(number: int, tokens_L, score_L) -> str:
        if np.isnan(score_L).any():
            return "wrong"
        tokens = tokens_L.tolist()  # the canvas is the sentence (`check_model`)
        if decoding.drops_repeats:
            tokens = without_repeats(tokens, translator.tokenizer.copied)
        text = text_of(translator.tokenizer, tokens, test_set.sources[number])
        if (number, text) not in verdicts:
            verdicts[number, text] = judge(test_set.sources[number], text)
        return verdicts[number, text]

    def runs():
        for one in refined(translator, test_set, decoding, [len(tokens) for tokens in targets]):
            for row, number in one.rows():
                length = int(one.length_B[row]) - 1
                tokens_TL = one.tokens_TBL[:, row, :length]
                score_TL = one.score_TBL[:, row, :length]
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
    """A row for every strategy that the model can run and every number of steps.

    All other decoding options come from `decoding`. If one strategy drops repeated tokens by default, all strategies
    drop them, so that rows can be compared; each row says so.

    Args:
      decoding: decoding options other than strategy and number of steps.
      strategies: strategies as the command line names them.
      num_steps: numbers of steps.
      progress: receives each row.

    Raises:
      PadirError: an unknown strategy, or one that the model cannot run.
    """
    rows = []
    made = {name: with_strategy(translator, decoding, parse_strategy(name)) for name in strategies}
    drop = any(one.drops_repeats for one in made.values())
    for name, one in made.items():
        for count in num_steps:
            one = dataclasses.replace(one, num_steps=count, drop_repeats=drop)
            metrics = evaluate(translator, test_set, one).metrics
            row = {"strategy": name, "steps": count, "drop_repeats": drop}
            row |= {k: metrics[k] for k in METRICS if k in metrics}
            rows.append(row)
            progress(row)
    return rows


def with_strategy(translator: Translator, decoding: Decoding, strategy: Strategy) -> Decoding:
    """Decoding options with this strategy, and with a canvas of masks if the strategy needs one.

    The canvas changes only if `decoding` names none and the model was trained with masks.

    Raises:
      PadirError: the model cannot run the strategy.
    """
    canvas = decoding.canvas
    if "mask" in getattr(strategy, "needs", ()) and not translator.card.config.decontextualised:
        assert translator.card.corruption is not None
        kinds = translator.card.corruption.noise_kinds
        canvas = Mask() if canvas is None and kinds is not None and "mask" in kinds else canvas
    changed = dataclasses.replace(decoding, strategy=strategy, canvas=canvas)
    translator.resolved(changed)
    return changed


def runnable(translator: Translator, decoding: Decoding) -> tuple[list[str], dict[str, str]]:
    """(strategies that a model can run, reasons against the others); strategies are at temperature 0."""
    names = []
    refused = collections.OrderedDict()
    for name, cls in STRATEGIES.items():
        text = name
        if any(field.name == "temperature" and field.default for field in dataclasses.fields(cls)):  # type: ignore[arg-type]
            text = f"{name}:temperature=0.0"
        if name == "sundae":
            text += ",order=uncertain"
        try:
            with_strategy(translator, decoding, parse_strategy(text))
            names.append(text)
        except PadirError as error:
            refused[name] = str(error)
    return names, refused


COLUMNS = ("strategy", "steps", *METRICS)


def analyse(
    translator: Translator, test_set: TestSet, decoding: Decoding, options: AnalysisOptions, tell: Tell
) -> Findings:
    """Measures refinement step by step, then every strategy step by step, then every strategy by number of passes."""
    decodings, refused = _decodings(translator, decoding, options)
    for name, why in refused.items():
        tell(f"left out: {why if why.startswith(name) else f'{name}: {why}'}")
    steps = step_metrics(translator, test_set, decoding)
    by_step = _rows(steps)
    for row in by_step:
        tell(cell(row))
    sections = [_steps_section(steps, by_step), *_drafts_section(translator, test_set, decoding, options.examples)]
    each: list[Row] = []
    for name, one in decodings.items():
        each += [{"strategy": name, **row} for row in _rows(step_metrics(translator, test_set, one))]
        tell(cell(each[-1]))
    sections.append(_strategies_section(each, decoding.num_steps))
    rows = outcomes(translator, test_set, decoding, list(decodings), options.passes, lambda row: tell(cell(row)))
    sections.append(_outcomes_section(rows))
    return Findings(rows, {"by_step": by_step, "strategies_by_step": each, "refused": dict(refused)}, sections)


def _decodings(
    translator: Translator, decoding: Decoding, options: AnalysisOptions
) -> tuple[dict[str, Decoding], dict[str, str]]:
    """Decoding options by strategy, and why the model cannot run other strategies. An unknown name fails here."""
    names, refused = runnable(translator, decoding)
    if options.strategies is not None:
        names = list(options.strategies)
        refused = {}
    return {name: with_strategy(translator, decoding, parse_strategy(name)) for name in names}, refused


def _rows(steps: Sequence[StepMetrics]) -> list[Row]:
    return [{"step": number, **step.row()} for number, step in enumerate(steps, 1)]


def _steps_section(steps: Sequence[StepMetrics], by_step: list[Row]) -> Section:
    shown = {1, 2, 4, 8, len(steps)}  # more curves would hide each other
    curves = {f"step {n}": step.reliability for n, step in enumerate(steps, 1) if step.reliability and n in shown}
    pictures = {"reliability": plotting.png(plotting.draw_reliability, curves)} if curves else {}
    return Section(
        "Step by step",
        "Every sentence at its reference's length; shares of 1. changed: tokens that a step changed; settled: sentences"
        " in which it changed none; accuracy: written tokens that are the reference's; confidence: the probability that"
        " the model gave them when it wrote them; equal: sentences that are now the reference; right, mixed:"
        " sentences that are right translations, or mixtures of right translations.",
        pictures,
        by_step,
    )


def _drafts_section(translator: Translator, test_set: TestSet, decoding: Decoding, examples: int) -> list[Section]:
    """A section with the drafts that took the most steps; none if no sentence can be shown."""
    rows: list[Row] = []
    for one, row, number in study.examples(translator, test_set, decoding, examples):
        tokens_TL = one.tokens_TBL[:, row, : one.length_B[row] - 1]
        for step in range(1, one.passes_B[row] + 1):
            prob_L = np.exp(one.score_TBL[step, row, : len(tokens_TL[step])]).tolist()
            said = zip(pieces(translator, tokens_TL[step]), map(cell, prob_L), strict=True)
            changed = int((tokens_TL[step] != tokens_TL[step - 1]).sum())
            draft = " ".join(f"{piece} ({prob})" for piece, prob in said)
            rows.append({"sentence": number + 1, "step": step, "changed": changed, "draft": draft})
    text = "Sentences that took the most steps; in brackets the probability of each token when it was written."
    return [Section("Drafts", text, rows=rows)] if rows else []


def _strategies_section(each: list[Row], num_steps: int) -> Section:
    return Section(
        f"Every strategy, step by step, when it has {num_steps} steps",
        "As above. A strategy that hides tokens between steps has few whole sentences before its last step.",
        rows=each,
    )


def _outcomes_section(rows: list[Row]) -> Section:
    return Section(
        "Every strategy",
        "Translations at the likeliest length, decoded again for each number of passes. Repeated tokens were"
        f" {'dropped' if rows[0]['drop_repeats'] else 'kept'} for every strategy.",
        rows=rows,
    )

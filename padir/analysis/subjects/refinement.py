"""Refinement: metrics of every step of one decoding run, and metrics of every strategy at several numbers of passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from padir.analysis import figures, refinement
from padir.analysis.passes import pieces
from padir.analysis.refinement import StepMetrics
from padir.analysis.subjects.study import AnalysisOptions, Findings, Row, Tell
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.evaluation import TestSet
from padir.refinement.strategies import parse_strategy
from padir.reporting.page import Section, cell

COLUMNS = ("strategy", "steps", *refinement.METRICS)
_OUTCOMES = {
    "toy_right": "right translations, %",
    "toy_mixed": "mixtures of right ones, %",
    "exact_match": "equal to the reference, %",
    "bleu": "BLEU",
}


def study(
    translator: Translator, test_set: TestSet, decoding: Decoding, options: AnalysisOptions, tell: Tell
) -> Findings:
    """Measures refinement step by step, then every strategy step by step, then every strategy by number of passes."""
    decodings, refused = _decodings(translator, decoding, options)
    for name, why in refused.items():
        tell(f"left out: {why if why.startswith(name) else f'{name}: {why}'}")
    steps = refinement.steps(translator, test_set, decoding)
    by_step = _rows(steps)
    for row in by_step:
        tell(cell(row))
    sections = [_steps_section(steps, by_step), *_drafts_section(translator, test_set, decoding, options.examples)]
    each: list[Row] = []
    for name, one in decodings.items():
        each += [{"strategy": name, **row} for row in _rows(refinement.steps(translator, test_set, one))]
        tell(cell(each[-1]))
    sections.append(_strategies_section(each, decoding.num_steps))
    rows = refinement.outcomes(
        translator, test_set, decoding, list(decodings), options.passes, lambda row: tell(cell(row))
    )
    sections.append(_outcomes_section(rows))
    return Findings(rows, {"by_step": by_step, "strategies_by_step": each, "refused": dict(refused)}, sections)


def _decodings(
    translator: Translator, decoding: Decoding, options: AnalysisOptions
) -> tuple[dict[str, Decoding], dict[str, str]]:
    """Decoding options by strategy, and why the model cannot run other strategies. An unknown name fails here."""
    names, refused = refinement.runnable(translator, decoding)
    if options.strategies is not None:
        names, refused = list(options.strategies), {}
    elif "independent_parallel:temperature=0.0" in names:
        names = list(dict.fromkeys([*names, *refinement.CORRECTORS]))
    return {name: refinement.with_strategy(translator, decoding, parse_strategy(name)) for name in names}, refused


def _rows(steps: Sequence[StepMetrics]) -> list[Row]:
    return [{"step": number, **step.row()} for number, step in enumerate(steps, 1)]


def _steps_section(steps: Sequence[StepMetrics], by_step: list[Row]) -> Section:
    shown = {1, 2, 4, 8, len(steps)}  # more curves would hide each other
    curves = {f"step {n}": step.reliability for n, step in enumerate(steps, 1) if step.reliability and n in shown}
    errors = [float("nan") if step.reliability is None else step.reliability.error for step in steps]
    changed, settled = [step.changed for step in steps], [step.settled for step in steps]
    pictures = {"steps": figures.png(figures.draw_steps, changed, settled, errors)}
    if curves:
        pictures["reliability"] = figures.png(figures.draw_reliability, curves)
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
    """A section with drafts that took the most steps; none where no sentence can be shown."""
    drafts = []
    for one, row, _ in refinement.examples(translator, test_set, decoding, examples):
        size = int(one.length_B[row]) - 1
        tokens_TL, prob_TL = one.tokens_TBL[:, row, :size], np.exp(one.score_TBL[:, row, :size])
        last = int(one.passes_B[row]) + 1
        changed_TL = np.concatenate([np.zeros((1, size), bool), tokens_TL[1:] != tokens_TL[:-1]])
        prob_TL = np.where(np.arange(len(prob_TL))[:, None] == 0, np.nan, prob_TL)
        words = [pieces(translator, tokens_L) for tokens_L in tokens_TL[:last]]
        drafts.append((words, prob_TL[:last], changed_TL[:last]))
    if not drafts:
        return []
    picture = {"heat": figures.png(figures.draw_refinement, drafts)}
    return [Section("Drafts", "Sentences that took the most steps, from the first canvas to the end.", picture)]


def _strategies_section(each: list[Row], num_steps: int) -> Section:
    labels = {"changed": "tokens that change", "calibration_error": "expected calibration error"}
    if "right" in each[0]:
        labels |= {"right": "right translations", "mixed": "mixtures of right ones"}
    else:
        labels["equal"] = "equal to the reference"
    return Section(
        f"Every strategy, step by step, when it has {num_steps} steps",
        "As above. A strategy that hides tokens between steps has few whole sentences before its last step.",
        {"strategies by step": figures.png(figures.draw_outcomes, each, labels, "step")},
        each,
    )


def _outcomes_section(rows: list[Row]) -> Section:
    labels = dict([(key, label) for key, label in _OUTCOMES.items() if key in rows[0]][:3])
    return Section(
        "Every strategy",
        "Translations at the likeliest length, decoded again for each number of passes. Repeated tokens were"
        f" {'dropped' if rows[0]['drop_repeats'] else 'kept'} for every strategy.",
        {"strategies": figures.png(figures.draw_outcomes, rows, labels)},
        rows,
    )

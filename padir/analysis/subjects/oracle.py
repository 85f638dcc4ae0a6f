"""Oracle audit: the error of every strategy with the exact conditionals, and how much a model adds to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from padir.analysis import audit, figures, refinement
from padir.analysis.subjects.study import AnalysisOptions, Findings, Row, Tell
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.reporting.page import Section, cell

COLUMNS = ("truth", "canvas", "strategy", "steps", "passes", "not_right", "tv", "kl", "model_not_right", "model_tv")
_LABELS = {"tv": "total variation from the truth", "not_right": "outputs that are no right answer"}
_AGAINST = {name: (label, f"model_{name}") for name, label in _LABELS.items()}
_ISING_OUTPUTS = 16  # times the outputs of a sentence: two models instead of many sentences, and more states


def study(
    translator: Translator, test_set: TestSet, decoding: Decoding, options: AnalysisOptions, tell: Tell
) -> Findings:
    """Measures every strategy beside an exact decoder of the built-in corpus and of two Ising models.

    Raises:
      PadirError: the sentences are not those of toy_de_en, or a strategy is unknown.
    """
    if test_set.task != refinement.TOY or test_set.source_language != "de":
        raise PadirError("the corpus", "toy_de_en, whose right translations are known", test_set.task or "none")
    wanted = list(audit.strategies_of(options.strategies))
    toy = audit.toy_truth(translator, test_set, options.outputs)
    ising = audit.ising_truths(_ISING_OUTPUTS * options.outputs) if options.ising else []
    tell(f"{len(toy.joints):,} sentences of {toy.length + 1} tokens with several right translations of this length")
    rows: list[Row] = []
    for truth in (toy, *ising):
        for name, strategy, canvas in wanted:
            for steps in truth.steps():
                found, passes = audit.of_oracle(truth, strategy, canvas, steps, decoding.seed)
                row: Row = {"truth": truth.name, "canvas": canvas, "strategy": name, "steps": steps, "passes": passes}
                row |= found._asdict()
                if options.model_outputs and truth is toy:
                    own = audit.of_model(translator, toy, name, canvas, steps, decoding, options.model_outputs)
                    row |= {} if own is None else {"model_not_right": own.not_right, "model_tv": own.tv}
                rows.append(row)
                tell(cell(row))
    floors = {truth.name: audit.sampling_floor(truth, decoding.seed)._asdict() for truth in (toy, *ising)}
    if options.model_outputs:
        floors["model"] = audit.sampling_floor(
            dataclasses.replace(toy, draws=options.model_outputs), decoding.seed
        )._asdict()
    about: dict[str, Any] = {
        "measured": len(toy.joints),
        "length": toy.length + 1,
        "pieces": toy.pieces,
        "outputs": toy.draws,
        "model_outputs": options.model_outputs,
        "floors": floors,
    }
    return Findings(rows, about, _sections(rows))


def _merged(rows: list[Row], columns: Iterable[str]) -> list[Row]:
    """Rows in which strategies that agree in these columns to 0.01 are one, "padir and 2 others"."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row["strategy"], []).append(row)
    alike: dict[tuple[Any, ...], list[str]] = {}
    for strategy, line in lines.items():
        alike.setdefault(tuple(round(row[name], 2) for row in line for name in columns), []).append(strategy)
    named = {each[0]: f"{each[0]} and {len(each) - 1} others" if len(each) > 1 else each[0] for each in alike.values()}
    return [{**row, "strategy": named[row["strategy"]]} for row in rows if row["strategy"] in named]


def _sections(rows: list[Row]) -> list[Section]:
    sections = []
    for truth in dict.fromkeys(row["truth"] for row in rows):
        mine = [row for row in rows if row["truth"] == truth]
        labels = dict(_LABELS)
        if not any(row["not_right"] for row in mine):
            del labels["not_right"]  # every state of an Ising model is right
        pictures = {}
        for canvas in dict.fromkeys(row["canvas"] for row in mine):
            here = [row for row in mine if row["canvas"] == canvas]
            pictures[f"{truth} {canvas}"] = figures.png(figures.draw_outcomes, _merged(here, labels), labels)
            if any("model_tv" in row for row in here):
                pictures[f"{truth} {canvas} model"] = figures.png(figures.draw_errors, here, _AGAINST)
        sections.append(
            Section(
                f"Every strategy beside exact conditionals: {truth}",
                "not right: share of outputs that are no right answer; tv, kl: total variation and divergence of the"
                " outputs from the true distribution, means over sentences. A column of the model, if there is one, is"
                " that of the model at the same sentences, length, strategy and canvas: what its error has beyond the"
                " strategy's own is the model's.",
                pictures,
                mine,
            )
        )
    return sections

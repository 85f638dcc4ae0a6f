"""AnalysisOptions and findings that all subjects of `padir analyse` share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from padir import checks
from padir.analysis.conditionals import check_values
from padir.reporting.page import Section

Row = dict[str, Any]
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class AnalysisOptions:
    """Extent of an analysis. Subjects in brackets are the only ones that read the option.

    Attributes:
      sentences: how many sentences of the test set are analysed, from the first on.
      examples: how many sentences are shown in pictures (attention, dependency, refinement).
      values: number of tokens that are tried at a position (dependency; `padir.analysis.agreement`).
      canvases: number of first canvases over which measures are averaged (dependency).
      given: "source" hides the whole draft; "draft" shows all of it but the pair that is measured (dependency).
      strategies: strategies as the command line names them (refinement, oracle). None runs all strategies, in a
        refinement those that the model supports, at temperature 0, with variants of block Gibbs for models that were
        trained with masks.
      passes: numbers of decoder passes that every strategy gets (refinement), or that are scheduled (schedule).
      outputs: number of outputs of each sentence beside the exact decoder (oracle).
      model_outputs: number of outputs of each sentence by the model itself; 0 leaves the model out (oracle).
      ising: measure the strategies on two Ising models, too (oracle).

    Raises:
      PadirError: a value out of its range.
    """

    sentences: int = 200
    examples: int = 3
    values: int = 4
    canvases: int = 1
    given: str = "source"
    strategies: tuple[str, ...] | None = None
    passes: tuple[int, ...] = (1, 2, 4, 10)
    outputs: int = 200
    model_outputs: int = 0
    ising: bool = True

    def __post_init__(self):
        checks.one_of(("source", "draft"), given=self.given)
        checks.at_least(1, passes=min(self.passes, default=0))
        checks.at_least(0, examples=self.examples, model_outputs=self.model_outputs)
        checks.at_least(1, outputs=self.outputs)
        check_values(self.values)


@dataclasses.dataclass(frozen=True)
class Findings:
    """Results of one subject.

    Attributes:
      rows: rows of the table for CSV and the terminal.
      metrics: further metrics for the JSON file, by name.
      sections: sections of the page.
    """

    rows: list[Row]
    metrics: dict[str, Any]
    sections: list[Section]

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
    """Extent of an analysis. A subject in brackets is the only one that reads the option.

    Attributes:
      sentences: how many sentences of the test set are analysed, from the first on.
      examples: how many sentences are shown in pictures.
      values: number of tokens that are tried at a position (dependency; `padir.analysis.agreement`).
      canvases: number of first canvases over which measures are averaged (dependency).
      given: "source" hides the whole draft; "draft" shows all of it but the pair that is measured (dependency).
      strategies: strategies as the command line names them (refinement). None runs all strategies that the model
        supports, at temperature 0; for models that were trained with masks, it adds variants of block Gibbs.
      passes: numbers of decoder passes that every strategy gets (refinement).

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

    def __post_init__(self):
        checks.one_of(("source", "draft"), given=self.given)
        checks.at_least(1, passes=min(self.passes, default=0))
        checks.at_least(0, examples=self.examples)
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

"""The subjects of `padir analyse`, one module each, from a model and a test set to rows, pictures and page sections.

`attention`, `dependency`, `refinement`, `oracle` and `schedule` each have a function `study` and the `COLUMNS` of their
table; `study` holds the `AnalysisOptions` that they take and the `Findings` that they return.
"""

from padir.analysis.subjects.study import AnalysisOptions, Findings

__all__ = ["AnalysisOptions", "Findings"]

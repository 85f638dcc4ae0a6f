"""Evaluation of translations: one model or many on a test set, and tables of the results.

`evaluate` translates a `TestSet` with one model and scores it; `evaluate_all` does so for many models and decoding
options, one `Row` each. `describe_row` and `read_rows` turn rows into JSON and back; `to_markdown` and
`paper_tables` make tables of them. The metrics themselves are in `padir.metrics`.
"""

from padir.evaluation.evaluation import Evaluation, Metric, TestSet, evaluate, length_recall, validation_fn, warm_up
from padir.evaluation.report import paper_tables, to_markdown
from padir.evaluation.rows import describe_row, read_rows
from padir.evaluation.systems import Row, evaluate_all

__all__ = [
    "Evaluation",
    "Metric",
    "Row",
    "TestSet",
    "describe_row",
    "evaluate",
    "evaluate_all",
    "length_recall",
    "paper_tables",
    "read_rows",
    "to_markdown",
    "validation_fn",
    "warm_up",
]

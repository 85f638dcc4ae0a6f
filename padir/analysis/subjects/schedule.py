"""The loss of every schedule on references, by the number of passes, and of shares that are searched."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from padir import checks
from padir.analysis import figures
from padir.analysis.subjects.study import AnalysisOptions, Findings, Row, Tell
from padir.analysis.uncertainty import ORDERS, Plan, nats_by_step
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.evaluation import TestSet
from padir.ising import schedules
from padir.refinement.strategies.schedules import SCHEDULES
from padir.reporting.page import Section, cell

_NAMES = (*SCHEDULES, "searched")
COLUMNS = ("order", "passes", *_NAMES, "shares")
_UNITS = 32  # the search measures references that are written in so many equal passes, and joins some of these


def study(
    translator: Translator, test_set: TestSet, decoding: Decoding, options: AnalysisOptions, tell: Tell
) -> Findings:
    """Measures every schedule, and searched shares, for each order of the tokens and each number of passes."""
    checks.within(1, _UNITS, passes=max(options.passes))
    measured = (translator, test_set, decoding)
    small = nats_by_step(*measured, [Plan("linear", _UNITS, order) for order in ORDERS])
    found = {plan.order: searched(nats_UU) for plan, nats_UU in small.items()}
    rows: list[Row] = []
    for count in sorted(set(options.passes)):
        plans = {
            (order, name): Plan(found[order][count - 1] if name == "searched" else name, count, order)
            for order in ORDERS
            for name in _NAMES
        }
        nats = nats_by_step(*measured, plans.values())
        for order in ORDERS:
            losses = {name: float(nats[plans[order, name]].trace()) for name in _NAMES}
            rows.append({"order": order, "passes": count, **losses, "shares": found[order][count - 1]})
            tell(cell(rows[-1]))
    rows.sort(key=lambda row: ORDERS.index(row["order"]))
    return Findings(rows, {}, [_section(order, [row for row in rows if row["order"] == order]) for order in ORDERS])


def searched(nats_UU: Float[np.ndarray, "U U"]) -> list[tuple[float, ...]]:
    """Shares that are still hidden after each of 1, 2, ..., U passes, if U small passes are joined at the least loss.

    A pass that joins some is charged for the tokens that these wrote, under the first of them. This is exact for tokens
    in random order. Among confident ones a larger pass may choose other tokens, so that the shares are a proposal.

    Args:
      nats_UU: what `nats_by_step` returns for the schedule "linear" and U steps.
    """
    units = len(nats_UU)
    excess_UU = np.triu(nats_UU - np.diag(nats_UU))
    cost_MM = np.pad(np.cumsum(excess_UU, axis=1), ((0, 1), (1, 0)))  # M = U + 1
    return [tuple((1 - np.cumsum(sizes) / units).round(3).tolist()) for _, sizes in schedules.cheapest(cost_MM)]


def _section(order: str, rows: list[Row]) -> Section:
    lines = [{"strategy": name, "steps": row["passes"], "nats": row[name]} for name in _NAMES for row in rows]
    return Section(
        f"Tokens in {order} order",
        "Mean of -log p(token) over references, in nats, each token under the pass that writes it. searched: the shares"
        f" in the last column, found by joining {_UNITS} small passes. They say what is still hidden after each pass,"
        " for a strategy's field schedule.",
        {f"nats {order}": figures.png(figures.draw_outcomes, lines, {"nats": "loss, nats a token"})},
        rows,
    )

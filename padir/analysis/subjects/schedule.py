"""The sizes of a model's passes: what each schedule costs in likelihood, and the shares that cost least."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from padir.analysis import figures
from padir.analysis.subjects.study import AnalysisOptions, Findings, Row, Tell
from padir.analysis.uncertainty import ORDERS, uncertainties
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.evaluation import TestSet
from padir.ising import schedules
from padir.refinement.strategies.schedules import SCHEDULES
from padir.reporting.page import Section, cell

COLUMNS = ("order", "passes", "best", *SCHEDULES, "shares")
_UNITS = 32  # equal parts of a sentence, of which a pass writes a whole number


def study(
    translator: Translator, test_set: TestSet, decoding: Decoding, options: AnalysisOptions, tell: Tell
) -> Findings:
    """Costs every schedule for each order of the tokens and each number of passes, and finds the best shares."""
    rows: list[Row] = []
    sections = []
    for order in ORDERS:
        nats_UU = uncertainties(translator, test_set, decoding, order=order, steps=_UNITS)
        mine = [{"order": order, **row} for row in costs(nats_UU, options.passes)]
        for row in mine:
            tell(cell(row))
        lines = [
            {"strategy": name, "steps": row["passes"], "cost": row[name]}
            for name in ("best", *SCHEDULES)
            for row in mine
        ]
        rows += mine
        sections.append(
            Section(
                f"How many tokens each pass should write: {order} order",
                "What writing several tokens in one pass costs on the references, in nats a token, beyond writing them"
                f" one {_UNITS}th of a sentence at a time. shares: what the best schedule leaves hidden after each"
                " pass, for a strategy's field schedule.",
                {f"costs {order}": figures.png(figures.draw_outcomes, lines, {"cost": "cost, nats a token"})},
                mine,
            )
        )
    return Findings(rows, {}, sections)


def costs(nats_UU: Float[np.ndarray, "U U"], passes: Sequence[int]) -> list[Row]:
    """A row for each number of passes: costs of the best sizes and of every schedule in nats a token, and the shares.

    Args:
      nats_UU: as `uncertainties` returns it.
    """
    units = len(nats_UU)
    excess_UU = np.where(np.triu(np.ones_like(nats_UU)) > 0, nats_UU - np.diag(nats_UU), 0.0)
    cost_MM = np.pad(np.cumsum(excess_UU, axis=1), ((0, 1), (1, 0)))  # M = U + 1
    best = schedules.cheapest(cost_MM)
    rows = []
    for count in sorted({min(count, units) for count in passes}):
        cost, sizes = best[count - 1]
        row: Row = {"passes": count, "best": cost}
        for name in SCHEDULES:
            ends = np.cumsum([0, *schedules.sizes_of(name, units, count)])
            row[name] = float(sum(cost_MM[a, b] for a, b in itertools.pairwise(ends)))
        rows.append({**row, "shares": (1 - np.cumsum(sizes) / units).round(3).tolist()})
    return rows

"""Figures of `padir ising`: a PNG plot, and a JSON file of its points."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from padir.reporting.tables import COLOURS, styled_figure
from padir.storage.files import atomic_file, write_json
from padir.studies.ising.experiments import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # matplotlib is an extra


def write(name: str, rows: Sequence[Row], about: dict[str, Any], draw: Callable[[Any], None]) -> None:
    """Writes rows with `about` to NAME.json, and the plot of `draw` to NAME.png.

    Raises:
      PadirError: matplotlib is not installed, or a file cannot be written.
    """
    write_json(f"{name}.json", {**about, "rows": list(rows)})
    with styled_figure() as figure:
        draw(figure)
        with atomic_file(f"{name}.png", binary=True) as file:
            figure.savefig(file, format="png", dpi=130)


def draw_learning(figure: Figure, rows: Sequence[Row], title: str) -> None:
    """Draws error against samples for every k (left), and samples × error against k (right); lines are theory."""
    import matplotlib

    figure.set_size_inches(11, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    single = [row for row in rows if row["estimator"] == "one mask"]
    ks = sorted({row["k"] for row in rows})
    for k in ks:
        colour = matplotlib.colormaps["viridis_r"](0.12 + 0.85 * (k - 1) / max(1, len(ks) - 1))
        mine = [row for row in single if row["k"] == k]
        left.plot(_column(mine, "samples"), _column(mine, "expected"), color=colour, linewidth=1.2)
        label = f"k = {k}" + (" (maximum likelihood)" if k == ks[-1] else "")
        _bars(left, mine, "samples", lambda row: 1.0, color=colour, label=label)
        lost = [row for row in mine if row["mean"] is None and row["median"] is not None]
        left.plot(_column(lost, "samples"), _column(lost, "median"), "o", color=colour, markerfacecolor="white", ms=5)
    left.set(xscale="log", yscale="log", xlabel="samples", ylabel="squared error of the parameters")
    left.set_xticks(sorted({row["samples"] for row in rows}), [f"{n:,}" for n in sorted({r["samples"] for r in rows})])
    left.minorticks_off()
    left.legend(frameon=False, fontsize=9)
    most = max(row["samples"] for row in rows)
    for (estimator, label), colour in zip(
        (
            ("one mask", "one mask a sample (k-pseudolikelihood)"),
            ("all masks", "all masks of every sample (composite)"),
        ),
        COLOURS[:2],
        strict=True,
    ):
        mine = [row for row in rows if row["estimator"] == estimator and row["samples"] == most]
        right.plot(_column(mine, "k"), _column(mine, "trace"), color=colour, linewidth=1.2)
        _bars(right, mine, "k", lambda row: row["samples"], color=colour, label=label)
    right.set_xticks(ks)
    right.set(xlabel="k: spins that are hidden", ylabel=f"samples × squared error, at {most:,}")
    right.set_ylim(bottom=0)
    right.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.grid(alpha=0.25)
    figure.suptitle(title)
    legend = "lines: theory, the trace of the asymptotic covariance; dots: means over data sets with 2 standard errors"
    if any(row["mean"] is None for row in rows):
        legend += "; hollow: medians, where some fit has no minimum"
    figure.supxlabel(legend, fontsize=9, color="0.35")


def draw_sampling(figure: Figure, rows: Sequence[Row], title: str) -> None:
    """Draws steps to the larger mode against k, a panel for each field; lines are exact means, dots simulated."""
    fields = sorted({row["field"] for row in rows})
    couplings = sorted({row["coupling"] for row in rows})
    ks = sorted({row["k"] for row in rows if row["k"]})
    parallel = ks[-1] + 1.5
    budget = rows[0]["budget"]
    figure.set_size_inches(5.2 * len(fields) + 0.6, 4.6)
    panels = figure.subplots(1, len(fields), sharey=True, squeeze=False)[0]
    for axes, field in zip(panels, fields, strict=True):
        for number, (coupling, colour) in enumerate(zip(couplings, itertools.cycle(COLOURS))):
            mine = [row for row in rows if row["field"] == field and row["coupling"] == coupling]
            gibbs = [r for r in mine if r["k"]]
            alone = [{**r, "k": parallel} for r in mine if not r["k"]]
            axes.plot(_column(gibbs, "k"), _column(gibbs, "exact"), color=colour, linewidth=1.2)
            _bars(axes, gibbs, "k", lambda row: 1.0, color=colour, label=f"J = {coupling:g}")
            axes.plot(_column(alone, "k"), _column(alone, "exact"), "_", color=colour, markersize=16)
            _bars(axes, alone, "k", lambda row: 1.0, color=colour)
            late = [row for row in gibbs + alone if row["mean"] is None]
            aside = 0.14 * (number - (len(couplings) - 1) / 2)  # so that they do not hide one another
            place = [k + aside for k in _column(late, "k")]
            axes.plot(place, [budget] * len(late), "^", color=colour, markerfacecolor="white", ms=6)
        axes.axhline(budget, color="0.6", linewidth=0.8, linestyle=":")
        axes.axvline(ks[-1] + 0.75, color="0.8", linewidth=0.8)
        axes.set_xticks([*ks, parallel], [*map(str, ks), "independent\nparallel"])
        axes.set(yscale="log", xlabel="k of k-Gibbs", title=f"h = {field:g}")
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("steps from the smaller mode to the larger")
    panels[0].legend(frameon=False, fontsize=9, loc="upper center", ncols=len(couplings))
    figure.suptitle(title)
    legend = "lines and bars: exact means; dots: simulated means with 2 standard errors"
    if any(row["mean"] is None for row in rows):
        legend += f"; triangles, side by side: no mean, as some chains were left after {budget:,} steps (dotted)"
    figure.supxlabel(legend, fontsize=9, color="0.35")


def draw_schedules(figure: Figure, rows: Sequence[Row], title: str) -> None:
    """Draws KL against the number of passes, a panel for each model and a line for each schedule."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    names = list(dict.fromkeys(row["schedule"] for row in rows))
    most = max(row["passes"] for row in rows)
    figure.set_size_inches(4.2 * len(models) + 0.6, 4.6)
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, models, strict=True):
        for schedule, colour in zip(names, itertools.cycle(COLOURS)):
            mine = [row for row in rows if row["model"] == name and row["schedule"] == schedule and row["kl"] > 0]
            style = {"linewidth": 2.2, "color": "0.2"} if schedule == "best" else {"linewidth": 1.3, "color": colour}
            style["linestyle"] = "--" if schedule == "random" else "-"  # it may lie on the line of equal sizes
            axes.plot(_column(mine, "passes"), _column(mine, "kl"), label=schedule, **style)
        axes.set(xscale="log", yscale="log", xlabel="passes", title=name, ylim=(1e-3, None))
        ticks = [1 << power for power in range(most.bit_length())]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("KL in nats")
    panels[0].legend(frameon=False, fontsize=9)
    figure.suptitle(title)
    legend = (
        "exact mean over random orders, an upper bound of the decoder's KL; not shown: below 0.001, and one spin a pass"
    )
    figure.supxlabel(legend, fontsize=9, color="0.35")


def _column(rows: Sequence[Row], name: str) -> list[Any]:
    """The column of a name, NaN (a gap in a line) where a row has None."""
    return [float("nan") if row[name] is None else row[name] for row in rows]


def _bars(axes: Axes, rows: Sequence[Row], across: str, scale: Callable[[Row], float], **style: Any) -> None:
    """Draws means with two standard errors, where there is a mean."""
    there = [row for row in rows if row["mean"] is not None]
    axes.errorbar(
        _column(there, across),
        [row["mean"] * scale(row) for row in there],
        yerr=[2 * row["standard_error"] * scale(row) for row in there],
        fmt="o",
        markersize=4.5,
        capsize=2.5,
        **style,
    )

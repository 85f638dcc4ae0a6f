"""Pictures say what their colours and axes mean."""

import math

import numpy as np
import pytest

from padir.studies.analysis import plotting

Figure = pytest.importorskip("matplotlib.figure").Figure
WORDS = ["a", "b", "c"]


def bars(figure):
    return [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]


def test_every_map_has_a_colour_bar():
    maps = {"self": np.ones((2, 1, 3, 3)), "cross": np.ones((2, 1, 3, 3))}
    figure = Figure()
    plotting.draw_maps(figure, maps, WORDS, dict.fromkeys(maps, WORDS))
    assert len(bars(figure)) == 4


def test_the_audit_has_a_line_for_each_sampler_that_writes_all_answers():
    """A line is broken where KL is infinite; the best schedule is dotted, and one's own sampler thick."""
    figure = Figure()
    rows = [
        {"targets": "wordings", "canvas": kind, "strategy": name, "steps": n, "kl": kl, "over_best": kl - 1 / n}
        for kind, name, n, kl in [
            ("mask", "mine:step", 1, 2.0),
            ("mask", "mine:step", 2, 0.75),
            ("mask", "remdm", 1, 3.0),
            ("mask", "remdm", 2, math.inf),
            ("mask", "padir", 1, math.inf),
            ("uniform", "p2", 1, 3.0),
        ]
    ]
    plotting.draw_audit(figure, rows, {"mine:step"})
    (axes,) = figure.axes
    shown = {each.get_label(): each for each in axes.lines}
    assert {label: [*map(str, line.get_ydata())] for label, line in shown.items()} == {
        "mine:step": ["2.0", "0.75"],
        "remdm": ["3.0", "nan"],
        "best schedule": ["1.0", "0.5"],
    }
    assert shown["mine:step"].get_linewidth() > shown["remdm"].get_linewidth()
    assert [shown[label].get_linestyle() for label in shown] == ["-", "-", ":"] and axes.get_title() == "wordings"

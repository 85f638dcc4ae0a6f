"""Pictures say what their colours and axes mean."""

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
    figure = Figure()
    plotting.draw_matrices(figure, {"one": np.eye(3), "two": np.arange(9.0).reshape(3, 3)}, WORDS)
    assert len(bars(figure)) == 2


def test_axes_say_what_they_measure():
    figure = Figure()
    plotting.draw_groups(figure, {"tv": np.arange(6.0)}, np.arange(6) < 3, ("stutter", "other"))
    assert figure.axes[0].get_ylabel() == "value of the measure for a pair"
    for against, label in (("steps", "decoder passes at most (logarithmic)"), ("step", "step")):
        figure = Figure()
        rows = [{"strategy": "padir", against: number, "bleu": 1.0} for number in (1, 2)]
        plotting.draw_outcomes(figure, rows, {"bleu": "BLEU"}, against)
        assert figure.axes[0].get_xlabel() == label
        assert figure.axes[0].get_xscale() == ("log" if "log" in label else "linear")


def test_the_audit_has_a_line_for_each_strategy():
    """Points of more passes are darker, hollow ones began with random pieces, and one's own strategy is bold."""
    figure = Figure()
    rows = [
        {"targets": "wordings", "canvas": kind, "strategy": name, "steps": n, "tv": n / 10}
        for kind, name, n in [
            ("mask", "mine:It", 1),
            ("mask", "mine:It", 2),
            ("uniform", "p2", 1),
            ("uniform", "p2", 2),
        ]
    ]
    plotting.draw_audit(figure, rows, {"mine:It"})
    (axes,) = figure.axes
    points = axes.lines
    shown = {each.get_label(): (each.get_xdata().tolist(), each.get_fillstyle(), each.get_alpha()) for each in points}
    assert [shown[f"masks, {name}"][0] for name in ("1 pass", "2 passes")] == [[0.1], [0.2]]
    assert shown["masks, 1 pass"][1] == "full" and shown["random, 2 passes"][1] == "none"
    assert shown["masks, 1 pass"][2] < shown["masks, 2 passes"][2]
    labels = {label.get_text(): label.get_fontweight() for label in axes.get_yticklabels()}
    assert labels == {"mine:It": "bold", "p2": "normal"} and axes.get_title() == "wordings"

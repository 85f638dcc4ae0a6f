"""Pictures say what their colours and axes mean."""

import numpy as np
import pytest

from padir.analysis import figures

Figure = pytest.importorskip("matplotlib.figure").Figure
WORDS = ["a", "b", "c"]


def bars(figure):
    return [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]


def test_every_map_has_a_colour_bar():
    maps = {"self": np.ones((2, 1, 3, 3)), "cross": np.ones((2, 1, 3, 3))}
    figure = Figure()
    figures.draw_maps(figure, maps, WORDS, dict.fromkeys(maps, WORDS))
    assert len(bars(figure)) == 4
    figure = Figure()
    figures.draw_matrices(figure, {"one": np.eye(3), "two": np.arange(9.0).reshape(3, 3)}, WORDS)
    assert len(bars(figure)) == 2


def test_axes_say_what_they_measure():
    figure = Figure()
    figures.draw_groups(figure, {"tv": np.arange(6.0)}, np.arange(6) < 3, ("stutter", "other"))
    assert figure.axes[0].get_ylabel() == "value of the measure for a pair"
    for against, label in (("steps", "decoder passes at most (logarithmic)"), ("step", "step")):
        figure = Figure()
        rows = [{"strategy": "padir", against: number, "bleu": 1.0} for number in (1, 2)]
        figures.draw_outcomes(figure, rows, {"bleu": "BLEU"}, against)
        assert figure.axes[0].get_xlabel() == label
        assert figure.axes[0].get_xscale() == ("log" if "log" in label else "linear")


def test_errors_are_drawn_against_each_other():
    """Marks grow with the steps; a row that has no column of the model has no mark."""
    figure = Figure()
    rows = [{"strategy": "padir", "tv": n / 10, "model_tv": n / 5} for n in (1, 2)] + [{"strategy": "p2", "tv": 0.5}]
    figures.draw_errors(figure, rows, {"tv": ("total variation", "model_tv")})
    (axes,) = figure.axes
    padir, missing = axes.collections
    assert padir.get_offsets().tolist() == [[0.1, 0.2], [0.2, 0.4]] and missing.get_offsets().mask[0, 1]
    few, many = padir.get_sizes()
    assert few < many
    assert [axes.get_xlabel(), axes.get_ylabel()] == ["beside exact conditionals", "with the model"]

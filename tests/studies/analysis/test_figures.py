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


def test_errors_lead_from_the_exact_value_to_the_models():
    """Lines of more passes are lower and darker; a strategy that the model does not have is left out."""
    figure = Figure()
    rows = [{"strategy": "padir", "steps": n, "tv": n / 10, "model_tv": n / 5} for n in (1, 2)]
    plotting.draw_errors(figure, [*rows, {"strategy": "p2", "steps": 1, "tv": 0.5}], {"tv": ("variation", "model_tv")})
    (axes,) = figure.axes
    one, two = (each.get_segments()[0].tolist() for each in axes.collections[:2])
    assert [one[0][0], one[1][0], two[0][0], two[1][0]] == [0.1, 0.2, 0.2, 0.4]
    assert one[0][1] < two[0][1] and axes.get_ylim() == (1, 0)
    assert axes.collections[0].get_alpha() < axes.collections[1].get_alpha()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["padir"]
    assert axes.get_title() == "variation" and axes.get_xlabel() == "hollow: exact conditionals, full: the model"

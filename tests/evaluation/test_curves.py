"""Figures by source length, and the picture of them."""

import pytest
from support.refusals import refuses

from padir.evaluation import Evaluation, TestSet
from padir.evaluation.report import Bucket, by_length, edges, plot

TEST_SET = TestSet(
    "listed",
    "de",
    "en",
    ["eins", "zwei", "eins zwei drei", "eins, zwei drei vier", "eins zwei drei vier fünf"],
    ["one", "two", "one two three four", "one two three four", "one two three four five"],
)
EVALUATION = Evaluation({}, ["one", "x", "one two three four", "one two three four", "y"], [1, 2, 2, 4, 4])


@pytest.mark.parametrize(
    ("lengths", "count", "expected"),
    [
        (range(1, 13), 3, [(1, 4), (5, 8), (9, 12)]),
        ([7] * 10, 6, [(7, 7)]),
        ([1, 1, 1, 1, 9], 2, [(1, 9)]),
        ([3], 6, [(3, 3)]),
        ([1, 1, 2, 5, 5, 5], 3, [(1, 1), (2, 4), (5, 5)]),
    ],
)
def test_ranges_cover_every_length_once(lengths, count, expected):
    assert edges(list(lengths), count) == expected


def test_figures_of_each_range():
    """Sources of 1, 1, 3, 4 and 5 words; punctuation is no word."""
    buckets = by_length(TEST_SET, EVALUATION, count=3)
    assert [(b.first, b.last, b.sentences) for b in buckets] == [(1, 3, 3), (4, 5, 2)]
    assert [b.passes for b in buckets] == [5 / 3, 4.0]
    # Of "one", "x" and "one two three four" 5 of 6 words are right, and all 3 pairs, 2 triples, 1 quadruple.
    assert buckets[0].bleu == pytest.approx(100 * (5 / 6) ** 0.25)
    assert buckets[1].chrf < 100 and [b.label for b in buckets] == ["1–3", "4–5"]
    assert Bucket(3, 3, 1, 0.0, 0.0, 1.0).label == "3"


@pytest.mark.filterwarnings("ignore")  # of matplotlib's imports
def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra plot)")
    buckets = by_length(TEST_SET, EVALUATION, count=3)
    plot({"a": buckets, "b": buckets}, tmp_path / "x.png", "title")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    curves = {"a": by_length(TEST_SET, EVALUATION)}
    refuses(plot, "need matplotlib: pip install 'padir[plot]'", curves, tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()

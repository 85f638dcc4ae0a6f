"""Intervals of uniform numbers: every result of a function has the probability that a person computes."""

import collections
import copy
import fractions

import numpy as np
import pytest
from support.refusals import refuses

from padir.studies.analysis.law import branched
from padir.studies.analysis.uniforms import Known, Uniforms

PROB_LV = np.array([[0.2, 0.3, 0.5], [0.1, 0.9, 0.0], [0.25, 0.25, 0.5]])


def move_of(function, shape, number_BD, from_B):
    known = Known(number_BD, int(np.prod(shape)))
    result = np.asarray(function(Uniforms.of(known, shape)))
    counts = np.column_stack(known.counts) if known.counts else number_BD[:, :0]
    return known.probability_B, counts, result


def law(function, shape=(3,), rows=1):
    """Result of a function of uniforms [rows, *shape] -> its probability, one mapping for each row."""

    def move(number_BD, from_B):
        return move_of(lambda u: function(u, from_B), shape, number_BD, from_B)

    found = [collections.Counter() for _ in range(rows)]
    branches = branched(move, rows)
    for row, result, prob in zip(branches.from_B, branches.leaves[0].tolist(), branches.prob_B, strict=True):
        found[row][tuple(result)] += prob
    return found


def test_tokens_have_the_product_of_their_probabilities():
    (found,) = law(lambda u, _: (PROB_LV.cumsum(-1) <= u[..., None]).sum(-1))
    assert len(found) == 3 * 2 * 3 and sum(found.values()) == pytest.approx(1)
    for tokens, prob in found.items():
        assert prob == pytest.approx(np.prod(PROB_LV[range(3), tokens]))


def test_each_row_has_bounds_of_its_own():
    rate_B1 = np.array([[0.25], [1.0], [0.0]])
    some, all_, none = law(lambda u, row: u < rate_B1[row], shape=(2,), rows=3)
    assert some == pytest.approx({(a, b): [0.75, 0.25][a] * [0.75, 0.25][b] for a in (0, 1) for b in (0, 1)})
    assert all_ == {(True, True): 1} and none == {(False, False): 1}


@pytest.mark.parametrize(
    ("function", "prob"),
    [
        (lambda u: u < 0.3, 0.3),
        (lambda u: 0.3 > u, 0.3),
        (lambda u: u >= 0.3, 0.7),
        (lambda u: 0.3 <= u, 0.7),
        (lambda u: 1 - u < 0.3, 0.3),
        (lambda u: -u > -0.3, 0.3),
        (lambda u: 2 * u + 1 < 1.5, 0.25),
        (lambda u: u / 4 < 0.1, 0.4),
        (lambda u: u - 0.5 > 0, 0.5),
        (lambda u: (u < 0.5) & (u > 0.2), 0.3),  # the second comparison knows of the first
        (lambda u: (u < 0.5) & (u < 0.2), 0.2),
        (lambda u: np.where(np.array([True]), u, 2.0) < 0.4, 0.4),
        (lambda u: np.where(np.array([True]), 2.0, u) < 0.4, 0.0),
        (lambda u: u < np.nan, 0.0),
        (lambda u: u >= np.nan, 0.0),
        (lambda u: u + np.inf <= np.inf, 1.0),
        (lambda u: np.inf - u < np.inf, 0.0),
        (lambda u: 0 * u > 0, 0.0),
        (lambda u: 0 * u >= 0, 1.0),
        (lambda u: 0 < 0 * u, 0.0),
        (lambda u: np.where(np.array([False]), u, 1.0) <= 1, 1.0),
        (lambda u: np.where(np.array([False]), u, 0.0) > 0, 0.0),
        (lambda u: np.where(np.array([[True]]), u[:, None], 1.0)[:, 0] < 0.4, 0.4),
        (lambda u: u < 1 + 1e-9, 1.0),  # as a sum of probabilities may be
    ],
)
def test_one_number(function, prob):
    (found,) = law(lambda u, _: function(u), shape=(1,))
    assert found[True,] == pytest.approx(prob) and sum(found.values()) == pytest.approx(1)


def test_a_random_order():
    (found,) = law(lambda u, _: np.argsort(u, axis=-1))
    assert found == pytest.approx(
        dict.fromkeys([(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], 1 / 6)
    )
    kept = np.array([True, False, True])
    for function in (lambda u, _: np.argsort(u + ~kept), lambda u, _: np.argsort(np.where(kept, u, np.inf))):
        (found,) = law(function)
        assert found == pytest.approx({(0, 2, 1): 0.5, (2, 0, 1): 0.5})


def test_an_order_and_a_draw_by_other_numbers():
    """The first of a random order is written, with probability 0.3."""
    (found,) = law(lambda u, _: (np.argsort(u[..., 0])[:, :1] == np.arange(2)) & (u[..., 1] < 0.3), shape=(2, 2))
    each = fractions.Fraction(1, 2) * fractions.Fraction(3, 10)
    assert found == pytest.approx({(True, False): each, (False, True): each, (False, False): 0.7})


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (np.log, "uniforms are given to np.log"),
        (lambda u: u * u, "uniforms are given to np.multiply"),
        (lambda u: u < u, "uniforms are given to np.less"),
        (lambda u: 1 / u, "uniforms are given to np.divide"),
        (np.sort, "uniforms are given to np.sort"),
        (lambda u: u[0], "the index [0] of uniforms must be u[:, ...] or u[..., i]"),
        (lambda u: u[np.array([0])], "the index"),
        (lambda u: np.asarray(u), "uniforms are read as numbers"),
        (
            lambda u: (u < np.array([0.2, 0.5, 0.7]), np.argsort(u))[1],
            "the order is taken of uniforms that were compared",
        ),
        (lambda u: (np.argsort(u), u < 0.5)[1], "after their order was taken"),
        (lambda u: (np.argsort(u), np.argsort(-u))[1], "taken twice: take it once"),
        (lambda u: np.argsort(u * np.array([0.2, 0.8, 1.0])), "the order is taken of uniforms that were compared"),
        (lambda u: np.argsort(u[:, [0, 0, 1]]), "the index"),
        (lambda u: u == 0.5, "np.equal"),
        (lambda u: (u * 3).astype(int), "uniforms.astype is asked for"),
        (lambda u: u.max(-1), "uniforms.max"),
        (lambda u: u if u else u, "read as a condition"),
        (lambda u: copy.deepcopy(u) < 0.5, "copied or changed in place"),
        (lambda u: u.__setitem__(0, 1.0), "copied or changed in place"),
    ],
)
def test_what_is_no_comparison_is_refused(function, words):
    refuses(lambda: law(lambda u, _: function(u)), words)


def test_more_ways_than_a_number_can_count_are_too_many():
    bounds = np.arange(1, 128) / 128
    assert branched(lambda *_: move_of(lambda u: (u[..., None] > bounds).sum(-1), (10,), *_), 1) is None


def test_a_number_that_stands_twice_has_no_order():
    twice = lambda u, _: np.argsort(np.where(np.array([True, False]), u[:, :1], u[:, :1]))  # noqa: E731
    refuses(lambda: law(twice), "")


def test_a_sum_in_place_is_a_new_number():
    def added(u, _):
        u += 0.25
        return u < 0.5

    (found,) = law(added, shape=(1,))
    assert found[True,] == pytest.approx(0.25)

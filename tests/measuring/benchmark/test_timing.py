"""Timing by a clock that the callables themselves move on."""

import collections
import itertools

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.refusals import refused

from padir.measuring.benchmark.timing import Ratio, Timed, interleave


class Clock:
    """A clock that stands still but for `spend`."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


def test_first_calls_are_apart_and_the_rest_is_as_long_as_it_was():
    clock, seen = Clock(), set()

    def compiled(batch):
        clock.spend(batch if batch in seen else batch + 10)
        seen.add(batch)

    timed = interleave({"a": compiled}, [1, 2], repeats=3, clock=clock)["a"]
    assert_array_equal(timed.first_B, [11, 12])
    assert_array_equal(timed.seconds_RB, [[1, 2]] * 3)
    assert_array_equal(timed.total_R, [3, 3, 3])
    assert timed.compile_seconds == 20
    assert timed.latency() == {"p50": 1.5}


def test_the_last_percentiles_need_calls():
    many = Timed(np.zeros(10), np.arange(30.0).reshape(3, 10))
    assert many.latency() == pytest.approx({"p50": 14.5, "p90": 26.1, "p99": 28.71})


def test_takes_turns_and_begins_with_another_each_time():
    calls = []
    systems = {name: lambda batch, name=name: calls.append(name + batch) for name in "abc"}
    interleave(systems, ["1", "2"], repeats=100)
    assert calls[:6] == ["a1", "a2", "b1", "b2", "c1", "c2"]
    turns = np.array(calls[6:]).reshape(100, 2, 3)
    for b, batch in enumerate("12"):
        assert (np.sort(turns[:, b]) == [name + batch for name in "abc"]).all()
    pairs = collections.Counter(f"{before[0]}{after[0]}" for before, after in itertools.pairwise(calls[6:]))
    assert all(pairs[before + after] > 60 for before, after in itertools.permutations("abc", 2))  # of some 100


def test_a_ratio_is_of_what_ran_side_by_side():
    slow, fast = (
        Timed(np.zeros(1), np.array([[4.0], [40.0], [6.0]])),
        Timed(np.zeros(1), np.array([[2.0], [20.0], [1.0]])),
    )
    assert Ratio.of(slow, fast) == Ratio(median=2.0, lower=2.0, upper=4.0)
    assert Ratio.of(fast, fast) == Ratio(1.0, 1.0, 1.0)


@pytest.mark.parametrize("wrong", [{"callables": {}}, {"batches": []}, {"repeats": 0}])
def test_nothing_to_time(wrong):
    with refused("needs something time"):
        interleave(**({"callables": {"a": print}, "batches": [1], "repeats": 1} | wrong))

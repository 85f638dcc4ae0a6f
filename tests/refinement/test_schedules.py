"""The numbers of positions that schedules leave hidden, their optimality, and the strategies that follow them."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.fakes import IDS, keys, traced
from support.refusals import refused

from padir.refinement import Constant, Mask, MaskPredict, Threshold, Uniform, draft, parse_strategy
from padir.refinement.strategies.schedules import SCHEDULES, still_masked


def hidden(schedule, length, num_steps):
    return [int(still_masked(schedule, jnp.array([[length]]), t, num_steps)[0, 0]) for t in range(1, num_steps + 1)]


def sizes(schedule, length, num_steps):
    return -np.diff([length, *hidden(schedule, length, num_steps)])


def loss(sizes, entropies):
    """Expected divergence of writing positions in random order: the Riemann sum minus the sum of all entropies."""
    written = np.cumsum([0, *sizes[:-1]])
    return float((sizes * entropies[written.clip(max=len(entropies) - 1)]).sum() - entropies.sum())


def best_loss(length, num_steps, entropies):
    """The smallest loss of all sizes, by trying every one."""
    cuts = itertools.combinations(range(1, length), num_steps - 1)
    return min(loss(np.diff([0, *cut, length]), entropies) for cut in cuts)


class TestStillHidden:
    @pytest.mark.parametrize("schedule", SCHEDULES)
    @pytest.mark.parametrize("length", [1, 2, 7, 15, 40])
    @pytest.mark.parametrize("num_steps", [1, 2, 4, 10])
    def test_falls_from_below_the_length_to_0(self, schedule, length, num_steps):
        numbers = hidden(schedule, length, num_steps)
        assert numbers[-1] == 0 and numbers[0] < length and min(numbers) == 0
        assert (np.diff([length, *numbers]) <= 0).all()
        if schedule in ("geometric", "doubling"):  # no pass is wasted
            assert (np.diff([length, *numbers]) < 0)[: numbers.index(0) + 1].all()

    def test_known_numbers(self):
        assert hidden("linear", 15, 4) == [15 * (4 - t) // 4 for t in range(1, 5)]
        assert hidden("cosine", 40, 3) == [34, 20, 0]  # of 34.64, 20 and 0
        assert sizes("geometric", 15, 4).tolist() == [1, 2, 4, 8]
        assert sizes("geometric", 26, 3).tolist() == [2, 6, 18]
        assert sizes("doubling", 16, 9).tolist() == [1, 1, 2, 4, 8, 0, 0, 0, 0]
        assert sizes("doubling", 16, 3).tolist() == [4, 4, 8]

    def test_shares_by_pass(self):
        assert hidden((0.6, 0.3, 0.1, 0.0), 20, 4) == [12, 6, 2, 0]
        assert hidden((0.6, 0.2, 0.0), 20, 6) == [16, 12, 8, 4, 2, 0]  # between two passes: the mean of both
        assert hidden((0.6, 0.3, 0.1, 0.0), 20, 2) == [6, 0]
        assert hidden((1.0, 1.0, 0.0), 4, 3) == [3, 2, 0]  # no pass is wasted
        assert hidden((0.5, 0.0), 1, 4) == [0, 0, 0, 0]

    @pytest.mark.parametrize(
        ("schedule", "length", "num_steps", "entropy"),
        [
            ("geometric", 15, 4, lambda k: 1 / (1 + k)),
            ("geometric", 26, 3, lambda k: 1 / (1 + k)),
            ("linear", 12, 3, lambda k: 1 - k / 12),
            ("linear", 12, 4, lambda k: 1 - k / 12),
        ],
    )
    def test_are_optimal_where_they_are_said_to_be(self, schedule, length, num_steps, entropy):
        entropies = entropy(np.arange(length))
        best = best_loss(length, num_steps, entropies)
        assert loss(sizes(schedule, length, num_steps), entropies) == pytest.approx(best, rel=0.01)
        others = {
            name
            for name in SCHEDULES
            if not np.array_equal(sizes(name, length, num_steps), sizes(schedule, length, num_steps))
        }
        assert others and all(loss(sizes(name, length, num_steps), entropies) > 1.01 * best for name in others)


class TestStrategies:
    def run(self, strategy, num_steps=4, corruption=Mask):
        start = draft(keys(1), jnp.array([16]), 16, corruption(), IDS)
        return traced(strategy, start, num_steps)

    def counts(self, strategy, num_steps=4):
        return (self.run(strategy, num_steps).tokens_TBL[1 : num_steps + 1, 0, :15] == IDS.mask).sum(-1).tolist()

    @pytest.mark.parametrize(
        "strategy",
        [
            *map(MaskPredict, [*SCHEDULES, (0.7, 0.2, 0.1, 0.0)]),
            *(cls(1.0, schedule=schedule) for cls in (Threshold, Constant) for schedule in ("cosine", (0.7, 0.0))),
        ],
        ids=str,
    )
    def test_strategies_leave_the_number_of_their_schedule(self, strategy):
        assert self.counts(strategy) == hidden(strategy.schedule, 15, 4)

    def test_a_share_of_the_schedules_number(self):
        assert self.counts(Constant(0.4, schedule="linear")) == hidden("linear", 6, 4)
        assert self.counts(Constant(count=99, schedule="cosine")) == hidden("cosine", 15, 4)

    def test_confident_positions_come_in_addition_to_the_schedules(self):
        none, linear = self.counts(Threshold(0.05)), self.counts(Threshold(0.05, schedule="linear"))
        assert none[0] < hidden("geometric", 15, 4)[0]
        assert self.counts(Threshold(0.05, schedule="geometric"))[0] == none[0]  # the threshold alone writes more
        assert all(number <= most for number, most in zip(linear, hidden("linear", 15, 4), strict=True))

    def test_rows_are_done_when_nothing_is_hidden(self):
        assert self.run(MaskPredict("doubling"), 12).passes_B.tolist() == [5]
        assert self.run(Threshold(1.0, schedule="doubling"), 12).passes_B.tolist() == [5]
        assert self.run(Constant(1.0, schedule="doubling"), 12).passes_B.tolist() == [5]

    def test_all_of_the_positions_by_a_linear_schedule_is_mask_predict(self):
        for corruption in (Mask, Uniform):
            assert_array_equal(
                self.run(Constant(1.0, schedule="linear"), 6, corruption).tokens_TBL,
                self.run(MaskPredict(), 6, corruption).tokens_TBL,
            )

    @pytest.mark.parametrize("cls", [MaskPredict, Constant, Threshold])
    def test_unknown_schedules(self, cls):
        with refused(f"{cls.__name__}.schedule linear, cosine, got 'square'"):
            cls(schedule="square")
        for shares in ((), (0.5,), (0.2, 0.5, 0.0), (1.5, 0.0)):
            with refused(f"{cls.__name__}.schedule shares fall"):
                cls(schedule=shares)

    def test_shares_on_the_command_line(self):
        for shares in ("(0.5,0.0)", "[0.5,0.0]"):
            strategy = parse_strategy(f"threshold:tau=0.5,schedule={shares}")
            assert strategy == Threshold(0.5, schedule=(0.5, 0.0)) and isinstance(hash(strategy), int)
        with refused("schedule=('a',) wrong type"):
            parse_strategy("mask_predict:schedule=('a',)")

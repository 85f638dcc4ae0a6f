"""Exact laws of decoders of several passes, on models small enough to be done by hand."""

import math

import numpy as np
import pytest
from support.refusals import refused

from padir.studies.ising import decoders
from padir.studies.ising.spin_models import Ising, distribution, random_model
from padir.studies.ising.tensorisation import divergence

COINS = np.array([0.04, 0.16, 0.16, 0.64])  # two independent coins that show + with 0.8


def pair(coupling):
    return distribution(Ising(np.array([[0.0, coupling], [coupling, 0.0]]), np.zeros(2)))


def test_ordered_partitions_are_counted():
    assert [sum(1 for _ in decoders.ordered_partitions((1 << n) - 1)) for n in range(1, 7)] == [1, 3, 13, 75, 541, 4683]
    assert all(sum(blocks) == 15 for blocks in decoders.ordered_partitions(15))


def test_equal_spins_in_one_pass_and_in_two():
    oracle = decoders.Oracle(pair(20.0))  # (+, +) or (-, -), each with 1/2
    assert decoders.partition_law(oracle, (3,)) == pytest.approx(np.full(4, 0.25))
    assert decoders.partition_sum(oracle, (3,)) == pytest.approx(math.log(2))
    assert decoders.partition_law(oracle, (1, 2)) == pytest.approx([0.5, 0.0, 0.0, 0.5], abs=1e-12)
    assert decoders.partition_sum(oracle, (1, 2)) == pytest.approx(0.0, abs=1e-12)


def test_keeping_the_likelier_draw_distorts_even_independent_coins():
    law_S, total = decoders.walk(decoders.Oracle(COINS), decoders.by_drawn(0.0))
    # Draws are kept together if they are equal. Of a + and a -, the + is kept, and the other coin is drawn again.
    assert law_S == pytest.approx([0.04, 0.16 * 0.2, 0.16 * 0.2, 0.64 + 0.32 * 0.8])
    assert total == pytest.approx(0.0, abs=1e-12)
    chosen_before, _ = decoders.walk(decoders.Oracle(COINS), decoders.confident(0.0))
    assert chosen_before == pytest.approx(COINS)


def test_a_walk_over_one_partition_has_its_law_and_sum():
    oracle = decoders.Oracle(distribution(random_model(np.random.default_rng(0), 4)))
    blocks = (2, 9, 4)
    shown_before = dict(zip([0, 2, 11], blocks, strict=True))
    for true in (False, True):
        law_S, total = decoders.walk(oracle, lambda _, shown: [(shown_before[shown], np.ones(16))], true=true)
        assert law_S == pytest.approx(oracle.prob_S if true else decoders.partition_law(oracle, blocks))
        if true:
            assert total == pytest.approx(decoders.partition_sum(oracle, blocks))
    assert divergence(oracle.prob_S, decoders.partition_law(oracle, blocks)) == pytest.approx(total)


def test_random_sizes_are_the_mixture_of_all_their_partitions():
    oracle = decoders.Oracle(distribution(random_model(np.random.default_rng(1), 4)))
    ours = [b for b in decoders.ordered_partitions(15) if [part.bit_count() for part in b] == [1, 3]]
    mixture_S = np.mean([decoders.partition_law(oracle, blocks) for blocks in ours], axis=0)
    law_S, _ = decoders.walk(oracle, decoders.random_sizes([1, 3]))
    assert len(ours) == 4
    assert law_S == pytest.approx(mixture_S)


def test_an_oracle_needs_few_spins_and_no_zeros():
    with refused("at most 10 spins, got 11"):
        decoders.Oracle(np.full(2048, 1 / 2048))
    with refused("above 0"):
        decoders.Oracle(np.array([0.5, 0.0, 0.0, 0.5]))

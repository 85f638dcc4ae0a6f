"""Batches that are put on the devices while a step runs."""

import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest
from support.training import train_tiny

from padir.data.loader import _Records
from padir.errors import PadirError
from padir.training import Intervals, TrainRun
from padir.training.step import PlacedBatches


class Counting:
    """A loader whose batches are the numbers 1, 2, ...; its state is the last number."""

    def __init__(self):
        self.at = 0

    def __next__(self):
        self.at += 1
        return {"number": np.array([self.at])}

    def get_state(self):
        return {"batch": self.at}

    def set_state(self, state):
        self.at = state["batch"]


def placed_batches():
    placed = []

    def place(arrays):
        placed.append(int(arrays["number"][0]))
        return {"number": jnp.asarray(10 * arrays["number"])}

    return PlacedBatches(Counting(), place), placed


def numbers(batch):
    """The number of a batch on the host, and that on the devices, which is ten times as large."""
    return tuple(int(arrays["number"][0]) for arrays in batch)


def test_the_next_batch_is_placed_before_it_is_taken():
    batches, placed = placed_batches()
    assert numbers(next(batches)) == (1, 10)
    batches.fetch()
    batches.fetch()  # nothing more: one batch ahead is enough
    assert placed == [1, 2]
    assert numbers(next(batches)) == (2, 20)
    assert placed == [1, 2]


def test_the_state_is_that_of_the_batches_taken():
    batches, _ = placed_batches()
    assert batches.get_state() == {"batch": 0}
    next(batches)
    batches.fetch()
    assert batches.get_state() == {"batch": 1}
    other, placed = placed_batches()
    other.fetch()  # of another place: it must not be taken
    other.set_state(batches.get_state())
    assert other.get_state() == {"batch": 1} and numbers(next(other)) == numbers(next(batches)) == (2, 20)


def test_a_batch_that_cannot_be_read_costs_no_step_before_it(data, tmp_path, monkeypatch):
    fill, numbers = _Records.fill, itertools.count(1)

    def damaged(self, *args):
        if next(numbers) == 3:
            raise PadirError("the third batch is damaged")
        return fill(self, *args)

    monkeypatch.setattr(_Records, "fill", damaged)
    with pytest.raises(PadirError, match="the third batch is damaged"):
        train_tiny(data, tmp_path / "model", num_steps=4, intervals=Intervals(log=1, evaluate=0, checkpoint=2))
    assert [path.name for path in (tmp_path / "model" / "checkpoints").iterdir()] == ["2"]


def test_a_run_fetches_during_a_step_and_saves_the_batches_taken(data, tmp_path, monkeypatch):
    events, fetch, record = [], PlacedBatches.fetch, TrainRun.record
    monkeypatch.setattr(PlacedBatches, "fetch", lambda self: (events.append("fetch"), fetch(self))[1])
    monkeypatch.setattr(TrainRun, "record", lambda self: (events.append(self.at), record(self))[1])
    train_tiny(data, tmp_path / "model", num_steps=3, intervals=Intervals(log=1, evaluate=0, checkpoint=1))
    # A step takes its batch (which fetches the first one) and fetches the next before anything waits for the step.
    assert events == ["fetch", "fetch", 1, "fetch", "fetch", 2, "fetch", 3]
    for step in (2, 3):
        state = json.loads((tmp_path / "model" / "checkpoints" / str(step) / "loader.json").read_text())
        assert (state["epoch"], state["batch"]) == (0, step)

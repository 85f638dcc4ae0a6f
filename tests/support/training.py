"""A training of six steps, and comparisons of what it leaves."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from support.tiny import drawn_params
from support.tiny_model import TINY

from padir.data.plan import Batching
from padir.models import init_params, load_model
from padir.training import Adam, Averaging, Cosine, Intervals, Objective, TrainConfig, run, sharded_step, train
from padir.training.sharded_step import ShardedStep

SETTINGS = {
    "model": TINY,
    "objective": Objective(),
    "optimizer": Adam(Cosine(peak=1e-2, warmup_steps=2)),
    "batching": Batching(rows=4, row_length=32),
    "intervals": Intervals(log=2, evaluate=3, checkpoint=4),
    "num_steps": 6,
    "seed": 3,
}


def train_tiny(data, folder, *, evaluate_fn=None, config_text="", **changes):
    """Trains as `SETTINGS` say, with some of them changed."""
    config = TrainConfig(**SETTINGS | changes)
    # The initialisers of another model would take seconds to compile.
    initial = init_params if config.model == TINY else drawn_params
    with mock.patch.object(run, "ShardedStep", shared_step), mock.patch.object(sharded_step, "init_params", initial):
        return train(str(data), str(folder), config, evaluate_fn=evaluate_fn, config_text=config_text)


def shared_step(config, ids):
    """The step of a run; runs that differ in nothing that a step computes share one, which is traced once.

    Short runs of any length have the learning rates of six steps.
    """
    changes = {"intervals": Intervals(), "start_from": None}
    if config.averaging.kind != "ema":
        changes["averaging"] = Averaging()
    if config.num_steps < 10:
        changes["num_steps"] = 6
    return _step(dataclasses.replace(config, **changes), ids)


_step = functools.cache(ShardedStep)


def assert_same_params(folder, other):
    jax.tree.map(np.testing.assert_array_equal, load_model(folder)[0], load_model(other)[0])


def state_at(step):
    return {
        "step": jnp.int32(step),
        "params": {"kernel": jnp.full((64, 32), step + 0.5), "bias": jnp.arange(5.0) * step},
    }


def assert_equal(tree, expected):
    jax.tree.map(np.testing.assert_array_equal, tree, expected)


def save_all(checkpoints, *steps):
    for step in steps:
        checkpoints.save(step, state_at(step), {"epoch": 0, "batch": step})
    checkpoints.wait()

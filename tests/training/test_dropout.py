"""Dropout: its places are those of T5X, every one of them reaches the loss, and only training uses it."""

import contextlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.objectives import run
from support.tiny import one_layer_model, pairs, rows_of

from padir.refinement.corruption import Mask
from padir.training import Causal, Objective

RATE = 0.25
ENCODER = [
    "encoder/dropout",
    "encoder/layers_0/attention/dropout",
    "encoder/layers_0/dropout",
    "encoder/layers_0/mlp/Dropout_0",
    "encoder/layers_0/dropout",
    "encoder/dropout_out",
]
LAYER = [f"decoder/layers_0/{name}" for name in ("self_attention/dropout", "dropout")]
POSITIONAL = ["decoder/layers_0/positional_attention/dropout"]
REST = [
    *(
        f"decoder/layers_0/{name}"
        for name in ("encoder_decoder_attention/dropout", "dropout", "mlp/Dropout_0", "dropout")
    ),
    "decoder/dropout",
]
REFINING = ["decoder/dropout", *LAYER, *POSITIONAL, *REST]
ONE, TWO = (Objective(Mask(0.5), stage_weights=("all",) * stages) for stages in (1, 2))
CASES = {
    "two stages": (TWO, {}, ENCODER + 2 * REFINING),
    "decontextualised": (
        ONE,
        {"decontextualised": True, "positional_attention": False},
        ENCODER + ["decoder/dropout", "decoder/dropout", *LAYER, *REST],
    ),
    "causal": (Causal(), {"causal": True, "positional_attention": False}, ENCODER + ["decoder/dropout", *LAYER, *REST]),
}


@contextlib.contextmanager
def watched(change=lambda number, value: value):
    """Lists the (path, deterministic) of every call of a dropout layer; `change` replaces what each call returns."""
    calls = []

    def interceptor(call, args, kwargs, context):
        value = call(*args, **kwargs)
        if not isinstance(context.module, nn.Dropout) or context.method_name != "__call__":
            return value
        assert context.module.rate == RATE
        calls.append(("/".join(context.module.path), kwargs["deterministic"]))
        return change(len(calls) - 1, value)

    with nn.intercept_methods(interceptor):
        yield calls


def loss_of(name, dropout, change=lambda number, value: value):
    """(function of the index of a dropout layer, list of calls): the loss with that layer's values replaced by NaN."""
    objective, sizes, _ = CASES[name]
    model, params = one_layer_model(dropout_rate=RATE, **sizes)
    batch = rows_of([[pair] for pair in pairs([(4, 5), (6, 3)], length_token=not model.config.causal)], 8, 8)
    seen = []

    @jax.jit
    def loss(index):
        with watched(lambda number, value: jnp.where(number == index, jnp.nan, value)) as calls:
            value, _ = objective(jax.random.key(0), params, batch, model=model, dropout=dropout)
        seen[:] = calls
        return value

    return loss, seen


@pytest.mark.parametrize("name", CASES)
def test_every_dropout_layer_is_on_in_training_and_reaches_the_loss(name):
    expected = CASES[name][2]
    loss, seen = loss_of(name, dropout=True)
    assert np.isfinite(loss(-1))
    assert seen == [(path, False) for path in expected]
    assert [index for index in range(len(expected)) if not jnp.isnan(loss(index))] == []


@pytest.mark.parametrize("name", ["two stages", "causal"])
def test_no_dropout_layer_is_on_without_dropout(name):
    loss, seen = loss_of(name, dropout=False)
    assert np.isfinite(loss(-1))
    assert seen == [(path, True) for path in CASES[name][2]]


def test_stages_drop_other_features_and_transitions_get_other_keys():
    """The transition keeps the canvas, so that the losses of three stages differ by dropout alone."""
    seen = []

    def same(key_B, canvas, output, target_BL, chosen_BL, *, progress):
        jax.debug.callback(lambda data: seen.extend(map(tuple, data.tolist())), jax.random.key_data(key_B))
        return canvas, chosen_BL

    model, params = one_layer_model(dropout_rate=RATE)
    batch = rows_of([[pair] for pair in pairs([(4, 5), (6, 3)])], 8, 8)
    for dropout, different in ((False, 1), (True, 3)):
        _, sums = run(model, params, batch, Objective(Mask(0.5), same, ("all",) * 3), dropout=dropout)
        assert np.unique(np.round(sums.stage_loss_S, 3)).size == different
    jax.effects_barrier()
    assert len(seen) == 8 and len({*seen}) == 4  # of two runs: two transitions of two rows

"""A step in bfloat16: which of its products still have float32 operands, and how far it is from a step in float32."""

import functools
import re

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from support.objectives import EXPECTED, gradient
from support.tiny import drawn_params, one_layer_model, pairs, rows_of

from padir.models.products import float32_product
from padir.readout import tally as tally_module
from padir.training import Causal

BATCH = rows_of([pairs(row, seed=seed) for seed, row in enumerate([[(4, 6), (5, 8)], [(7, 9)]])], 16, 16)
ROUNDING = 2.0**-8  # the largest relative error of a number that is rounded to bfloat16
DOT = re.compile(r"stablehlo\.dot_general .*: \(tensor<[\dx]*x(\w+)>, tensor<[\dx]*x(\w+)>\)")


@pytest.mark.parametrize("by_block", [False, True], ids=["logits at once", "logits by block"])
@pytest.mark.parametrize("name", ["padir", "disco", "autoregressive"])
def test_only_the_length_head_multiplies_float32(name, by_block, monkeypatch):
    if by_block:
        monkeypatch.setattr(tally_module, "LOGITS_AT_ONCE", 2 * 16 * 20)
    changes = {"autoregressive": {"causal": True}, "disco": {"decontextualised": True}}.get(name, {})
    model, params = one_layer_model(dtype="bfloat16", dropout_rate=0.0, **changes)
    objective = EXPECTED.get(name, Causal())
    arrays, tree = jax.tree.flatten(BATCH)  # lowering would make a batch of what are no arrays

    @jax.jit  # compiled anew
    def step(params, arrays):
        return gradient.__wrapped__(model, params, jax.tree.unflatten(tree, arrays), objective, 2)

    lowered = step.trace(params, arrays).lower(lowering_platforms=("cuda",))
    operands = DOT.findall(lowered.as_text())
    head = 0 if name == "autoregressive" else 3  # one product, and two in the backward pass
    assert operands.count(("bf16", "bf16")) == len(operands) - head > 30
    assert operands.count(("f32", "f32")) == head


@pytest.mark.parametrize(
    ("letters", "shapes"),
    [
        ("BLHK,BSHK->BHLS", [(3, 5, 2, 4), (3, 7, 2, 4), (3, 2, 5, 7)]),
        ("BLD,VD->BLV", [(3, 5, 4), (9, 4), (3, 5, 9)]),
        ("...D,VD->...V", [(3, 5, 4), (9, 4), (3, 5, 9)]),
    ],
)
def test_a_gradients_cotangent_is_rounded_once(letters, shapes):
    left, right, cotangent = (np.random.RandomState(0).normal(size=shape) for shape in shapes)
    left, right = (jnp.asarray(each, jnp.bfloat16) for each in (left, right))
    result, pull = jax.vjp(functools.partial(float32_product, letters), left, right)
    assert result.dtype == jnp.float32
    exact = [np.asarray(each, np.float64) for each in (left, right)]
    letters = letters.replace("...", "BL")
    np.testing.assert_allclose(result, np.einsum(letters, *exact), rtol=1e-5, atol=1e-5)
    of_left, of_right, of_result = re.split(",|->", letters)
    backward = f"{of_result},{of_right}->{of_left}", f"{of_result},{of_left}->{of_right}"
    for got, by, other in zip(pull(jnp.float32(cotangent)), backward, reversed(exact), strict=True):
        assert got.dtype == jnp.bfloat16
        expected = np.einsum(by, cotangent, other)
        # Each cotangent is rounded, and then their sum.
        allowed = ROUNDING * (np.einsum(by, abs(cotangent), abs(other)) + abs(expected))
        assert (abs(np.asarray(got, np.float64) - expected) <= 1.01 * allowed).all()


@pytest.mark.parametrize("name", ["padir", "autoregressive"])
def test_loss_and_gradient_are_those_of_float32_to_a_few_roundings(name):
    def figures(dtype):
        model, _ = one_layer_model(dtype=dtype, dropout_rate=0.0, causal=name == "autoregressive")
        (loss, _), gradients = gradient(model, drawn_params(model), BATCH, EXPECTED.get(name, Causal()), 2)
        return float(loss), jax.flatten_util.ravel_pytree(gradients)[0]

    (loss, gradient_N), (exact_loss, exact_N) = figures("bfloat16"), figures("float32")
    assert abs(loss / exact_loss - 1) < ROUNDING
    assert jnp.linalg.norm(gradient_N - exact_N) < 8 * ROUNDING * jnp.linalg.norm(exact_N)


def test_float32_operands_still_have_derivatives_of_all_modes():
    product = functools.partial(float32_product, "BD,VD->BV", jnp.ones((2, 3)))
    _, along = jax.jvp(product, [jnp.ones((4, 3))], [jnp.ones((4, 3))])
    assert (along == 3).all()

"""The programs for GPUs and TPUs give what those for a CPU give; they are run here on the CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from padir.models import layers, products
from padir.refinement import scores


@pytest.fixture
def logits_BLV():
    """Logits with ties, and with banned ids."""
    drawn = jnp.round(4 * jax.random.normal(jax.random.key(0), (3, 5, 301))) / 4
    return drawn.at[..., [0, 7, 300]].set(-jnp.inf)


def test_best_tokens_in_one_reduction(logits_BLV):
    expected, found = scores._best_by_maximum(logits_BLV), jax.jit(scores._best_in_one_reduction)(logits_BLV)
    assert (expected[0] == found[0]).all()
    assert_allclose(expected[1], found[1], rtol=1e-5)


def test_a_certain_token_has_a_score_of_zero():
    logits = jnp.full((1, 1, 9), -1e4).at[0, 0, 4].set(0.0)
    for best in (scores._best_by_maximum, scores._best_in_one_reduction):
        token_BL, score_BL = best(logits)
        assert token_BL.item() == 4 and score_BL.item() == 0


def test_one_argmax_in_two_ways(logits_BLV):
    assert (scores._argmax(logits_BLV) == scores._first(logits_BLV)).all()


def test_the_largest_logits_one_after_the_other(logits_BLV):
    few_BLV = logits_BLV.at[0, 0, 3:].set(-jnp.inf)  # fewer finite logits than are asked for
    for one, other in zip(jax.lax.top_k(few_BLV, 5), scores._maxima(few_BLV, 5), strict=True):
        assert (one == other).all()


def test_biases_by_product_are_those_that_are_looked_up():
    table_XH = jax.random.normal(jax.random.key(1), (32, 3))
    bucket = layers.relative_position_bucket(np.arange(9)[None, :] - np.arange(9)[:, None])[None]
    assert (layers._take(table_XH, bucket) == layers._take_by_product(table_XH, bucket)).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_a_single_row_is_multiplied_beside_rows_of_zeros(axis):
    x, kernel = jax.random.normal(jax.random.key(2), (1, 1, 16)), jax.random.normal(jax.random.key(3), (16, 16))
    product = functools.partial(products._product, dtype=jnp.float32, axis=axis)
    found = products._by_more_rows(x, kernel, product=product)
    assert_allclose(product(x, kernel), found, rtol=1e-5, atol=1e-6)
    text = jax.jit(functools.partial(products.dot, dtype=jnp.float32, axis=axis)).trace(x, kernel)
    assert ["tensor<8x16xf32>" in text.lower(lowering_platforms=(name,)).as_text() for name in ("tpu", "cpu")] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("function", "slow"),
    [(scores.best_tokens, "stablehlo.minimum"), (scores.best_ids, "stablehlo.minimum")],
)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_each_platform_gets_its_own_program(function, slow, platform):
    """A sort of the vocabulary, or a second reading of the logits, belongs to a CPU alone."""
    traced = jax.jit(function).trace(jax.ShapeDtypeStruct((2, 3, 500), jnp.float32))
    texts = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", platform)}
    assert slow in texts["cpu"]
    assert texts[platform].count("stablehlo.reduce(") <= 2 and "top_k" not in texts[platform]

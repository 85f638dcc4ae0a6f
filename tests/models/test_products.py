"""The products of linear layers under JAX's matmul precision BF16_BF16_F32, which XLA ignores on a CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.models.products import dot

X = jax.random.normal(jax.random.key(0), (3, 5, 16))
KERNELS = {0: jax.random.normal(jax.random.key(1), (16, 24)), 1: jax.random.normal(jax.random.key(1), (24, 16))}


def product(precision, *, axis, dtype="float32"):
    with jax.default_matmul_precision(precision):
        return jax.jit(functools.partial(dot, dtype=jnp.dtype(dtype), axis=axis))(X, KERNELS[axis])


def in_float64(x, kernel, axis):
    return np.asarray(x, np.float64) @ (
        np.asarray(kernel, np.float64) if axis == 0 else np.asarray(kernel, np.float64).T
    )


def rounded(array):
    return array.astype(jnp.bfloat16).astype(jnp.float32)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other backends have this precision themselves")
@pytest.mark.parametrize("axis", [0, 1])
def test_operands_are_rounded_and_added_in_float32(axis):
    found = product("BF16_BF16_F32", axis=axis)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, in_float64(rounded(X), rounded(KERNELS[axis]), axis), atol=1e-5)
    assert np.abs(found - in_float64(X, KERNELS[axis], axis)).max() > 1e-3


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("precision", [None, "float32"])
def test_other_precisions_are_of_float32(precision, axis):
    np.testing.assert_allclose(product(precision, axis=axis), in_float64(X, KERNELS[axis], axis), atol=1e-5)


def test_models_of_bfloat16_are_as_they_were():
    np.testing.assert_array_equal(*(product(each, axis=0, dtype="bfloat16") for each in ("BF16_BF16_F32", None)))


@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_are_those_of_float32_up_to_rounding(axis):
    def loss(x, kernel):
        return jnp.sin(dot(x, kernel, dtype=jnp.float32, axis=axis)).sum()

    def gradients(precision):
        with jax.default_matmul_precision(precision):
            return jax.jit(jax.grad(loss, argnums=(0, 1)))(X, KERNELS[axis])

    for found, expected in zip(gradients("BF16_BF16_F32"), gradients("float32"), strict=True):
        assert found.shape == expected.shape
        # The operands have 8 bits, and sums of 16 to 24 products of about 1 make the sine's argument.
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.999

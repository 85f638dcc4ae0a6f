"""The products of linear layers under JAX's matmul precision BF16_BF16_F32, which XLA ignores on a CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from padir.models.products import dot, int8_dot

X = jax.random.normal(jax.random.key(0), (3, 5, 16))
KERNELS = {0: jax.random.normal(jax.random.key(1), (16, 24)), 1: jax.random.normal(jax.random.key(1), (24, 16))}

on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="other backends have precisions of their own")


def product(precision, *, axis, dtype="float32"):
    with jax.default_matmul_precision(precision):
        return jax.jit(functools.partial(dot, dtype=jnp.dtype(dtype), axis=axis))(X, KERNELS[axis])


def in_float64(x, kernel, axis):
    return np.asarray(x, np.float64) @ (
        np.asarray(kernel, np.float64) if axis == 0 else np.asarray(kernel, np.float64).T
    )


def rounded(array):
    return array.astype(jnp.bfloat16).astype(jnp.float32)


@on_cpu
@pytest.mark.parametrize("axis", [0, 1])
def test_operands_are_rounded_and_added_in_float32(axis):
    found = product("BF16_BF16_F32", axis=axis)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, in_float64(rounded(X), rounded(KERNELS[axis]), axis), atol=1e-5)
    assert np.abs(found - in_float64(X, KERNELS[axis], axis)).max() > 1e-3


@on_cpu
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("precision", [None, "float32"])
def test_other_precisions_are_of_float32(precision, axis):
    np.testing.assert_allclose(product(precision, axis=axis), in_float64(X, KERNELS[axis], axis), atol=1e-5)


def test_models_of_bfloat16_are_as_they_were():
    np.testing.assert_array_equal(*(product(each, axis=0, dtype="bfloat16") for each in ("BF16_BF16_F32", None)))


@on_cpu
@pytest.mark.parametrize("axis", [0, 1])
def test_gradient_by_the_input_is_rounded_and_by_the_kernel_is_not(axis):
    kernel, cotangent = KERNELS[axis], jax.random.normal(jax.random.key(2), (3, 5, 24))
    with jax.default_matmul_precision("BF16_BF16_F32"):
        product, pull_back = jax.vjp(functools.partial(dot, dtype=jnp.float32, axis=axis), X, kernel)
        by_x, by_kernel = pull_back(cotangent)
    assert product.shape == cotangent.shape
    np.testing.assert_allclose(by_x, in_float64(rounded(cotangent), rounded(kernel), 1 - axis), atol=1e-5)
    exact = in_float64(np.asarray(X).reshape(-1, 16).T, np.asarray(cotangent).reshape(-1, 24), 0)
    np.testing.assert_allclose(by_kernel, exact if axis == 0 else exact.T, atol=1e-5)


def test_gradient_of_a_kernel_has_its_type():
    with jax.default_matmul_precision("BF16_BF16_F32"):
        found = jax.grad(lambda kernel: dot(X, kernel, dtype=jnp.float32).sum())(KERNELS[0].astype(jnp.bfloat16))
    assert found.dtype == jnp.bfloat16


@pytest.mark.parametrize("lead", [(1,), (2,), (3, 5), (64,), (65,)], ids=str)
def test_few_rows_and_a_large_table_are_multiplied_block_by_block(lead):
    """The table has 2,100 rows, three blocks of 700; one row, and more than 64 rows, are multiplied as before."""
    x, table = jax.random.normal(jax.random.key(0), (*lead, 16)), jax.random.normal(jax.random.key(1), (2_100, 16))
    few = 1 < np.prod(lead) <= 64
    program = jax.jit(functools.partial(dot, dtype=jnp.float32, axis=1))
    assert ("3x700x16" in program.lower(x, table).as_text()) == (few and jax.default_backend() == "cpu")
    np.testing.assert_allclose(program(x, table), in_float64(x, table, 1), atol=1e-5)

    scale_F = jnp.arange(1, 2_101) / 2_100
    whole = jnp.round(table * 30).astype(jnp.int8)
    near = np.round(np.asarray(x) * (127 / np.abs(x).max(-1, keepdims=True))) @ np.asarray(whole, np.int64).T
    expected = near * np.abs(x).max(-1, keepdims=True) / 127 * scale_F
    np.testing.assert_allclose(int8_dot(x, whole, scale_F, axis=1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_a_product_block_by_block(dtype):
    x, table = jax.random.normal(jax.random.key(0), (3, 5, 16)), jax.random.normal(jax.random.key(1), (2_100, 16))
    weight = jax.random.normal(jax.random.key(2), (3, 5, 2_100))

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def gradients(x, table):
        return (weight * dot(x, table, dtype=jnp.dtype(dtype), axis=1)).sum()

    of_x, of_table = gradients(x, table)
    assert of_x.dtype == of_table.dtype == jnp.float32
    tolerance = {"float32": 1e-3, "bfloat16": 1.0}[dtype]  # the gradients have a size of about 45 and 4
    x, table, weight = (np.asarray(each, np.float64) for each in (x, table, weight))
    np.testing.assert_allclose(of_x, weight @ table, atol=tolerance)
    np.testing.assert_allclose(of_table, np.einsum("bjf,bjd->fd", weight, x), atol=tolerance / 10)

"""8-bit weights, close to the float ones, and products of linear layers in every precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.refusals import refuses
from support.small_corpus import Numbers
from support.tiny_model import random_translator, same

from padir.decoding import Decoding
from padir.models import products, quantise
from padir.models.products import dot, int8_dot
from padir.translator import Translator

RNG = np.random.RandomState(0)
TOKENS = RNG.randint(3, 60, (4, 12))
TEXTS = [source for source, _ in Numbers().pairs("validation")][:3]


def test_integer_weights_are_quantised_exactly():
    kernel = jnp.array([[127.0, 2.0], [-5.0, -254.0]])
    quantised = quantise({"kernel": kernel})
    assert_array_equal(quantised["kernel"], [[127, 1], [-5, -127]])
    assert_array_equal(quantised["kernel_scale"], [1, 2])
    x = jnp.array([[127.0, 3.0], [0.0, 0.0]])
    assert_allclose(int8_dot(x, quantised["kernel"], quantised["kernel_scale"]), x @ kernel)


def test_the_error_is_at_most_that_of_rounding_to_255_levels():
    x, kernel = jnp.asarray(RNG.randn(9, 64), jnp.float32), jnp.asarray(RNG.randn(64, 32), jnp.float32)
    quantised = quantise({"kernel": kernel})
    error = np.abs(int8_dot(x, quantised["kernel"], quantised["kernel_scale"]) - x @ kernel)
    halves = np.abs(x).max(1, keepdims=True) / 254 * np.abs(kernel).sum(0), np.abs(kernel).max(0) / 254
    assert (error <= halves[0] + halves[1] * (np.abs(x).sum(1, keepdims=True) + 64 * np.abs(x).max() / 254)).all()
    assert 0 < error.mean() < 0.1


def test_a_row_is_rounded_by_its_own_largest_number():
    x = jnp.asarray(RNG.randn(9, 64), jnp.float32)
    quantised = quantise({"kernel": jnp.asarray(RNG.randn(64, 32), jnp.float32)})
    product = functools.partial(int8_dot, kernel=quantised["kernel"], scale_F=quantised["kernel_scale"])
    assert_array_equal(product(x.at[1:].multiply(1000.0))[0], product(x)[0])


@pytest.mark.parametrize("axis", [0, 1])
def test_bfloat16_products_of_integers_have_the_same_bits(axis, monkeypatch):
    """The sum of the first 1,060 terms is more than float32 holds exactly; it falls again after those."""
    monkeypatch.setattr(products, "_multiplies_bfloat16", lambda: True)
    kernel = np.full((4, 1_100), 127, np.int8)
    kernel[:, 1_059], kernel[:, 1_060:] = np.arange(1, 5), -127
    kernel = kernel if axis else kernel.T
    product = functools.partial(int8_dot, kernel=jnp.asarray(kernel), scale_F=jnp.ones(4), axis=axis)
    found = product(jnp.full((384, 1_100), 127.0))
    assert_array_equal(found, np.full((384, 1_100), 127) @ (kernel.T if axis else kernel).astype(int))
    (rows,) = jax.export.symbolic_shape("rows")
    shapes = [jax.ShapeDtypeStruct((count, 1_100), jnp.float32) for count in (384, 383, rows)]
    assert ["bf16" in str(jax.make_jaxpr(product)(shape)) for shape in shapes] == [True, False, False]


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params):
    tokens, ones = jnp.asarray(TOKENS), jnp.ones(TOKENS.shape, int)
    return jax.tree.leaves(model.apply({"params": params}, tokens, ones, tokens, ones)[0])[0]


def check_close(translator, other):
    """Logits of two models are nearly the same, and not the same."""
    logits, rounded = (logits_of(each.model, each.params) for each in (translator, other))
    assert rounded.dtype == jnp.float32 and not np.array_equal(logits, rounded)
    assert np.corrcoef(np.ravel(logits), np.ravel(rounded))[0, 1] > 0.999


def check_translates(translator, rounded, precision):
    """The precision of a call is that of the rounded model."""
    options = {"beam": 1} if translator.card.config.causal else {"num_steps": 2}
    same(translator.translate(TEXTS, precision=precision, **options), rounded.translate(TEXTS, **options))


def in_precision(translator, precision):
    """The model as it computes in a precision, as a translator of its own."""
    side = translator.side(Decoding(precision=precision))
    assert side is translator.side(Decoding(precision=precision)) and side.precision == precision
    return Translator(side.params, side.card, side.tokenizer)


@pytest.mark.parametrize("sizes", [{}, {"causal": True}, {"tied": False}, {"rejecter": True}], ids=str)
def test_logits_of_a_quantised_model_are_close(tokenizer, sizes):
    translator = random_translator(tokenizer, **sizes)
    rounded = in_precision(translator, "int8")
    check_close(translator, rounded)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(rounded.params)} == {"float32", "int8"}
    if sizes in ({}, {"causal": True}):  # the decoders that differ
        check_translates(translator, rounded, "int8")
    for precision in ("float32", "bfloat16"):
        refuses(rounded.translate, "precision must be int8", TEXTS, precision=precision)


@pytest.mark.parametrize("sizes", [{}, {"causal": True}], ids=str)
def test_logits_of_a_model_in_bfloat16_are_close(tokenizer, sizes):
    translator = random_translator(tokenizer, **sizes)
    short = in_precision(translator, "bfloat16")
    check_close(translator, short)
    kinds = {name: {leaf.dtype.name for leaf in jax.tree.leaves(part)} for name, part in short.params.items()}
    kinds_of_heads = {name: {"float32"} for name in kinds if name == "length_predictor"}
    assert kinds == {name: {"bfloat16"} for name in kinds} | kinds_of_heads
    assert {leaf.dtype.name for leaf in jax.tree.leaves(translator.params)} == {"float32"}
    check_translates(translator, short, "bfloat16")


def test_the_small_heads_keep_float32(tokenizer):
    translator = random_translator(tokenizer, rejecter=True)
    rounded, short = (in_precision(translator, name).params for name in ("int8", "bfloat16"))
    heads = [params[name] for params in (rounded, short) for name in ("length_predictor", "rejecter")]
    assert {leaf.dtype.name for leaf in jax.tree.leaves(heads)} == {"float32"}


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
    assert_allclose(found, in_float64(rounded(X), rounded(KERNELS[axis]), axis), atol=1e-5)
    assert np.abs(found - in_float64(X, KERNELS[axis], axis)).max() > 1e-3


@on_cpu
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("precision", [None, "float32"])
def test_other_precisions_are_of_float32(precision, axis):
    assert_allclose(product(precision, axis=axis), in_float64(X, KERNELS[axis], axis), atol=1e-5)


def test_models_of_bfloat16_are_as_they_were():
    assert_array_equal(*(product(each, axis=0, dtype="bfloat16") for each in ("BF16_BF16_F32", None)))


@on_cpu
@pytest.mark.parametrize("axis", [0, 1])
def test_gradient_by_the_input_is_rounded_and_by_the_kernel_is_not(axis):
    kernel, cotangent = KERNELS[axis], jax.random.normal(jax.random.key(2), (3, 5, 24))
    with jax.default_matmul_precision("BF16_BF16_F32"):
        product, pull_back = jax.vjp(functools.partial(dot, dtype=jnp.float32, axis=axis), X, kernel)
        by_x, by_kernel = pull_back(cotangent)
    assert product.shape == cotangent.shape
    assert_allclose(by_x, in_float64(rounded(cotangent), rounded(kernel), 1 - axis), atol=1e-5)
    exact = in_float64(np.asarray(X).reshape(-1, 16).T, np.asarray(cotangent).reshape(-1, 24), 0)
    assert_allclose(by_kernel, exact if axis == 0 else exact.T, atol=1e-5)


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
    assert_allclose(program(x, table), in_float64(x, table, 1), atol=1e-5)

    scale_F = jnp.arange(1, 2_101) / 2_100
    whole = jnp.round(table * 30).astype(jnp.int8)
    near = np.round(np.asarray(x) * (127 / np.abs(x).max(-1, keepdims=True))) @ np.asarray(whole, np.int64).T
    expected = near * np.abs(x).max(-1, keepdims=True) / 127 * scale_F
    assert_allclose(int8_dot(x, whole, scale_F, axis=1), expected, rtol=1e-5, atol=1e-5)


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
    assert_allclose(of_x, weight @ table, atol=tolerance)
    assert_allclose(of_table, np.einsum("bjf,bjd->fd", weight, x), atol=tolerance / 10)

"""The matrix products of linear layers: of floating-point numbers, and of 8-bit integers."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int8, Shaped

from padir.text.ids import at_most

_FEW_ROWS = 8
_MANY_ROWS, _EXACT_TERMS = 384, 2**24 // 127**2  # number of products of integers -127 .. 127 whose float32 sum is exact
_SMALL_BATCH, _LARGE_TABLE, _BLOCK = 64, 2_048, (64, 1_024)


def dot(x: Float[Array, "*B D"], kernel: Float[Array, "_ _"], *, dtype: DTypeLike, axis: int = 0) -> Array:
    """The product of x and a kernel, both rounded to `dtype` first; on a CPU, JAX's precision BF16_BF16_F32 applies.

    On a CPU, XLA treats this precision as float32. So this function rounds the operands to bfloat16 itself and adds
    their products in float32, also for the gradient by x. This takes half the time on processors with AVX512-BF16. The
    gradient by the kernel stays in float32, in the order of operands that is faster on a CPU. With this precision there
    is no forward-mode derivative. A CPU host that exports programs for other platforms must not set this precision
    (`padir.interop` removes it).

    Args:
      axis: the axis of the kernel that is summed over, of size D: 0 for [D, F], 1 for [F, D].

    Returns:
      [*B, F], float32 if `dtype` is float32 or axis is 1, else of `dtype`.
    """
    if jnp.dtype(dtype) == jnp.float32 and _rounds_operands():
        return _bfloat16_dot(x.astype(dtype), kernel.astype(dtype), axis)
    product = functools.partial(_product, dtype=dtype, axis=axis)
    if at_most(x.size, x.shape[-1]):  # a single row, as in greedy search for one sentence
        return jax.lax.platform_dependent(
            x, kernel, tpu=functools.partial(_by_more_rows, product=product), default=product
        )
    return product(x, kernel)


def _product(x, kernel, *, dtype, axis):
    if axis == 1:
        return _table_dot(x.astype(dtype), kernel.astype(dtype), jnp.float32)
    return jnp.dot(x.astype(dtype), kernel.astype(dtype))


def _table_dot(x: Shaped[Array, "*B D"], table: Shaped[Array, "F D"], result: DTypeLike) -> Array:
    """The inner products of x and all rows of a table, of type `result`.

    With few rows of x and a large table, a CPU multiplies blocks of the table. The reason: XLA first copies a large
    operand into another order, which costs more than the product of a few rows.
    """
    rows = x.size // x.shape[-1] if at_most(x.size, _SMALL_BATCH * x.shape[-1]) else 0
    blocks = _blocks(table.shape[0]) if rows > 1 else None

    def whole(x, table):
        # The table is not transposed here, because XLA would repeat the transposition in every step of a loop.
        letters = "...D,FD->...F"
        if result == jnp.float32:
            return float32_product(letters, x, table)
        return jnp.einsum(letters, x, table, preferred_element_type=result)

    def by_block(x, table):
        table_NFD = table.reshape(blocks, -1, table.shape[1])
        product = jnp.einsum("RD,NFD->NRF", x.reshape(rows, -1), table_NFD, preferred_element_type=result)
        return jnp.moveaxis(product, 0, 1).reshape(*x.shape[:-1], -1)

    if blocks is None:
        return whole(x, table)
    return jax.lax.platform_dependent(x, table, cpu=by_block, default=whole)


@functools.lru_cache
def _blocks(size: int) -> int | None:
    """The number of equal blocks that a large table is cut into; None if it is small or has no such blocks.

    >>> _blocks(8_100), _blocks(32_128), _blocks(100), _blocks(8_101)
    (9, 32, None, None)
    """
    least, most = _BLOCK
    if size < _LARGE_TABLE:
        return None
    return next((size // block for block in range(most, least - 1, -1) if size % block == 0), None)


def _by_more_rows(x, kernel, *, product):
    """Adds rows of zeros, because a TPU computes a single row in its vector unit, at twice the time of 8 rows."""
    rows = jnp.pad(x.reshape(1, -1), ((0, _FEW_ROWS - 1), (0, 0)))
    return product(rows, kernel)[0].reshape(*x.shape[:-1], -1)


def _rounds_operands() -> bool:
    config: Any = jax.config
    return config.jax_default_matmul_precision == "BF16_BF16_F32" and jax.default_backend() == "cpu"


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _bfloat16_dot(x: Array, kernel: Array, axis: int) -> Array:
    return _rounded(x, kernel, (x.ndim - 1, axis))


def _forward(x, kernel, axis):
    return _bfloat16_dot(x, kernel, axis), (x, kernel)


def _backward(axis, known, cotangent):
    x, kernel = known
    lead = tuple(range(x.ndim - 1))
    by_x = _rounded(cotangent, kernel, (x.ndim - 1, 1 - axis))
    left, right = (x, cotangent) if axis == 0 else (cotangent, x)
    return by_x, jax.lax.dot_general(left, right, ((lead, lead), ((), ())), precision=jax.lax.Precision.HIGHEST)


_bfloat16_dot.defvjp(_forward, _backward)


def _rounded(left, right, axes: tuple[int, int]):
    """The float32 product over one axis of each operand, after both operands are rounded to bfloat16."""
    operands = (left.astype(jnp.bfloat16), right.astype(jnp.bfloat16))
    # A transposition here would make XLA go back to float32.
    dimensions = (((axes[0],), (axes[1],)), ((), ()))
    default = jax.lax.Precision.DEFAULT
    return jax.lax.dot_general(*operands, dimensions, precision=default, preferred_element_type=jnp.float32)


def float32_product(letters: str, left: Array, right: Array) -> Array:
    """The einsum of two arrays of one type, with a float32 result; products in the gradient have operands of that type.

    JAX alone would multiply the result's float32 cotangent by bfloat16 operands, which makes a GPU multiply float32
    numbers, at half the speed or less. So the cotangent is rounded first. Sums are float32. There is no forward-mode
    derivative, except for float32 operands, for which nothing is rounded.

    Args:
      letters: the axes of both operands and of the result, as in "...D,VD->...V".
    """
    if left.dtype == jnp.float32:
        return jnp.einsum(letters, left, right, preferred_element_type=jnp.float32)
    return _float32_product(letters, left, right)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _float32_product(letters, left, right):
    return jnp.einsum(letters, left, right, preferred_element_type=jnp.float32)


def _float32_forward(letters, left, right):
    return _float32_product(letters, left, right), (left, right)


def _float32_backward(letters, operands, cotangent):
    left, right = operands
    of_left, of_right, of_result = letters.replace("->", ",").split(",")
    cotangent = cotangent.astype(left.dtype)
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    by_left = product(f"{of_result},{of_right}->{of_left}", cotangent, right)
    by_right = product(f"{of_result},{of_left}->{of_right}", cotangent, left)
    return by_left.astype(left.dtype), by_right.astype(right.dtype)


_float32_product.defvjp(_float32_forward, _float32_backward)


def int8_dot(x: Float[Array, "*B D"], kernel: Int8[Array, "_ _"], scale_F: Float[Array, " F"], axis: int = 0):
    """The product of x and a quantised kernel, float32 [*B, F]; each row of x is rounded to 255 levels first.

    Args:
      kernel, scale_F: from `padir.models.params.quantise`.
      axis: as in `dot`.
    """
    rows = x.astype(jnp.float32).reshape(-1, x.shape[-1])
    step = jnp.maximum(jnp.abs(rows).max(-1, keepdims=True), 1e-30) / 127.0
    rounded = jnp.round(rows / step).astype(jnp.int8)
    if at_most(rows.shape[0], _FEW_ROWS - 1):  # on a CPU, XLA takes several times longer for 1 row than for 8 rows
        rounded = jnp.pad(rounded, ((0, _FEW_ROWS - rows.shape[0]), (0, 0)))
    product = _integer_product(rounded, kernel, axis)[: rows.shape[0]]
    return (product * step * scale_F).reshape(*x.shape[:-1], -1)


def _integer_product(left: Int8[Array, "R D"], kernel: Int8[Array, "_ _"], axis: int) -> Float[Array, "R F"]:
    """The product of two arrays of integers -127 .. 127, rounded to float32 at the end.

    Some CPUs multiply many rows of bfloat16 numbers faster than integers (1.2 to 1.5 times on an AMD EPYC). bfloat16
    holds such integers exactly. float32 holds their sums exactly if there are not too many terms. So the result has the
    same bits. The kernel's copy in bfloat16 needs memory for the time of the product.
    """

    def of_integers(left, kernel):
        if axis == 1:
            return _table_dot(left, kernel, jnp.int32).astype(jnp.float32)
        return jnp.dot(left, kernel, preferred_element_type=jnp.int32).astype(jnp.float32)

    def of_bfloat16(left, kernel):
        size = left.shape[1]
        parts = [slice(begin, begin + _EXACT_TERMS) for begin in range(0, size, _EXACT_TERMS)]
        kernels = [kernel[part] if axis == 0 else kernel[:, part] for part in parts]
        sums = [_rounded(left[:, part], each, (1, axis)) for part, each in zip(parts, kernels, strict=True)]
        # The sums become integers even if there is only one part, because integers have no -0.0.
        return functools.reduce(jnp.add, (each.astype(jnp.int32) for each in sums)).astype(jnp.float32)

    many = isinstance(left.shape[0], int) and left.shape[0] >= _MANY_ROWS  # a symbolic number of rows is no int
    if not many or not _multiplies_bfloat16():
        return of_integers(left, kernel)
    return jax.lax.platform_dependent(left, kernel, cpu=of_bfloat16, default=of_integers)


@functools.cache
def _multiplies_bfloat16() -> bool:
    """True if this processor has products of bfloat16 numbers but no products of integer tiles."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return "avx512_bf16" in flags and "amx_int8" not in flags

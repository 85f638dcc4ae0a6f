"""Weights as 8-bit integers, for decoding: a quarter of the memory, and on CPUs integer products.

Each output of a linear map, and each row of the embedding table, has a scale of its own; activations are rounded row by
row as they come (`padir.models.layers.int8_dot`). Norms, biases of relative positions, the position table and the
length head stay as they are.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int8

KEPT = ("length_predictor", "binary_projection")  # small, and judged by small differences


def quantise(params: Any) -> Any:
    """A model's parameters with 8-bit kernels and token embedding, for `Transformer.apply` and `Translator`.

    Args:
      params: float32, or bfloat16; a rounded tree would lose its scales.

    >>> int(quantise({"wi": {"kernel": jnp.array([[0.5], [-1.0]])}})["wi"]["kernel"][1, 0])
    -127
    """
    result = {}
    for name, value in params.items():
        if name in KEPT:
            result[name] = value
        elif name == "token_embedder":
            table, scale = _rounded(value["embedding"], axis=1)
            result[name] = {**value, "embedding": table, "embedding_scale": scale}
        elif isinstance(value, dict):
            result[name] = quantise(value)
        elif name == "kernel":
            result[name], result["kernel_scale"] = _rounded(value, axis=0)
        else:
            result[name] = value
    return result


def _rounded(weight: Float[Array, "I O"], axis: int) -> tuple[Int8[Array, "I O"], Float[Array, " S"]]:
    """Integers from -127 to 127, and what one is worth in each row or column: `axis` is summed over in products."""
    step = jnp.maximum(jnp.abs(weight).max(axis, keepdims=True), 1e-30) / 127.0
    return jnp.round(weight / step).astype(jnp.int8), step.squeeze(axis)

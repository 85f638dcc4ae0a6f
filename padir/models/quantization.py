"""Quantization of weights to 8-bit integers for decoding, which needs a quarter of the memory of float32.

Each output of a linear layer, and each row of the embedding table, has a scale of its own. Activations are rounded row
by row during decoding (`padir.models.products.int8_dot`), so that the matrix products are products of integers. Norms,
relative position biases, the position table, the length head and the rejecter head are not rounded.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int8

KEPT = ("length_predictor", "binary_projection")  # small heads, whose results depend on small differences of logits


def quantise(params: Any) -> Any:
    """Rounds the kernels and the token embedding of a parameter tree to 8 bits, for decoding.

    Args:
      params: parameters in float32 or bfloat16. A tree that is already rounded would lose its scales.

    Returns:
      The tree with int8 arrays "kernel" and "embedding" and their scales "kernel_scale" and "embedding_scale".
      `Transformer.apply` and `Translator` accept this tree.

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
    """Rounds a weight to integers -127 .. 127; returns them and their scales. Products sum over `axis`."""
    step = jnp.maximum(jnp.abs(weight).max(axis, keepdims=True), 1e-30) / 127.0
    return jnp.round(weight / step).astype(jnp.int8), step.squeeze(axis)

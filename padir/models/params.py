"""Parameters of a model: their initial values, axis names, shapes and number, and their rounding to 8-bit integers.

Rounded weights need a quarter of the memory of float32. Each output of a linear layer, and each row of the embedding
table, has a scale of its own. Activations are rounded row by row during decoding (`padir.models.products.int8_dot`), so
that the matrix products are products of integers. Norms, relative position biases, the position table, the length head
and the rejecter head are not rounded.
"""

from __future__ import annotations

import hashlib
from typing import Any

import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8, PyTree

from padir.errors import PadirError, first_line
from padir.models.config import ModelConfig
from padir.models.transformer import Transformer
from padir.text.ids import Ids


def count_parameters(params: PyTree) -> int:
    """Number of scalars in a parameter tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def params_sum(params: PyTree) -> str:
    """SHA-256 of a parameter tree: of the names, shapes, types and values of its arrays."""
    total = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        total.update(f"{path} {leaf.shape} {leaf.dtype}".encode())
        total.update(np.asarray(leaf).tobytes())
    return total.hexdigest()


def param_shapes(config: ModelConfig, ids: Ids) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's parameters by name, such as "encoder/layers_0/attention/query/kernel", without values.

    Raises:
      PadirError: the sizes contradict each other.
    """
    try:
        variables = jax.eval_shape(lambda: _variables(Transformer(config, ids), 0))
    except Exception as error:  # JAX and Flax raise various exceptions for impossible sizes
        what = f"the sizes of the model contradict each other ({first_line(error)})"
        raise PadirError(what, remedy=f"change {config}") from error
    params: dict[str, Any] = flax.traverse_util.flatten_dict(variables["params"], sep="/")
    return {name: leaf.shape for name, leaf in params.items()}


def _variables(model: Transformer, seed: int) -> Any:
    source_BS = jnp.full((1, 1), model.ids.first_regular, jnp.int32)  # no shape of a parameter depends on the length
    segment_BS = jnp.ones((1, 1), jnp.int32)
    return jax.jit(model.init)(jax.random.key(seed), source_BS, segment_BS, source_BS, segment_BS)


def init_params(model: Transformer, seed: int) -> Any:
    """Initial parameters of a model, float32, drawn from `seed`."""
    return _variables(model, seed)["params"]


def in_model_dtype(config: ModelConfig, params: PyTree) -> Any:
    """Converts all kernels and embeddings to the type of the model's activations; results stay the same.

    Otherwise a layer converts its parameters at each use. A program that loops over passes calls this function before
    the loop; with bfloat16 the loop then reads half as many bytes. Layers that compute in float32 keep their
    parameters: the length head, the rejecter, an untied output projection, norms and position biases. 8-bit weights are
    unchanged, too.
    """
    kept = {*KEPT, "logits_dense"}

    def convert(path, leaf):
        names = [key.key for key in path]
        converted = names[-1] in ("kernel", "embedding") and kept.isdisjoint(names) and leaf.dtype == jnp.float32
        return leaf.astype(config.jax_dtype) if converted else leaf

    return jax.tree_util.tree_map_with_path(convert, params)


def param_axes(model: Transformer) -> Any:
    """Logical axis names of each parameter, such as ("embed", "mlp"), in a tree like the parameters'."""
    axes: dict[Any, Any] = flax.traverse_util.flatten_dict(jax.eval_shape(lambda: _variables(model, 0))["params_axes"])
    named = {(*path, name.removesuffix("_axes")): leaf.names for (*path, name), leaf in axes.items()}
    return flax.traverse_util.unflatten_dict(named)


KEPT = ("length_predictor", "binary_projection")  # small heads, whose results depend on small differences of logits


def quantise(params: PyTree) -> Any:
    """Rounds the kernels and the token embedding of a float32 or bfloat16 parameter tree to 8 bits, for decoding.

    The arrays "kernel" and "embedding" become int8, with scales "kernel_scale" and "embedding_scale" beside them.
    `Transformer.apply` and `Translator` accept this tree. A tree that is already rounded would lose its scales.

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

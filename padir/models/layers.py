"""The blocks of a T5-style Transformer, with T5X's parameter names, shapes and logical axes.

Attention logits are not divided by sqrt(K): T5 folds that into the initialisation of the query kernel.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from padir.distributed.sharding import keep_rows
from padir.models.config import ModelConfig
from padir.models.products import dot, float32_product, int8_dot

NUM_BUCKETS = 32  # number of buckets of relative positions
MASKED = -1e10  # the logit of a masked key; finite, so that a row with no key at all stays finite


KeysValues = tuple[Float[Array, "_ _ H K"], Float[Array, "_ _ H K"]]
"""The keys and values of an attention, [B, S, H, K]."""


@flax.struct.dataclass
class AxisNames:
    """The names of a parameter's axes, such as ("embed", "mlp"), as a leaf of the collection "params_axes"."""

    names: tuple[str, ...] = flax.struct.field(pytree_node=False)


def named_param(
    module: nn.Module, name: str, init: nn.initializers.Initializer, shape: tuple[int, ...], axes: tuple[str, ...]
) -> Array:
    """A float32 parameter of a module. `init` also writes its axis names, where T5X looks for them."""
    if module.is_initializing():
        module.variable("params_axes", f"{name}_axes", lambda: AxisNames(axes))
    return module.param(name, init, shape, jnp.float32)


class Dense(nn.Module):
    """A linear layer on the last axis, with a [D_in, D_out] kernel and without bias.

    `scale` is D_in times the variance of the initial kernel.
    """

    features: int
    axes: tuple[str, str]
    dtype: DTypeLike
    scale: float = 1.0

    @nn.compact
    def __call__(self, x, only: tuple[Any, int] | None = None):
        """Computes all output features, or features begin .. begin + size - 1 if `only` is (begin, size)."""
        init = nn.initializers.variance_scaling(self.scale, "fan_in", "normal")
        kernel = _part(named_param(self, "kernel", init, (x.shape[-1], self.features), self.axes), only)
        if kernel.dtype == jnp.int8:
            scale = _part(self.get_variable("params", "kernel_scale"), only)
            return int8_dot(x, kernel, scale).astype(self.dtype)
        return dot(x, kernel, dtype=self.dtype)


def _part(array, only: tuple[Any, int] | None, axis: int = -1):
    return array if only is None else jax.lax.dynamic_slice_in_dim(array, *only, axis=axis)


class RMSNorm(nn.Module):
    """RMS normalisation (Zhang and Sennrich, NeurIPS 2019): no mean is subtracted and no bias added."""

    dtype: DTypeLike
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x):
        scale = named_param(self, "scale", nn.initializers.ones, (x.shape[-1],), ("embed",))
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        return (x * scale).astype(self.dtype)


class Embed(nn.Module):
    """An embedding table; a call looks up rows, and `attend` multiplies vectors by all rows for output logits."""

    num_embeddings: int
    features: int
    dtype: DTypeLike
    axes: tuple[str, str] = ("vocab", "embed")

    def setup(self):
        shape, init = (self.num_embeddings, self.features), nn.initializers.normal(stddev=1.0)
        self.embedding = named_param(self, "embedding", init, shape, self.axes)

    def __call__(self, ids: Int[Array, ...]):
        rows = jnp.take(self.embedding, ids, axis=0)
        if rows.dtype == jnp.int8:
            rows = rows * jnp.take(self._scale(), ids)[..., None]
        return keep_rows(rows.astype(self.dtype))

    def _scale(self):
        """The scale of each row of a quantised table."""
        return self.get_variable("params", "embedding_scale")

    def attend(self, x, only: tuple[Any, int] | None = None):
        """Inner products of x and all rows, or rows begin .. begin + size - 1 if `only` is (begin, size)."""
        table = _part(self.embedding, only, axis=0)
        if table.dtype == jnp.int8:
            return int8_dot(x, table, _part(self._scale(), only), axis=1)
        return dot(x, table, dtype=self.dtype, axis=1)


def relative_position_bucket(
    offset: np.ndarray, num_buckets: int = NUM_BUCKETS, max_distance: int = 128, bidirectional: bool = True
) -> np.ndarray:
    """T5's relative position bucket of each offset (key position - query position; Raffel et al., 2020, section 2.1).

    Half of the buckets are for keys to the right of the query. A causal stack (`bidirectional=False`) sees no key to
    the right, so all its buckets are for keys to the left. Half of the buckets of a side hold one distance each. The
    widths of the other half grow logarithmically up to max_distance, and larger distances share the last bucket.

    >>> relative_position_bucket(np.array([-200, -1, 0, 1, 8, 200])).tolist()
    [15, 1, 0, 17, 24, 31]
    >>> relative_position_bucket(np.array([-200, -16, -1, 0, 1]), bidirectional=False).tolist()
    [31, 16, 1, 0, 0]
    """
    side = num_buckets // 2 if bidirectional else num_buckets
    exact = side // 2
    distance = np.abs(offset) if bidirectional else np.maximum(-offset, 0)
    growth = np.log(np.maximum(distance, 1).astype(np.float32) / exact + np.finfo(np.float32).eps)
    far = exact + (growth / np.log(max_distance / exact) * (side - exact)).astype(np.int32)
    right = np.where(offset > 0, side, 0) if bidirectional else 0
    return right + np.where(distance < exact, distance, np.minimum(far, side - 1))


class RelativePositionBias(nn.Module):
    """T5's relative position bias: a learned number for each head and bucket, shared by the layers of a stack."""

    num_heads: int
    bidirectional: bool = True

    @nn.compact
    def __call__(
        self,
        length: int,
        position: Int[Array, ""] | None = None,
        index_BL: Int[Array, "B L"] | None = None,
    ) -> Float[Array, "_ H _ L"]:
        """Biases of all query positions, or of the one at `position`.

        Elements of `index_BL`, if given, are the positions of a row's queries and keys; otherwise these are 0 .. L - 1.
        """
        shape, init = (self.num_heads, NUM_BUCKETS), nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        table = named_param(self, "rel_embedding", init, shape, ("heads", "relpos_buckets"))
        index_L = np.arange(length)
        offset_LL = index_L[None, :] - index_L[:, None]
        bucket_LL = relative_position_bucket(offset_LL, bidirectional=self.bidirectional)
        if index_BL is not None:
            bucket = jnp.asarray(bucket_LL)[index_BL[:, :, None], index_BL[:, None, :]]
        else:
            bucket = bucket_LL[None] if position is None else jnp.asarray(bucket_LL)[position[None, None]]
        return jnp.moveaxis(take_rows(table.T, bucket), -1, 1)


def take_rows(table: Float[Array, "P ..."], index: Int[Array, ...] | np.ndarray) -> Float[Array, ...]:
    """The rows of a small table at the given indices."""
    return jax.lax.platform_dependent(table, index, tpu=_take_by_product, default=_take)


def _take(table, index):
    return jnp.take(table, index, axis=0)


def _take_by_product(table, index):
    """Looks up rows by a product with one-hot vectors, as T5X does: gathers and scatters are slow on TPUs."""
    chosen = jax.nn.one_hot(index, table.shape[0], dtype=table.dtype)
    return jnp.tensordot(chosen, table, 1, precision=jax.lax.Precision.HIGHEST)


def make_dropout(config: ModelConfig) -> nn.Dropout:
    """Dropout of the same features at all positions, as in T5X."""
    return nn.Dropout(config.dropout_rate, broadcast_dims=(-2,))


class Attention(nn.Module):
    """Multi-head attention with fused [D, H*K] kernels.

    The separate method `keys_values` lets cross-attention compute its keys and values once for all stages and steps.
    Queries may have N times as many rows as keys, because N hypotheses of a sentence share its keys and values.
    """

    config: ModelConfig

    def setup(self):
        c, dtype = self.config, self.config.jax_dtype
        inner, axes = c.heads * c.head_dim, ("embed", "joined_kv")
        # T5 divides the initial query kernel by sqrt(K) instead of dividing the attention logits.
        self.query = Dense(inner, axes, dtype, scale=1.0 / c.head_dim)
        self.key = Dense(inner, axes, dtype)
        self.value = Dense(inner, axes, dtype)
        self.out = Dense(c.width, ("joined_kv", "embed"), dtype)
        self.dropout = make_dropout(c)

    def _split(self, x_BLD: Float[Array, "B L D"]) -> Float[Array, "B L H K"]:
        return x_BLD.reshape(*x_BLD.shape[:-1], self.config.heads, self.config.head_dim)

    def keys_values(self, x_BSD) -> KeysValues:
        """Projects vectors to keys and values."""
        return self._split(self.key(x_BSD)), self.values(x_BSD)

    def queries_keys(self, x_BLD) -> tuple[Float[Array, "B L H K"], Float[Array, "B L H K"]]:
        """Projects vectors to queries and keys."""
        return self._split(self.query(x_BLD)), self._split(self.key(x_BLD))

    def values(self, x_BSD) -> Float[Array, "B S H K"]:
        """Projects vectors to values."""
        return self._split(self.value(x_BSD))

    def __call__(self, queries_BLD, keys_values, mask, bias=None, *, deterministic: bool = True):
        """Attends from queries to keys_values where `mask` [B, L or 1, S] is True; `bias` is [B or 1, H, L, S]."""
        key_BSHK, value_BSHK = keys_values
        query_BLHK = self._split(self.query(queries_BLD))
        shape = query_BLHK.shape[:2]
        # N hypotheses of a sentence become N times as many queries to the same keys. In an exported program B is
        # symbolic, and N may be 1.
        if folded := shape[0] != key_BSHK.shape[0]:
            query_BLHK = query_BLHK.reshape(key_BSHK.shape[0], -1, *query_BLHK.shape[2:])
        logits_BHLS = attention_logits(query_BLHK, key_BSHK)
        return self.weigh(logits_BHLS, value_BSHK, mask, bias, deterministic, shape if folded else None)

    def weigh(self, logits_BHLS, value_BSHK, mask, bias, deterministic: bool, shape: tuple[Any, ...] | None = None):
        """Attends with given logits, [B or 1, H, L, S], which all rows share if they are of one row.

        Args:
          shape: the first two axes of the result, if other than the values' rows and the logits' positions; an export
            may leave them open.
        """
        if bias is not None:
            logits_BHLS = logits_BHLS + bias
        logits_BHLS = jnp.where(mask[:, None], logits_BHLS, MASKED)
        attn_BHLS = jax.nn.softmax(logits_BHLS, axis=-1)
        self.sow("intermediates", "attn_BHLS", attn_BHLS)
        attn_BHLS = self.dropout(attn_BHLS.astype(self.config.jax_dtype), deterministic=deterministic)
        out_BLHK = jnp.einsum("BHLS,BSHK->BLHK", attn_BHLS, value_BSHK)
        return self.out(out_BLHK.reshape(*(shape or out_BLHK.shape[:2]), -1))


def attention_logits(query_BLHK: Float[Array, "B L H K"], key_BSHK: Float[Array, "B S H K"]) -> Float[Array, "B H L S"]:
    """The float32 products of queries and keys."""
    return float32_product("BLHK,BSHK->BHLS", query_BLHK, key_BSHK)


class MLP(nn.Module):
    """T5's feed-forward block, plain (`wi`, `wo`) or gated (product of `wi_0`, `wi_1`, ..., then `wo`)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x, *, deterministic: bool = True):
        c, product = self.config, None
        for i, activation in enumerate(c.mlp_activations):
            name = "wi" if len(c.mlp_activations) == 1 else f"wi_{i}"
            y = Dense(c.mlp, ("embed", "mlp"), c.jax_dtype, name=name)(x)
            y = y if activation == "linear" else getattr(jax.nn, activation)(y)
            product = y if product is None else product * y
        product = make_dropout(c)(product, deterministic=deterministic)
        return Dense(c.width, ("mlp", "embed"), c.jax_dtype, name="wo")(product)

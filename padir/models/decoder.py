"""The decoder stack: refining, decontextualised (DisCo) or causal layers, with T5X's parameter names.

In a refining decoder every position of a draft sees the whole draft of its segment. In a decontextualised decoder the
output at a position does not depend on the token there. In a causal decoder a position sees the positions to its left;
a cache keeps their keys and values while the decoder writes one position after the other.
"""

from __future__ import annotations

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir.distributed.sharding import keep_rows
from padir.errors import PadirError
from padir.models.config import REMAT, ModelConfig
from padir.models.layers import (
    MLP,
    Attention,
    Dense,
    Embed,
    KeysValues,
    RelativePositionBias,
    RMSNorm,
    attention_logits,
    make_dropout,
    take_rows,
)
from padir.refinement.segments import other_positions, same_segment
from padir.text.ids import positions_in_segment


@flax.struct.dataclass
class LayerInputs:
    """The inputs of a decoder layer beside the states.

    Attributes:
      cross_kv: keys and values of cross-attention.
      positional: queries and keys of positional attention, or logits that all rows share; None without it.
      mask_BLL, cross_mask_BLS, bias: masks of both attentions, and the bias of relative positions.
      context_BLD: the states that self-attention's keys come from; None for the layer's own.
      deterministic: no dropout (static).
    """

    cross_kv: KeysValues
    positional: KeysValues | Array | None
    mask_BLL: Bool[Array, "_ L _"]
    cross_mask_BLS: Bool[Array, "_ _ S"]
    bias: Array
    context_BLD: Float[Array, "R L D"] | None = None
    deterministic: bool = flax.struct.field(pytree_node=False, default=True)


class DecoderLayer(nn.Module):
    """Self-attention, positional attention (if configured), cross-attention and MLP, with residual connections."""

    config: ModelConfig

    def setup(self):
        c, dtype = self.config, self.config.jax_dtype

        self.pre_self_attention_layer_norm = RMSNorm(dtype)
        self.self_attention = Attention(c)
        if c.positional_attention:
            self.pre_positional_attention_layer_norm = RMSNorm(dtype)
            self.positional_attention = Attention(c)
        self.pre_cross_attention_layer_norm = RMSNorm(dtype)
        self.encoder_decoder_attention = Attention(c)
        self.pre_mlp_layer_norm = RMSNorm(dtype)
        self.mlp = MLP(c)
        self.dropout = make_dropout(c)

    def cross_kv(self, memory_BSD):
        return self.encoder_decoder_attention.keys_values(memory_BSD)

    def positional(self, position_PD, position_BL=None):
        """Positional attention's queries and keys at the positions of each row, or the logits that all rows share.

        Args:
          position_PD: the position embeddings.
          position_BL: each position's index among them; None if every row has the positions 0 .. P - 1.
        """
        p_1PD = self.pre_positional_attention_layer_norm(position_PD)[None]
        query_1PHK, key_1PHK = self.positional_attention.queries_keys(p_1PD)
        if position_BL is None:
            return attention_logits(query_1PHK, key_1PHK)
        return take_rows(query_1PHK[0], position_BL), take_rows(key_1PHK[0], position_BL)

    def __call__(self, x, given: LayerInputs):
        """Runs the layer on all positions."""
        mask_BLL, deterministic = given.mask_BLL, given.deterministic
        x = keep_rows(x)
        y = self.pre_self_attention_layer_norm(x)
        context = y if given.context_BLD is None else given.context_BLD
        keys_values = self.self_attention.keys_values(context)
        y = self.self_attention(y, keys_values, mask_BLL, given.bias, deterministic=deterministic)
        if given.context_BLD is not None:  # a query whose keys are all masked would attend to all of them evenly
            y = jnp.where(mask_BLL.any(-1, keepdims=True), y, 0)
        x = x + self.dropout(y, deterministic=deterministic)
        if (positional := given.positional) is not None:
            logits_BHLL = attention_logits(*positional) if isinstance(positional, tuple) else positional
            value_BLHK = self.positional_attention.values(x)
            x = x + self.positional_attention.weigh(logits_BHLL, value_BLHK, mask_BLL, given.bias, deterministic)
        return self._cross_and_mlp(x, given.cross_kv, given.cross_mask_BLS, deterministic)

    def step(self, x_R1D, cross_kv, cache, begin, mask, cross_mask, bias):
        """Runs the layer of a causal decoder on one position, and writes its keys and values to the cache.

        The arrays of the cache are [B, S, H, K]; the new entries of all sentences begin at slot `begin`.
        """
        y = self.pre_self_attention_layer_norm(x_R1D)

        def write(cached, new):
            new = new.reshape(cached.shape[0], -1, *new.shape[2:])  # N hypotheses of each of B sentences
            return jax.lax.dynamic_update_slice_in_dim(cached, new, begin, axis=1)

        cache = jax.tree.map(write, cache, self.self_attention.keys_values(y))
        x = x_R1D + self.self_attention(y, cache, mask, bias)
        return self._cross_and_mlp(x, cross_kv, cross_mask, deterministic=True), cache

    def _cross_and_mlp(self, x, cross_kv, cross_mask_BLS, deterministic):
        y = self.pre_cross_attention_layer_norm(x)
        y = self.encoder_decoder_attention(y, cross_kv, cross_mask_BLS, deterministic=deterministic)
        x = x + self.dropout(y, deterministic=deterministic)
        y = self.mlp(self.pre_mlp_layer_norm(x), deterministic=deterministic)
        return x + self.dropout(y, deterministic=deterministic)


class Decoder(nn.Module):
    """The stack of decoder layers, their shared position tables and, if not tied, the output projection."""

    config: ModelConfig
    num_embeddings: int

    def setup(self):
        c, dtype = self.config, self.config.jax_dtype
        self.relpos_bias = RelativePositionBias(c.heads, bidirectional=c.signed_distances)
        if c.positional_attention or c.decontextualised:
            self.abs_pos_embed = Embed(c.max_length, c.width, dtype, axes=("abs_position", "embed"))
        if c.decontextualised:
            self.context_norm = RMSNorm(dtype)
        layer = nn.remat(DecoderLayer, policy=REMAT[c.remat]) if c.remat else DecoderLayer
        self.layers = [layer(c, name=f"layers_{i}") for i in range(c.decoder_layers)]
        self.decoder_norm = RMSNorm(dtype)
        self.dropout = make_dropout(c)
        if not c.tied:
            self.logits_dense = Dense(self.num_embeddings, ("embed", "vocab"), jnp.float32)  # stable, as in T5X

    def cross_kv(self, memory_BSD):
        return tuple(layer.cross_kv(memory_BSD) for layer in self.layers)

    def positional(self, length: int, position_BL=None):
        """`DecoderLayer.positional` of each layer; for DisCo's decoder, the position embeddings; or None."""
        if self.config.decontextualised:
            return self.abs_pos_embed(jnp.arange(length)[None] if position_BL is None else position_BL)
        if not self.config.positional_attention:
            return None
        position_PD = self.abs_pos_embed(jnp.arange(min(length, self.config.max_length)))
        return tuple(layer.positional(position_PD, position_BL) for layer in self.layers)

    def __call__(self, x, cross_kv, positional, mask_BLL, cross_mask_BLS, deterministic, index_BL=None):
        """The states of all positions. `Transformer.draft_states` makes the arguments.

        Args:
          x: embedded tokens, [B, L, D].
          cross_kv, positional: what the methods of these names give.
          mask_BLL, cross_mask_BLS: of `draft_mask` and `cross_mask`.
          index_BL: each position's index in its segment; None if every row has the positions 0 .. L - 1.
        """
        bias = self.relpos_bias(x.shape[1], index_BL=index_BL)
        context_BLD = None
        if self.config.decontextualised:  # queries hold positions alone, keys and values in all layers also tokens
            context_BLD = self.dropout(self.context_norm(x + positional), deterministic=deterministic)
            x, positional = jnp.broadcast_to(positional, x.shape), None
        x = self.dropout(x, deterministic=deterministic)
        for layer, kv, each in zip(self.layers, cross_kv, positional or [None] * len(self.layers), strict=True):
            given = LayerInputs(
                cross_kv=kv,
                positional=each,
                mask_BLL=mask_BLL,
                cross_mask_BLS=cross_mask_BLS,
                bias=bias,
                context_BLD=context_BLD,
                deterministic=deterministic,
            )
            x = layer(x, given)
        return self.dropout(self.decoder_norm(keep_rows(x)), deterministic=deterministic)

    def step(self, x_R1D, cross_kv, cache, slot_BNL, position, cross_mask):
        """Runs a causal decoder on one position, for N hypotheses of each sentence.

        The hypotheses of a sentence share one cache, which has N slots for each of the L positions.
        """
        batch, hypotheses, length = slot_BNL.shape
        before_L = jnp.arange(length) <= position
        mask_BNLN = (slot_BNL[..., None] == jnp.arange(hypotheses)) & before_L[:, None]
        mask = mask_BNLN.reshape(batch, hypotheses, length * hypotheses)
        bias = jnp.repeat(self.relpos_bias(length, position), hypotheses, axis=-1)
        written = []
        for layer, kv, layer_cache in zip(self.layers, cross_kv, cache, strict=True):
            x_R1D, layer_cache = layer.step(x_R1D, kv, layer_cache, position * hypotheses, mask, cross_mask, bias)
            written.append(layer_cache)
        return self.decoder_norm(x_R1D), tuple(written)


class RejecterHead(nn.Module):
    """The learned rejecter's head: the logit of keeping the shown token (or the argmax) at each position.

    The head has two classes, rejected and kept, as in T5X checkpoints of the published implementation. The output is
    the difference of their logits.
    """

    @nn.compact
    def __call__(self, x) -> Float[Array, "B L"]:
        logits_BL2 = Dense(2, ("embed", "keep"), jnp.float32, name="binary_projection")(x)
        return logits_BL2[..., 1] - logits_BL2[..., 0]


def shift_right(target_BL: Int[Array, "B L"], segment_BL: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """Shifts the tokens of each segment one position to the right; id 0 comes first, as in T5X.

    >>> shift_right(jnp.array([[7, 8, 1, 9, 1, 0]]), jnp.array([[1, 1, 1, 2, 2, 0]])).tolist()
    [[0, 7, 8, 0, 9, 0]]
    """
    left_BL = jnp.pad(target_BL, ((0, 0), (1, 0)))[:, :-1]
    return jnp.where(positions_in_segment(segment_BL) == 0, 0, left_BL)


def draft_mask(
    segment_BL: Int[Array, "R L"], visible_BLL: Bool[Array, "R L L"] | None, decontextualised: bool
) -> Bool[Array, "R L L"]:
    """Self-attention mask of a draft: a position sees its segment, but not itself if the decoder is decontextualised.

    Raises:
      PadirError: visible_BLL is given to a decoder that is not decontextualised.
    """
    if decontextualised:
        mask_BLL = other_positions(segment_BL)
        return mask_BLL if visible_BLL is None else mask_BLL & visible_BLL
    if visible_BLL is not None:
        raise PadirError("visible_BLL works only with decontextualised=True: other decoders would leak masked tokens")
    return same_segment(segment_BL)


def cross_mask(segment_BL: Int[Array, "R L"], source_segment_BS: Int[Array, "B S"]) -> Bool[Array, "_ _ S"]:
    """Cross-attention mask: a target position sees the source tokens of its segment but not the [LENGTH] token."""
    text_B1S = (source_segment_BS > 0)[:, None, :]
    if segment_BL.shape[0] != source_segment_BS.shape[0]:  # hypotheses of one sentence: each source row is one segment
        return text_B1S
    return (segment_BL[:, :, None] == source_segment_BS[:, None, :]) & text_B1S

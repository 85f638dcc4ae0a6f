"""The encoder stack: bidirectional T5 layers over source segments, with T5X's parameter names."""

from __future__ import annotations

import flax.linen as nn
import flax.struct
from jaxtyping import Array, Float, Int

from padir.distributed.sharding import keep_rows
from padir.models.config import REMAT, ModelConfig
from padir.models.layers import MLP, Attention, RelativePositionBias, RMSNorm, make_dropout
from padir.models.length import LengthOutput
from padir.refinement.segments import same_segment


@flax.struct.dataclass
class Encoded:
    """The encoder's output: a vector for each source position, and the length head's prediction for each segment.

    `segment_BS` has 0 where cross-attention must not look: at padding and [LENGTH] tokens.
    """

    memory_BSD: Float[Array, "B S D"]
    segment_BS: Int[Array, "B S"]
    length: LengthOutput


class EncoderLayer(nn.Module):
    """Self-attention, then the MLP, each after an RMS norm and with a residual connection."""

    config: ModelConfig

    def setup(self):
        c, dtype = self.config, self.config.jax_dtype
        self.pre_attention_layer_norm = RMSNorm(dtype)
        self.attention = Attention(c)
        self.pre_mlp_layer_norm = RMSNorm(dtype)
        self.mlp = MLP(c)
        self.dropout = make_dropout(c)

    def __call__(self, x, mask, bias, deterministic):
        x = keep_rows(x)
        y = self.pre_attention_layer_norm(x)
        y = self.attention(y, self.attention.keys_values(y), mask, bias, deterministic=deterministic)
        x = x + self.dropout(y, deterministic=deterministic)
        y = self.mlp(self.pre_mlp_layer_norm(x), deterministic=deterministic)
        return x + self.dropout(y, deterministic=deterministic)


class Encoder(nn.Module):
    """The stack of encoder layers, which share one table of relative position biases."""

    config: ModelConfig

    def setup(self):
        c, dtype = self.config, self.config.jax_dtype
        self.relpos_bias = RelativePositionBias(c.heads)
        # Argument 4 of a layer, counted from self, is `deterministic`.
        layer = nn.remat(EncoderLayer, static_argnums=(4,), policy=REMAT[c.remat]) if c.remat else EncoderLayer
        self.layers = [layer(c, name=f"layers_{i}") for i in range(c.encoder_layers)]
        self.encoder_norm = RMSNorm(dtype)
        self.dropout = make_dropout(c)
        self.dropout_out = nn.Dropout(c.dropout_rate)

    def __call__(self, x, segment_BS, deterministic):
        bias = self.relpos_bias(x.shape[1])
        mask_BSS = same_segment(segment_BS)
        x = self.dropout(x, deterministic=deterministic)
        for layer in self.layers:
            x = layer(x, mask_BSS, bias, deterministic)
        return self.dropout_out(self.encoder_norm(keep_rows(x)), deterministic=deterministic)

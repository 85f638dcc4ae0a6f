"""The encoder-decoder: `encode` once, `cross_kv` once, `decode` as often as there are stages or steps.

The encoder reads rows of source segments, each [LENGTH] (for the token length head) + pieces + EOS; the decoder sees
the whole draft of a segment in both directions. Parameter names and shapes are T5X's.

A causal model, the autoregressive baseline, has `teacher_force` (all positions of known targets at once) and
`next_logits` (one position, with a cache of the earlier ones' keys and values) in place of `decode`.

Training takes `decode` and `teacher_force` apart: `draft_states` or `target_states`, then `logits` of some rows at a
time, because logits are what is large.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from padir.distributed.sharding import keep_rows
from padir.errors import PadirError
from padir.models.config import DTYPES, ModelConfig
from padir.models.layers import MLP, Attention, Dense, Embed, RelativePositionBias, RMSNorm
from padir.models.length import LengthOutput, get_length_head
from padir.refinement.scores import Output, best_by_block
from padir.refinement.segments import same_segment
from padir.text.ids import Ids, at_most, positions_in_segment

MOST_LOGITS = 2**21  # 8 MB: as many as caches hold are faster computed at once


@flax.struct.dataclass
class Encoded:
    """The encoder's output.

    Attributes:
      memory_BSD: a vector for each source position.
      segment_BS: 0 where cross-attention must not look: padding and [LENGTH] tokens.
      length: what the length head says of each segment.
    """

    memory_BSD: Float[Array, "B S D"]
    segment_BS: Int[Array, "B S"]
    length: LengthOutput


class EncoderLayer(nn.Module):
    config: ModelConfig

    def setup(self):
        c, dtype = self.config, DTYPES[self.config.dtype]
        self.pre_attention_layer_norm = RMSNorm(dtype)
        self.attention = Attention(c.heads, c.head_dim, c.width, dtype, c.dropout_rate)
        self.pre_mlp_layer_norm = RMSNorm(dtype)
        self.mlp = MLP(c.mlp, c.width, c.mlp_activations, dtype, c.dropout_rate)
        self.dropout = nn.Dropout(c.dropout_rate, broadcast_dims=(-2,))

    def __call__(self, x, mask, bias, deterministic):
        x = keep_rows(x)
        y = self.pre_attention_layer_norm(x)
        y = self.attention(y, self.attention.keys_values(y, y), mask, bias, deterministic=deterministic)
        x = x + self.dropout(y, deterministic=deterministic)
        y = self.mlp(self.pre_mlp_layer_norm(x), deterministic=deterministic)
        return x + self.dropout(y, deterministic=deterministic)


class Encoder(nn.Module):
    config: ModelConfig

    def setup(self):
        c, dtype = self.config, DTYPES[self.config.dtype]
        self.relpos_bias = RelativePositionBias(c.heads)
        layer = nn.remat(EncoderLayer, static_argnums=(4,)) if c.remat else EncoderLayer  # deterministic
        self.layers = [layer(c, name=f"layers_{i}") for i in range(c.encoder_layers)]
        self.encoder_norm = RMSNorm(dtype)
        self.dropout = nn.Dropout(c.dropout_rate, broadcast_dims=(-2,))
        self.dropout_out = nn.Dropout(c.dropout_rate)

    def __call__(self, x, segment_BS, deterministic):
        bias = self.relpos_bias(x.shape[1])
        mask_BSS = same_segment(segment_BS)
        x = self.dropout(x, deterministic=deterministic)
        for layer in self.layers:
            x = layer(x, mask_BSS, bias, deterministic)
        return self.dropout_out(self.encoder_norm(keep_rows(x)), deterministic=deterministic)


class DecoderLayer(nn.Module):
    config: ModelConfig

    def setup(self):
        c, dtype = self.config, DTYPES[self.config.dtype]

        def attention():
            return Attention(c.heads, c.head_dim, c.width, dtype, c.dropout_rate)

        self.pre_self_attention_layer_norm = RMSNorm(dtype)
        self.self_attention = attention()
        if c.positional_attention:
            self.pre_positional_attention_layer_norm = RMSNorm(dtype)
            self.positional_attention = attention()
        self.pre_cross_attention_layer_norm = RMSNorm(dtype)
        self.encoder_decoder_attention = attention()
        self.pre_mlp_layer_norm = RMSNorm(dtype)
        self.mlp = MLP(c.mlp, c.width, c.mlp_activations, dtype, c.dropout_rate)
        self.dropout = nn.Dropout(c.dropout_rate, broadcast_dims=(-2,))

    def cross_kv(self, memory_BSD):
        return self.encoder_decoder_attention.keys_values(memory_BSD, memory_BSD)

    def __call__(self, x, cross_kv, position_BLD, mask_BLL, cross_mask_BLS, bias, deterministic, context_BLD=None):
        x = keep_rows(x)
        y = self.pre_self_attention_layer_norm(x)
        context = y if context_BLD is None else context_BLD
        keys_values = self.self_attention.keys_values(context, context)
        y = self.self_attention(y, keys_values, mask_BLL, bias, deterministic=deterministic)
        if context_BLD is not None:  # with every key masked, the softmax would be even: it would see all of them
            y = jnp.where(mask_BLL.any(-1, keepdims=True), y, 0)
        x = x + self.dropout(y, deterministic=deterministic)
        if position_BLD is not None:
            p = self.pre_positional_attention_layer_norm(position_BLD)
            keys_values = self.positional_attention.keys_values(p, x)
            x = x + self.positional_attention(p, keys_values, mask_BLL, bias, deterministic=deterministic)
        return self._cross_and_mlp(x, cross_kv, cross_mask_BLS, deterministic)

    def step(self, x_R1D, cross_kv, cache, begin, mask, cross_mask, bias):
        """One position of a causal decoder; its keys and values are written to the cache [B, L*N, H, K] at `begin`."""
        y = self.pre_self_attention_layer_norm(x_R1D)

        def write(cached, new):
            new = new.reshape(cached.shape[0], -1, *new.shape[2:])  # N hypotheses of each of B sentences
            return jax.lax.dynamic_update_slice_in_dim(cached, new, begin, axis=1)

        cache = jax.tree.map(write, cache, self.self_attention.keys_values(y, y))
        x = x_R1D + self.self_attention(y, cache, mask, bias)
        return self._cross_and_mlp(x, cross_kv, cross_mask, deterministic=True), cache

    def _cross_and_mlp(self, x, cross_kv, cross_mask_BLS, deterministic):
        y = self.pre_cross_attention_layer_norm(x)
        y = self.encoder_decoder_attention(y, cross_kv, cross_mask_BLS, deterministic=deterministic)
        x = x + self.dropout(y, deterministic=deterministic)
        y = self.mlp(self.pre_mlp_layer_norm(x), deterministic=deterministic)
        return x + self.dropout(y, deterministic=deterministic)


class Decoder(nn.Module):
    config: ModelConfig
    num_embeddings: int

    def setup(self):
        c, dtype = self.config, DTYPES[self.config.dtype]
        self.relpos_bias = RelativePositionBias(c.heads, bidirectional=not c.causal)
        if c.positional_attention or c.decontextualised:
            self.abs_pos_embed = Embed(c.max_length, c.width, dtype, axes=("abs_position", "embed"))
        if c.decontextualised:
            self.context_norm = RMSNorm(dtype)
        layer = nn.remat(DecoderLayer, static_argnums=(7,)) if c.remat else DecoderLayer  # deterministic
        self.layers = [layer(c, name=f"layers_{i}") for i in range(c.decoder_layers)]
        self.decoder_norm = RMSNorm(dtype)
        self.dropout = nn.Dropout(c.dropout_rate, broadcast_dims=(-2,))
        if not c.tied:
            self.logits_dense = Dense(self.num_embeddings, ("embed", "vocab"), jnp.float32)  # as T5X, for stability

    def cross_kv(self, memory_BSD):
        return tuple(layer.cross_kv(memory_BSD) for layer in self.layers)

    def __call__(self, x, cross_kv, position_BL, mask_BLL, cross_mask_BLS, deterministic):
        bias = self.relpos_bias(x.shape[1])
        position_BLD = context_BLD = None
        if self.config.positional_attention:
            position_BLD = self.abs_pos_embed(position_BL)
        if self.config.decontextualised:  # positions ask, tokens in their positions answer, in every layer
            query_BLD = self.abs_pos_embed(position_BL)
            context_BLD = self.dropout(self.context_norm(x + query_BLD), deterministic=deterministic)
            x = jnp.broadcast_to(query_BLD, x.shape)
        x = self.dropout(x, deterministic=deterministic)
        for layer, kv in zip(self.layers, cross_kv, strict=True):
            x = layer(x, kv, position_BLD, mask_BLL, cross_mask_BLS, bias, deterministic, context_BLD)
        return self.dropout(self.decoder_norm(keep_rows(x)), deterministic=deterministic)

    def step(self, x_R1D, cross_kv, cache, slot_BNL, position, cross_mask):
        """One position of a causal decoder. A sentence's N hypotheses share its cache, whose keys are L slots of N."""
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


class Rejecter(nn.Module):
    """Whether the token that the decoder was shown at each position is right: the logit of keeping it.

    Two classes, rejected and kept, as in T5X checkpoints of the published implementation; only the difference of their
    logits matters.
    """

    @nn.compact
    def __call__(self, x) -> Float[Array, "B L"]:
        logits_BL2 = Dense(2, ("embed", "keep"), jnp.float32, name="binary_projection")(x)
        return logits_BL2[..., 1] - logits_BL2[..., 0]


class Transformer(nn.Module):
    """The model: apply with `method=` "encode", "cross_kv" or "decode"; `__call__` runs all three, for initialisation.

    A causal one has "teacher_force" and "next_logits" in place of "decode".

    Attributes:
      config: sizes and choices.
      ids: the vocabulary's ids; their `num_embeddings` is the number of rows of the embedding table.
    """

    config: ModelConfig
    ids: Ids

    def setup(self):
        dtype = DTYPES[self.config.dtype]
        self.token_embedder = Embed(self.ids.num_embeddings, self.config.width, dtype)
        self.encoder = Encoder(self.config)
        self.decoder = Decoder(self.config, self.ids.num_embeddings)
        self.length_predictor = get_length_head(self.config.length_head)(
            self.config.width, self.config.max_length, self.config.max_fertility
        )
        if self.config.rejecter:
            self.rejecter = Rejecter()

    def encode(
        self,
        source_BS: Int[Array, "B S"],
        segment_BS: Int[Array, "B S"],
        *,
        num_segments: int = 1,
        deterministic: bool = True,
    ) -> Encoded:
        """Encodes source rows and predicts the target length of each segment.

        Args:
          source_BS: source segments; each begins with the [LENGTH] id if the length head is "token".
          segment_BS: 1 .. num_segments, 0 for padding.
          num_segments: G, the largest number of segments in a row (static).
        """
        memory_BSD = self.encoder(self.token_embedder(source_BS), segment_BS, deterministic)
        text_BS = jnp.where(source_BS == self.ids.length, 0, segment_BS) if self.config.length_token else segment_BS
        length = self.length_predictor(memory_BSD, source_BS == self.ids.length, segment_BS, num_segments)
        return Encoded(memory_BSD=memory_BSD, segment_BS=text_BS, length=length)

    def cross_kv(self, memory_BSD: Float[Array, "B S D"]) -> Any:
        """Each decoder layer's cross-attention keys and values; the same for every stage and step."""
        return self.decoder.cross_kv(memory_BSD)

    def decode(
        self,
        tokens_BL: Int[Array, "R L"],
        segment_BL: Int[Array, "R L"],
        cross_kv: Any,
        source_segment_BS: Int[Array, "B S"],
        *,
        position_BL: Int[Array, "R L"] | None = None,
        visible_BLL: Bool[Array, "R L L"] | None = None,
        deterministic: bool = True,
        find_best: bool = False,
    ) -> Output:
        """Logits of every target position, float32, and keep logits where the model has a rejecter.

        Args and errors are those of `draft_states`, and:
          find_best: also find the best tokens, block by block of the vocabulary where the logits are large: inside jit
            the logits are then never in memory, if nothing reads them.
        """
        states_BLD = self.draft_states(
            tokens_BL,
            segment_BL,
            cross_kv,
            source_segment_BS,
            position_BL=position_BL,
            visible_BLL=visible_BLL,
            deterministic=deterministic,
        )
        found_BL = None
        if find_best and not at_most(tokens_BL.size * self.ids.num_embeddings, MOST_LOGITS):
            found_BL = best_by_block(
                lambda *only: self.logits(states_BLD, only), self.ids.num_embeddings, self.ids.special
            )
        return Output(self.logits(states_BLD), self.keep_logits(states_BLD), found_BL)

    def draft_states(
        self,
        tokens_BL: Int[Array, "R L"],
        segment_BL: Int[Array, "R L"],
        cross_kv: Any,
        source_segment_BS: Int[Array, "B S"],
        *,
        position_BL: Int[Array, "R L"] | None = None,
        visible_BLL: Bool[Array, "R L L"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "R L D"]:
        """The decoder's last vector of every target position of a draft, from which logits are made.

        Args:
          tokens_BL: the draft, sentence-major [B * N] rows where the memory has B (N hypotheses a sentence).
          segment_BL: as in `encode`; a row of one sentence has 1s and 0s.
          cross_kv, source_segment_BS: from `cross_kv` and `Encoded.segment_BS`.
          position_BL: index of each position in its segment; None for rows of one segment, which saves the positional
            attention's logits being computed for every row.
          visible_BLL: which positions [query, key] of its segment each one may see, itself never, where the decoder is
            decontextualised; None: all others.

        Raises:
          PadirError: rows are longer than the position table, another decoder is given visible_BLL, or the model is
            causal.
        """
        if self.config.causal:
            raise PadirError(
                "a causal model writes from left to right and cannot decode a draft: train it with TeacherForcing, and"
                " translate with a search instead of a strategy"
            )
        length = tokens_BL.shape[1]
        if position_BL is None:
            position_BL = jnp.arange(length)[None]
            if length > self.config.max_length:
                raise PadirError(
                    f"the model's max_length is {self.config.max_length}, got rows of {length} target positions:"
                    " shorten them or train with a larger max_length"
                )
        x = self.token_embedder(tokens_BL)
        mask_BLL = same_segment(segment_BL)
        if self.config.decontextualised:
            mask_BLL &= ~jnp.eye(length, dtype=bool)
        if visible_BLL is not None:
            if not self.config.decontextualised:
                raise PadirError("visible_BLL needs a decontextualised decoder: others leak what they see to everyone")
            mask_BLL &= visible_BLL
        cross_mask_BLS = _cross_mask(segment_BL, source_segment_BS)
        return self.decoder(x, cross_kv, position_BL, mask_BLL, cross_mask_BLS, deterministic)

    def teacher_force(
        self,
        target_BL: Int[Array, "R L"],
        segment_BL: Int[Array, "R L"],
        cross_kv: Any,
        source_segment_BS: Int[Array, "B S"],
        *,
        deterministic: bool = True,
    ) -> Float[Array, "R L V"]:
        """A causal model's logits of every position, float32, each given the target tokens to its left.

        Args and errors are those of `target_states`.
        """
        return self.logits(
            self.target_states(target_BL, segment_BL, cross_kv, source_segment_BS, deterministic=deterministic)
        )

    def target_states(
        self,
        target_BL: Int[Array, "R L"],
        segment_BL: Int[Array, "R L"],
        cross_kv: Any,
        source_segment_BS: Int[Array, "B S"],
        *,
        deterministic: bool = True,
    ) -> Float[Array, "R L D"]:
        """A causal decoder's last vector of every position, each given the target tokens to its left.

        The decoder reads the target shifted to the right; each segment begins with id 0, as in T5X.

        Args:
          target_BL: targets with their EOS, rows as in `decode`.
          segment_BL, cross_kv, source_segment_BS: as in `decode`.

        Raises:
          PadirError: the model is not causal.
        """
        self._require_causal()
        x = self.token_embedder(shift_right(target_BL, segment_BL))
        mask_BLL = same_segment(segment_BL) & jnp.tri(target_BL.shape[1], dtype=bool)
        return self.decoder(x, cross_kv, None, mask_BLL, _cross_mask(segment_BL, source_segment_BS), deterministic)

    def next_logits(
        self,
        token_BN: Int[Array, "B N"],
        position: Int[Array, ""],
        slot_BNL: Int[Array, "B N L"],
        cache: Any,
        cross_kv: Any,
        source_segment_BS: Int[Array, "B S"],
    ) -> tuple[Float[Array, "B N V"], Any]:
        """A causal model's logits of one position, float32, and the cache with this position in it.

        Args:
          token_BN: what stands to the left of the position; id 0 at the first.
          position: from 0.
          slot_BNL: in which of the N rows' slots the keys and values of each earlier position of a hypothesis were
            written; at `position` its own. So hypotheses part and are copied without a copy of the cache.
          cache: from `empty_cache`, then from the call before.
          cross_kv, source_segment_BS: as in `decode`; the hypotheses of a sentence share them.

        Raises:
          PadirError: the model is not causal.
        """
        self._require_causal()
        batch, hypotheses = token_BN.shape
        x_R1D = self.token_embedder(token_BN.reshape(-1, 1))
        cross_mask = (source_segment_BS > 0)[:, None, :]
        x_R1D, cache = self.decoder.step(x_R1D, cross_kv, cache, slot_BNL, position, cross_mask)
        return self.logits(x_R1D).reshape(batch, hypotheses, -1), cache

    def empty_cache(self, batch: Any, hypotheses: int, length: int) -> Any:
        """Keys and values [B, L*N, H, K] of each decoder layer, N slots a position; the buffers never grow.

        B is a number, or what `jax.export` leaves open.
        """
        c = self.config
        shape = (batch, length * hypotheses, c.heads, c.head_dim)
        return tuple(tuple(jnp.zeros(shape, DTYPES[c.dtype]) for _ in range(2)) for _ in range(c.decoder_layers))

    def _require_causal(self):
        if not self.config.causal:
            raise PadirError(
                "only a causal model predicts from left to right: train one with ModelConfig.causal = True, or refine"
                " a draft with this one"
            )

    def logits(self, states_BLD: Float[Array, "R L D"], only: tuple[Any, int] | None = None) -> Float[Array, "R L V"]:
        """What the decoder's last vectors say of every id, or with (begin, size) of so many from one on; float32."""
        if self.config.tied:
            return self.token_embedder.attend(states_BLD, only) / jnp.sqrt(jnp.float32(self.config.width))
        return self.decoder.logits_dense(states_BLD, only)

    def keep_logits(self, states_BLD: Float[Array, "R L D"]) -> Float[Array, "R L"] | None:
        """What they say of keeping the token that the decoder was shown; None where the model has no rejecter."""
        return self.rejecter(states_BLD) if self.config.rejecter else None

    def __call__(self, source_BS, segment_BS, tokens_BL, target_segment_BL, *, num_segments: int = 1):
        encoded = self.encode(source_BS, segment_BS, num_segments=num_segments)
        cross_kv = self.cross_kv(encoded.memory_BSD)
        decode = self.teacher_force if self.config.causal else self.decode
        return decode(tokens_BL, target_segment_BL, cross_kv, encoded.segment_BS), encoded


def shift_right(target_BL: Int[Array, "B L"], segment_BL: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """The token to the left of each position within its segment; id 0 at the first, as in T5X.

    >>> shift_right(jnp.array([[7, 8, 1, 9, 1, 0]]), jnp.array([[1, 1, 1, 2, 2, 0]])).tolist()
    [[0, 7, 8, 0, 9, 0]]
    """
    left_BL = jnp.pad(target_BL, ((0, 0), (1, 0)))[:, :-1]
    return jnp.where(positions_in_segment(segment_BL) == 0, 0, left_BL)


def _cross_mask(segment_BL, source_segment_BS) -> Bool[Array, "B L S"]:
    """Whether a target position may look at a source position: the same segment, and neither padding nor [LENGTH]."""
    sentences = source_segment_BS.shape[0]
    if segment_BL.shape[0] != sentences:  # hypotheses of one sentence: every row of the memory has one segment
        return (source_segment_BS > 0)[:, None, :]
    return (segment_BL[:, :, None] == source_segment_BS[:, None, :]) & (source_segment_BS > 0)[:, None, :]

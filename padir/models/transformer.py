"""The encoder-decoder Transformer, with the parameter names and shapes of T5X.

A translation calls `encode` and `cross_kv` once, and `draft_states` and `output` in each refinement step. A causal
model, the autoregressive baseline, has other methods in place of `draft_states`: `target_states` (known targets) and
`next_logits` (one position, with cached keys and values of the earlier ones).

Logits [R, L, V] are large. Training therefore does not call `output`, but `all_logits`, whose sums need only some of
the logits at a time.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int, PyTree

from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.models.decoder import Decoder, RejecterHead, cross_mask, draft_mask, shift_right
from padir.models.encoder import Encoded, Encoder
from padir.models.layers import Dense, Embed, KeysValues
from padir.models.length import LengthOutput, TokenLength
from padir.models.products import dot
from padir.readout.prefix_beam import PrefixScore
from padir.readout.tally import Factors, Logits
from padir.refinement.canvas import Canvas
from padir.refinement.scores import Output, best_by_block, best_tokens, forbid
from padir.refinement.segments import same_segment
from padir.text.ids import Ids, at_most, segment_lengths

MOST_LOGITS = 2**21  # 8 MB of logits, which fit into CPU caches and are fastest to compute all at once


CrossKeysValues = tuple[KeysValues, ...]
"""Keys and values of each decoder layer."""


class Transformer(nn.Module):
    """The encoder-decoder model, to be applied with `method=` "encode", "cross_kv" or "draft_states".

    `__call__` runs encoder and decoder, for initialisation. `ids.num_embeddings` is the number of rows of the embedding
    table; the readout says which sentinels may be written.
    """

    config: ModelConfig
    ids: Ids

    def __post_init__(self):
        self.ids = self.config.geometry.ids(self.ids)
        super().__post_init__()

    def setup(self):
        self.token_embedder = Embed(self.ids.num_embeddings, self.config.width, self.config.jax_dtype)
        self.encoder = Encoder(self.config)
        self.decoder = Decoder(self.config, self.ids.num_embeddings)
        if self.config.length_token:
            self.length_predictor = TokenLength(self.config.width, self.config.max_length, self.config.length_unit)
        if self.config.rejecter:
            self.rejecter = RejecterHead()
        if self.config.readout_rules.head is not None:
            self.readout_head = Dense(1, ("embed", "keep"), jnp.float32, name="position_head")

    def encode(
        self,
        source_BS: Int[Array, "B S"],
        segment_BS: Int[Array, "B S"],
        *,
        num_segments: int = 1,
        deterministic: bool = True,
    ) -> Encoded:
        """Encodes source rows and predicts the target length of each segment, or takes it from the readout.

        Args:
          source_BS: source segments; each begins with the [LENGTH] id if there is a length head.
          segment_BS: 1 .. num_segments, 0 for padding.
          num_segments: G, the maximum number of segments in a row (static).
        """
        memory_BSD = self.encoder(self.token_embedder(source_BS), segment_BS, deterministic)
        if self.config.length_token:
            is_length_BS = source_BS == self.ids.length
            length = self.length_predictor(memory_BSD, is_length_BS, segment_BS, num_segments)
            return Encoded(memory_BSD, jnp.where(is_length_BS, 0, segment_BS), length)
        canvas_BG = None
        if not self.config.causal:
            canvas_BG = jnp.asarray(self.config.geometry.canvas_length(segment_lengths(segment_BS, num_segments)))
        return Encoded(memory_BSD, segment_BS, LengthOutput(canvas_BG=canvas_BG))

    def cross_kv(self, memory_BSD: Float[Array, "B S D"]) -> CrossKeysValues:
        """Cross-attention keys and values of each decoder layer, for all training stages or all refinement steps."""
        return self.decoder.cross_kv(memory_BSD)

    def positional(self, length: int, position_BL: Int[Array, "B L"] | None = None) -> PyTree:
        """The part of the decoder that depends on the positions alone, for all training stages or refinement steps.

        Args:
          length: L, number of target positions of a row.
          position_BL: index of each position in its segment; None for rows of one segment, which share the result.

        Raises:
          PadirError: rows of one segment are longer than the position table.
        """
        if position_BL is None and length > (most := self.config.max_length):
            remedy = "shorten the rows, or train with a larger max_length"
            raise PadirError("target positions", f"at most the model's max_length of {most}", length, remedy)
        return self.decoder.positional(length, position_BL)

    def output(
        self,
        states_BLD: Float[Array, "R L D"],
        present_BL: Bool[Array, "R L"],
        *,
        find_best: bool = False,
        blank_penalty: float | Float[Array, ""] = 0.0,
    ) -> Output:
        """Makes the `Output` of decoder states.

        Args:
          present_BL: positions of the canvas.
          find_best: also find the best tokens if there are more than `MOST_LOGITS` logits, on a CPU block by block of
            the vocabulary. Then jit does not compute the whole logits on a CPU unless other code reads them.
          blank_penalty: number subtracted from the logits of the readout's head, if there is one.
        """
        found_BL, size = None, self.ids.num_embeddings
        if (head := self.config.readout_rules.head) is not None:
            head_BL = self.readout_head(states_BLD)[..., 0] - blank_penalty
            if find_best:
                found_BL = head.best(self.piece_logits, states_BLD, head_BL, present_BL, self.ids)
            logits_BLV = head.joined(forbid(self.piece_logits(states_BLD), self.ids.special), head_BL, self.ids)
            return Output(logits_BLV, found_BL=found_BL)
        if find_best and not at_most(present_BL.size * size, MOST_LOGITS):
            special = self.ids.special  # listed only here, since a forged model card may claim any number of sentinels
            found_BL = jax.lax.platform_dependent(
                states_BLD,
                cpu=lambda states_BLD: best_by_block(lambda *only: self.piece_logits(states_BLD, only), size, special),
                default=lambda states_BLD: best_tokens(forbid(self.logits(states_BLD), special)),
            )
        logits_BLV, keep_BL = self.logits(states_BLD), self.keep_logits(states_BLD)
        return Output(logits_BLV, keep_BL, found_BL, judges=self.config.rejecter_judges)

    def prefix_beam(
        self,
        states_BLD: Float[Array, "R L D"],
        canvas: Canvas,
        blank_penalty: float | Float[Array, ""],
        size: int,
        score: PrefixScore | None = None,
    ):
        """The `size` best sentences of each canvas, for a model whose readout has a head (`BlankHead.prefix_beam`)."""
        head = self.config.readout_rules.head
        assert head is not None
        head_BL = self.readout_head(states_BLD)[..., 0] - blank_penalty
        return head.prefix_beam(self.piece_logits, states_BLD, head_BL, canvas, size, score)

    def draft_states(
        self,
        tokens_BL: Int[Array, "R L"],
        segment_BL: Int[Array, "R L"],
        cross_kv: CrossKeysValues,
        source_segment_BS: Int[Array, "B S"],
        *,
        positional: PyTree = None,
        visible_BLL: Bool[Array, "R L L"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "R L D"]:
        """Decoder states of every target position of a draft, the input of `logits`.

        Args:
          tokens_BL: the drafts, B * N rows for B source rows; the N hypotheses of a sentence are adjacent.
          segment_BL: as in `encode`; a row of one sentence has 1s and 0s.
          cross_kv, source_segment_BS: from `cross_kv` and `Encoded.segment_BS`.
          positional: from `positional`; None computes it here, for rows of one segment.
          visible_BLL: for a decontextualised decoder, True where the query position sees the key position; a position
            never sees itself or another segment. None means that a position sees all others of its segment.

        Raises:
          PadirError: rows are longer than the position table, visible_BLL is given to a decoder that is not
            decontextualised, or the model is causal.
        """
        if self.config.causal:
            remedy = "train it with Causal, and translate with a search instead of a strategy"
            raise PadirError("a causal model writes from left to right and cannot decode a draft", remedy=remedy)
        if positional is None:
            positional = self.positional(tokens_BL.shape[1])
        mask_BLL = draft_mask(segment_BL, visible_BLL, self.config.decontextualised)
        cross_mask_BLS = cross_mask(segment_BL, source_segment_BS)
        x = self.token_embedder(tokens_BL)
        return self.decoder(x, cross_kv, positional, mask_BLL, cross_mask_BLS, deterministic)

    def target_states(
        self,
        target_BL: Int[Array, "R L"],
        segment_BL: Int[Array, "R L"],
        cross_kv: CrossKeysValues,
        source_segment_BS: Int[Array, "B S"],
        *,
        deterministic: bool = True,
    ) -> Float[Array, "R L D"]:
        """Decoder states of a causal model at every position, each given the target tokens to its left.

        The decoder reads the targets, with their EOS, shifted to the right; each segment begins with id 0, as in T5X.
        The arguments are as in `draft_states`.
        """
        self._require_causal()
        x = self.token_embedder(shift_right(target_BL, segment_BL))
        mask_BLL = same_segment(segment_BL) & jnp.tri(target_BL.shape[1], dtype=bool)
        return self.decoder(x, cross_kv, None, mask_BLL, cross_mask(segment_BL, source_segment_BS), deterministic)

    def prefix_states(
        self,
        token_BU: Int[Array, "B U"],
        depth_BU: Int[Array, "B U"],
        cross_kv: CrossKeysValues,
        source_segment_BS: Int[Array, "B S"],
    ) -> Float[Array, "B U D"]:
        """Decoder states of a causal model after each prefix of a tree (`padir.decoding.autoregressive.PrefixTrees`).

        A prefix sees those prefixes that it continues, as in SpecInfer's tree attention (Miao et al., ASPLOS 2024).
        """
        self._require_causal()
        node_U = jnp.arange(token_BU.shape[1])
        # The nodes that continue node v are those behind it, before the next node that is not deeper.
        ends_BUU = (node_U > node_U[:, None]) & (depth_BU[:, None, :] <= depth_BU[:, :, None])
        end_BU = jnp.where(ends_BUU, node_U, node_U.size).min(-1)
        mask_BUU = (node_U <= node_U[:, None]) & (node_U[:, None] < end_BU[:, None, :])
        text_B1S = (source_segment_BS > 0)[:, None, :]
        return self.decoder(self.token_embedder(token_BU), cross_kv, None, mask_BUU, text_B1S, True, depth_BU)

    def next_logits(
        self,
        token_BN: Int[Array, "B N"],
        position: Int[Array, ""],
        slot_BNL: Int[Array, "B N L"],
        cache: CrossKeysValues,
        cross_kv: CrossKeysValues,
        source_segment_BS: Int[Array, "B S"],
    ) -> tuple[Float[Array, "B N V"], CrossKeysValues]:
        """Logits of a causal model at one position, float32, and the cache with this position's keys and values.

        Args:
          token_BN: the token to the left of the position; id 0 at position 0.
          slot_BNL: for each hypothesis and position, the cache slot (0 .. N - 1) that holds its keys and values. At
            `position` this is the hypothesis's own number. So a beam search reorders hypotheses without copying the
            cache.
          cache: the result of `empty_cache` at the first position, later the cache from the previous call.
          cross_kv, source_segment_BS: as in `draft_states`; the hypotheses of a sentence share them.
        """
        self._require_causal()
        batch, hypotheses = token_BN.shape
        x_R1D = self.token_embedder(token_BN.reshape(-1, 1))
        text_B1S = (source_segment_BS > 0)[:, None, :]
        x_R1D, cache = self.decoder.step(x_R1D, cross_kv, cache, slot_BNL, position, text_B1S)
        return self.logits(x_R1D).reshape(batch, hypotheses, -1), cache

    def empty_cache(self, batch: Any, hypotheses: int, length: int) -> CrossKeysValues:
        """Makes zero buffers for keys and values of each decoder layer, [B, L*N, H, K], with N slots for each position.

        `batch`, B, is an integer or a symbolic dimension of `jax.export`.
        """
        shape = (batch, length * hypotheses, self.config.heads, self.config.head_dim)
        dtype = self.config.jax_dtype
        return tuple((jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in range(self.config.decoder_layers))

    def _require_causal(self):
        if not self.config.causal:
            remedy = "train one with ModelConfig.causal = True, or refine a draft with this one"
            raise PadirError("only a causal model predicts from left to right", remedy=remedy)

    def logits(self, states_BLD: Float[Array, "R L D"]) -> Float[Array, "R L V"]:
        """Computes float32 logits of all ids."""
        logits_BLV = self.piece_logits(states_BLD)
        if (head := self.config.readout_rules.head) is None:
            return logits_BLV
        return head.joined(logits_BLV, self.readout_head(states_BLD)[..., 0], self.ids)

    def piece_logits(
        self, states_BLD: Float[Array, "R L D"], only: tuple[Any, int] | None = None
    ) -> Float[Array, "R L V"]:
        """Float32 logits of the vocabulary, or of ids begin .. begin + size - 1 if `only` is (begin, size)."""
        if self.config.tied:
            return self.token_embedder.attend(states_BLD, only) / jnp.sqrt(jnp.float32(self.config.width))
        return self.decoder.logits_dense(states_BLD, only)

    def all_logits(self, states_BLD: Float[Array, "R L D"]) -> Logits:
        """The logits of all ids, for a loss; a readout's own head keeps them from being computed block by block."""
        params, config, factors = self.variables["params"], self.config, None
        if config.readout_rules.head is None:
            if config.tied:
                table_VD = params["token_embedder"]["embedding"]
                product = functools.partial(_logits_of, config.jax_dtype, config.width)
            else:
                table_VD = params["decoder"]["logits_dense"]["kernel"].T
                product = functools.partial(_logits_of, jnp.float32, 1)
            factors = Factors(product, states_BLD, table_VD)
        return Logits(self.logits(states_BLD), factors, self.ids.special)

    def keep_logits(self, states_BLD: Float[Array, "R L D"]) -> Float[Array, "R L"] | None:
        """The rejecter's logit of keeping each token that it judges (`ModelConfig.rejecter_judges`), or None."""
        if not self.config.rejecter:
            return None
        return self.rejecter(stop_gradient(states_BLD) if self.config.rejecter_judges == "prediction" else states_BLD)

    def __call__(self, source_BS, segment_BS, tokens_BL, target_segment_BL, *, num_segments: int = 1):
        encoded = self.encode(source_BS, segment_BS, num_segments=num_segments)
        cross_kv = self.cross_kv(encoded.memory_BSD)
        states = self.target_states if self.config.causal else self.draft_states
        states_BLD = states(tokens_BL, target_segment_BL, cross_kv, encoded.segment_BS)
        return self.output(states_BLD, target_segment_BL > 0), encoded


def _logits_of(dtype, square, states, table):
    return dot(states, table, dtype=dtype, axis=1) / jnp.sqrt(jnp.float32(square))

"""The methods of a causal Transformer: known targets at once, and new positions with cached keys and values.

`teacher_force` reads all positions of known targets. `next_logits` goes on by one position, `block_logits` by several.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from padir.errors import PadirError
from padir.models.config import DTYPES, ModelConfig
from padir.models.decoder import Decoder, cross_mask, shift_right
from padir.models.layers import Embed
from padir.refinement.segments import same_segment


class CausalMethods:
    """The part of `padir.models.transformer.Transformer` that only causal models run."""

    config: ModelConfig
    token_embedder: Embed
    decoder: Decoder
    logits: Any

    def teacher_force(
        self,
        target_BL: Int[Array, "R L"],
        segment_BL: Int[Array, "R L"],
        cross_kv: Any,
        source_segment_BS: Int[Array, "B S"],
        *,
        deterministic: bool = True,
    ) -> Float[Array, "R L V"]:
        """Logits of a causal model at every position, float32, each given the target tokens to its left.

        Arguments and errors are those of `target_states`.
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
        """Decoder states of a causal model at every position, each given the target tokens to its left.

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
        return self.decoder(x, cross_kv, None, mask_BLL, cross_mask(segment_BL, source_segment_BS), deterministic)

    def next_logits(
        self,
        token_BN: Int[Array, "B N"],
        position: Int[Array, ""],
        slot_BNL: Int[Array, "B N L"],
        cache: Any,
        cross_kv: Any,
        source_segment_BS: Int[Array, "B S"],
    ) -> tuple[Float[Array, "B N V"], Any]:
        """Logits of a causal model at one position, float32, and the cache with this position's keys and values.

        Args:
          token_BN: the token to the left of the position; id 0 at the first position.
          position: index of the position, from 0.
          slot_BNL: for each hypothesis and position, the cache slot (0 .. N - 1) that holds the keys and values; at
            `position`, the hypothesis' own number. So a beam search reorders hypotheses without copying the cache.
          cache: the result of `empty_cache` at the first position, later that of the previous call.
          cross_kv, source_segment_BS: as in `decode`; the hypotheses of a sentence share them.

        Raises:
          PadirError: the model is not causal.
        """
        self._require_causal()
        batch, hypotheses = token_BN.shape
        x_R1D = self.token_embedder(token_BN.reshape(-1, 1))
        text_B1S = (source_segment_BS > 0)[:, None, :]
        x_R1D, cache = self.decoder.step(x_R1D, cross_kv, cache, slot_BNL, position, text_B1S)
        return self.logits(x_R1D).reshape(batch, hypotheses, -1), cache

    def block_logits(
        self,
        token_BQ: Int[Array, "B Q"],
        begin_B: Int[Array, " B"],
        cache: Any,
        cross_kv: Any,
        source_segment_BS: Int[Array, "B S"],
    ) -> tuple[Float[Array, "B Q V"], Any]:
        """Logits of a causal model at Q positions of each sentence, float32, and the cache with these positions.

        Args:
          token_BQ: the tokens to the left of the positions; id 0 at the first position of a sentence.
          begin_B: index of each sentence's first position here, from 0; the cache must hold all earlier positions, and
            have room for begin_B + Q.
          cache: the result of `empty_cache` for one hypothesis at first, later that of the previous call. Positions
            that an earlier call wrote from begin_B on are replaced.
          cross_kv, source_segment_BS: as in `decode`.

        Raises:
          PadirError: the model is not causal.
        """
        self._require_causal()
        text_B1S = (source_segment_BS > 0)[:, None, :]
        x_BQD, cache = self.decoder.block(self.token_embedder(token_BQ), cross_kv, cache, begin_B, text_B1S)
        return self.logits(x_BQD), cache

    def empty_cache(self, batch: Any, hypotheses: int, length: int) -> Any:
        """Makes zero buffers for keys and values of each decoder layer, [B, L*N, H, K], with N slots for each position.

        `batch`, B, is an integer or a symbolic dimension of `jax.export`.
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

"""The drafter that proposes a padir model's own translation for an autoregressive model to verify."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from padir import checks
from padir.decoding.draft import Proposal, at, window
from padir.decoding.refine_batch import BUCKET, DraftInputs, encode, lay_out
from padir.errors import PadirError
from padir.models.length import top_lengths
from padir.models.transformer import Transformer
from padir.refinement.canvas import Canvas, repeats, veil
from padir.refinement.draws import NOISE, position_keys
from padir.refinement.loop import refine
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.scores import forbid

_LAST = 2**30  # folded into a row's key for the draws of the last pass; no step has this number


class RefiningMemory(NamedTuple):
    """Memory of `RefiningDrafter`: encoded sources, and the draft, which row b reads at its position + shift_B[b].

    `limit_B` is the greatest length of each draft, `passes_B` counts the decoder passes, and `prob_BLV` has the
    distributions that the draft was drawn from, if it was drawn.
    """

    draft_BL: Int[Array, "B L"]
    shift_B: Int[Array, " B"]
    limit_B: Int[Array, " B"]
    passes_B: Int[Array, " B"]
    inputs: DraftInputs
    prob_BLV: Float[Array, "B L V"] | None = None


@dataclasses.dataclass(frozen=True)
class RefiningDrafter:
    """Proposes a padir model's own translation of the most likely length, without repeated tokens.

    A CTC model's draft is its canvas after the collapse.

    Attributes:
      model: the padir model, with the vocabulary of the autoregressive one.
      strategy, corruption: as in `padir.Decoding`; the corruption is the canvas.
      num_steps: decoder passes of the draft.
      block: number of tokens of a proposal.
      follow: where the draft goes on after each round: "token" behind the nearest of its tokens that equals the
        autoregressive model's last one (where it is, if none does), "place" where it is. "refine" is "token" with
        `num_steps` more decoder passes, which rewrite the rest of the draft behind the accepted tokens.
      temperature: 0, or the temperature at which the last pass draws its tokens: for an autoregressive model that
        samples. Needs follow="place" and keeps repeated tokens, so that each token's distribution is known.

    Raises:
      PadirError: num_steps or block is below 1, the temperature is negative or not finite, follow is unknown, or it is
        "refine" with a CTC model or another than "place" with a temperature.
    """

    model: Transformer
    strategy: Strategy
    corruption: Corruption
    num_steps: int = 1
    block: int = 3
    follow: str = "token"
    temperature: float = 0.0

    def __post_init__(self):
        checks.at_least(1, num_steps=self.num_steps, block=self.block)
        checks.below(0, math.inf, temperature=self.temperature)
        if self.temperature and self.model.config.ctc:
            raise PadirError("a CTC model's draft cannot be drawn: leave the temperature out")
        if self.temperature and self.follow != "place":
            remedy = "so that each token keeps its distribution, or leave the temperature out"
            raise PadirError("follow", '"place" beside a temperature', self.follow, remedy)
        checks.one_of(("token", "place", "refine"), follow=self.follow)
        if self.follow == "refine" and self.model.config.ctc:
            raise PadirError(
                "a CTC model cannot refine behind given tokens, whose places in its canvas are not known: take"
                " follow=token or follow=place"
            )

    def begin(self, params, inputs, *, max_length, seed):
        model, (source_BS, limit_B, memory_BSD) = self.model, inputs
        if model.config.length_token:
            source_BS = jnp.pad(source_BS, ((0, 0), (1, 0)), constant_values=model.ids.length)
        encoded, cross_kv = encode(model, params, source_BS, memory_BSD)
        # Lengths that share a class are equally likely: the longest of them cuts nothing off.
        length_B1 = top_lengths(encoded.length, model.config.length_unit)[0].max(-1, keepdims=True)
        limit_B = jnp.minimum(limit_B, model.config.max_length)
        length_B1 = jnp.clip(length_B1, 2, limit_B[:, None])
        drafts = DraftInputs(cross_kv, encoded.segment_BS, source_BS, length_B1, jnp.zeros_like(length_B1))
        blank_BL = jnp.zeros((source_BS.shape[0], min(max_length, model.config.max_length)), jnp.int32)
        zero_B = jnp.zeros_like(limit_B)
        return self._refined(params, RefiningMemory(blank_BL, zero_B, limit_B, zero_B, drafts), blank_BL, zero_B, seed)

    def propose(self, memory, rows):
        begin_B, prob_BLV = rows.length_B + memory.shift_B, memory.prob_BLV
        prob_BKV = None if prob_BLV is None else window(prob_BLV, begin_B, self.block)
        return Proposal(window(memory.draft_BL, begin_B, self.block), prob_BKV)

    def learn(self, params, memory, rows, choice_BJ, accepted_B, *, seed):
        if self.follow == "place":
            return memory
        last_B = rows.length_B - 1
        distance_BL = jnp.abs(jnp.arange(memory.draft_BL.shape[1]) - (last_B + memory.shift_B)[:, None])
        same_BL = memory.draft_BL == at(rows.tokens_BL, last_B)[:, None]
        nearest_B = jnp.where(same_BL, distance_BL, memory.draft_BL.shape[1]).argmin(-1)
        found_B = same_BL.any(-1) & (accepted_B > 0)
        memory = memory._replace(shift_B=jnp.where(found_B, nearest_B - last_B, memory.shift_B))
        if self.follow == "token":
            return memory
        return jax.lax.cond(
            rows.done_B.all(),
            lambda: memory,
            lambda: self._refined(params, memory, rows.tokens_BL[:, : memory.draft_BL.shape[1]], rows.length_B, seed),
        )

    def _refined(self, params, memory: RefiningMemory, known_BL, known_B, seed) -> RefiningMemory:
        """Refines the draft behind the first `known_B` tokens of each row, which are `known_BL`.

        The canvas has the narrowest of a few widths that holds all drafts, since its padding costs as much as tokens.
        """
        length_B = jnp.clip((memory.draft_BL > 0).sum(-1) - memory.shift_B, known_B + 2, memory.limit_B)
        length_B = jnp.where(known_B == 0, memory.inputs.length_BN[:, 0], length_B)
        memory = memory._replace(inputs=memory.inputs._replace(length_BN=length_B[:, None]))
        source, full = memory.inputs.source_BS.shape[1], memory.draft_BL.shape[1]
        near = max(source // BUCKET, 1) * BUCKET * (2 if self.model.config.ctc else 1)
        widths = sorted({min(width, full) for width in (near, near + BUCKET, full)})

        def written(width: int):
            passes_B, *arrays = self._refined_within(width, params, memory, known_BL[:, :width], known_B, seed)
            wide = ((0, 0), (0, full - width))
            return passes_B, *jax.tree.map(lambda x: jnp.pad(x, (*wide, *[(0, 0)] * (x.ndim - 2))), arrays)

        enough = jnp.array(widths[:-1], jnp.int32) < length_B.max()
        branches = [functools.partial(written, width) for width in widths]
        passes_B, draft_BL, prob_BLV = jax.lax.switch(enough.sum(), branches)
        shift_B, passes_B = jnp.zeros_like(memory.shift_B), memory.passes_B + passes_B
        return memory._replace(draft_BL=draft_BL, prob_BLV=prob_BLV, shift_B=shift_B, passes_B=passes_B)

    def _refined_within(self, width: int, params, memory: RefiningMemory, known_BL, known_B, seed):
        """Refines the draft, as `_refined` does, on a canvas of a width.

        Repeated tokens are left out, and so are blanks, as a CTC model's translation is its canvas without both.

        Returns:
          The number of passes, the tokens that stay, and their distributions (None if they were not drawn).
        """
        key_B, canvas, logits_fn = lay_out(
            self.model, params, memory.inputs, max_target_length=width, corruption=self.corruption, seed=seed
        )
        rest_BL = window(memory.draft_BL, memory.shift_B, width)
        is_known_BL = jnp.arange(width) < known_B[:, None]
        written_BL = canvas.free_BL & (rest_BL > canvas.ids.unk)
        tokens_BL = jnp.where(is_known_BL, known_BL, jnp.where(written_BL, rest_BL, canvas.tokens_BL))
        canvas = dataclasses.replace(canvas, tokens_BL=tokens_BL, free_BL=canvas.free_BL & ~is_known_BL)
        if canvas.visible_BLL is not None:
            canvas = veil(canvas, canvas.free_BL & ~written_BL)
        if self.temperature:
            return self._drawn(key_B, canvas, logits_fn)
        refined = refine(key_B, canvas, logits_fn, self.strategy, num_steps=self.num_steps)
        canvas = refined.canvas
        kept_BL = (canvas.segment_BL > 0) & ~repeats(canvas.tokens_BL, canvas)
        if self.model.config.ctc:
            kept_BL &= canvas.tokens_BL != self.model.ids.blank
        order_BL = jnp.argsort(~kept_BL, axis=1, stable=True)
        tokens_BL = jnp.take_along_axis(jnp.where(kept_BL, canvas.tokens_BL, 0), order_BL, axis=1)
        return refined.passes_B, tokens_BL, None

    def _drawn(self, key_B, canvas: Canvas, logits_fn):
        """Refines a canvas with a last pass that draws all tokens; returns what `_refined_within` returns."""
        passes_B = jnp.ones_like(canvas.done_B, jnp.int32)
        if self.num_steps > 1:
            refined = refine(key_B, canvas, logits_fn, self.strategy, num_steps=self.num_steps - 1)
            canvas, passes_B = refined.canvas, passes_B + refined.passes_B
        output: Any = logits_fn(canvas.tokens_BL, visible_BLL=canvas.visible_BLL, belief_BLD=canvas.belief_BLD)
        logits_BLV = forbid(output.logits_BLV.astype(jnp.float32), self.model.ids.special) / self.temperature
        key_BL = position_keys(jax.vmap(jax.random.fold_in, (0, None))(key_B, _LAST), canvas.segment_BL, NOISE)
        drawn_BL = jax.vmap(jax.vmap(jax.random.categorical))(key_BL, logits_BLV)
        tokens_BL = jnp.where(canvas.free_BL, drawn_BL, canvas.tokens_BL)
        certain_BLV = jax.nn.one_hot(tokens_BL, logits_BLV.shape[-1])
        return passes_B, tokens_BL, jnp.where(canvas.free_BL[..., None], jax.nn.softmax(logits_BLV), certain_BLV)

"""Drafters, which propose the next tokens of a translation for an autoregressive model to verify.

A drafter may be wrong at will: `padir.decoding.verified` accepts only what the model agrees with. A better drafter
makes fewer rounds.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from padir import checks
from padir.decoding.draft import Draft, at, window
from padir.decoding.refine_batch import BUCKET, DraftInputs, encode, lay_out
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.models.length import top_lengths
from padir.models.transformer import Transformer
from padir.pretrained import model_folder
from padir.refinement.canvas import repeats, veil
from padir.refinement.loop import refine
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies import checked_call, parse_call
from padir.storage.manifest import MANIFEST, sha256


@dataclasses.dataclass(frozen=True)
class Jacobi:
    """Proposes the model's own choices of the last round (Jacobi decoding: Santilli et al., ACL 2023, section 3.2).

    Attributes:
      block: number of tokens of a proposal.

    Raises:
      PadirError: block is below 1.
    """

    block: int = 3

    def __post_init__(self):
        checks.at_least(1, block=self.block)

    def begin(self, params, inputs, *, max_length, seed):
        return jnp.zeros((inputs.source_BS.shape[0], max_length), jnp.int32)

    def propose(self, memory, rows):
        return window(memory, rows.length_B, self.block)

    def learn(self, params, memory, rows, choice_BJ, accepted_B, *, seed):
        begin_B = rows.length_B - accepted_B
        index_BL = jnp.arange(memory.shape[1]) - begin_B[:, None]
        guessed_BL = (index_BL >= accepted_B[:, None]) & (index_BL < choice_BJ.shape[1])
        return jnp.where(guessed_BL, window(choice_BJ, -begin_B, memory.shape[1]), memory)


@dataclasses.dataclass(frozen=True)
class Copy:
    """Proposes what follows the last two tokens in the source: for editing, where much of the source stays.

    Of several such places in the source the nearest one counts. If no place has both tokens, a place of the last token
    counts; if the source has none, the same place as in the target.

    Attributes:
      block: number of tokens of a proposal.

    Raises:
      PadirError: block is below 1.
    """

    block: int = 7

    def __post_init__(self):
        checks.at_least(1, block=self.block)

    def begin(self, params, inputs, *, max_length, seed):
        return inputs.source_BS

    def propose(self, memory, rows):
        last_B, before_B = (at(rows.tokens_BL, rows.length_B - back) for back in (1, 2))
        same_BS = (memory == last_B[:, None]) & (memory > 0)
        both_BS = same_BS & (jnp.pad(memory, ((0, 0), (1, 0)))[:, :-1] == before_B[:, None])
        place_B1 = rows.length_B[:, None] - 1
        far_BS = jnp.abs(jnp.arange(memory.shape[1]) - place_B1)
        score_BS = jnp.where(same_BS, both_BS * 2**20 - far_BS, -(2**20))
        found_B = jnp.where(same_BS.any(-1), score_BS.argmax(-1), place_B1[:, 0])
        return window(memory, found_B + 1, self.block)

    def learn(self, params, memory, rows, choice_BJ, accepted_B, *, seed):
        return memory


class RefiningMemory(NamedTuple):
    """Memory of `RefiningDrafter`: encoded sources, and the draft, which row b reads at its position + shift_B[b].

    `limit_B` is the greatest length of each draft, and `passes_B` counts the decoder passes.
    """

    draft_BL: Int[Array, "B L"]
    shift_B: Int[Array, " B"]
    limit_B: Int[Array, " B"]
    passes_B: Int[Array, " B"]
    inputs: DraftInputs


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

    Raises:
      PadirError: num_steps or block is below 1, follow is unknown, or it is "refine" with a CTC model.
    """

    model: Transformer
    strategy: Strategy
    corruption: Corruption
    num_steps: int = 1
    block: int = 3
    follow: str = "token"

    def __post_init__(self):
        checks.at_least(1, num_steps=self.num_steps, block=self.block)
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
        return window(memory.draft_BL, rows.length_B + memory.shift_B, self.block)

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
            draft_BL, passes_B = self._refined_within(width, params, memory, known_BL[:, :width], known_B, seed)
            return jnp.pad(draft_BL, ((0, 0), (0, full - width))), passes_B

        enough = jnp.array(widths[:-1], jnp.int32) < length_B.max()
        draft_BL, passes_B = jax.lax.switch(enough.sum(), [functools.partial(written, width) for width in widths])
        passes_B = memory.passes_B + passes_B
        return memory._replace(draft_BL=draft_BL, shift_B=jnp.zeros_like(memory.shift_B), passes_B=passes_B)

    def _refined_within(self, width: int, params, memory: RefiningMemory, known_BL, known_B, seed):
        """Refines the draft, as `_refined` does, on a canvas of a width; returns the tokens that stay, and the passes.

        Repeated tokens are left out, and so are blanks, as a CTC model's translation is its canvas without both.
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
        refined = refine(key_B, canvas, logits_fn, self.strategy, num_steps=self.num_steps)
        canvas = refined.canvas
        kept_BL = (canvas.segment_BL > 0) & ~repeats(canvas.tokens_BL, canvas)
        if self.model.config.ctc:
            kept_BL &= canvas.tokens_BL != self.model.ids.blank
        order_BL = jnp.argsort(~kept_BL, axis=1, stable=True)
        return jnp.take_along_axis(jnp.where(kept_BL, canvas.tokens_BL, 0), order_BL, axis=1), refined.passes_B


DRAFTERS: dict[str, type] = {"jacobi": Jacobi, "copy": Copy}
"""Drafters without a model of their own."""


@functools.lru_cache  # rows of a results table share the loaded model
def load_draft(text: str) -> Draft:
    """Makes a draft from text such as "jacobi", "copy:block=4" or "MODEL:num_steps=2", as on the command line.

    MODEL is a padir model's directory, or the name of one that comes with padir; its fields are those of
    `RefiningDrafter` that have a default. Every draft also takes the `tolerance` of `Draft`.

    Raises:
      PadirError: the text has another form, a field is unknown or has a wrong value, or MODEL is no padir model.

    >>> load_draft("jacobi:block=4").drafter
    Jacobi(block=4)
    """
    name, values = parse_call(text, "draft", "jacobi:block=4")
    kind = DRAFTERS.get(name, RefiningDrafter)
    values = checked_call(kind, name, values, tolerance=Draft.tolerance)
    tolerance = values.pop("tolerance", Draft.tolerance)
    if kind is not RefiningDrafter:
        return Draft(kind(**values), name=text, tolerance=tolerance)
    folder = model_folder(name)
    if not folder.exists():
        raise PadirError(
            f"no draft is called {name!r}, and there is no such directory",
            remedy=f"give {', '.join(DRAFTERS)} or a padir model's directory",
        )
    if not (folder / MANIFEST).is_file():
        raise PadirError(f"{name} holds no finished model: give one that `padir train` or `padir average` wrote")
    translator = Translator.load(name)
    card = translator.card
    if card.strategy is None or card.corruption is None or card.config.length_head == "oracle":
        raise PadirError(f"{name} holds no model that refines drafts of predicted lengths: a draft needs one")
    drafter = RefiningDrafter(translator.model, card.strategy, card.corruption.full(), **values)
    checksum, vocabulary = sha256(folder / MANIFEST), translator.tokenizer.sha256
    return Draft(drafter, translator.loaded.converted, text, tolerance, vocabulary, checksum)

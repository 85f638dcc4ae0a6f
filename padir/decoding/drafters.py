"""Drafters, which propose the next tokens of a translation for an autoregressive model to verify.

A drafter may be wrong at will: `padir.decoding.verified` accepts only what the model agrees with. A better drafter
makes fewer rounds.
"""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp

from padir import checks
from padir.decoding.draft import Draft, Proposal, at, window
from padir.decoding.refining_drafter import RefiningDrafter
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.pretrained import model_folder
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
        return Proposal(window(memory, rows.length_B, self.block))

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
        return Proposal(window(memory, found_B + 1, self.block))

    def learn(self, params, memory, rows, choice_BJ, accepted_B, *, seed):
        return memory


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

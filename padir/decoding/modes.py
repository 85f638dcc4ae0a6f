"""Modes of a dual model, which refines drafts and writes from left to right with the same parameters."""

from __future__ import annotations

import dataclasses

from padir import checks
from padir.decoding.draft import Draft
from padir.decoding.options import Decoding
from padir.decoding.refining_drafter import RefiningDrafter
from padir.decoding.translator import Translator
from padir.errors import PadirError

MODES = ("refine", "causal", "verify")


def in_mode(translator: Translator, mode: str) -> Translator:
    """Makes a translator of one of the modes of a dual model; the parameters are shared.

    Change the precision (`Translator.quantised`) before the mode: a draft keeps the parameters that it was made of.

    Args:
      mode: "refine" refines drafts, "causal" writes from left to right, "verify" writes from left to right, too, and
        verifies its own draft of one pass (`padir.decoding.verified`).

    Raises:
      PadirError: the mode is unknown, the model is not dual, the translator is a mode already, or the mode "verify" has
        no lengths, as the length head is "oracle".
    """
    checks.one_of(MODES, mode=mode)
    card = translator.card
    if card.config.dual and card.config.causal:
        raise PadirError("the translator is a mode of a dual model already: start from the model as it was loaded")
    config = card.config.as_causal()
    if mode == "refine":
        return translator
    causal = Translator(
        translator.params,
        dataclasses.replace(card, config=config, corruption=None, strategy=None, decoding={}),
        translator.tokenizer,
    )
    if mode == "verify":
        if card.config.length_head == "oracle":
            raise PadirError('the mode "verify" needs predicted lengths, but the length head is "oracle": use "causal"')
        assert card.strategy is not None and card.corruption is not None
        drafter = RefiningDrafter(translator.model, card.strategy, card.corruption.full())
        draft = Draft(drafter, translator.loaded.converted, name="its own", vocabulary=translator.tokenizer.sha256)
        causal.decoding = Decoding().changed(draft=draft)
    return causal

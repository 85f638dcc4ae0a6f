"""Decoding options of exported programs."""

from __future__ import annotations

import logging
from collections.abc import Set

from padir.decoding.options import Decoding
from padir.decoding.ranker import CausalScore
from padir.errors import PadirError
from padir.options import OPTIONS
from padir.translator import Translator

_log = logging.getLogger("padir")

EXPORTED = {
    "mode",
    "num_steps",
    "strategy",
    "canvas",
    "num_lengths",
    "length_window",
    "num_drafts",
    "rerank",
    "length_normalization",
    "drop_repeats",
    "blank_penalty",
    "batch_size",
    "seed",
    "precision",
}
"""The options that exported programs can have."""


def check_exported(decoding: Decoding, known: Set[str]) -> None:
    """Refuses options that are not known and not at their defaults."""
    for name, option in OPTIONS.items():
        if name not in known and getattr(decoding, name) != option.default:
            raise PadirError(f"{name} cannot be exported: translate with padir, or leave it out")


def exportable(translator: Translator, decoding: Decoding) -> Decoding:
    """Decoding options with the model's own strategy and canvas; refuses options that programs cannot have."""
    decoding = translator.resolved(decoding)
    config = translator.card.config
    if not translator.refines(decoding):
        remedy = "choose it, or leave the mode out" if config.dual else "take a model that refines drafts"
        raise PadirError("an export needs the mode refine", remedy=remedy)
    if decoding.fusion is not None:  # the browser has no table: a draft is read as without it
        _log.warning("the export decodes without the table of bigrams: prefix_beam and fusion are left out")
        decoding = decoding.without("fusion", "prefix_beam")
    if decoding.length_min_p:
        _log.warning("the export tries all lengths: length_min_p is left out")
        decoding = decoding.without("length_min_p")
    check_exported(decoding, EXPORTED)
    if not (decoding.ranker is None or isinstance(decoding.ranker, CausalScore)):
        what = "only the rules 'own' and, for a dual model, 'causal' can choose among exported hypotheses"
        raise PadirError(what, got=decoding.rerank, remedy="take the rule 'own', as with --rerank own")
    return decoding

"""Decoding: from sentences to translations, with models that refine drafts and with autoregressive ones.

`Translator` is the entry point; `Decoding` holds its options. `Rerank` rules choose among drafts, `Search` rules write
from left to right, a `Shortlist` restricts the output vocabulary. The stages that every batch passes are in
`padir.decoding.pipeline`, the jitted programs in `refine_batch` and `autoregressive`.
"""

from padir.decoding.options import MODES, Decoding, DecodingOptions, option_table
from padir.decoding.rerank import CausalScore, MinimumBayesRisk, OwnScore, Rerank, Rescore
from padir.decoding.search import Beam, Sampling, Search
from padir.decoding.shortlist import Shortlist
from padir.decoding.translation import TargetScore, Translation
from padir.decoding.translator import SharedTranslator, Translator, rescorer

__all__ = [
    "MODES",
    "Beam",
    "CausalScore",
    "Decoding",
    "DecodingOptions",
    "MinimumBayesRisk",
    "OwnScore",
    "Rerank",
    "Rescore",
    "Sampling",
    "Search",
    "SharedTranslator",
    "Shortlist",
    "TargetScore",
    "Translation",
    "Translator",
    "option_table",
    "rescorer",
]

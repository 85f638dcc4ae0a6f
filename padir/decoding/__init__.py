"""Decoding: from sentences to translations, with models that refine drafts and with autoregressive ones.

`Translator` is the entry point; `Decoding` holds its options: `LengthSearch` and a `Rerank` rule for drafts, a `Search`
for autoregressive models, a `Shortlist` to restrict the output vocabulary. The stages that every batch passes are in
`padir.decoding.pipeline`, the jitted programs in `refine_batch` and `autoregressive`.
"""

from padir.decoding.draft import Draft
from padir.decoding.drafters import load_draft
from padir.decoding.lengths import LengthSearch
from padir.decoding.modes import MODES, in_mode
from padir.decoding.options import Decoding, Prune
from padir.decoding.rerank import CausalScore, MinimumBayesRisk, OwnScore, PseudoLikelihood, Rerank, Rescore
from padir.decoding.rescoring import rescorer
from padir.decoding.scoring import PairScore, score_pairs
from padir.decoding.search import Beam, Greedy, Sampling, Search
from padir.decoding.shortlist import Shortlist
from padir.decoding.translation import TargetScore, Translation
from padir.decoding.translator import Translator

__all__ = [
    "MODES",
    "Beam",
    "CausalScore",
    "Decoding",
    "Draft",
    "Greedy",
    "LengthSearch",
    "MinimumBayesRisk",
    "OwnScore",
    "PairScore",
    "Prune",
    "PseudoLikelihood",
    "Rerank",
    "Rescore",
    "Sampling",
    "Search",
    "Shortlist",
    "TargetScore",
    "Translation",
    "Translator",
    "in_mode",
    "load_draft",
    "rescorer",
    "score_pairs",
]

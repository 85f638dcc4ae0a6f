"""Decoding: from sentences to hypotheses to translations, with models that refine drafts and with autoregressive ones.

A `Writer` gives hypotheses for a batch of sentences: `Refiner` refines drafts, `Searcher` searches from left to right.
A `Ranker` chooses among them. `padir.decoding.sentences` takes sentences through both; `padir.Translator` is the front
door, and `Decoding` holds the options. A `Shortlist` restricts the output vocabulary. The jitted programs are in
`refine_batch`, `autoregressive` and `alignment`.
"""

from padir.decoding.hypothesis import Hypothesis, SourceSentence
from padir.decoding.options import Decoding, DecodingOptions
from padir.decoding.ranker import CausalScore, MinimumBayesRisk, Ranker, Rescore
from padir.decoding.search import Beam, Sampling, Search
from padir.decoding.sentences import Request, SentenceTranslator
from padir.decoding.shortlist import Shortlist
from padir.decoding.translation import TargetScore, Translation
from padir.decoding.writer import MakeWriter, Shapes, Writer, Written

__all__ = [
    "Beam",
    "CausalScore",
    "Decoding",
    "DecodingOptions",
    "Hypothesis",
    "MakeWriter",
    "MinimumBayesRisk",
    "Ranker",
    "Request",
    "Rescore",
    "Sampling",
    "Search",
    "SentenceTranslator",
    "Shapes",
    "Shortlist",
    "SourceSentence",
    "TargetScore",
    "Translation",
    "Writer",
    "Written",
]

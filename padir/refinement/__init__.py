"""Refinement of a canvas: drafts of every target position, and everything that rewrites them.

A `Corruption` makes a draft (`draft`) and training's noise; a `Strategy` turns a `Canvas` and the decoder's `Output`
into the next canvas; `refine` is the one loop that runs every strategy on any decoder; a `Between` does the same
between two training stages. `CORRUPTIONS` and `STRATEGIES` list them by name.
"""

from padir.refinement.canvas import Canvas, from_tokens, hide, repeats, restore, veil, write
from padir.refinement.corruption import (
    CORRUPTIONS,
    Cmlm,
    Mask,
    MaskRange,
    Mixed,
    RandomVisible,
    Uniform,
    UniformRate,
)
from padir.refinement.drafting import draft
from padir.refinement.loop import LogitsFn, Part, Refined, refine
from padir.refinement.protocols import Between, Corruption, Strategy
from padir.refinement.scores import Output
from padir.refinement.strategies import (
    STRATEGIES,
    BlockGibbs,
    Constant,
    EasyFirst,
    EntropyBound,
    IndependentParallel,
    MaskPredict,
    Padir,
    Rejecter,
    SundaeSampling,
    Threshold,
    get_strategy,
    parse_strategy,
)
from padir.refinement.transitions import Glat, Lifted, SampledUnroll, Smart

__all__ = [
    "CORRUPTIONS",
    "STRATEGIES",
    "Between",
    "BlockGibbs",
    "Canvas",
    "Cmlm",
    "Constant",
    "Corruption",
    "EasyFirst",
    "EntropyBound",
    "Glat",
    "IndependentParallel",
    "Lifted",
    "LogitsFn",
    "Mask",
    "MaskPredict",
    "MaskRange",
    "Mixed",
    "Output",
    "Padir",
    "Part",
    "RandomVisible",
    "Refined",
    "Rejecter",
    "SampledUnroll",
    "Smart",
    "Strategy",
    "SundaeSampling",
    "Threshold",
    "Uniform",
    "UniformRate",
    "draft",
    "from_tokens",
    "get_strategy",
    "hide",
    "parse_strategy",
    "refine",
    "repeats",
    "restore",
    "veil",
    "write",
]

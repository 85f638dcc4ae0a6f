"""Iterative refinement of a canvas, which is a draft of all target tokens of a sentence.

A `Corruption` makes the noise of the first draft (`draft`) and of training inputs. A `Strategy` turns a `Canvas` and
the decoder's `Output` into the next canvas. The loop `refine` runs any strategy on any decoder. A `Between` makes the
canvas of the next training stage. `CORRUPTIONS` and `STRATEGIES` list the implementations by name.
"""

from padir.refinement.canvas import Canvas, end, from_tokens, hide, repeats, restore, veil, write
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
    Factor,
    Frechet,
    GibbsCorrector,
    IndependentParallel,
    MaskPredict,
    Padir,
    PathPlanning,
    PredictorCorrector,
    Rejecter,
    Remdm,
    Renoise,
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
    "Factor",
    "Frechet",
    "GibbsCorrector",
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
    "PathPlanning",
    "PredictorCorrector",
    "Refined",
    "Rejecter",
    "Remdm",
    "Renoise",
    "SampledUnroll",
    "Smart",
    "Strategy",
    "SundaeSampling",
    "Threshold",
    "Uniform",
    "UniformRate",
    "draft",
    "end",
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

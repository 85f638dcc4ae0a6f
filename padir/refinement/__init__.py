"""Iterative refinement of a canvas, which is a draft of all target tokens of a sentence.

A `Corruption` makes the noise of the first draft (`draft`) and of training inputs. A `Decoder` turns a `Canvas` into an
`Output`, from which a `Strategy` makes a `Proposal`: the next canvas. A `Stop` says which sentences are finished. The
loop `refine` runs any strategy on any decoder; `steps` yields its states. A `StageTransition` makes the canvas of the
next training stage. `CORRUPTIONS` and `STRATEGIES` list the implementations by name.
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
    draft,
)
from padir.refinement.loop import Refined, State, advance, begin, refine, steps
from padir.refinement.protocols import Corruption, Decoder, Proposal, StageTransition, Stop, Strategy
from padir.refinement.scores import Output
from padir.refinement.stop import Agreed, Cycle, Fixpoint, Never, NothingOpen, Repetition, Steady
from padir.refinement.strategies import (
    STRATEGIES,
    BlockGibbs,
    Constant,
    EasyFirst,
    EntropyBound,
    Factor,
    Frechet,
    IndependentParallel,
    MaskPredict,
    Padir,
    PathPlanning,
    Rejecter,
    Remdm,
    Renoise,
    SundaeSampling,
    Threshold,
    get_strategy,
    parse_strategy,
)
from padir.refinement.transitions import FromStrategy, Glat, SampledUnroll, Smart

__all__ = [
    "CORRUPTIONS",
    "STRATEGIES",
    "Agreed",
    "BlockGibbs",
    "Canvas",
    "Cmlm",
    "Constant",
    "Corruption",
    "Cycle",
    "Decoder",
    "EasyFirst",
    "EntropyBound",
    "Factor",
    "Fixpoint",
    "Frechet",
    "FromStrategy",
    "Glat",
    "IndependentParallel",
    "Mask",
    "MaskPredict",
    "MaskRange",
    "Mixed",
    "Never",
    "NothingOpen",
    "Output",
    "Padir",
    "PathPlanning",
    "Proposal",
    "RandomVisible",
    "Refined",
    "Rejecter",
    "Remdm",
    "Renoise",
    "Repetition",
    "SampledUnroll",
    "Smart",
    "State",
    "StageTransition",
    "Steady",
    "Stop",
    "Strategy",
    "SundaeSampling",
    "Threshold",
    "Uniform",
    "UniformRate",
    "advance",
    "begin",
    "draft",
    "from_tokens",
    "get_strategy",
    "hide",
    "parse_strategy",
    "refine",
    "repeats",
    "restore",
    "steps",
    "veil",
    "write",
]

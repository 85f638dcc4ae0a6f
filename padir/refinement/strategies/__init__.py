"""Decoding strategies, which refine a canvas step by step; each is a frozen dataclass that `refine` runs.

rewriting      strategies that take back the worst tokens and write them again
confidence     strategies in which the model's confidence decides which positions are written
parallel       strategies that write as many positions at once as their confidences guarantee to fit
sampling       strategies that draw tokens at random
renoising      strategies that put fresh noise in place of doubtful tokens
remasking      strategies for masked canvases that hide written positions again
correcting     the Gibbs corrector, which draws written tokens again given the others
schedules      the number of positions that are hidden after each pass
registry       the names of the strategies, and the corrector that wraps a strategy of any name
requirements   the check that a model can be decoded with a strategy
"""

from padir.refinement.strategies.confidence import EasyFirst, EntropyBound, Threshold
from padir.refinement.strategies.correcting import GibbsCorrector
from padir.refinement.strategies.parallel import Factor, Frechet
from padir.refinement.strategies.registry import (
    STRATEGIES,
    PredictorCorrector,
    checked_call,
    get_strategy,
    parse_call,
    parse_strategy,
)
from padir.refinement.strategies.rejecter import Rejecter
from padir.refinement.strategies.remasking import PathPlanning, Remdm
from padir.refinement.strategies.renoising import Renoise
from padir.refinement.strategies.requirements import check_strategy
from padir.refinement.strategies.rewriting import Constant, MaskPredict, Padir
from padir.refinement.strategies.sampling import BlockGibbs, IndependentParallel, SundaeSampling

__all__ = [
    "STRATEGIES",
    "BlockGibbs",
    "Constant",
    "EasyFirst",
    "EntropyBound",
    "Factor",
    "Frechet",
    "GibbsCorrector",
    "IndependentParallel",
    "MaskPredict",
    "Padir",
    "PathPlanning",
    "PredictorCorrector",
    "Rejecter",
    "Remdm",
    "Renoise",
    "SundaeSampling",
    "Threshold",
    "check_strategy",
    "checked_call",
    "get_strategy",
    "parse_call",
    "parse_strategy",
]

"""Decoding strategies, which propose the next canvas; each is a frozen dataclass that `refine` runs.

rewriting      strategies that take back the worst tokens and write them again
confidence     strategies in which the model's confidence decides which positions are written
sampling       strategies that draw tokens, or the places to hide again, at random
schedules      the number of positions that are hidden after each pass
registry       the names of the strategies, and the check that a model can be decoded with one
"""

from padir.refinement.strategies.confidence import EasyFirst, EntropyBound, Factor, Frechet, Renoise, Threshold
from padir.refinement.strategies.registry import (
    STRATEGIES,
    check_strategy,
    checked_call,
    get_strategy,
    parse_call,
    parse_strategy,
)
from padir.refinement.strategies.rewriting import Constant, MaskPredict, Padir, Rejecter
from padir.refinement.strategies.sampling import BlockGibbs, IndependentParallel, PathPlanning, Remdm, SundaeSampling

__all__ = [
    "STRATEGIES",
    "BlockGibbs",
    "Constant",
    "EasyFirst",
    "EntropyBound",
    "Factor",
    "Frechet",
    "IndependentParallel",
    "MaskPredict",
    "Padir",
    "PathPlanning",
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

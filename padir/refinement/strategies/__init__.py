"""Strategies: the ways to refine a canvas, one frozen dataclass each; `padir.refinement.refine` runs them.

`rewriting` holds strategies that take back the worst tokens and write them again, `confidence` those in which the
model's confidence decides how many tokens are written, `sampling` those that draw tokens at random, `registry` their
names, and `requirements` the check that a strategy has a meaning for a model.
"""

from padir.refinement.strategies.confidence import EasyFirst, EntropyBound, Threshold
from padir.refinement.strategies.registry import STRATEGIES, get_strategy, parse_strategy
from padir.refinement.strategies.requirements import check_strategy
from padir.refinement.strategies.rewriting import Constant, MaskPredict, Padir, Rejecter
from padir.refinement.strategies.sampling import BlockGibbs, IndependentParallel, SundaeSampling

__all__ = [
    "STRATEGIES",
    "BlockGibbs",
    "Constant",
    "EasyFirst",
    "EntropyBound",
    "IndependentParallel",
    "MaskPredict",
    "Padir",
    "Rejecter",
    "SundaeSampling",
    "Threshold",
    "check_strategy",
    "get_strategy",
    "parse_strategy",
]

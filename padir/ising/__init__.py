"""Ising models: the paper's experiments (figures 1 to 3) and its theorems, checked by exact enumeration.

`Ising` is a model, `Masks` the blocks that are hidden in learning or redrawn in sampling. `learning_curves` and
`sampling_times` are the experiments, `check_all` checks the statements of sections 2.2 to 2.4 on random models, and
`padir.ising.run` is the command `padir ising`. `padir.ising.decoders` has the exact laws of decoders of several passes,
`schedules` the sizes of their passes, and `canvas` decoders that start from random tokens. docs/theory.md derives the
statements and shows the results.
"""

from padir.ising.cliques import Clique
from padir.ising.experiments import LearningSizes, SamplingSizes, learning_curves, sampling_times
from padir.ising.masks import Masks
from padir.ising.model import Ising, clique, distribution
from padir.ising.statement import Finding, Statement
from padir.ising.theory import STATEMENTS, check_all

__all__ = [
    "STATEMENTS",
    "Clique",
    "Finding",
    "Ising",
    "LearningSizes",
    "Masks",
    "SamplingSizes",
    "Statement",
    "check_all",
    "clique",
    "distribution",
    "learning_curves",
    "sampling_times",
]

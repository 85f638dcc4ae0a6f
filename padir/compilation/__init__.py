"""Programs of training and decoding, compiled for TPUs and GPUs that need not be here: do they fit, and how fast?

`padir.compilation.topology` describes devices that are not here. `programs` lists the programs of a configuration and
`analysis` compiles them and reads XLA's analyses. Nothing runs: memory is XLA's plan, and times are estimates.
"""

from padir.compilation.analysis import Compiled, analyse
from padir.compilation.chips import CHIPS, Chip
from padir.compilation.decoding import DecodeShape, decode_programs
from padir.compilation.programs import Program, train_program
from padir.compilation.topology import Topology

__all__ = [
    "CHIPS",
    "Chip",
    "Compiled",
    "DecodeShape",
    "Program",
    "Topology",
    "analyse",
    "decode_programs",
    "train_program",
]

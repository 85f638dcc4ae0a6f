"""Benchmarks of decoding from text to text and of training steps: time, memory and quality.

`measure` times systems (models with decoding options) side by side on the same batches; `peers` adds CTranslate2 for
comparison; `padir.benchmark.training` times training; `padir.benchmark.report` makes tables and a plot.
"""

from padir.benchmark.batches import TimedBatch, batches_of, batches_of_numbers, drawn_lengths, equal_lengths
from padir.benchmark.decoding import System, measure, systems
from padir.benchmark.random_models import NumberTokenizer, numbers, random_translator
from padir.benchmark.timing import Ratio, Timed, interleave

__all__ = [
    "NumberTokenizer",
    "Ratio",
    "System",
    "Timed",
    "TimedBatch",
    "batches_of",
    "batches_of_numbers",
    "drawn_lengths",
    "equal_lengths",
    "interleave",
    "measure",
    "numbers",
    "random_translator",
    "systems",
]

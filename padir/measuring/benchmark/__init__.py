"""Benchmarks of decoding from text to text and of training steps: time, memory and quality.

`measure` times systems (models with decoding options) side by side on the same batches, and `peers` adds CTranslate2
for comparison. `training_speed` times training, and `speed_report` makes tables and a plot.
"""

from padir.measuring.benchmark.decoding_speed import measure, systems
from padir.measuring.benchmark.timed_batches import (
    NumberTokenizer,
    TimedBatch,
    batches_of,
    batches_of_numbers,
    drawn_lengths,
    equal_lengths,
    numbers,
    random_translator,
)

__all__ = [
    "NumberTokenizer",
    "TimedBatch",
    "batches_of",
    "batches_of_numbers",
    "drawn_lengths",
    "equal_lengths",
    "measure",
    "numbers",
    "random_translator",
    "systems",
]

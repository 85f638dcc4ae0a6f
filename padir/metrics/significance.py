"""Is one system better than another? Paired bootstrap resampling (Koehn, EMNLP 2004), by SacreBLEU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from padir.errors import PadirError
from padir.metrics.scores import bleu_metric


@dataclasses.dataclass(frozen=True)
class Compared:
    """One system's figure in one metric.

    Attributes:
      system, metric: their names.
      score: of the test set as it is.
      mean, interval: of the resampled test sets: mean, and half the width of the 95 % confidence interval.
      p_value: how probable a difference to the baseline at least as large would be if the systems were equally good;
        None for the baseline itself.
      signature: SacreBLEU's, with the number of resamples and the seed.
    """

    system: str
    metric: str
    score: float
    mean: float
    interval: float
    p_value: float | None
    signature: str


def compare(
    references: Sequence[str],
    systems: Sequence[tuple[str, Sequence[str]]],
    target_language: str,
    samples: int = 1_000,
) -> list[Compared]:
    """BLEU and chrF of every system, tested against the first one, the baseline.

    Every system is scored on the same `samples` resamples of the test set, so that the result is the same each time
    (SACREBLEU_SEED in the environment gives other resamples).

    Args:
      systems: (name, hypotheses) pairs, at least two, with a line for each reference.

    Raises:
      PadirError: fewer than two systems, two of one name, too few samples, or a file of another length.
    """
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    names = [name for name, _ in systems]
    if len(systems) < 2:
        raise PadirError(f"a comparison needs a baseline and at least one other system, got {len(systems)}")
    if len(set(names)) < len(names):
        raise PadirError(f"every system needs a name of its own, got {', '.join(names)}")
    if samples < 100:
        raise PadirError(f"samples must be at least 100 (1000 is usual), got {samples}")
    if not references:
        raise PadirError("expected at least one reference, got none: check the file")
    for name, hypotheses in systems:
        if len(hypotheses) != len(references):
            raise PadirError(f"{name} has {len(hypotheses)} lines but there are {len(references)} references")
    metrics = {"BLEU": bleu_metric(target_language), "chrF2": CHRF()}
    test = PairedTest(
        [(name, list(hypotheses)) for name, hypotheses in systems],
        metrics,
        [list(references)],
        test_type="bs",
        n_samples=samples,
    )
    signatures, scores = test()
    return [
        _compared(name, metric, signature.format(), result, baseline=scores[metric][0])
        for metric, signature in signatures.items()
        for name, result in zip(names, scores[metric], strict=True)
    ]


def _compared(system: str, metric: str, signature: str, result: Any, baseline: Any) -> Compared:
    p_value = None if result.p_value is None else float(result.p_value)
    if p_value is not None and result.score == baseline.score:
        p_value = 1.0  # SacreBLEU counts only larger differences, so that equal systems would get the least
    return Compared(system, metric, float(result.score), float(result.mean), float(result.ci), p_value, signature)

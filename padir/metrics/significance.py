"""Significance tests between systems: paired bootstrap resampling (Koehn, EMNLP 2004), by SacreBLEU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from padir import checks
from padir.errors import PadirError
from padir.metrics.scores import bleu_metric


@dataclasses.dataclass(frozen=True)
class SystemScore:
    """The score of one system in one metric, with its confidence interval and p-value.

    Attributes:
      score: score of the original test set, without resampling.
      mean, interval: mean score of the resampled test sets, and half the width of their 95 % confidence interval.
      p_value: probability of a difference from the baseline that is at least as large as the observed difference, if
        the systems were equally good; None for the baseline.
      signature: SacreBLEU's signature, with the number of resamples and the seed.
    """

    system: str
    metric: str
    score: float
    mean: float
    interval: float
    p_value: float | None
    signature: str


def compare(
    references: Iterable[str],
    systems: Sequence[tuple[str, Iterable[str]]],
    target_language: str,
    samples: int = 1_000,
    tokenize: str = "",
) -> list[SystemScore]:
    """Scores every system in BLEU and chrF, and tests each against the baseline, which is the first system.

    Every system is scored on the same `samples` resamples of the test set. The environment variable SACREBLEU_SEED sets
    the seed of the resamples, which is fixed by default.

    Args:
      references: one reference translation for each sentence.
      systems: (name, hypotheses) pairs, at least two, of different names, with one hypothesis for each reference.
      samples: number of resamples, at least 100.
      target_language, tokenize: as in `padir.metrics.scores.bleu`.

    Raises:
      PadirError: an argument is not as described.
    """
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    names = [name for name, _ in systems]
    if len(systems) < 2:
        raise PadirError(f"a comparison needs a baseline and at least one other system, got {len(systems)}")
    if len(set(names)) < len(names):
        raise PadirError(f"every system needs a name of its own, got {', '.join(names)}")
    checks.counts(100, "1000 is usual", samples=samples)
    references = checks.strings("references", references)
    checked: list[tuple[str, Sequence[str]]] = [(name, checks.strings(name, texts)) for name, texts in systems]
    if not references:
        raise PadirError("expected at least one reference, got none", remedy="check the file")
    for name, hypotheses in checked:
        if len(hypotheses) != len(references):
            raise PadirError(f"{name} has {len(hypotheses)} lines but there are {len(references)} references")
    metrics = {"BLEU": bleu_metric(target_language, tokenize, references=references), "chrF2": CHRF()}
    test = PairedTest(checked, metrics, [references], test_type="bs", n_samples=samples)
    signatures, scores = test()
    return [
        _compared(name, metric, signature.format(), result, baseline=scores[metric][0])
        for metric, signature in signatures.items()
        for name, result in zip(names, scores[metric], strict=True)
    ]


def _compared(system: str, metric: str, signature: str, result: Any, baseline: Any) -> SystemScore:
    p_value = None if result.p_value is None else float(result.p_value)
    if p_value is not None and result.score == baseline.score:
        p_value = 1.0  # SacreBLEU counts only larger differences, which gives equal systems the smallest p
    return SystemScore(system, metric, float(result.score), float(result.mean), float(result.ci), p_value, signature)

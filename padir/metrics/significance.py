"""Significance tests between systems: paired bootstrap resampling (Koehn, EMNLP 2004), by SacreBLEU."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from padir import checks
from padir.errors import PadirError
from padir.metrics.scores import bleu_metric, lined_up

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric


@dataclasses.dataclass(frozen=True)
class SystemScore:
    """The score of one system in one metric, with its confidence interval and p-value.

    Attributes:
      score: score of the original test set, without resampling.
      mean, interval: mean score of the resampled test sets, and half the width of their 95 % confidence interval.
      difference: lower and upper end of the 95 % interval of the difference from the baseline, by percentiles of
        the resampled differences; None for the baseline.
      p_value: probability of a difference from the baseline that is at least as large as the observed difference, if
        the systems were equally good; None for the baseline.
      signature: SacreBLEU's signature, with the number of resamples and the seed.
    """

    system: str
    metric: str
    score: float
    mean: float
    interval: float
    difference: tuple[float, float] | None
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
      samples: number of resamples, from 100 to 10,000.
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
    checks.within(100, 10_000, "1000 is usual", samples=samples)
    references, *texts = lined_up(references=references, **{f"lines of {name}": lines for name, lines in systems})
    checked: list[tuple[str, Sequence[str]]] = list(zip(names, texts, strict=True))
    metrics = {"BLEU": bleu_metric(target_language, tokenize, references=references), "chrF2": CHRF()}
    test = PairedTest(checked, metrics, [references], test_type="bs", n_samples=samples)
    signatures, scores = test()
    picked = np.random.default_rng(test._seed or None).choice(len(references), (samples, len(references)))
    found = []
    for (metric, signature), scorer in zip(signatures.items(), metrics.values(), strict=True):
        resampled = [_resampled(scorer, texts, references, picked) for _, texts in checked]
        for name, result, own in zip(names, scores[metric], resampled, strict=True):
            difference = None if name == names[0] else np.percentile(own - resampled[0], [2.5, 97.5])
            found.append(_compared(name, metric, signature.format(), result, scores[metric][0], difference))
    return found


def _resampled(metric: Metric, hypotheses: Sequence[str], references: Sequence[str], picked: np.ndarray) -> np.ndarray:
    """Scores of resampled test sets, whose sentences are `picked`, by SacreBLEU's statistics of sentences."""
    statistics = np.array(metric._extract_corpus_statistics(hypotheses, [references]))
    return np.array([metric._compute_score_from_stats(statistics[each].sum(0)).score for each in picked])


def _compared(
    system: str, metric: str, signature: str, result: Any, baseline: Any, difference: np.ndarray | None
) -> SystemScore:
    p_value = None if result.p_value is None else float(result.p_value)
    if p_value is not None and result.score == baseline.score:
        p_value = 1.0  # SacreBLEU counts only larger differences, which gives equal systems the smallest p
    ends = None if difference is None else (float(difference[0]), float(difference[1]))
    return SystemScore(
        system, metric, float(result.score), float(result.mean), float(result.ci), ends, p_value, signature
    )

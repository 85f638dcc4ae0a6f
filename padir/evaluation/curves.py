"""Quality and decoder passes by the length of the source, as numbers and as a plot."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from padir.evaluation.evaluation import Evaluation
from padir.evaluation.test_set import TestSet
from padir.metrics.scores import bleu, chrf, count_words
from padir.reporting.plots import require_matplotlib


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Metrics of the sentences whose sources have `first` to `last` words.

    Attributes:
      first, last: words of the shortest and of the longest source.
      sentences: number of sentences.
      bleu, chrf: scores of these sentences.
      passes: mean number of decoder passes per sentence.
    """

    first: int
    last: int
    sentences: int
    bleu: float
    chrf: float
    passes: float

    @property
    def label(self) -> str:
        """Range of words, such as "1–3"."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def edges(lengths: Sequence[int], count: int = 6) -> list[tuple[int, int]]:
    """Divide lengths into at most `count` ranges with about as many sentences each, shortest first.

    >>> edges([1, 1, 2, 2, 3, 9], count=3)
    [(1, 1), (2, 2), (3, 9)]
    """
    ordered = sorted(lengths)
    cuts = sorted({ordered[i * len(ordered) // count] for i in range(1, count)} - {ordered[0]})
    firsts = [ordered[0], *cuts]
    return list(zip(firsts, [*(cut - 1 for cut in cuts), ordered[-1]], strict=True))


def by_length(test_set: TestSet, evaluation: Evaluation, count: int = 6) -> list[Bucket]:
    """Compute metrics for each range of source lengths, counted in words (in Chinese and Japanese in characters)."""
    lengths = [count_words(source, test_set.source_language) for source in test_set.sources]
    buckets = []
    for first, last in edges(lengths, count):
        numbers = [i for i, length in enumerate(lengths) if first <= length <= last]
        hypotheses = [evaluation.hypotheses[i] for i in numbers]
        references = [test_set.references[i] for i in numbers]
        buckets.append(
            Bucket(
                first,
                last,
                len(numbers),
                bleu(hypotheses, references, test_set.target_language).value,
                chrf(hypotheses, references).value,
                sum(evaluation.passes[i] for i in numbers) / len(numbers),
            )
        )
    return buckets


def plot(curves: Mapping[str, Sequence[Bucket]], path: str | Path, title: str = "") -> None:
    """Plot BLEU, chrF and passes by source length, one line a system, as a PNG.

    Raises:
      PadirError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2 + 0.22 * len(curves)), layout="constrained")
    panels = figure.subplots(1, 3)
    for axes, (name, label) in zip(
        panels, (("bleu", "BLEU"), ("chrf", "chrF"), ("passes", "decoder passes")), strict=True
    ):
        for i, (system, buckets) in enumerate(curves.items()):
            values = [getattr(bucket, name) for bucket in buckets]
            axes.plot(
                range(len(buckets)),
                values,
                marker="os^Dv"[i % 5],
                label=system,
            )
        buckets = next(iter(curves.values()))
        axes.set_xticks(range(len(buckets)), [f"{b.label}\n({b.sentences})" for b in buckets])
        axes.set_xlabel("source words (sentences)")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    handles, labels = panels[0].get_legend_handles_labels()
    ncols = max(1, min(len(curves), 3, 180 // (8 + max(map(len, labels)))))  # as many columns as the width allows
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols, frameon=False)
    figure.suptitle(title)
    figure.savefig(path, format="png", dpi=120)

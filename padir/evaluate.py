"""Translating a test set and scoring it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from padir.checkpoint import ModelCard
from padir.data.prepared import load_manifest, read_text
from padir.data.sources import PathLike, Source
from padir.metrics import Score, score_all
from padir.tokenizer import Tokenizer
from padir.translate import Decoding, Translator


@dataclasses.dataclass(frozen=True)
class TestSet:
    """Sentence pairs to score a model on, and where they are from: the languages choose the metrics' tokenizers."""

    task: str
    source_language: str
    target_language: str
    sources: list[str]
    references: list[str]

    __test__ = False  # its name makes pytest look for tests in it

    @staticmethod
    def of_source(source: Source, split: str) -> TestSet:
        """A split of a corpus.

        Raises:
          PadirError: the corpus has no such split, or its files are not parallel text.
        """
        pairs = list(source.pairs(split))
        sources, references = [s for s, _ in pairs], [t for _, t in pairs]
        return TestSet(source.name, source.source_language, source.target_language, sources, references)

    @staticmethod
    def of_prepared(directory: PathLike, split: str) -> TestSet:
        """A split of a prepared folder, with the pairs that have no record.

        Raises:
          PadirError: the folder is not whole, or keeps no text of that split.
        """
        source = load_manifest(directory)["source"]
        return TestSet(
            source["name"], source["source_language"], source["target_language"], *read_text(directory, split)
        )


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The figures of one model and one way of decoding, and what it wrote.

    Attributes:
      scores: by name, with signatures; among them mean decoder passes per sentence, truncated sources, and the seconds
        that decoding took, compilation included.
      hypotheses: one line each.
    """

    scores: dict[str, Score]
    hypotheses: list[str]

    @property
    def figures(self) -> dict[str, float]:
        return {name: score.value for name, score in self.scores.items()}


def evaluate(
    translator: Translator, test_set: TestSet, decoding: Decoding, *, oracle_lengths: bool = False
) -> Evaluation:
    """Translates a test set and scores the result.

    Args:
      oracle_lengths: give every sentence its reference's length; always so if the model predicts none. References that
        are longer than the model's targets get the longest, and count as truncated.

    Raises:
      PadirError: no sentences, or sources and references differ in number.
    """
    lengths, cut = None, 0
    config = translator.card.config
    if oracle_lengths or (config.length_head == "oracle" and not config.causal):
        limit = config.max_length
        lengths = [len(tokens) + 1 for tokens in translator.tokenizer.encode_batch(test_set.references)]
        cut = sum(length > limit for length in lengths)
        lengths = [min(length, limit) for length in lengths]
    began = time.perf_counter()
    results = translator.translate(test_set.sources, decoding, target_lengths=lengths, truncate=True)
    seconds = time.perf_counter() - began
    hypotheses = [result.text for result in results]
    scores = score_all(
        test_set.sources,
        hypotheses,
        test_set.references,
        test_set.source_language,
        test_set.target_language,
        test_set.task,
    )
    counts = {
        "passes": sum(result.passes for result in results) / len(results),
        "hypotheses": sum(result.hypotheses for result in results) / len(results),
        "truncated": float(sum(result.truncated for result in results) + cut),
        "seconds": seconds,
    }
    return Evaluation(scores | {name: Score(name, value, "") for name, value in counts.items()}, hypotheses)


def validation_fn(
    data_dir: str, decoding: Decoding, max_sentences: int = 1_000
) -> Callable[[Any, ModelCard, Tokenizer], dict[str, float]] | None:
    """An `evaluate_fn` for the trainer: decodes the first sentences of a prepared folder's validation split.

    None if the folder has no such split: there is nothing to measure.
    """
    if "validation" not in load_manifest(data_dir)["splits"]:
        return None
    whole = TestSet.of_prepared(data_dir, "validation")
    part = dataclasses.replace(
        whole, sources=whole.sources[:max_sentences], references=whole.references[:max_sentences]
    )

    def run(params, card: ModelCard, tokenizer: Tokenizer) -> dict[str, float]:
        result = evaluate(Translator(params, card, tokenizer), part, decoding)
        kept = ("bleu", "toy_right", "toy_mixed", "length_ratio", "stutter", "passes", "seconds")
        return {f"validation_{name}": result.figures[name] for name in kept if name in result.figures}

    return run

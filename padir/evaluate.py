"""Translating a test set and scoring it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from padir.checkpoint import ModelCard
from padir.data.prepared import load_manifest, read_text
from padir.length import LengthSearch
from padir.metrics import Score, score_all
from padir.tokenizer import Tokenizer
from padir.translate import Decoding, Translator


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
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    decoding: Decoding,
    *,
    oracle_lengths: bool = False,
) -> Evaluation:
    """Translates `sources` and scores the result against `references`.

    Args:
      oracle_lengths: give every sentence its reference's length; always so if the model predicts none.

    Raises:
      PadirError: no sentences, or sources and references differ in number.
    """
    lengths = None
    if oracle_lengths or translator.card.config.length_head == "oracle":
        limit = translator.card.config.max_length
        lengths = [min(len(tokens) + 1, limit) for tokens in translator.tokenizer.encode_batch(references)]
    began = time.perf_counter()
    results = translator.translate(sources, decoding, target_lengths=lengths, truncate=True)
    seconds = time.perf_counter() - began
    hypotheses = [result.text for result in results]
    card = translator.card
    scores = score_all(sources, hypotheses, references, card.source_language, card.target_language, card.task)
    counts = {
        "passes": sum(result.passes for result in results) / len(results),
        "hypotheses": sum(result.hypotheses for result in results) / len(results),
        "truncated": float(sum(result.truncated for result in results)),
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
    sources, references = read_text(data_dir, "validation")
    sources, references = sources[:max_sentences], references[:max_sentences]

    def run(params, card: ModelCard, tokenizer: Tokenizer) -> dict[str, float]:
        result = evaluate(Translator(params, card, tokenizer), sources, references, decoding)
        kept = ("bleu", "toy_right", "toy_mixed", "length_ratio", "stutter", "passes", "seconds")
        return {f"validation_{name}": result.figures[name] for name in kept if name in result.figures}

    return run


def grid(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    decoding: Decoding,
    num_steps: Sequence[int],
    top_k: Sequence[int],
    *,
    oracle_lengths: bool = False,
) -> list[tuple[Decoding, Evaluation]]:
    """`evaluate` for every number of steps and of lengths."""
    results = []
    for k in top_k:
        lengths = LengthSearch(k, decoding.lengths.offsets, decoding.lengths.draws)
        for steps in num_steps:
            one = dataclasses.replace(decoding, num_steps=steps, lengths=lengths)
            results.append((one, evaluate(translator, sources, references, one, oracle_lengths=oracle_lengths)))
    return results

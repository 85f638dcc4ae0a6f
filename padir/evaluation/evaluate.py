"""Translating a test set with one model and scoring it; `systems.py` does so for many."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from padir.data.prepared import load_manifest, read_text
from padir.data.sources import PathLike, Source
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.metrics.scores import Score, score_all
from padir.models.card import ModelCard
from padir.text.tokenizer import Tokenizer

RECALL_AT = (1, 3, 5, 10)
Metric = Callable[[Sequence[str], Sequence[str]], Score]
"""(hypotheses, references) -> Score: a metric beside those that `padir.metrics.scores` always computes."""


@dataclasses.dataclass(frozen=True)
class TestSet:
    """Sentence pairs to score a model on, and where they are from: the languages choose the metrics' tokenizers."""

    task: str
    source_language: str
    target_language: str
    sources: list[str]
    references: list[str]
    split: str = "test"

    __test__ = False  # its name makes pytest look for tests in it

    @property
    def sha256(self) -> str:
        """Of all sentences and references: what tells test sets of one name apart."""
        return hashlib.sha256("\n".join([*self.sources, *self.references]).encode()).hexdigest()

    @staticmethod
    def of_source(source: Source, split: str) -> TestSet:
        """A split of a corpus.

        Raises:
          PadirError: the corpus has no such split, or its files are not parallel text.
        """
        pairs = list(source.pairs(split))
        sources, references = [s for s, _ in pairs], [t for _, t in pairs]
        return TestSet(source.name, source.source_language, source.target_language, sources, references, split)

    @staticmethod
    def of_prepared(directory: PathLike, split: str) -> TestSet:
        """A split of a prepared folder, with the pairs that have no record.

        Raises:
          PadirError: the folder is not whole, or keeps no text of that split.
        """
        source = load_manifest(directory).source
        return TestSet(source.name, *source.languages, *read_text(directory, split), split)


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The figures of one model and one way of decoding, and what it wrote.

    Attributes:
      scores: by name, with signatures; among them mean decoder passes per sentence, truncated sources, and the seconds
        that translating took, tokenising and choosing included; their signature says whether compiling is, too.
      hypotheses: one line each.
      passes: decoder passes of each sentence.
    """

    scores: dict[str, Score]
    hypotheses: list[str]
    passes: list[int] = dataclasses.field(default_factory=list)

    @property
    def figures(self) -> dict[str, float]:
        return {name: score.value for name, score in self.scores.items()}


def evaluate(
    translator: Translator,
    test_set: TestSet,
    decoding: Decoding,
    *,
    oracle_lengths: bool = False,
    metrics: Sequence[Metric] = (),
    compiled: bool = False,
) -> Evaluation:
    """Translates a test set and scores the result.

    Args:
      oracle_lengths: give every sentence its reference's length; always so if the model predicts none. References that
        are longer than the model's targets get the longest, and count as truncated.
      metrics: further ones, such as BLEURT.
      compiled: the caller has warmed up (`warm_up`): say of the seconds that no compilation is in them.

    Raises:
      PadirError: no sentences, or sources and references differ in number.
    """
    lengths, cut = _target_lengths(translator, test_set, oracle_lengths)
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
    scores |= {score.name: score for score in (metric(hypotheses, test_set.references) for metric in metrics)}
    counts = {
        "passes": sum(result.passes for result in results) / len(results),
        "hypotheses": sum(result.hypotheses for result in results) / len(results),
        "truncated": float(sum(result.truncated for result in results) + cut),
    }
    scores |= {name: Score(name, value, "") for name, value in counts.items()}
    scores["seconds"] = Score("seconds", seconds, f"what:text-to-text|compile:{'no' if compiled else 'yes'}")
    return Evaluation(scores, hypotheses, [result.passes for result in results])


def warm_up(translator: Translator, test_set: TestSet, decoding: Decoding, *, oracle_lengths: bool = False) -> None:
    """Compiles what `evaluate` is going to run: one step for every batch, as shapes do not depend on their number.

    An autoregressive model, and hypotheses that another model reads, take all steps.
    """
    lengths, _ = _target_lengths(translator, test_set, oracle_lengths)
    if not translator.card.config.causal and not decoding.rerank.reads_text:
        decoding = dataclasses.replace(decoding, num_steps=1)
    translator.translate(test_set.sources, decoding, target_lengths=lengths, truncate=True)


def _target_lengths(translator: Translator, test_set: TestSet, oracle_lengths: bool) -> tuple[list[int] | None, int]:
    """The references' lengths in tokens, where they are to be given, and how many had to be cut."""
    config = translator.card.config
    if config.causal or not (oracle_lengths or config.length_head == "oracle"):
        return None, 0
    limit = config.max_length
    lengths = [len(tokens) + 1 for tokens in translator.tokenizer.encode_batch(test_set.references)]
    return [min(length, limit) for length in lengths], sum(length > limit for length in lengths)


def length_recall(translator: Translator, test_set: TestSet, ks: Sequence[int] = RECALL_AT) -> dict[str, Score]:
    """Per cent of the sentences whose reference's length is among the k most likely ones, for each k.

    Nothing for a model whose length head is no classifier.
    """
    if translator.card.config.length_head != "token":
        return {}
    ks = [k for k in ks if k <= translator.card.config.max_length]
    predicted = translator.predict_lengths(test_set.sources, max(ks))
    true = [len(tokens) + 1 for tokens in translator.tokenizer.encode_batch(test_set.references)]
    names = {k: f"length_recall_{k}" for k in ks}
    return {
        names[k]: Score(
            names[k],
            100 * sum(length in best[:k] for length, best in zip(true, predicted, strict=True)) / len(true),
            f"tok:model|k:{k}",
        )
        for k in ks
    }


def validation_fn(
    data_dir: str, decoding: Decoding, max_sentences: int = 1_000
) -> Callable[[Any, ModelCard, Tokenizer], dict[str, float]] | None:
    """An `evaluate_fn` for the trainer: decodes the first sentences of a prepared folder's validation split.

    None if the folder has no such split: there is nothing to measure.
    """
    if "validation" not in load_manifest(data_dir).splits:
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

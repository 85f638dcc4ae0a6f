"""Test sets, and the evaluation of one model with one set of decoding options; `systems` evaluates many."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from padir.data.prepared import load_manifest, read_text
from padir.data.sources import PathLike, Source
from padir.decoding.options import Decoding
from padir.errors import PadirError
from padir.metrics.scores import Score, bleu_metric, score_all, stutter
from padir.models.directory import ModelCard
from padir.text.languages import same
from padir.text.tokenizer import Tokenizer
from padir.translator import Translator

RECALL_AT = (1, 3, 5, 10)
_VALIDATED = 1_000  # sentences of the validation split that a training run translates
Metric = Callable[[Sequence[str], Sequence[str]], Score]
"""Function from (hypotheses, references) to a Score: a metric beside those that `padir.metrics.scores` computes."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Scores and hypotheses of one model with one set of decoding options.

    Attributes:
      scores: metrics by name, with signatures. For models that refine drafts, "stutter_before" is the stutter before
        repeated tokens were dropped, and "oscillating" is the percentage of sentences that were ended because they
        oscillated between two drafts. "fallback" is the percentage that was written again (`Fusion.fallback`). "passes"
        is the mean number of decoder passes per sentence, "truncated" is the number of truncated sentences, and
        "seconds" is the time of translating from text to text; its signature says whether compilation is included.
      hypotheses: the translations, one line for each sentence.
    """

    scores: dict[str, Score]
    hypotheses: list[str]

    @property
    def metrics(self) -> dict[str, float]:
        """Values of the scores, by name."""
        return {name: score.value for name, score in self.scores.items()}


def evaluate(
    translator: Translator,
    test_set: TestSet,
    decoding: Decoding,
    *,
    metrics: Sequence[Metric] = (),
    compiled: bool = False,
) -> Evaluation:
    """Translate a test set and score the result.

    Args:
      compiled: True if `warm_up` was called before; "seconds" then includes no compilation, and its signature says so.

    Raises:
      PadirError: there are no sentences, sources and references differ in number, or the model is of other languages.
    """
    test_set.check_languages(translator.card.source_language, translator.card.target_language, "the model")
    bleu_metric(test_set.target_language, test_set.tokenize, references=test_set.references)  # refused before the work
    began = time.perf_counter()
    results = translator.translate(test_set.sources, decoding, truncate=True)
    seconds = time.perf_counter() - began
    hypotheses = [result.text for result in results]
    scores = score_all(
        test_set.sources,
        hypotheses,
        test_set.references,
        test_set.source_language,
        test_set.target_language,
        task=test_set.task,
        tokenize=test_set.tokenize,
    )
    for metric in metrics:
        score = metric(hypotheses, test_set.references)
        if not isinstance(score, Score):
            raise PadirError(f"what the metric {metric} gives", "a padir.metrics.scores.Score", score)
        scores[score.name] = score
    counts: dict[str, float] = {}
    if translator.refines(decoding):
        whole = [result.text if result.whole_text is None else result.whole_text for result in results]
        before = stutter(whole, test_set.references, test_set.target_language)
        scores["stutter_before"] = dataclasses.replace(before, name="stutter_before")
        counts["oscillating"] = 100 * sum(result.oscillated for result in results) / len(results)
        if decoding.falls_back:
            counts["fallback"] = 100 * sum(result.fell_back for result in results) / len(results)
    counts["passes"] = sum(result.passes for result in results) / len(results)
    counts["hypotheses"] = sum(result.hypotheses for result in results) / len(results)
    counts["truncated"] = float(sum(result.truncated for result in results))
    scores |= {name: Score(name, value, "") for name, value in counts.items()}
    scores["seconds"] = Score("seconds", seconds, f"what:text-to-text|compile:{'no' if compiled else 'yes'}")
    return Evaluation(scores, hypotheses)


def warm_up(translator: Translator, test_set: TestSet, decoding: Decoding) -> None:
    """Compile the programs that `evaluate` will run, by translating the test set with one step.

    An autoregressive model, and options whose shapes depend on the steps (`one_step`), run with all steps instead.
    """
    decoding = one_step(decoding) if translator.refines(decoding) else decoding
    translator.translate(test_set.sources, decoding, truncate=True)


def one_step(decoding: Decoding) -> Decoding:
    """Options of one step that run programs of the same shapes.

    Where texts are compared, read again, aligned or written again, the shapes depend on what all steps write.
    """
    if decoding.ranker is not None or decoding.placeholders or decoding.falls_back:
        return decoding
    return dataclasses.replace(decoding, num_steps=1)


def _reference_lengths(translator: Translator, test_set: TestSet) -> list[int]:
    """Lengths of the references in the model's tokens, EOS included."""
    return [len(tokens) + 1 for tokens in translator.tokenizer.encode_batch(test_set.references)]


def reference_tokens(translator: Translator, test_set: TestSet) -> dict[str, Score]:
    """Mean length of the references in the model's tokens, EOS included."""
    lengths = _reference_lengths(translator, test_set)
    return {"reference_tokens": Score("reference_tokens", sum(lengths) / len(lengths), "tok:model|eos:yes")}


def length_recall(translator: Translator, test_set: TestSet) -> dict[str, Score]:
    """Percentage of sentences whose reference length is among the k most likely lengths, for each k of `RECALL_AT`.

    The result is empty for a model without a length head, or one that writes from left to right.
    """
    if translator.card.config.causal or not translator.card.config.length_token:
        return {}
    ks = [k for k in RECALL_AT if k <= translator.card.config.max_length]
    predicted = translator.predict_lengths(test_set.sources, max(ks))
    true = _reference_lengths(translator, test_set)
    scores = []
    for k in ks:
        found = sum(length in best[:k] for length, best in zip(true, predicted, strict=True))
        scores.append(Score(f"length_recall_{k}", 100 * found / len(true), f"tok:model|k:{k}"))
    return {score.name: score for score in scores}


def validation_fn(data_dir: str, decoding: Decoding) -> Callable[[Any, ModelCard, Tokenizer], dict[str, float]] | None:
    """Make an `evaluate_fn` for `padir.training.loop.train`: scores the first sentences of the validation split.

    Returns None if the prepared folder has no validation split.
    """
    if "validation" not in load_manifest(data_dir).splits:
        return None
    whole = TestSet.of_prepared(data_dir, "validation")
    sources = whole.sources[:_VALIDATED]
    references = whole.references[:_VALIDATED]
    part = dataclasses.replace(whole, sources=sources, references=references)
    bleu_metric(part.target_language, references=part.references)  # refused before the first step

    def run(params, card: ModelCard, tokenizer: Tokenizer) -> dict[str, float]:
        metrics = evaluate(Translator(params, card, tokenizer), part, decoding).metrics
        kept = ("bleu", "toy_right", "toy_mixed", "length_ratio", "stutter", "passes", "seconds")
        return {f"validation_{name}": metrics[name] for name in kept if name in metrics}

    return run


@dataclasses.dataclass(frozen=True)
class TestSet:
    """Sentence pairs to score models on, with their origin; the languages choose the metrics' tokenizers.

    >>> TestSet("greetings", "de", "en", ["Hallo!"], ["Hello!"]).split
    'test'

    Attributes:
      task: name of the corpus or file.
      source_language, target_language: codes such as "de".
      sources, references: one string a sentence.
      split: name of the split of the corpus.
      tokenize: BLEU's tokenizer by SacreBLEU's name; "" for the target language's.
    """

    task: str
    source_language: str
    target_language: str
    sources: list[str]
    references: list[str]
    split: str = "test"
    tokenize: str = ""

    __test__ = False  # pytest collects classes whose names begin with "Test"

    @property
    def sha256(self) -> str:
        """SHA-256 of all sentences and references, which distinguishes test sets of the same name."""
        return hashlib.sha256("\n".join([*self.sources, *self.references]).encode()).hexdigest()

    def check_languages(self, source_language: str, target_language: str, model: str) -> None:
        """Refuses a model of other languages; `model` is its name for the message."""
        if not (same(source_language, self.source_language) and same(target_language, self.target_language)):
            raise PadirError(
                f"{model} translates {source_language}-{target_language}, and the test set is"
                f" {self.source_language}-{self.target_language}: give sentences of the model's languages"
            )

    @staticmethod
    def of_source(source: Source, split: str) -> TestSet:
        """Read a split of a corpus.

        Raises:
          PadirError: the corpus has no such split, or its files are not parallel text.
        """
        pairs = list(source.pairs(split))
        sources = [s for s, _ in pairs]
        references = [t for _, t in pairs]
        return TestSet(source.name, source.source_language, source.target_language, sources, references, split)

    @staticmethod
    def of_prepared(directory: PathLike, split: str) -> TestSet:
        """Read the untouched text of a prepared folder's split, including pairs that were dropped from the records.

        Raises:
          PadirError: the folder is incomplete or keeps no text of the split.
        """
        source = load_manifest(directory).source
        return TestSet(source.name, *source.languages, *read_text(directory, split), split)

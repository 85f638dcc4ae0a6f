"""Decoding, text to text: systems, what they are given, and the rows of figures that come of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from padir.benchmark.timing import Ratio, Timed, interleave
from padir.data.prepared import split_lengths
from padir.decoding.lengths import LengthSearch
from padir.decoding.options import Decoding
from padir.decoding.translator import PROGRAMS, Translation, Translator
from padir.errors import PadirError
from padir.evaluation import Evaluation, TestSet
from padir.evaluation.systems import Row, ways
from padir.metrics.scores import Score, bleu, chrf
from padir.models.config import ModelConfig
from padir.models.params import count_parameters
from padir.models.transformer import Transformer
from padir.text.ids import Ids
from padir.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Batch:
    """Sentences that are translated by one call.

    Attributes:
      texts: the sentences.
      references: their translations, if quality is to be measured.
      target_lengths: tokens of each target, EOS included, that every system is made to write, for models whose weights
        are random; None lets each choose its own.
      first_number: the first sentence's number among all, from which its random draft is made: so the words do not
        depend on the size of the batches.
    """

    texts: tuple[str, ...]
    references: tuple[str, ...] | None = None
    target_lengths: tuple[int, ...] | None = None
    first_number: int = 0


@dataclasses.dataclass(frozen=True)
class System:
    """A model and a way of decoding.

    Attributes:
      model: its name.
      decoding: resolved for the model.
    """

    model: str
    translator: Translator
    decoding: Decoding

    @property
    def causal(self) -> bool:
        return self.translator.card.config.causal

    @property
    def precision(self) -> str:
        """Of weights and products."""
        return "int8" if self.translator.as_integers else self.translator.card.config.dtype

    def __call__(self, batch: Batch) -> list[Translation]:
        """Translates a batch as `Translator.translate` does; of given lengths where the batch has some."""
        if self.causal and batch.target_lengths is not None:
            return self.run(batch, lambda stage: None)
        decoding = dataclasses.replace(self.decoding, batch_size=len(batch.texts))
        return self.translator.translate(
            batch.texts,
            decoding,
            target_lengths=batch.target_lengths,
            truncate=True,
            first_number=batch.first_number,
        )

    def stages(self, batch: Batch, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
        """Seconds of each stage, which here waits for the one before it."""
        seconds: dict[str, float] = {}
        last = clock()

        def mark(stage: str) -> None:
            nonlocal last
            now = clock()
            seconds[stage], last = now - last, now

        self.run(batch, mark)
        return seconds

    def run(self, batch: Batch, mark: Callable[[str], None]) -> list[Translation]:
        """Translates a batch stage by stage; `mark` is told of each that is over."""
        translator = self.translator
        numbers = list(range(batch.first_number, batch.first_number + len(batch.texts)))
        decoding = dataclasses.replace(self.decoding, batch_size=len(numbers))
        sources, _ = translator.source_tokens(batch.texts, truncate=True)
        mark("tokenise")
        if self.causal:
            written = translator.write(sources, numbers, decoding, batch.target_lengths)
            mark("encode and write")
            results = translator.read(written, len(numbers))
            mark("detokenise")
            return results
        encoded = jax.block_until_ready(translator.encode(sources, decoding.batch_size))
        mark("encode")
        tried = translator.try_lengths(encoded, decoding, batch.target_lengths)
        mark("lengths")
        drafts = translator.refine(encoded, tried, numbers, decoding)
        mark("refine")
        results = translator.choose(list(batch.texts), encoded, tried, drafts, decoding)
        mark("choose and detokenise")
        return results


def batches_of(test_set: TestSet, batch_size: int, sentences: int, seed: int = 0) -> list[Batch]:
    """Batches of sentences drawn from a test set, each as they come: nothing is sorted by length.

    Raises:
      PadirError: there are fewer sentences with text than that.
    """
    if sentences < 1:
        raise PadirError(f"a benchmark needs at least 1 sentence, got {sentences}")
    with_text = [i for i, source in enumerate(test_set.sources) if source.strip()]
    if sentences > len(with_text):
        raise PadirError(f"the benchmark wants {sentences} sentences, got {len(with_text)} with text: ask for fewer")
    drawn = np.random.RandomState(seed).choice(with_text, sentences, replace=False).tolist()
    return [
        Batch(
            tuple(test_set.sources[i] for i in part),
            tuple(test_set.references[i] for i in part),
            first_number=number * batch_size,
        )
        for number, part in enumerate(_parts(drawn, batch_size))
    ]


def numbers(what: str) -> TestSet:
    """What models of random weights are said to translate."""
    return TestSet(what, "numbers", "numbers", [], [])


def equal_lengths(tokens: int, sentences: int) -> np.ndarray:
    """Source and target lengths of sentences that are all alike, EOS included, [N, 2]."""
    if tokens < 2 or sentences < 1:
        raise PadirError(f"a benchmark needs sentences of at least 2 tokens, got {sentences} of {tokens}")
    return np.full((sentences, 2), tokens)


def drawn_lengths(folder: str, split: str, sentences: int, seed: int = 0) -> np.ndarray:
    """Source and target lengths of pairs drawn from a prepared folder, EOS included, [N, 2].

    Raises:
      PadirError: there are fewer pairs than that, or the folder is no prepared one.
    """
    length_N2 = split_lengths(folder, split)
    if not 1 <= sentences <= len(length_N2):
        raise PadirError(f"the benchmark wants {sentences} lengths, {folder} has {len(length_N2)}: ask for fewer")
    return length_N2[np.random.RandomState(seed).choice(len(length_N2), sentences, replace=False)]


def batches_of_numbers(length_N2: np.ndarray, batch_size: int, ids: Ids, seed: int = 0) -> list[Batch]:
    """Batches for models of random weights: sentences of random pieces, and what lengths their targets are to get.

    Args:
      length_N2: source and target lengths, EOS included.
      ids: of the vocabulary that the pieces are drawn from.
    """
    draw = np.random.RandomState(seed)
    texts = [
        " ".join(map(str, draw.randint(ids.first_regular, ids.end_regular, source - 1))) for source in length_N2[:, 0]
    ]
    return [
        Batch(tuple(texts[i] for i in part), target_lengths=tuple(length_N2[part, 1].tolist()), first_number=part[0])
        for part in _parts(list(range(len(texts))), batch_size)
    ]


def _parts(items: list[int], size: int) -> list[list[int]]:
    """Whole parts only: a batch that is not full would be timed as one that is."""
    if len(items) < size:
        raise PadirError(f"the benchmark needs at least one batch of {size} sentences, got {len(items)}: ask for more")
    return [items[begin : begin + size] for begin in range(0, len(items) - size + 1, size)]


class NumberTokenizer(Tokenizer):
    """A vocabulary of numbers, for models of random weights: the text of an id is its number."""

    def __init__(self, ids: Ids):
        self.ids, self.sha256 = ids, ""  # there is no SentencePiece file
        self.copied = frozenset()

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[int(word) for word in text.split()] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def systems(
    translators: Sequence[tuple[str, Translator]], decodings: Sequence[Decoding], *, given_lengths: bool = False
) -> list[System]:
    """Every model with every way of decoding that is its own; those of no meaning for it are left out.

    Args:
      given_lengths: the batches say how long targets are: where several lengths would be tried, as many drafts are.

    Raises:
      PadirError: nothing is left.
    """
    if given_lengths:
        decodings = [_drafts_of_one_length(decoding) for decoding in decodings]
    found, problem = [], PadirError("a benchmark needs at least one model")
    for name, translator in translators:
        for decoding, _ in ways(translator, decodings, oracle_lengths=False):
            try:
                found.append(System(name, translator, translator.resolved(decoding)))
            except PadirError as error:
                problem = error
    if not found:
        raise problem
    return found


def _drafts_of_one_length(decoding: Decoding) -> Decoding:
    lengths = decoding.lengths
    draws = lengths.top_k * len(lengths.offsets) * lengths.draws
    return dataclasses.replace(decoding, lengths=LengthSearch(draws=draws))


def measure(
    systems: Sequence[System],
    batches: Sequence[Batch],
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[Row, dict[str, Any]]]:
    """Times all systems in turns, with every batch. The ratios are to the first.

    Returns:
      Of each system a row for tables, whose figures are scores with their units in the signature, and what is too much
      for a table: seconds of every call, quartiles, stages.

    Raises:
      PadirError: nothing to time, or so many shapes that their programs do not fit into the process at once.
    """
    PROGRAMS.drop()  # those of earlier measurements
    dropped = PROGRAMS.times_dropped

    def holding(system: System) -> Callable[[Batch], list[Translation]]:
        def call(batch: Batch) -> list[Translation]:
            results = system(batch)
            if PROGRAMS.times_dropped > dropped:
                raise PadirError(
                    f"{len(systems)} systems and {len(batches)} batches need more compiled programs than fit into the"
                    " process, and compiling would be timed: take fewer systems or fewer sentences at once"
                )
            return results

        return call

    callables = {str(i): holding(system) for i, system in enumerate(systems)}
    timed = interleave(callables, batches, repeats=repeats, clock=clock)
    return [_row(system, batches, timed[str(i)], timed["0"], clock) for i, system in enumerate(systems)]


def _row(system: System, batches: Sequence[Batch], timed: Timed, baseline: Timed, clock) -> tuple[Row, dict[str, Any]]:
    results = [result for batch in batches for result in system(batch)]
    stages = [system.stages(batch, clock) for batch in batches]
    sentences, tokens = len(results), sum(result.length for result in results)
    size, (repeats, _) = len(batches[0].texts), timed.seconds_RB.shape
    rate_R, ratio = sentences / timed.total_R, Ratio.of(baseline, timed)
    how = f"what:text-to-text|batch:{size}|calls:{timed.seconds_RB.size}|compile:no"
    every = f"what:text-to-text|batch:{size}|repeats:{repeats}|of:median|compile:no"
    scores = [
        *(Score(f"{name}_ms", 1e3 * seconds, how) for name, seconds in timed.latency().items()),
        Score("sentences_per_second", float(np.median(rate_R)), every),
        Score("tokens_per_second", float(np.median(rate_R)) * tokens / sentences, f"tok:model's own|{every}"),
        Score("ratio", ratio.median, "sentences per second to those of the first row|repeats:side by side|of:median"),
        Score("passes", sum(result.passes for result in results) / sentences, ""),
        Score("tokens", tokens / sentences, ""),
        Score(
            "compile_seconds",
            timed.compile_seconds,
            "first calls less the median of the others|programs that are on disk or shared with an earlier row: loaded",
        ),
        *_memory(system, batches[0]),
        *_quality(system, batches, results),
    ]
    hypotheses = [result.text for result in results]
    evaluation = Evaluation({score.name: score for score in scores}, hypotheses, [result.passes for result in results])
    card = system.translator.card
    decoding = dataclasses.replace(system.decoding, batch_size=size)
    details = {
        "parameters": count_parameters(system.translator.params),
        "precision": system.precision,
        "first_seconds": timed.first_B.tolist(),
        "seconds": timed.seconds_RB.tolist(),
        "sentences_per_second": np.percentile(rate_R, [25, 50, 75]).tolist(),
        "ratio": dataclasses.asdict(ratio),
        "stages": {name: float(np.median([each[name] for each in stages])) for name in stages[0]},
    }
    given = batches[0].target_lengths is not None and not system.causal
    return Row(system.model, decoding, given, evaluation, "", system.causal, str(card.weights)), details


def _memory(system: System, batch: Batch) -> list[Score]:
    """What refining takes beside the model, for those that refine."""
    if system.causal:
        return []
    translator, decoding = system.translator, dataclasses.replace(system.decoding, batch_size=len(batch.texts))
    encoded = translator.encode(translator.source_tokens(batch.texts, truncate=True)[0], decoding.batch_size)
    tried = translator.try_lengths(encoded, decoding, batch.target_lengths)
    size = translator.refining_memory(encoded, tried, list(range(len(batch.texts))), decoding)
    return [] if size is None else [Score("temporaries_mb", size / 2**20, "XLA's temporaries of refining|batch:first")]


def _quality(system: System, batches: Sequence[Batch], results: Sequence[Translation]) -> list[Score]:
    """BLEU and chrF, where the batches have references."""
    references = [reference for batch in batches for reference in batch.references or ()]
    if not references:
        return []
    texts = [result.text for result in results]
    return [bleu(texts, references, system.translator.card.target_language), chrf(texts, references)]


def random_translator(config: ModelConfig, vocab_size: int, seed: int = 0) -> Translator:
    """A model of random weights, and a vocabulary of numbers: for speed, which does not depend on what they are."""
    from padir.models.card import ModelCard
    from padir.models.params import init_params
    from padir.refinement.corruption import Uniform
    from padir.refinement.strategies import Padir

    ids = Ids(vocab_size)
    params = init_params(Transformer(config, ids), seed)
    own = (None, None) if config.causal else (Uniform(), Padir())
    card = ModelCard(config, ids, *own, "numbers", "numbers", "random weights")
    return Translator(params, card, NumberTokenizer(ids))

"""Times systems (models with decoding options) from text to text, and makes rows of metrics for tables."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from padir.decoding.hypothesis import SourceSentence
from padir.decoding.options import Decoding
from padir.decoding.program_cache import PROGRAMS
from padir.decoding.refine_batch import refine_drafts
from padir.decoding.refiner import Refiner
from padir.decoding.sentences import BatchTranslator
from padir.decoding.translation import Translation
from padir.decoding.writer import Written
from padir.errors import PadirError
from padir.evaluation import Evaluation
from padir.evaluation.systems import Decodings, Row, named, ways
from padir.measuring.benchmark.timed_batches import TimedBatch
from padir.measuring.benchmark.timing import Ratio, Timed, interleave
from padir.metrics.scores import Score, bleu, chrf
from padir.models.params import count_parameters
from padir.options import LENGTHS
from padir.translator import Translator


@dataclasses.dataclass(frozen=True)
class System:
    """A model with decoding options.

    Attributes:
      model: the model's name in tables.
      decoding: decoding options that were resolved for the model.
    """

    model: str
    translator: Translator
    decoding: Decoding

    @property
    def causal(self) -> bool:
        return not self.translator.refines(self.decoding)

    @property
    def precision(self) -> str:
        """Data type of the weights and the matrix products."""
        return self.translator.side(self.decoding).precision

    def __call__(self, batch: TimedBatch) -> list[Translation]:
        """Translates a batch as `Translator.translate` does, or writes the batch's target lengths if there are any."""
        if batch.target_lengths is not None:  # `Translator.translate` would leave numbers as they are
            return self.batch_translator(batch)(self.sources(batch))
        return self.translator.translate(batch.texts, self.decoding_of(batch), truncate=True)

    def stages(self, batch: TimedBatch, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
        """Seconds of each stage, measured by waiting for the end of each stage before the next begins."""
        seconds: dict[str, float] = {}
        last = clock()
        for stage, value in self.timed_stages(batch):
            jax.block_until_ready(value)
            now = clock()
            seconds[stage] = now - last
            last = now
        return seconds

    def timed_stages(self, batch: TimedBatch) -> Iterator[tuple[str, Any]]:
        """Translates a batch; yields (stage, its result)."""
        sources = self.sources(batch)
        yield "tokenise", sources
        batch_translator = self.batch_translator(batch)
        writer = batch_translator.writer
        if isinstance(writer, Refiner):
            encoded = writer.encode(sources)
            yield "encode", encoded
            tried = writer.plan_drafts(sources, encoded)
            yield "lengths", tried
            drafts = writer.refine(encoded, tried)
            yield "refine", drafts
            written = Written(writer.hypotheses(sources, encoded, tried, drafts), encoded)
        else:
            written = writer.write(sources)
            yield "encode and write", written
        yield "choose and detokenise", batch_translator.read(sources, written)

    def decoding_of(self, batch: TimedBatch) -> Decoding:
        """The options for batches of this size."""
        return dataclasses.replace(self.decoding, batch_size=len(batch.texts))

    def batch_translator(self, batch: TimedBatch) -> BatchTranslator:
        """The function that translates batches of this size."""
        return self.translator.batch_translator(self.decoding_of(batch))

    def sources(self, batch: TimedBatch) -> list[SourceSentence]:
        """Tokenises a batch."""
        tokens, _ = self.translator.loaded.source_tokens(batch.texts, truncate=True)
        lengths = batch.target_lengths or [None] * len(tokens)
        return [SourceSentence(*each) for each in zip(batch.texts, tokens, lengths, strict=True)]


def systems(
    translators: Sequence[tuple[str, Translator]],
    decodings: Decodings,
    *,
    given_lengths: bool = False,
    warn: Callable[[str], None] = lambda message: None,
) -> list[System]:
    """Combines every model with all decoding options that are valid for the model, without duplicates.

    As in `padir.evaluation.evaluate_all`, repeated tokens are dropped from the drafts of all systems or of none, if the
    options leave this open.

    Args:
      decodings: sets of decoding options, for all models or as a function of a model's own options.
      given_lengths: True if the batches have target lengths; then several drafts of the given length replace several
        lengths.
      warn: called with a message for each reason why a model refuses some of the options.

    Raises:
      PadirError: no combination is valid.
    """
    found: list[System] = []
    refused: dict[str, PadirError] = {}
    for (name, translator), own in zip(translators, ways(translators, decodings), strict=True):
        if given_lengths:  # a search ends its sentences itself
            own = [_drafts_of_one_length(each) if translator.refines(each) else each for each in own]
        for decoding in dict.fromkeys(own):
            try:
                found.append(System(named(name, translator, decoding), translator, translator.resolved(decoding)))
            except PadirError as error:
                refused.setdefault(f"some options make no row of {name}: {error}", error)
    if not found:
        raise next(reversed(refused.values()), PadirError("a benchmark needs at least one model"))
    for message in refused:
        warn(message)
    return found


def _drafts_of_one_length(decoding: Decoding) -> Decoding:
    return dataclasses.replace(decoding.without(*LENGTHS), num_drafts=decoding.num_canvases)


def measure(
    systems: Sequence[System],
    batches: Sequence[TimedBatch],
    *,
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[tuple[Row, dict[str, Any]]]:
    """Times all systems side by side on every batch; ratios compare each system with the first.

    Returns:
      For each system a row for tables, whose metrics have their units in the signature, and details as JSON:
      seconds of each repeat, quartiles of the ratio, and stages.

    Raises:
      PadirError: there is nothing to time, or the programs of all shapes do not fit into the process at once.
    """
    PROGRAMS.drop()  # drops programs of earlier measurements
    dropped = PROGRAMS.times_dropped

    def holding(system: System) -> Callable[[TimedBatch], list[Translation]]:
        def call(batch: TimedBatch) -> list[Translation]:
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


def _row(
    system: System, batches: Sequence[TimedBatch], timed: Timed, baseline: Timed, clock: Callable[[], float]
) -> tuple[Row, dict[str, Any]]:
    results = [result for batch in batches for result in system(batch)]
    stages = [system.stages(batch, clock) for batch in batches]
    scores = [
        *_speed(timed, Ratio.of(baseline, timed), results, len(batches[0].texts)),
        *_memory(system, batches[0]),
        *_quality(system, batches, results),
    ]
    details = {
        "parameters": count_parameters(system.translator.params),
        "precision": system.precision,
        "repeat_seconds": timed.total_R.tolist(),
        "ratio": dataclasses.asdict(Ratio.of(baseline, timed)),
        "stages": {name: float(np.median([each[name] for each in stages])) for name in stages[0]},
    }
    evaluation = Evaluation({score.name: score for score in scores}, [result.text for result in results])
    decoding = system.decoding_of(batches[0])
    given = batches[0].target_lengths is not None and not system.causal
    weights = str(system.translator.card.weights)
    row = Row(system.model, decoding, evaluation, "", system.causal, weights, oracle_lengths=given)
    return row, details


def _speed(timed: Timed, ratio: Ratio, results: Sequence[Translation], batch_size: int) -> list[Score]:
    """Latency, throughput, decoder passes and compile time of a system."""
    sentences = len(results)
    tokens = sum(result.length for result in results)
    rate = float(np.median(sentences / timed.total_R))
    calls = f"what:text-to-text|batch:{batch_size}|calls:{timed.seconds_RB.size}|compile:no"
    repeats = f"what:text-to-text|batch:{batch_size}|repeats:{len(timed.seconds_RB)}|of:median|compile:no"
    return [
        *(Score(f"{name}_ms", 1e3 * seconds, calls) for name, seconds in timed.latency().items()),
        Score("sentences_per_second", rate, repeats),
        Score("tokens_per_second", rate * tokens / sentences, f"tok:model's own|{repeats}"),
        Score("ratio", ratio.median, "sentences per second to those of the first row|repeats:side by side|of:median"),
        Score("passes", sum(result.passes for result in results) / sentences, ""),
        Score("tokens", tokens / sentences, ""),
        Score(
            "compile_seconds",
            timed.compile_seconds,
            "first calls less the median of the others|programs that are on disk or shared with an earlier row: loaded",
        ),
    ]


def _memory(system: System, batch: TimedBatch) -> list[Score]:
    """Memory that refinement needs beside its arguments; [] for a causal model, and if the backend does not say."""
    if system.causal:
        return []
    refiner = system.translator.refiner(system.decoding_of(batch))
    sources = system.sources(batch)
    encoded = refiner.encode(sources)
    loaded, sizes = refiner.loaded, []
    for inputs, options in refiner.calls(encoded, refiner.plan_drafts(sources, encoded)):
        with loaded.on_devices():
            program = refine_drafts.lower(loaded.model, loaded.converted, inputs, options).compile()
        sizes.append(getattr(program.memory_analysis(), "temp_size_in_bytes", None))
    if None in sizes:
        return []
    return [Score("temporaries_mb", max(sizes) / 2**20, "XLA's temporaries of refining|batch:first")]


def _quality(system: System, batches: Sequence[TimedBatch], results: Sequence[Translation]) -> list[Score]:
    """BLEU and chrF of a system's translations, if the batches have references."""
    references = [reference for batch in batches for reference in batch.references or ()]
    if not references:
        return []
    texts = [result.text for result in results]
    return [bleu(texts, references, system.translator.card.target_language), chrf(texts, references)]

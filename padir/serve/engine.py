"""The engine of the server: batches the sentences of all clients, and returns futures of their translations."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import jax.monitoring
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from padir.constrained.placeholders import marked_spans
from padir.decoding.encoding import padded_length
from padir.decoding.fit import check_n_best
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.options import Decoding
from padir.decoding.paragraphs import split_sentences
from padir.decoding.translation import Translation
from padir.decoding.writer import Shapes
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.options import MODES, OPTIONS
from padir.refinement.strategies import STRATEGIES
from padir.serve.batching import Batcher
from padir.serve.messages import Limits, Refused, TranslateRequest
from padir.text.ids import EOS, round_up
from padir.text.sentences import Paragraph
from padir.translator import Translator

_log = logging.getLogger("padir.serve")

_WINDOW = 0.005  # seconds that a sentence waits for others of about its length
_TOKENS = 32  # tokens of a sentence up to which its batches have up to `batch_size` sentences
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128)


class Key(NamedTuple):
    """Batch key: sentences with the same padded source length in tokens and the same options may share a batch.

    The length is 0 for sentences without words, which need no translation.
    """

    source_length: int
    decoding: Decoding
    trace: bool = False


class QueuedSentence(NamedTuple):
    """A sentence for a batch, and the number of hypotheses in its answer."""

    key: Key
    text: str
    n_best: int


class Engine:
    """A translator with two queues: the thread of one prepares requests, the thread of the other uses the model.

    A sentence gets the same translation as from `Translator.translate` with the same options, whatever other sentences
    share its request or batch. Scores may differ in the last bits. With `Decoding.shortlist`, the translation depends
    on the other sentences.

    Arrays have few, coarse shapes, because a program takes long to compile. The programs for single, short sentences
    are compiled before the first request, all other programs when a request needs them.

    Args:
      decoding: the defaults of requests; batches have up to `batch_size` sentences.
      warm_up: longest source, in tokens, whose programs are compiled before the first request.

    Raises:
      PadirError: the options do not fit the model or exceed the limits.
    """

    def __init__(
        self,
        translator: Translator,
        decoding: Decoding,
        limits: Limits = Limits(),  # noqa: B008
        *,
        warm_up: int = 32,
    ):
        self.translator = translator
        self.limits = limits
        self.warm_up = warm_up
        # Not resolved: a request may choose the other mode, whose options resolving would forget.
        self.decoding = dataclasses.replace(decoding, mode=translator.resolved(decoding).mode, n_best=0)
        self._most_hypotheses = None  # as the options say
        if translator.has_other_engine:
            self._most_hypotheses = translator.writer(translator.resolved(self.decoding)).most_hypotheses
        self.counted_by = translator.card.config.readout_rules.counted_by  # the option that says how many drafts to try
        modes = [mode for mode in MODES if self._works(mode=mode)]
        self.modes = sorted(modes, key=lambda mode: mode != self.decoding.mode)
        self.strategies = [name for name in STRATEGIES if self._works(strategy=name)]
        self.most_lengths = 1
        counts = self._limited_counts(translator.card.config) if "refine" in self.modes else ()
        self.translator = translator.with_shapes(Shapes(row_lengths(translator.card.config), counts))
        self._sizes = tuple(sorted({1, min(8, decoding.batch_size), decoding.batch_size}))
        self._most_tokens = _TOKENS * decoding.batch_size
        self.metrics = Metrics()
        self.clock = working_time()
        self.state = "stopped"
        self.failure: Exception | None = None
        self._batcher = Batcher(self._run, sizes=self.batch_sizes, max_wait=_WINDOW, max_queue=limits.max_queue)
        self._preparer = Batcher(
            lambda _, requests: [self.prepare(each) for each in requests],
            sizes=lambda _: (1,),
            max_wait=0.0,
            max_queue=limits.max_queue,
        )
        self.metrics.waiting.set_function(lambda: self._batcher.waiting)
        self.metrics.ready.set_function(lambda: self.ready)

    def _works(self, **fields: Any) -> bool:
        """True if a request may have these fields: the model takes them, beside the server's own options."""
        try:
            self.translator.resolved(self.decoding.changed(**fields))
        except PadirError:
            return False
        return True

    def _limited_counts(self, config: ModelConfig) -> tuple[int, ...]:
        """The numbers of drafts of batches; checks the server's own options of refining against the limits."""
        limits = self.limits
        if self._works(**{self.counted_by: 2}):
            self.most_lengths = min(limits.max_lengths, config.max_length)
        most = {"num_steps": limits.max_steps, self.counted_by: self.most_lengths, "num_drafts": limits.max_lengths}
        for name, limit in most.items():
            if (value := getattr(self.decoding, name)) > limit:
                raise PadirError(name, f"at most {limit}, the limit of requests", value)
        # Whatever number clients set, a batch is filled up to one of few numbers of drafts.
        powers = (1 << n for n in range(limits.max_lengths.bit_length()))
        counts = {getattr(self.decoding, self.counted_by), limits.max_lengths, *powers}
        return tuple(sorted(count * self.decoding.num_drafts for count in counts))

    @property
    def ready(self) -> bool:
        """True if the engine takes requests."""
        return self.state == "ready"

    def start(self, changed: Callable[[Engine], None] = lambda engine: None) -> None:
        """Starts the thread, which warms up and then calls `changed`: the engine is ready or has a `failure`."""
        self.state = "warming up"

        def prepare() -> None:
            try:
                self._compile()
                if self.state == "stopping":
                    return
                self.state = "ready"
            except Exception as error:
                _log.exception("the warm-up failed")
                self.state, self.failure = "failed", error
            changed(self)

        self._preparer.start()
        self._batcher.start(prepare)

    def close(self) -> None:
        """Refuses further requests, answers the waiting requests, and ends the threads."""
        self.state = "stopping"
        self._preparer.close()
        self._batcher.close()
        self.state = "stopped"

    def prepare_in_turn(
        self, request: TranslateRequest, client: str
    ) -> Future[tuple[list[Paragraph], list[QueuedSentence]]]:
        """Prepares a request when it is its client's turn; raises as `Batcher.submit` does."""
        return self._preparer.submit([("request", request)], client)[0]

    def options_of(self, request: TranslateRequest) -> Decoding:
        """The options of a request: the server's own, changed by the fields of the request (`Decoding.changed`).

        A trace is of refining, as the fields that only refining reads.

        Raises:
          PadirError: fields belong to different modes.
        """
        fields = {name: getattr(request, name, None) for name in OPTIONS if name != "n_best"}
        given: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        if request.placeholders is not None:
            given["placeholders"] = sorted(request.placeholders)
        if request.trace and given.setdefault("mode", "refine") != "refine":
            raise Refused(422, f"the mode {request.mode!r} has no drafts to trace: leave trace or mode out")
        return self.decoding.changed(**given)

    def prepare(self, request: TranslateRequest) -> tuple[list[Paragraph], list[QueuedSentence]]:
        """Splits the texts of a request, and tokenises the sentences.

        Raises:
          Refused: 422 if there are too many sentences, one is too long, or a search is to trace; 503 if the engine is
            not ready.
          PadirError: fields exclude each other, or n_best is above the number of hypotheses of a sentence.
        """
        if not self.ready:
            raise Refused(503, f"the server is {self.state}: try again later", retry_after=5)
        decoding = self.options_of(request)
        check_n_best(request.n_best, decoding, self.translator.card.config, self._most_hypotheses)
        language = self.translator.card.source_language
        limits = self.limits
        paragraphs, texts = split_sentences(request.texts, language, decoding.placeholders, split=request.split)
        if len(texts) > limits.max_sentences:
            many = f"a request has at most {limits.max_sentences} sentences, got {len(texts)}: send several requests"
            raise Refused(422, many)
        sentences = []
        most = self.translator.loaded.longest_source
        for number, text in enumerate(texts, 1):  # one by one: the first that is too long ends the work
            if len(text) > limits.max_characters:
                raise Refused(422, f"sentence {number} has more than {limits.max_characters:,} characters: split it")
            length = self._source_length(text, decoding.placeholders)
            if length is None:
                raise Refused(422, f"sentence {number} has more than the {most} tokens or spans of the model: split it")
            sentences.append(QueuedSentence(Key(length, decoding, request.trace), text, request.n_best))
        return paragraphs, sentences

    def _source_length(self, text: str, placeholders: Sequence[str]) -> int | None:
        """The padded length of a sentence, 0 if it has no words; None if it is too long for the model."""
        loaded = self.translator.loaded
        (read,) = loaded.normalised([text], placeholders)
        (spans,) = marked_spans(self.translator, [read.text], placeholders)
        words = read.text if spans is None else spans.text
        (source,), truncated = loaded.source_tokens([words], truncate=True)
        if truncated or (spans and len(spans.edits) > loaded.longest_source):
            return None
        return padded_length(len(source), self.translator.shapes.lengths) if words.strip() else 0

    def submit(self, sentences: Sequence[QueuedSentence], client: str = "") -> list[Future[Translation]]:
        """Queues a client's sentences and returns the futures of their translations; raises as `Batcher.submit` does.

        Cancel the futures that nobody awaits.
        """
        return self._batcher.submit([(each.key, each) for each in sentences], client)

    def batch_sizes(self, key: Key) -> tuple[int, ...]:
        """Sizes of batches; a traced sentence is a batch of its own, and never waits for a larger program.

        Long sentences, and those with more passes or lengths than the defaults, have smaller batches, so that no batch
        takes long.
        """
        passes = key.decoding.num_steps / self.decoding.num_steps
        drafts = getattr(key.decoding, self.counted_by) / getattr(self.decoding, self.counted_by)
        tokens = key.source_length * max(1.0, passes) * drafts
        return (1, *(size for size in self._sizes[1:] if size * tokens <= self._most_tokens and not key.trace))

    def _run(self, key: Key, sentences: list[QueuedSentence]) -> list[Translation]:
        """Translates a batch."""
        _compiling.tell = self._batcher.hand_over
        began = time.perf_counter()
        decoding = key.decoding.changed(n_best=max(sentence.n_best for sentence in sentences))
        results = self.translator.translate([each.text for each in sentences], decoding, trace=key.trace)
        if not key.source_length:
            return results
        self.metrics.batch_sentences.observe(len(sentences))
        self.metrics.batch_seconds.observe(time.perf_counter() - began)
        self.metrics.sentences.inc(len(sentences))
        self.metrics.passes.inc(sum(result.passes for result in results))
        return [
            dataclasses.replace(result, candidates=result.candidates[: each.n_best])
            for each, result in zip(sentences, results, strict=True)
        ]

    def _compile(self) -> None:
        """Translates made-up sentences, with and without a trace; the page always refines and traces."""
        loaded = self.translator.loaded
        options = [(self.decoding, False)]
        if "refine" in self.modes:
            options.append((self.decoding.changed(mode="refine"), True))
        piece = loaded.card.ids.first_regular
        for shorter, length in itertools.pairwise((0, *self.translator.shapes.lengths)):
            if shorter >= self.warm_up:
                return
            # Somewhat longer than the shorter rows, so that the translation is not longer than this row.
            count = shorter + max(1, (length - shorter) // 4)
            pieces = [piece] * min(count, loaded.longest_source)
            source = SourceSentence(loaded.tokenizer.decode(pieces), [*loaded.source_prefix, *pieces, EOS])
            for decoding, trace in options:
                if self.state == "stopping":
                    return
                resolved = self.translator.resolved(decoding)
                self.translator.batch_translator(resolved, trace=trace)([source])
                self._batcher.known.add((Key(length, decoding, trace), 1))


def row_lengths(config: ModelConfig) -> tuple[int, ...]:
    """Lengths that rows are padded to: powers of two from 16, and the longest source.

    >>> row_lengths(ModelConfig(max_length=80))
    (16, 32, 64, 88)
    """
    longest = round_up(config.max_length + config.length_token, 8)
    return (*(16 << n for n in range(longest.bit_length()) if 16 << n < longest), longest)


class Metrics:
    """Counters and histograms of one server for Prometheus, in a registry of their own."""

    def __init__(self):
        self.registry = CollectorRegistry()

        def made(kind: Callable[..., Any], name: str, what: str, **more: Any) -> Any:
            return kind(f"padir_{name}", what, registry=self.registry, **more)

        about = "Requests of POST /translate, by HTTP status (499: the client left)"
        self.requests: Counter = made(Counter, "requests", about, labelnames=["status"])
        about = "Seconds from a successful request to its answer"
        self.seconds: Histogram = made(Histogram, "request_seconds", about, buckets=_SECONDS)
        self.sentences: Counter = made(Counter, "sentences", "Sentences translated")
        self.passes: Counter = made(Counter, "passes", "Decoder passes that the translations took")
        about = "Sentences that were translated together"
        self.batch_sentences: Histogram = made(Histogram, "batch_sentences", about, buckets=_SENTENCES)
        about = "Seconds that the model took to translate a batch"
        self.batch_seconds: Histogram = made(Histogram, "batch_seconds", about, buckets=_SECONDS)
        self.ready: Gauge = made(Gauge, "ready", "1 if the server is warmed up and takes requests")
        self.waiting: Gauge = made(Gauge, "queue_sentences", "Sentences that wait for a batch")

    def total(self, name: str) -> int:
        """Sum of a counter, such as "sentences", over its labels."""
        return int(sum(s.value for m in self.registry.collect() for s in m.samples if s.name == f"padir_{name}_total"))


_compiling = threading.local()  # its `tell` is called when the thread begins to compile a program


@functools.cache
def working_time() -> Callable[[], float]:
    """A clock, in seconds, that stands still while a program is compiled in any thread of this process."""
    depth = 0  # stages of compiling under way
    stood, since = 0.0, 0.0  # seconds of earlier stops, and the time at which the present one began

    def begins(event: str, *_: Any, **__: Any) -> None:
        nonlocal depth, since
        if event.startswith("/jax/core/compile/"):
            getattr(_compiling, "tell", lambda: None)()
            depth, since = depth + 1, since if depth else time.monotonic()

    def ends(event: str, *_: Any, **__: Any) -> None:
        nonlocal depth, stood
        if event.startswith("/jax/core/compile/") and depth:
            stood, depth = stood + (time.monotonic() - since if depth == 1 else 0.0), depth - 1

    jax.monitoring.register_scalar_listener(begins)
    jax.monitoring.register_event_duration_secs_listener(ends)
    return lambda: (since if depth else time.monotonic()) - stood

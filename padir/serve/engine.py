"""The engine of the server: takes sentences, batches them with those of other clients, gives futures."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from padir import checks
from padir.decoding.batches import SourceBatch
from padir.decoding.options import Decoding
from padir.decoding.pipeline import PROGRAMS, Pipeline, RefiningPipeline
from padir.decoding.program_cache import SHARE
from padir.decoding.refine_batch import BUCKET
from padir.decoding.translation import EMPTY_LINE, Translation
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.serve.batching import Batcher, Closed, QueueFull
from padir.serve.metrics import Metrics
from padir.serve.request import Limits, Options, Refused, Request
from padir.serve.warm_up import Shape, candidate_counts, compile_shape, usual_shapes
from padir.text.ids import round_up

_log = logging.getLogger("padir.serve")


class Key(NamedTuple):
    """Batch key: sentences with the same padded source length in tokens and the same options may share a batch."""

    source_length: int
    options: Options


class QueuedSentence(NamedTuple):
    """A sentence that waits for its batch.

    Attributes:
      text, source: the sentence as text, and as the encoder's tokens.
      n_best: number of candidates in its answer.
    """

    text: str
    source: list[int]
    n_best: int


class Engine:
    """A translator with a queue, whose one thread uses the model.

    A sentence gets the translation that `Translator.translate` gives it with the same options, at any place in any
    request and whatever other sentences share its batch; scores may differ in the last bits. With `Decoding.shortlist`
    the translation depends on the other sentences.

    The engine takes requests as soon as the commonest shapes are compiled (`padir.serve.warm_up`); it compiles the
    other shapes, one at a time, while nothing waits.

    Args:
      translator: the model.
      decoding: the defaults of requests; batches have up to `batch_size` sentences.
      limits: limits of requests and of the queue.
      max_wait: seconds that a sentence waits for others of about its length.
      warm_up: longest source, in tokens, to compile for at the start; 0: compile nothing.

    Raises:
      PadirError: the options do not fit the model or exceed the limits, or the model cannot predict lengths.
    """

    def __init__(
        self,
        translator: Translator,
        decoding: Decoding,
        limits: Limits = Limits(),  # noqa: B008
        *,
        max_wait: float = 0.005,
        warm_up: int = 32,
    ):
        self.translator, self.limits = translator, limits
        self.decoding = translator.resolved(decoding)
        self.causal = translator.card.config.causal
        if not 0 <= max_wait <= limits.timeout:
            raise PadirError("max_wait", f"in 0 .. {limits.timeout:g} seconds (timeout)", max_wait)
        checks.at_least(0, warm_up=warm_up)
        if not self.causal:
            self._check_lengths(decoding.lengths.top_k)
            self._check_default(decoding)
        self.defaults = Options(None, None) if self.causal else Options(decoding.num_steps, decoding.lengths.top_k)
        self.metrics = Metrics()
        self.state = "stopped"
        self.failure: Exception | None = None
        lengths = decoding.lengths
        self._counts = candidate_counts(lengths.top_k, limits.max_lengths, len(lengths.offsets) * lengths.draws)
        self._left = usual_shapes(translator.card.config, decoding.batch_size, warm_up)
        self._batcher = Batcher(self._run, max_batch=decoding.batch_size, max_wait=max_wait, max_queue=limits.max_queue)
        self.metrics.watch(lambda: self._batcher.waiting, lambda: self.ready, lambda: self.shapes_left)

    @property
    def ready(self) -> bool:
        """True if the engine takes requests."""
        return self.state == "ready"

    @property
    def shapes_left(self) -> int:
        """Number of shapes of the warm-up that are not compiled yet."""
        return len(self._left)

    def start(self, changed: Callable[[Engine], None] = lambda engine: None) -> None:
        """Starts the thread, which compiles; then calls `changed`, as the engine is ready or has a `failure`."""
        self.state = "warming up"

        def prepare() -> None:
            try:
                while self._left and self._left[0].is_first:
                    self._compile(self._left[0])
                    del self._left[0]
                    if self.state == "stopping":
                        return
                self.state = "ready"
            except Exception as error:
                _log.exception("the warm-up failed")
                self.state, self.failure = "failed", error
            changed(self)

        self._batcher.start(prepare, self._compile_next)

    def close(self) -> None:
        """Refuses further requests, answers those that wait, and ends the thread."""
        self.state = "stopping"
        self._batcher.close()
        self.state = "stopped"

    def submit(self, request: Request) -> list[Future[Translation]]:
        """Queues a request and returns the futures of its translations, in order; cancel futures that nobody awaits.

        Raises:
          Refused: 422 if a sentence is too long, 429 if the queue is full, 503 if the engine is not ready.
        """
        if not self.ready:
            raise Refused(503, f"the server is {self.state}: try again later", retry_after=5)
        if request.options.top_k is not None:
            self._check_lengths(request.options.top_k)
        sources, truncated = self.translator.loaded.source_tokens(request.texts, truncate=True)
        if truncated:
            raise Refused(
                422,
                f"sentence {min(truncated) + 1} has more than the {self.translator.loaded.longest_source} tokens"
                " that the model takes: split it",
            )
        full = [number for number, text in enumerate(request.texts) if text.strip()]
        jobs = [
            (
                Key(round_up(len(sources[number]), BUCKET), request.options),
                QueuedSentence(request.texts[number], sources[number], request.n_best),
            )
            for number in full
        ]
        try:
            submitted = dict(zip(full, self._batcher.submit(jobs), strict=True))
        except QueueFull as error:
            raise Refused(429, f"the server is busy: {error}; try again later", retry_after=1) from None
        except Closed:
            raise Refused(503, "the server is stopping: try another one, or later", retry_after=5) from None
        return [submitted.get(number) or _nothing() for number in range(len(request.texts))]

    def _check_lengths(self, top_k: int) -> None:
        """Refuses more lengths than the model's length head gives."""
        config = self.translator.card.config
        if config.length_head == "oracle":
            raise PadirError("the model's length head is 'oracle', which must be given lengths: serve another model")
        most = config.max_length if config.length_head == "token" else 1
        if top_k > most:
            raise Refused(422, f"the model gives {most} lengths, got top_k={top_k}: try fewer")

    def _check_default(self, decoding: Decoding) -> None:
        """Refuses defaults above the limits of requests."""
        for name, value, most in (
            ("num_steps", decoding.num_steps, self.limits.max_steps),
            ("top_k", decoding.lengths.top_k, self.limits.max_lengths),
        ):
            if value > most:
                raise PadirError(name, f"at most {most}, the limit of requests", value, "raise the limit")

    def _pipeline(self, options: Options, n_best: int) -> Pipeline:
        if options.num_steps is None or options.top_k is None:
            return self.translator.pipeline(self.decoding)
        lengths = dataclasses.replace(self.decoding.lengths, top_k=options.top_k)
        decoding = dataclasses.replace(self.decoding, num_steps=options.num_steps, lengths=lengths, n_best=n_best)
        pipeline = self.translator.pipeline(decoding, trace=options.trace)
        assert isinstance(pipeline, RefiningPipeline)
        return dataclasses.replace(pipeline, counts=self._counts)

    def _run(self, key: Key, sentences: list[QueuedSentence]) -> list[Translation]:
        """Translates a batch."""
        began = time.perf_counter()
        pipeline = self._pipeline(key.options, max(sentence.n_best for sentence in sentences))
        texts, tokens, _ = zip(*sentences, strict=True)
        results = pipeline.run(SourceBatch(texts, tokens))
        self.metrics.batch_sentences.observe(len(sentences))
        self.metrics.batch_seconds.observe(time.perf_counter() - began)
        self.metrics.sentences.inc(len(sentences))
        self.metrics.passes.inc(sum(result.passes for result in results))
        return [
            dataclasses.replace(
                result,
                candidates=result.candidates[: each.n_best],
                candidate_lengths=result.candidate_lengths[: each.n_best],
            )
            for each, result in zip(sentences, results, strict=True)
        ]

    def _compile_next(self) -> bool:
        """Compiles one more shape of the warm-up; False if no shape is left, or no room for more programs."""
        if not self._left or not self.ready:
            return False
        try:
            if PROGRAMS.share() < 2 / 3 * SHARE:  # requests of other shapes need programs, too
                self._compile(self._left[0])
                del self._left[0]
                return True
            _log.warning("the process has no room for more programs: %d shapes are left out", len(self._left))
        except Exception:  # a request of that shape will fail, too, and its answer will say so
            _log.exception("the warm-up ended at %s", self._left[0])
        self._left.clear()
        return False

    def _compile(self, shape: Shape) -> None:
        compile_shape(self._pipeline(dataclasses.replace(self.defaults, trace=shape.trace), 0), shape)


def _nothing() -> Future[Translation]:
    """The translation of an empty line."""
    future: Future[Translation] = Future()
    future.set_result(EMPTY_LINE)
    return future

"""`Engine`, which queues sentences, translates them in batches and returns futures of the translations."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from padir.decoding.batches import SourceBatch
from padir.decoding.lengths import Candidate
from padir.decoding.options import Decoding
from padir.decoding.pipeline import PROGRAMS, CausalPipeline, Pipeline
from padir.decoding.program_cache import SHARE
from padir.decoding.refine_batch import BUCKET
from padir.decoding.translation import EMPTY_LINE, Translation
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.serve.batching import Batcher, Closed, QueueFull
from padir.serve.metrics import Metrics
from padir.serve.request import Limits, Options, Refused, Request
from padir.text.ids import EOS, round_up

_log = logging.getLogger("padir.serve")


class Key(NamedTuple):
    """Key of a batch, shared by all its sentences: the padded source length in tokens, and the options."""

    source_length: int
    options: Options


class Shape(NamedTuple):
    """Shape that a program is compiled for: padded source and target lengths in tokens, number of sentences, and trace
    (True if every step is kept)."""

    source: int
    target: int
    rows: int
    trace: bool = False


class Sentence(NamedTuple):
    """A sentence that waits to be translated.

    Attributes:
      text, source: the sentence as text and as the encoder's input (`LoadedModel.source_tokens`).
      number: the sentence's place in its request, from which its random draft is made.
      n_best: number of candidates that the answer lists.
    """

    text: str
    source: list[int]
    number: int
    n_best: int


class Engine:
    """A translator with a queue; one thread, the batcher's, uses the model.

    A request's translations equal those of `Translator.translate` for the same sentences and options, whatever other
    sentences share the batch. (The last bits of scores may differ, as matrix products of other shapes do.) With
    `Decoding.shortlist`, a translation depends on the other sentences of its batch.

    Args:
      translator: the model.
      decoding: default decoding options; a request may change some. Batches have up to `decoding.batch_size` sentences.
      limits: limits of requests and of the queue.
      max_wait: the most seconds that a sentence waits for others of similar length.
      warm_up: programs for sources of up to this many tokens are compiled in advance; 0 compiles none.

    Requests are accepted as soon as the most common shapes are compiled (`shapes`); the other shapes are compiled one
    at a time while no sentence waits.

    Raises:
      PadirError: the options do not fit the model, or the model cannot predict lengths.
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
        self.translator, self.limits, self.warm_up = translator, limits, warm_up
        self.decoding = translator.resolved(decoding)
        self.causal = translator.card.config.causal
        if not 0 <= max_wait <= limits.timeout:
            raise PadirError(
                f"a sentence waits for others for 0 .. {limits.timeout:g} seconds (timeout), got {max_wait}"
            )
        if warm_up < 0:
            raise PadirError(f"warm_up must be a number of tokens, or 0 for none, got {warm_up}")
        if not self.causal:
            self._check_lengths(decoding.lengths.top_k)
            self._check_default(decoding)
        self.defaults = Options(None, None) if self.causal else Options(decoding.num_steps, decoding.lengths.top_k)
        self.metrics = Metrics()
        self.state = "stopped"
        self.failure: Exception | None = None
        self._left = self.shapes()
        self._batcher = Batcher(self._run, max_batch=decoding.batch_size, max_wait=max_wait, max_queue=limits.max_queue)
        self.metrics.watch(lambda: self._batcher.waiting, lambda: self.ready, lambda: self.shapes_left)

    @property
    def ready(self) -> bool:
        """True if requests are accepted."""
        return self.state == "ready"

    @property
    def shapes_left(self) -> int:
        """Number of warm-up shapes that are not compiled yet."""
        return len(self._left)

    def start(self, changed: Callable[[Engine], None] = lambda engine: None) -> None:
        """Starts the thread, which compiles, sets `state` or `failure`, and then calls `changed`."""
        self.state = "warming up"

        def prepare() -> None:
            try:
                while self._left and _first(self._left[0]):
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
        """Refuses further requests, finishes the waiting ones, and ends the thread."""
        self.state = "stopping"
        self._batcher.close()
        self.state = "stopped"

    def submit(self, request: Request) -> list[Future[Translation]]:
        """Queues a request's sentences and returns futures of their translations, in order, which may be cancelled.

        Raises:
          Refused: with status 422 if a sentence is too long or is no text, 429 if the queue is full, 503 if the engine
            is not ready.
        """
        if not self.ready:
            raise Refused(503, f"the server is {self.state}: try again later", retry_after=5)
        if request.options.top_k is not None:
            self._check_lengths(request.options.top_k)
        sources, truncated = self.translator.loaded.source_tokens(request.texts, truncate=True)
        if truncated:
            raise Refused(
                422,
                f"sentence {min(truncated) + 1} has more than the {self.translator.card.config.max_length - 1} tokens"
                " that the model takes: split it",
            )
        full = [number for number, text in enumerate(request.texts) if text.strip()]
        jobs = [
            (
                Key(round_up(len(sources[number]), BUCKET), request.options),
                Sentence(request.texts[number], sources[number], number, request.n_best),
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
        """Refuses more candidate lengths than the model's length head can give."""
        config = self.translator.card.config
        if config.length_head == "oracle":
            raise PadirError("the model's length head is 'oracle', which must be given lengths: serve another model")
        most = config.max_length if config.length_head == "token" else 1
        if top_k > most:
            raise Refused(422, f"the model gives {most} lengths, got top_k={top_k}: try fewer")

    def _check_default(self, decoding: Decoding) -> None:
        """Refuses default options that exceed the limits of requests."""
        for name, value, most in (
            ("num_steps", decoding.num_steps, self.limits.max_steps),
            ("top_k", decoding.lengths.top_k, self.limits.max_lengths),
        ):
            if value > most:
                raise PadirError(f"requests may ask for {name} up to {most}, got the default {value}: raise the limit")

    def _pipeline(self, options: Options, n_best: int) -> Pipeline:
        if options.num_steps is None or options.top_k is None:
            return self.translator.pipeline(self.decoding)
        lengths = dataclasses.replace(self.decoding.lengths, top_k=options.top_k)
        decoding = dataclasses.replace(self.decoding, num_steps=options.num_steps, lengths=lengths, n_best=n_best)
        return self.translator.pipeline(decoding, trace=options.trace)

    def _run(self, key: Key, sentences: list[Sentence]) -> list[Translation]:
        """Translates a batch."""
        began = time.perf_counter()
        pipeline = self._pipeline(key.options, max(sentence.n_best for sentence in sentences))
        texts, tokens, numbers, _ = zip(*sentences, strict=True)
        results = pipeline.run(SourceBatch(texts, tokens, numbers))
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

    def shapes(self) -> list[Shape]:
        """The shapes of usual requests, most common first: default options, sources of up to `warm_up` tokens, targets
        of similar length, every number of rows, and traces for single sentences."""
        longest = self.translator.card.config.max_length
        most = min(round_up(self.warm_up, BUCKET), longest)
        found = []
        for length in range(BUCKET, most + 1, BUCKET):
            near = (length, max(BUCKET, length - BUCKET), min(length + BUCKET, longest))
            targets = dict.fromkeys(near[:1] if self.causal else near)  # a causal model writes until EOS
            for rows, target in itertools.product(batch_shapes(self.decoding.batch_size), targets):
                found.append(Shape(length, target, rows))
                if rows == 1 and not self.causal:
                    found.append(Shape(length, target, rows, trace=True))
        return sorted(found, key=lambda shape: (not _first(shape), shape.rows, shape.trace, shape.source))

    def _compile_next(self) -> bool:
        """Compiles programs for one more shape of the warm-up; returns False if no shape or no room is left."""
        if not self._left or not self.ready:
            return False
        try:
            if PROGRAMS.share() < 2 / 3 * SHARE:  # leaves mappings for other shapes
                self._compile(self._left[0])
                del self._left[0]
                return True
            _log.warning("the process has no room for more programs: %d shapes are left out", len(self._left))
        except Exception:  # a request of this shape would fail alike, and its answer reports the error
            _log.exception("the warm-up ended at %s", self._left[0])
        self._left.clear()
        return False

    def _compile(self, shape: Shape) -> None:
        """Compiles the programs of a shape by translating artificial sentences."""
        card, tokenizer = self.translator.card, self.translator.tokenizer
        piece = card.ids.first_regular
        prefix = [card.ids.length] if card.config.length_token else []
        tokens = [*prefix, *[piece] * (shape.source - len(prefix) - 1), EOS]
        text = tokenizer.decode([piece] * (shape.source - 2))
        source = SourceBatch([text] * shape.rows, [tokens] * shape.rows, range(shape.rows))
        pipeline = self._pipeline(dataclasses.replace(self.defaults, trace=shape.trace), 0)
        if isinstance(pipeline, CausalPipeline):
            pipeline.write(source)
            return
        tried = pipeline.try_lengths(pipeline.encode(source))
        count = max(map(len, tried.candidates))
        wanted = [[Candidate(shape.target, draw) for draw in range(count)]] * shape.rows
        pipeline.choose(pipeline.refine(dataclasses.replace(tried, candidates=wanted)))


def _first(shape: Shape) -> bool:
    """True if a shape is compiled before requests are accepted: one sentence, with a target as long as the source."""
    return shape.rows == 1 and shape.target == shape.source and not shape.trace


def batch_shapes(batch_size: int) -> list[int]:
    """The numbers of rows that batches of 1 .. batch_size sentences are padded to.

    >>> batch_shapes(12)
    [1, 2, 4, 8, 12]
    """
    return sorted({min(batch_size, 1 << (sentences - 1).bit_length()) for sentences in range(1, batch_size + 1)})


def _nothing() -> Future[Translation]:
    """A finished future with the translation of an empty line."""
    future: Future[Translation] = Future()
    future.set_result(EMPTY_LINE)
    return future

"""Metrics of the server, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters and histograms of one server, in a registry of their own."""

    def __init__(self):
        self.registry = CollectorRegistry()

        def made(kind, name, what, **more):
            return kind(f"padir_{name}", what, registry=self.registry, **more)

        self.requests: Counter = made(
            Counter,
            "requests",
            "Requests of POST /translate, by HTTP status (499: the client left)",
            labelnames=["status"],
        )
        self.seconds: Histogram = made(
            Histogram,
            "request_seconds",
            "Seconds from a successful request to its answer",
            buckets=_SECONDS,
        )
        self.sentences: Counter = made(Counter, "sentences", "Sentences translated")
        self.passes: Counter = made(Counter, "passes", "Decoder passes that the translations took")
        self.batch_sentences: Histogram = made(
            Histogram, "batch_sentences", "Sentences that were translated together", buckets=_SENTENCES
        )
        self.batch_seconds: Histogram = made(
            Histogram, "batch_seconds", "Seconds that the model took to translate a batch", buckets=_SECONDS
        )
        self.ready: Gauge = made(Gauge, "ready", "1 if the server is warmed up and takes requests")
        self.shapes_left: Gauge = made(Gauge, "shapes_left", "Shapes of the warm-up that are not compiled yet")
        self.waiting: Gauge = made(Gauge, "queue_sentences", "Sentences that wait for a batch")

    def watch(self, waiting: Callable[[], float], ready: Callable[[], float], shapes_left: Callable[[], float]) -> None:
        """Sets the functions that give the gauges' values whenever the metrics are read."""
        self.waiting.set_function(waiting)
        self.ready.set_function(ready)
        self.shapes_left.set_function(shapes_left)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics in the text format that a client accepts, and the format's content type."""
        try:
            encoder, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # the version in the header is no number
            encoder, content_type = choose_encoder("")
        return encoder(self.registry), content_type

    def total(self, name: str) -> int:
        """Sum of a counter, such as "sentences", over its labels."""
        return int(sum(s.value for m in self.registry.collect() for s in m.samples if s.name == f"padir_{name}_total"))

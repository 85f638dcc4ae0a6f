"""Checked requests and their limits; this module does not need the extra `serve`."""

from __future__ import annotations

import dataclasses

from padir import checks
from padir.errors import PadirError


class Refused(PadirError):
    """Error with which the server answers a request.

    Attributes:
      status: HTTP status.
      retry_after: seconds after which the same request may succeed; None if it never will.
    """

    def __init__(self, status: int, message: str, retry_after: int | None = None):
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of requests and of the queue.

    Attributes:
      max_body: maximum size of a request in bytes.
      max_sentences: maximum number of sentences in a request; the model limits the tokens of a sentence.
      max_steps, max_lengths: largest num_steps, and largest top_k, n_best and (the server's) draws, of a request.
      max_queue: maximum number of waiting sentences, of all clients together.
      timeout: maximum number of seconds from a request's arrival to its answer, without the time for compiling.

    Raises:
      PadirError: a limit is so low that no request could meet it.
    """

    max_body: int = 65_536
    max_sentences: int = 64
    max_steps: int = 16
    max_lengths: int = 8
    max_queue: int = 1_024
    timeout: float = 30.0

    def __post_init__(self):
        whole = {name: value for name, value in dataclasses.asdict(self).items() if name != "timeout"}
        checks.counts(1, **whole)
        if not 0 < self.timeout < float("inf"):
            raise PadirError("timeout", "above 0 seconds and finite", self.timeout)
        if self.max_queue < self.max_sentences:
            expected = f"at least max_sentences ({self.max_sentences}), so that every request fits into the queue"
            raise PadirError("max_queue", expected, self.max_queue, "raise it, or lower max_sentences")


@dataclasses.dataclass(frozen=True)
class Request:
    """A checked request.

    Attributes:
      texts: the sentences.
      num_steps, top_k: as in `Decoding`; None for an autoregressive model.
      n_best: number of candidates in the answer.
      trace: the answer lists every step.
      split: translate each sentence of a text by itself.
      mode, strategy: as in `Decoding`; None means the server's own.
    """

    texts: tuple[str, ...]
    num_steps: int | None = None
    top_k: int | None = None
    n_best: int = 0
    trace: bool = False
    split: bool = False
    mode: str | None = None
    strategy: str | None = None

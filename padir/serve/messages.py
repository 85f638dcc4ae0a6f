"""Requests and answers of POST /translate as types, the limits of requests, and the OpenAPI document."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from padir import __version__, checks
from padir.decoding.paragraphs import TranslatedLine
from padir.decoding.translation import Translation
from padir.errors import PadirError
from padir.options import Mode
from padir.storage.files import parsed_json
from padir.text.spans import KINDS


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
      max_sentences: maximum number of sentences in a request.
      max_characters: maximum number of characters of a sentence, read before the model limits its tokens and spans.
      max_steps: largest num_steps of a request. max_lengths: its largest num_lengths (or prefix_beam) and n_best, and
        the server's num_drafts.
      max_queue: maximum number of waiting sentences, of all clients together. No client has more waiting sentences
        than there are free places; so a single client has at most half of `max_queue`.
      timeout: maximum number of seconds from a request's arrival to its answer, without the time for compiling.

    Raises:
      PadirError: a limit is so low that no request could meet it.
    """

    max_body: int = 65_536
    max_sentences: int = 64
    max_characters: int = 8_192
    max_steps: int = 16
    max_lengths: int = 8
    max_queue: int = 1_024
    timeout: float = 30.0

    def __post_init__(self):
        whole = {name: value for name, value in dataclasses.asdict(self).items() if name != "timeout"}
        checks.counts(1, **whole)
        if not 0 < self.timeout < float("inf"):
            raise PadirError("timeout", "above 0 seconds and finite", self.timeout)
        if self.max_queue < 2 * self.max_sentences:
            expected = (
                f"at least twice max_sentences ({self.max_sentences}), so that a client's share fits every request"
            )
            raise PadirError("max_queue", expected, self.max_queue, "raise it, or lower max_sentences")


@dataclasses.dataclass(frozen=True)
class TranslateRequest:
    """A checked request.

    Attributes:
      num_steps, num_lengths, prefix_beam: as in `Decoding`; None means the server's own.
      n_best: number of candidates in the answer.
      trace: the answer lists every step.
      split: translate each sentence of a text by itself.
      mode, strategy: as in `Decoding`; None means the server's own.
      placeholders: kinds of spans, as in `Decoding`, but no patterns; None means the server's own.
    """

    texts: tuple[str, ...]
    num_steps: int | None = None
    num_lengths: int | None = None
    prefix_beam: int | None = None
    n_best: int = 0
    trace: bool = False
    split: bool = False
    mode: Mode | None = None
    strategy: str | None = None
    placeholders: frozenset[str] | None = None


class AnswerCandidate(msgspec.Struct):
    """A candidate: text, score (null if it is not finite), and length in tokens, EOS included."""

    text: str
    score: float | None
    length: int


class AnswerStep(msgspec.Struct):
    """A draft: its pieces (U+2581 is a space), and their log-probabilities; null for pieces that were not written."""

    pieces: Sequence[str]
    log_probs: Sequence[float | None]


class AnswerText(msgspec.Struct, kw_only=True):
    """A translation: text, score (null if it is not finite), length in tokens, passes, number of hypotheses tried.

    `candidates`, `read_again` (the causal side chose) and `trace` are present if the request asks for them. With
    `split`, each entry of `sentences` has its own, and a `source`. Then length, passes and hypotheses are sums over the
    sentences; the score is the mean of their scores, weighted by length.
    """

    text: str
    score: float | None
    length: int
    passes: int
    hypotheses: int
    source: str | msgspec.UnsetType = msgspec.UNSET
    candidates: list[AnswerCandidate] | msgspec.UnsetType = msgspec.UNSET
    read_again: bool | msgspec.UnsetType = msgspec.UNSET
    trace: list[AnswerStep] | msgspec.UnsetType = msgspec.UNSET
    sentences: list[AnswerText] | msgspec.UnsetType = msgspec.UNSET


class Answer(msgspec.Struct):
    """The translations of a request's sentences, in order, and the seconds in the server, the queue included."""

    model: str
    translations: list[AnswerText]
    seconds: float


class Refusal(msgspec.Struct):
    """The reason why a request got no translation."""

    error: str
    status: int


class Health(msgspec.Struct):
    """The state of the server: "warming up", "ready", "stopping" or "failed"; languages of source and target."""

    status: str
    model: str
    languages: dict[str, str]


REFUSALS = {
    400: "the body is not JSON or has a name twice, or the request has no Host",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not declared as application/json in UTF-8, or is compressed",
    421: "the server does not answer under this host name",
    422: "a field or a sentence is refused",
    429: "the queue is full: try again after Retry-After seconds",
    500: "internal error",
    503: "the server is warming up or stopping",
    504: "there was no answer in time",
}


class RequestReader:
    """Reads requests for a model from JSON.

    Args:
      modes, strategies: names that requests may give. Only requests to a model with the mode "refine" have fields of
        refining.
      counted_by, most_lengths: the field that says how many drafts to try, num_lengths or prefix_beam, and its largest
        value.
    """

    def __init__(
        self,
        limits: Limits,
        modes: Sequence[str],
        strategies: Sequence[str],
        counted_by: str,
        most_lengths: int,
    ):
        sentence = Annotated[str, msgspec.Meta(description="a sentence; an empty one gives an empty translation")]
        sentences = Annotated[list[str], msgspec.Meta(max_length=limits.max_sentences)]
        kinds = frozenset[Literal[tuple(KINDS)]]  # a pattern of a stranger could take for ever
        about = "number of candidates in the answer, at most the hypotheses that are tried"
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
            ("text", sentence | sentences),
            ("split", _described(bool, "translate each sentence of a text by itself"), False),
            ("placeholders", _described(kinds | None, "spans to keep as they are; null: the server's own"), None),
            ("n_best", _described(int, about, ge=0, le=limits.max_lengths), 0),
        ]
        mode: Any = Literal[tuple(modes)]
        about = "how the model writes; null: as the other fields need, else the server's own"
        fields.append(("mode", _described(mode | None, about), None))
        if "refine" in modes:
            steps = _described(int, "decoder passes at most; null: the server's own", ge=1, le=limits.max_steps)
            lengths = _described(int, "lengths, or sentences, to try; null: the server's own", ge=1, le=most_lengths)
            # By name alone: each strategy with other parameters would be another program to compile.
            strategy: Any = Literal[tuple(strategies)]
            fields += [("num_steps", steps | None, None), (counted_by, lengths | None, None)]
            fields += [("trace", _described(bool, "list the draft and every step"), False)]
            fields += [("strategy", _described(strategy | None, "refinement strategy; null: the server's own"), None)]
        self.names = tuple(field[0] for field in fields)
        self.values = {"mode": modes, "strategy": strategies, "placeholders": KINDS}
        self.type: Any = msgspec.defstruct("Request", fields, forbid_unknown_fields=True)
        self._decoder = msgspec.json.Decoder(self.type)

    def __call__(self, body: bytes) -> TranslateRequest:
        """Reads a request.

        >>> reader = RequestReader(Limits(), ["refine"], ["padir"], "num_lengths", most_lengths=8)
        >>> reader(b'{"text": "Hallo!", "num_lengths": 3}').num_lengths
        3
        """
        try:
            parsed_json(body)  # refuses a field that stands twice, of which msgspec takes the last
            asked = self._decoder.decode(body)
        except msgspec.ValidationError as error:
            message = str(error)[:200]
            field = re.search(r"enum value .* `\$\.(\w+)", message)
            known = f"{field[1]} is one of" if field else "the fields are"
            names = self.values[field[1]] if field else self.names
            raise Refused(422, f"{message}; {known} {', '.join(names)}") from None
        except ValueError as error:  # malformed, or no UTF-8
            raise Refused(400, f"the body must be JSON in UTF-8: {error}") from None
        texts = (asked.text,) if isinstance(asked.text, str) else tuple(asked.text)
        return TranslateRequest(texts, **{name: getattr(asked, name) for name in self.names[1:]})


def _described(kind: Any, description: str, ge: int | None = None, le: int | None = None) -> Any:
    return Annotated[kind, msgspec.Meta(description=description, ge=ge, le=le)]


def translated(line: TranslatedLine, asked: TranslateRequest) -> AnswerText:
    """A translated text as an answer; if the request asks for `split`, the sentences have candidates and traces."""
    if not asked.split:
        return _translated(line.translation, asked)
    whole = _translated(line.translation, TranslateRequest(()))
    whole.sentences = [_translated(result, asked, source) for source, result in line.sentences]
    return whole


def _translated(
    result: Translation, asked: TranslateRequest, source: str | msgspec.UnsetType = msgspec.UNSET
) -> AnswerText:
    found = AnswerText(
        text=result.text,
        score=result.score,
        length=result.length,
        passes=result.passes,
        hypotheses=result.hypotheses,
        source=source,
    )
    if asked.n_best:
        found.candidates = [AnswerCandidate(each.text, each.score, each.length) for each in result.candidates]
        found.read_again = result.read_again
    if asked.trace:
        found.trace = [AnswerStep(step.pieces, step.log_probs) for step in result.trace or ()]
    return found


def openapi(reader: RequestReader) -> bytes:
    """The OpenAPI document of the server as JSON."""
    types = (reader.type, Answer, Refusal, Health)
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    request, answer, refusal, health = ({"application/json": {"schema": schema}} for schema in schemas)
    refused = {str(status): {"description": why, "content": refusal} for status, why in REFUSALS.items()}
    translate = {
        "summary": "Translates sentences",
        "requestBody": {"required": True, "content": request},
        "responses": {"200": {"description": "the translations", "content": answer}, **refused},
    }
    states = {"200": {"description": "it is ready", "content": health}}
    states["503"] = {"description": "it is warming up or stopping, or has failed", "content": health}
    figures = {"200": {"description": "the figures", "content": {"text/plain": {"schema": {"type": "string"}}}}}
    document = {
        "openapi": "3.1.0",
        "info": {"title": "padir serve", "version": __version__},
        "paths": {
            "/translate": {"post": translate},
            "/health": {"get": {"summary": "Tells whether the server takes requests", "responses": states}},
            "/metrics": {"get": {"summary": "Gives figures for Prometheus", "responses": figures}},
        },
        "components": {"schemas": components},
    }
    return msgspec.json.encode(document)

"""Requests of POST /translate: their limits, their options, and reading them from JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NoReturn

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
      max_sentences: maximum number of sentences in a request.
      max_characters: maximum number of characters in a sentence; the model also limits the tokens.
      max_steps, max_lengths: largest num_steps, and largest top_k and n_best, of a request.
      max_queue: maximum number of waiting sentences, of all clients together.
      timeout: maximum number of seconds from a request's arrival to its answer.

    Raises:
      PadirError: no request could meet a limit.
    """

    max_body: int = 65_536
    max_sentences: int = 64
    max_characters: int = 2_000
    max_steps: int = 16
    max_lengths: int = 8
    max_queue: int = 1_024
    timeout: float = 30.0

    def __post_init__(self):
        whole = {name: value for name, value in dataclasses.asdict(self).items() if name != "timeout"}
        checks.at_least(1, **whole)
        if not 0 < self.timeout < float("inf"):
            raise PadirError("timeout", "above 0 seconds and finite", self.timeout)
        if self.max_queue < self.max_sentences:
            raise PadirError(
                f"a request of {self.max_sentences} sentences would never fit a queue of {self.max_queue}: raise"
                " max_queue, or lower max_sentences"
            )


@dataclasses.dataclass(frozen=True)
class Options:
    """Decoding options of a request; sentences with other options go into other batches.

    Attributes:
      num_steps, top_k: as in `Decoding` and `LengthSearch`; None for an autoregressive model.
      trace: True if the answer lists every step.
    """

    num_steps: int | None
    top_k: int | None
    trace: bool = False


@dataclasses.dataclass(frozen=True)
class Request:
    """A checked request.

    Attributes:
      texts: the sentences.
      options: decoding options of all sentences.
      n_best: number of candidates in the answer.
      split: translate each sentence of a text by itself.
    """

    texts: tuple[str, ...]
    options: Options
    n_best: int = 0
    split: bool = False


FIELDS = ("text", "split", "num_steps", "top_k", "n_best", "trace")


def read_request(body: bytes, limits: Limits, defaults: Options) -> Request:
    """Reads a request from JSON.

    Args:
      defaults: options that the request does not set; for an autoregressive model, all fields but `text` and
        `split` are refused.

    Raises:
      Refused: 400 if the body is no JSON; 422 if a field is missing, unknown, of the wrong type or beyond its limit.

    >>> read_request(b'{"text": "Hallo!", "top_k": 3}', Limits(), Options(num_steps=4, top_k=1)).options
    Options(num_steps=4, top_k=3, trace=False)
    """
    asked = _json(body)
    if not isinstance(asked, dict):
        raise Refused(422, f'the body must be a JSON object such as {{"text": "..."}}, got {_kind(asked)}')
    if unknown := sorted(set(asked) - set(FIELDS)):
        raise Refused(422, f"unknown field {_short(unknown[0])}: known are {', '.join(FIELDS)}")
    if defaults.num_steps is None and (foreign := [name for name in FIELDS[2:] if name in asked]):
        raise Refused(422, f"the model is autoregressive and has no {foreign[0]}: leave it out")
    texts = _texts(asked, limits)
    if defaults.num_steps is None or defaults.top_k is None:
        return Request(texts, defaults, split=_flag(asked, "split"))
    options = Options(
        num_steps=_integer(asked, "num_steps", defaults.num_steps, 1, limits.max_steps),
        top_k=_integer(asked, "top_k", defaults.top_k, 1, limits.max_lengths),
        trace=_flag(asked, "trace"),
    )
    n_best = _integer(asked, "n_best", 0, 0, limits.max_lengths)
    return Request(texts, options, n_best, split=_flag(asked, "split"))


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise Refused(400, f"the body must be JSON in UTF-8, byte {error.start + 1} is not") from None
    except RecursionError:
        raise Refused(400, "the body must be JSON that is not nested deeply: an object of plain values") from None
    except ValueError as error:  # JSONDecodeError, or the error for a number of thousands of digits
        raise Refused(400, f"the body must be JSON: {error}") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _texts(asked: dict[str, Any], limits: Limits) -> tuple[str, ...]:
    if "text" not in asked:
        raise Refused(422, "text is missing: give a sentence, or a list of sentences")
    texts = [asked["text"]] if isinstance(asked["text"], str) else asked["text"]
    if not isinstance(texts, list):
        raise Refused(422, f"text must be a string or a list of strings, got {_kind(texts)}")
    if len(texts) > limits.max_sentences:
        expected = f"a request has at most {limits.max_sentences} sentences"
        raise Refused(422, f"{expected}, got {len(texts)}: send several requests")
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise Refused(422, f"text must be a string or a list of strings, got {_kind(text)} at place {number}")
        if len(text) > limits.max_characters:
            raise Refused(
                422,
                f"sentence {number} has {len(text):,} characters, the server takes {limits.max_characters:,}: split it",
            )
    return tuple(texts)


def _flag(asked: dict[str, Any], name: str) -> bool:
    value = asked.get(name, False)
    if not isinstance(value, bool):
        raise Refused(422, f"{name} must be true or false, got {_kind(value)}")
    return value


def _integer(asked: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = asked.get(name, default)
    if type(value) is not int:  # true is an int to Python
        raise Refused(422, f"{name} must be a whole number, got {_kind(value)}")
    if not least <= value <= most and name in asked:
        raise Refused(422, f"{name} must be in {least} .. {most}, got {value if abs(value) < 10**9 else 'far more'}")
    return value


def _kind(value: Any) -> str:
    """The JSON name of a value's type."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number"}
    return "null" if value is None else names.get(type(value), "a number")


def _short(name: str) -> str:
    """A client's field name for a message: cut, and in ASCII, as surrogates cannot be encoded."""
    return ascii(name if len(name) <= 40 else f"{name[:40]}...")

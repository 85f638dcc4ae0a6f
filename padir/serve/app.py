"""The ASGI application: POST /translate, GET /health, GET /metrics, and the page at /."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import Future
from typing import Any

from starlette import requests
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from padir.decoding.streaming import TranslatedLine, join_sentences
from padir.decoding.translation import Translation
from padir.errors import PadirError
from padir.serve.connections import KnownHosts
from padir.serve.engine import Engine
from padir.serve.page import CONTENT_SECURITY_POLICY, page
from padir.serve.request import Options, Refused, Request, read_request
from padir.text.sentences import Paragraph

LEFT = 499  # status in the metrics for a client that left and gets no answer
_PLAIN = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class _Left(Exception):
    """The client closed its connection."""


def make_app(
    engine: Engine,
    model: str,
    changed: Callable[[Engine], None] = lambda engine: None,
    hosts: Collection[str] = (),
) -> Starlette:
    """Makes the application, which starts and closes the engine.

    Args:
      model: the model's name in answers and on the page.
      changed: called when the engine is ready, or has failed.
      hosts: host names that requests may be for, beside "localhost" and numeric addresses.
    """
    shown = page(engine, model)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        engine.start(changed)
        yield
        await asyncio.to_thread(engine.close)

    async def translate(request: requests.Request) -> Response:
        began, status = time.perf_counter(), 500
        try:
            asked, results = await _answer(engine, request)
            status, seconds = 200, time.perf_counter() - began
            engine.metrics.seconds.observe(seconds)
            body = await answer_json(model, seconds, [translation_json(result, asked) for result in results])
            return Response(body, headers=_PLAIN, media_type="application/json")
        except _Left:
            status = LEFT
            return Response(status_code=LEFT)
        except PadirError as error:
            status = error.status if isinstance(error, Refused) else 422
            return refusal(status, str(error), error.retry_after if isinstance(error, Refused) else None)
        finally:
            engine.metrics.requests.labels(str(status)).inc()

    async def health(request: requests.Request) -> Response:
        languages = {"source": engine.translator.card.source_language, "target": engine.translator.card.target_language}
        found = {
            "status": engine.state,
            "shapes_left": engine.shapes_left,
            "model": model,
            "languages": languages,
        }
        headers = _PLAIN if engine.ready else _PLAIN | {"Retry-After": "5"}
        return JSONResponse(found, 200 if engine.ready else 503, headers)

    async def metrics(request: requests.Request) -> Response:
        text, content_type = engine.metrics.text(request.headers.get("accept", ""))
        return Response(text, headers=_PLAIN | {"Content-Type": content_type})

    async def home(request: requests.Request) -> Response:
        return HTMLResponse(shown, headers=_PLAIN | {"Content-Security-Policy": CONTENT_SECURITY_POLICY})

    routes = [
        Route("/", home),
        Route("/translate", translate, methods=["POST"]),
        Route("/health", health),
        Route("/metrics", metrics),
    ]
    handlers: Any = {HTTPException: _no_such_thing, Exception: _our_fault}
    guards = [Middleware(KnownHosts, names=hosts)]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers, middleware=guards)


async def answer_json(model: str, seconds: float, translations: list[dict[str, Any]]) -> bytes:
    """Writes the answer as JSON, one translation at a time: to write megabytes at once would delay other clients."""
    written = []
    for each in translations:
        written.append(json.dumps(each, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
        await asyncio.sleep(0)
    name = json.dumps(model, ensure_ascii=False)
    return f'{{"model":{name},"translations":[{",".join(written)}],"seconds":{seconds:.6f}}}'.encode()


def translation_json(line: TranslatedLine, asked: Request) -> dict[str, Any]:
    """A translated text as JSON; if the request asks for `split`, the sentences have candidates and traces."""
    if not asked.split:
        return _fields(line.translation, asked)
    plain = Request((), Options(None, None))
    sentences = [{"source": source, **_fields(result, asked)} for source, result in line.sentences]
    return {**_fields(line.translation, plain), "sentences": sentences}


def _fields(result: Translation, asked: Request) -> dict[str, Any]:
    """A translation as JSON with finite numbers, and with candidates and trace if the request asks for them."""
    found: dict[str, Any] = {
        "text": result.text,
        "score": _finite(result.score),
        "length": result.length,
        "passes": result.passes,
        "hypotheses": result.hypotheses,
    }
    if asked.n_best:
        found["candidates"] = [
            {"text": text, "score": _finite(score), "length": length}
            for (text, score), length in zip(result.candidates, result.candidate_lengths, strict=True)
        ]
    if asked.options.trace:
        found["trace"] = [
            {"pieces": list(pieces), "log_probs": [None if p is None else _finite(p) for p in log_probs]}
            for pieces, log_probs in result.trace or ()
        ]
    return found


def refusal(status: int, message: str, retry_after: int | None = None) -> JSONResponse:
    """An error response as JSON."""
    headers = _PLAIN if retry_after is None else _PLAIN | {"Retry-After": str(retry_after)}
    return JSONResponse({"error": message, "status": status}, status, headers)


async def _answer(engine: Engine, request: requests.Request) -> tuple[Request, list[TranslatedLine]]:
    """Reads a request and waits for its translations, or until its time is up or its client has left.

    Raises:
      PadirError: the request is refused (`Refused`), or the options do not fit the model.
      _Left: the client has left.
    """
    limits, deadline = engine.limits, time.monotonic() + engine.limits.timeout
    _check_type(request)
    try:
        async with asyncio.timeout(limits.timeout):
            body = await _body(request, limits.max_body)
    except TimeoutError:
        raise Refused(408, f"the request did not arrive within {limits.timeout:g} s: send it faster") from None
    except requests.ClientDisconnect:
        raise _Left from None
    asked = read_request(body, limits, engine.defaults)
    card = engine.translator.card
    paragraphs = [
        Paragraph.split(text, card.source_language) if asked.split else Paragraph.whole(text) for text in asked.texts
    ]
    sentences = tuple(sentence for paragraph in paragraphs for sentence in paragraph.sentences)
    if len(sentences) > limits.max_sentences:
        expected = f"a request has at most {limits.max_sentences} sentences"
        raise Refused(422, f"{expected}, got {len(sentences)}: send several requests")
    request_of_sentences = dataclasses.replace(asked, texts=sentences)
    futures = await asyncio.to_thread(engine.submit, request_of_sentences)  # tokenising takes a while
    answer = asyncio.ensure_future(_all(futures))
    left = asyncio.ensure_future(_until_left(request))
    try:
        left_over = max(0.0, deadline - time.monotonic())
        done, _ = await asyncio.wait({answer, left}, timeout=left_over, return_when=asyncio.FIRST_COMPLETED)
        if answer in done:
            return asked, join_sentences(asked.texts, paragraphs, answer.result(), card.target_language)
        if left in done:
            raise _Left
        raise Refused(504, f"the translation took more than {limits.timeout:g} s: try fewer sentences, or later")
    finally:  # translations that nobody waits for are cancelled
        left.cancel()
        answer.cancel()
        for future in futures:
            future.cancel()


def _check_type(request: requests.Request) -> None:
    """Refuses content types other than JSON, which any web page could send without the browser's permission check."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "the content type must be application/json: set the header, and send JSON")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "the body must not be compressed: send plain JSON")


async def _body(request: requests.Request, most: int) -> bytes:
    """Reads the body of a request, and refuses more than `most` bytes.

    Raises:
      Refused: 413 if the body is larger.
    """
    problem = Refused(413, f"a request has at most {most:,} bytes: send several requests")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > most:
        raise problem
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise problem
    return bytes(body)


async def _all(futures: list[Future[Translation]]) -> list[Translation]:
    return [await asyncio.wrap_future(future) for future in futures]


async def _until_left(request: requests.Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _no_such_thing(request: requests.Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = refusal(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    response.headers.update(error.headers or {})
    return response


async def _our_fault(request: requests.Request, error: Exception) -> Response:
    return refusal(500, "internal server error: see the server's log")


def _finite(number: float) -> float:
    """Replaces infinity, which JSON does not have, by a very large number."""
    return number if math.isfinite(number) else math.copysign(1e30, number)

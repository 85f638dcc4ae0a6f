"""The ASGI application: POST /translate, GET /health, /metrics and /openapi.json, and the page at /.

The page is one self-contained HTML file made of page.html, page.css and page.js.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import html
import importlib.resources
import ipaddress
import json
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any
from urllib.parse import urlsplit

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette import requests
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from padir.decoding.paragraphs import join_sentences
from padir.errors import PadirError
from padir.reporting.page import STYLE
from padir.serve.engine import Engine
from padir.serve.messages import (
    Answer,
    AnswerText,
    Health,
    Refused,
    RequestReader,
    TranslateRequest,
    openapi,
    translated,
)

_log = logging.getLogger("padir.serve")
_NUMBER = "X-Request-ID"
LEFT = 499  # status in the metrics for a client that left and gets no answer
# A content type whose charset, if it has one, is UTF-8; its other parameters mean nothing.
_JSON = re.compile(r'(?i)\s*application/json\s*(;(?!\s*charset\b)[^;]*|;\s*charset\s*=\s*"?utf-?8"?\s*)*')
_PLAIN = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class _Left(Exception):
    """The client closed its connection."""


def make_app(
    engine: Engine,
    model: str,
    changed: Callable[[Engine], None] = lambda engine: None,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
) -> Starlette:
    """Makes the application, which starts and closes the engine.

    Args:
      model: the model's name in answers and on the page.
      changed: called when the engine is ready, or has failed.
      hosts: host names that requests may use, besides "localhost" and numeric addresses.
      origins: origins of pages that may read answers, such as https://mine.example, or "*".
    """
    read = RequestReader(engine.limits, engine.modes, engine.strategies, engine.counted_by, engine.most_lengths)
    shown, described = page(settings_of(engine, model)), openapi(read)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        engine.start(changed)
        yield
        await asyncio.to_thread(engine.close)

    async def translate(request: requests.Request) -> Response:
        began, status = time.perf_counter(), 500
        try:
            translations = await _answer(engine, read, request)
            status = 200
            answer = Answer(model, translations, time.perf_counter() - began)
            engine.metrics.seconds.observe(answer.seconds)
            return Response(msgspec.json.encode(answer), headers=_PLAIN, media_type="application/json")
        except _Left:
            status = LEFT
            return Response(status_code=LEFT)
        except PadirError as error:
            status = error.status if isinstance(error, Refused) else 422
            return refusal(status, str(error), error.retry_after if isinstance(error, Refused) else None)
        finally:
            engine.metrics.requests.labels(str(status)).inc()

    async def health(request: requests.Request) -> Response:
        card = engine.translator.card
        languages = {"source": card.source_language, "target": card.target_language}
        headers = _PLAIN if engine.ready else _PLAIN | {"Retry-After": "5"}
        found = msgspec.json.encode(Health(engine.state, model, languages))
        return Response(found, 200 if engine.ready else 503, headers, "application/json")

    async def metrics(request: requests.Request) -> Response:
        return Response(generate_latest(engine.metrics.registry), headers=_PLAIN, media_type=CONTENT_TYPE_LATEST)

    async def home(request: requests.Request) -> Response:
        return HTMLResponse(shown, headers=_PLAIN | {"Content-Security-Policy": CONTENT_SECURITY_POLICY})

    async def description(request: requests.Request) -> Response:
        return Response(described, headers=_PLAIN, media_type="application/json")

    handlers: Any = {HTTPException: _no_such_thing, Exception: _our_fault}
    headers: Any = {"allow_headers": ["Content-Type", _NUMBER], "expose_headers": [_NUMBER, "Retry-After"]}
    others = Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["POST"], **headers)
    return Starlette(
        routes=[
            Route("/", home),
            Route("/translate", translate, methods=["POST"]),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/openapi.json", description),
        ],
        lifespan=lifespan,
        exception_handlers=handlers,
        middleware=[Middleware(Numbered), *([others] if origins else []), Middleware(KnownHosts, names=hosts)],
    )


def refusal(status: int, message: str, retry_after: int | None = None) -> JSONResponse:
    """An error response as JSON (`padir.serve.messages.Refusal`); a message that quotes a client is cut."""
    headers = _PLAIN if retry_after is None else _PLAIN | {"Retry-After": str(retry_after)}
    return JSONResponse({"error": message[:500], "status": status}, status, headers)


async def _no_such_thing(request: requests.Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = refusal(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    response.headers.update(error.headers or {})
    return response


async def _our_fault(request: requests.Request, error: Exception) -> Response:
    number = request.scope["state"][_NUMBER]
    _log.error("request %s failed", number)
    response = refusal(500, "internal server error: see the server's log")
    response.headers[_NUMBER] = number  # the handler stands outside of all middleware
    return response


async def _answer(engine: Engine, read: RequestReader, request: requests.Request) -> list[AnswerText]:
    """Reads a request and waits for its translations, or until its time is up or its client has left.

    Raises:
      PadirError: the request is refused (`Refused`), or the options do not fit the model.
      _Left: the client has left.
    """
    limits = engine.limits
    deadline = engine.clock() + limits.timeout
    _check_type(request)
    try:
        async with asyncio.timeout(limits.timeout):
            body = await _body(request, limits.max_body)
    except TimeoutError:
        raise Refused(408, f"the request did not arrive within {limits.timeout:g} s: send it faster") from None
    except requests.ClientDisconnect:
        raise _Left from None
    client = request.client.host if request.client else ""
    answer = asyncio.ensure_future(_results(engine, read(body), client))
    left = asyncio.ensure_future(_until_left(request))
    try:
        while (left_over := deadline - engine.clock()) > 0:  # the clock stands still while a program is compiled
            await asyncio.wait({answer, left}, timeout=max(left_over, 0.05), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if left.done():
                raise _Left
        late = f"the translation took more than {limits.timeout:g} s: send fewer sentences, or try again later"
        raise Refused(504, late)
    finally:
        left.cancel()
        answer.cancel()


async def _results(engine: Engine, asked: TranslateRequest, client: str) -> list[AnswerText]:
    """Waits for all translations of a request; takes its sentences out of the queue if it is cancelled.

    Work on texts runs in threads, so that the event loop answers other clients meanwhile.
    """
    paragraphs, sentences = await asyncio.wrap_future(engine.prepare_in_turn(asked, client))
    futures = engine.submit(sentences, client)
    try:
        results = await asyncio.gather(*map(asyncio.wrap_future, futures))
    except PadirError as error:  # the options were checked by `prepare`, so that the model is at fault
        _log.error("a batch failed: %s", error)
        raise Refused(500, str(error)) from error
    finally:
        for future in futures:
            future.cancel()
    language = engine.translator.card.target_language

    def joined() -> list[AnswerText]:
        return [translated(line, asked) for line in join_sentences(asked.texts, paragraphs, results, language)]

    return await asyncio.to_thread(joined)


async def _body(request: requests.Request, most: int) -> bytes:
    """Reads the body of a request; refuses more than `most` bytes with status 413, as soon as they are announced."""
    body = bytearray()
    declared = request.headers.get("content-length", "0")
    too_large = not declared.isdecimal() or int(declared) > most
    if not too_large:
        async for chunk in request.stream():
            body += chunk
            if too_large := len(body) > most:
                break
    if too_large:
        raise Refused(413, f"a request must have at most {most:,} bytes: send several requests")
    return bytes(body)


async def _until_left(request: requests.Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_type(request: requests.Request) -> None:
    """Refuses what is not JSON in UTF-8; web pages could send other types without the browser's permission check."""
    if not _JSON.fullmatch(request.headers.get("content-type", "")):
        raise Refused(415, "the content type must be application/json in UTF-8: set the header, and send JSON in UTF-8")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "the body must not be compressed: send plain JSON")


class Numbered:
    """ASGI middleware that gives each request an id, the client's own or a random one, and each answer its header."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def numbered(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[_NUMBER] = number
            await send(message)

        given = Headers(scope=scope).get(_NUMBER, "") if scope["type"] == "http" else ""
        number = given if re.fullmatch(r"[\w.:-]{1,64}", given, re.ASCII) else secrets.token_hex(8)
        scope.setdefault("state", {})[_NUMBER] = number
        await self.app(scope, receive, numbered)


class KnownHosts:
    """ASGI middleware that refuses requests for host names that the server does not know.

    A web page can lead a browser to this server under the page's own host name (DNS rebinding), and could then read the
    answers. Numeric addresses are accepted, because no page can own them; `TrustedHostMiddleware` has no rule for them.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]):
        self.app, self.names = app, frozenset(name.lower() for name in ("localhost", *names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self.app
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if not host and scope.get("http_version") == "1.1":
            answer = refusal(400, "a request needs a header Host with the server's name or address: send it")
        elif not is_known(host, self.names):
            answer = refusal(421, "the server does not answer under this host name: start it with allowed_hosts=NAME")
        await answer(scope, receive, send)


def is_known(host: str, names: Collection[str]) -> bool:
    """True for a Host header without a name, with a numeric address, or with one of the names; the port is ignored.

    >>> is_known("[::1]:8000", ()), is_known("evil.example:8000", ("localhost",))
    (True, False)
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if not host or name in names:
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


EXAMPLES = {
    "de": ("Wo ist der Bahnhof?", "Ich habe heute leider keine Zeit.", "Kannst du mir bitte morgen beim Umzug helfen?")
}
_FILES = importlib.resources.files("padir.serve")
_STYLE = STYLE + (_FILES / "page.css").read_text(encoding="utf-8")
_SCRIPT = (_FILES / "page.js").read_text(encoding="utf-8")


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# The browser may use only this script and this style sheet, and send requests to this server alone.
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; script-src {_hashed(_SCRIPT)}; style-src {_hashed(_STYLE)}; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def settings_of(engine: Engine, model: str) -> dict[str, Any]:
    """The settings of a server's page."""
    card, limits = engine.translator.card, engine.limits
    ids, pieces = engine.translator.model.ids, engine.translator.tokenizer.pieces
    return {
        "model": model,
        "source": card.source_language,
        "target": card.target_language,
        "causal": card.config.causal,
        "num_steps": engine.decoding.num_steps if "refine" in engine.modes else None,
        "several": engine.counted_by,
        "hypotheses": getattr(engine.decoding, engine.counted_by),
        "max_steps": limits.max_steps,
        "max_lengths": engine.most_lengths,
        "examples": EXAMPLES.get(card.source_language, ()),
        "blank": pieces[ids.blank] if ids.writes_blank else None,
    }


def page(settings: dict[str, Any]) -> str:
    """Makes the page of a model as HTML; with `local` in its settings, the model runs in the page (docs/export.md)."""
    # Only "<" can begin a tag that ends the script element.
    filled = {"MODEL": html.escape(settings["model"]), "SETTINGS": json.dumps(settings).replace("<", "\\u003c")}
    filled |= {"STYLE": _STYLE, "SCRIPT": _SCRIPT}
    return re.sub("%([A-Z]+)%", lambda place: filled[place[1]], (_FILES / "page.html").read_text(encoding="utf-8"))

"""Guards of the server's connections: the names that it answers to, and the time that a request's headers may take."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

# Time limit for a request's headers, from the connection's start or from the first byte of a further request.
HEADER_SECONDS = 10.0


class KnownHosts:
    """ASGI middleware that refuses requests for host names that the server was not told.

    A web page can lead a browser to this server under a name of the page's own (DNS rebinding), and would then read the
    answers. Numeric addresses are accepted, because no page can own them.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]):
        self.app, self.names = app, frozenset(name.lower() for name in ("localhost", *names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if is_known(host, self.names):
            await self.app(scope, receive, send)
        else:
            message = "the server does not answer under this host name: start it with --allowed_host NAME"
            await JSONResponse({"error": message, "status": 421}, 421)(scope, receive, send)


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


STALLED_SECONDS = 30.0  # for a client to read what fills the buffer of its connection
_Protocol: Any = AutoHTTPProtocol  # one of uvicorn's two classes, whichever is installed


class TimedHeaders(_Protocol):
    """uvicorn's HTTP protocol, which here closes a connection whose client is late to send headers or to read answers.

    By itself, uvicorn limits the time between two requests, but neither the time before the first request nor the time
    that a request's headers take to arrive.
    """

    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering():
            self._stop_waiting()
        elif self._waiting is None:
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stalled()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_stalled()
        super().connection_lost(exc)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(HEADER_SECONDS, self._close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _stop_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _close(self) -> None:
        self._waiting = None
        if not self._answering():
            self.transport.close()

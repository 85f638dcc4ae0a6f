"""The server process: its socket and connections, uvicorn, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
from collections.abc import Callable, Collection, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from padir.errors import PadirError
from padir.serve.app import make_app
from padir.serve.engine import Engine

# Time limits in seconds. A request's headers must arrive within the first, counted from the connection's start or the
# request's first byte. A client whose buffer is full must read within the second.
HEADER_SECONDS, STALLED_SECONDS = 10.0, 30.0
GRACE_SECONDS = 60.0  # seconds beyond a request's timeout, such as for compiling, after which the server ends anyway
LATE_SECONDS = 0.5  # seconds in which the server still reads requests that were sent before it was asked to end
_Protocol: Any = AutoHTTPProtocol  # one of uvicorn's two classes, whichever is installed


def serve(
    engine: Engine,
    model: str,
    *,
    host: str,
    port: int,
    tell: Callable[[str], None],
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
) -> dict[str, int]:
    """Serves until SIGTERM or SIGINT; then answers the requests that were sent so far, and ends.

    Args:
      model: the model's name in answers and on the page.
      port: 0 takes a free port.
      tell: gets the address, and a message when the server is ready.
      allowed_hosts: host names under which clients reach the server, besides `host`, "localhost" and numeric addresses.
      allowed_origins: origins of web pages that may read answers (CORS), such as https://mine.example.

    Returns:
      Numbers of requests, sentences and passes.

    Raises:
      PadirError: the port or the host does not exist.
      OSError: the port is taken, or the host is not an address of this machine.
      Exception: the error of a failed warm-up.
    """
    with _listening(host, port) as listener:
        name, taken = listener.getsockname()[:2]
        address = f"http://{f'[{name}]' if ':' in name else name}:{taken}/"

        def changed(engine: Engine) -> None:
            if engine.failure is not None:
                server.should_exit = True
            elif engine.ready:
                tell(f"ready at {address}")

        config = uvicorn.Config(
            make_app(engine, model, changed, (host, *allowed_hosts), allowed_origins),
            http=TimedHeaders,
            lifespan="on",
            ws="none",
            log_level="warning",
            access_log=False,  # for the users' privacy
            server_header=False,
            proxy_headers=False,  # any client can claim another address in X-Forwarded-For
            timeout_graceful_shutdown=math.ceil(engine.limits.timeout + GRACE_SECONDS),
        )
        server = Server(config)
        tell(f"{model} at {address}, warming up")
        # After an orderly end, uvicorn raises the signal again that asked it to end.
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    if engine.failure is not None:
        raise engine.failure
    return {name: engine.metrics.total(name) for name in ("requests", "sentences", "passes")}


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Opens a listening socket of the host's address family."""
    if not 0 <= port <= 65535:  # getaddrinfo takes the lower 16 bits
        raise PadirError("port", "in 0 .. 65535", port, "0 takes a free one")
    try:
        ((family, _, _, _, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        expected = "an address or a name of this machine"
        raise PadirError("host", expected, host, getattr(error, "strerror", "")) from None
    try:
        listener = socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), f"{host}:{port}") from None
    with listener:
        yield listener


class Server(uvicorn.Server):
    """uvicorn's server, changed to read late requests before it ends; uvicorn itself resets their connections."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for _ in range(10):  # rounds of the event loop, to accept a connection and to read from it
            await asyncio.sleep(LATE_SECONDS / 10)
        await super().shutdown(sockets)


class TimedHeaders(_Protocol):
    """uvicorn's HTTP protocol, changed to close a connection whose client is slow to send headers or to read answers.

    By itself, uvicorn limits the time between two requests, but neither the time before the first request nor the time
    that a request's headers take to arrive.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._timers["headers"] = self.loop.call_later(HEADER_SECONDS, self._close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering():
            self._stop("headers")
        elif "headers" not in self._timers:
            self._timers["headers"] = self.loop.call_later(HEADER_SECONDS, self._close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._timers["reading"] = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("reading")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("headers")
        self._stop("reading")
        super().connection_lost(exc)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()

    def _close(self) -> None:
        del self._timers["headers"]
        if not self._answering():
            self.transport.close()

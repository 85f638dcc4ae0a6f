"""The process: a socket, uvicorn, and an end in good order."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Callable, Iterator

import uvicorn

from padir.errors import PadirError
from padir.serve.app import make_app
from padir.serve.engine import Engine


def serve(
    engine: Engine, model: str, *, host: str, port: int, tell: Callable[[str], None], grace: float = 5.0
) -> dict[str, int]:
    """Serves until SIGTERM or SIGINT; then takes no more requests and answers those that it has.

    Args:
      model: its name, for answers and the page.
      port: 0 takes a free one.
      tell: told the address, and when the server is ready.
      grace: seconds beyond a request's timeout after which it ends nevertheless.

    Returns:
      How many requests, sentences and passes there were.

    Raises:
      PadirError: there is no such port, or no such host.
      OSError: the port is taken, or the host is none of this machine's.
      Exception: what the warm-up failed with.
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
            make_app(engine, model, changed),
            lifespan="on",
            ws="none",
            log_level="warning",
            access_log=False,  # what people write is theirs
            server_header=False,
            timeout_graceful_shutdown=math.ceil(engine.limits.timeout + grace),
        )
        server = uvicorn.Server(config)
        tell(f"{model} at {address}, warming up")
        # Having ended in good order, uvicorn raises the signal again that it was told to end by.
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listener])
    if engine.failure is not None:
        raise engine.failure
    return {name: engine.metrics.total(name) for name in ("requests", "sentences", "passes")}


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens, of the address family that the host has."""
    if not 0 <= port <= 65535:  # getaddrinfo takes the lower 16 bits
        raise PadirError("port", "in 0 .. 65535", port, "0 takes a free one")
    try:
        ((family, _, _, _, address), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        expected = "an address or a name of this machine"
        raise PadirError("host", expected, host, f"{error.strerror}") from None
    try:
        listener = socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), f"{host}:{port}") from None
    with listener:
        yield listener

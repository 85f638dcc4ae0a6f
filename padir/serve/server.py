"""The server process: socket, uvicorn, and an orderly end."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Callable, Collection, Iterator

import uvicorn

from padir.errors import PadirError
from padir.serve.app import make_app
from padir.serve.connections import TimedHeaders
from padir.serve.engine import Engine


def serve(
    engine: Engine,
    model: str,
    *,
    host: str,
    port: int,
    tell: Callable[[str], None],
    allowed_hosts: Collection[str] = (),
    grace: float = 5.0,
) -> dict[str, int]:
    """Serves until SIGTERM or SIGINT; then refuses further requests and answers those that it has.

    Args:
      model: the model's name in answers and on the page.
      port: 0 takes a free port.
      tell: gets the address, and a message when the server is ready.
      allowed_hosts: host names under which clients reach the server, beside `host`, "localhost" and numeric addresses.
      grace: seconds beyond a request's timeout after which the server ends in any case.

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
            make_app(engine, model, changed, (host, *allowed_hosts)),
            http=TimedHeaders,
            lifespan="on",
            ws="none",
            log_level="warning",
            access_log=False,  # for the users' privacy
            server_header=False,
            timeout_graceful_shutdown=math.ceil(engine.limits.timeout + grace),
        )
        server = uvicorn.Server(config)
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
    except socket.gaierror as error:
        expected = "an address or a name of this machine"
        raise PadirError("host", expected, host, f"{error.strerror}") from None
    try:
        listener = socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), f"{host}:{port}") from None
    with listener:
        yield listener

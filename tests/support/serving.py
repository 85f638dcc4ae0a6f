"""A server on a free port of this machine, as uvicorn runs it, and models that wait or fail as a test wants."""

import contextlib
import socket
import threading
import time

import httpx
import pytest
import uvicorn

from padir.decoding import Decoding
from padir.serve.app import make_app
from padir.serve.engine import Engine
from padir.serve.messages import Limits
from padir.serve.server import Server, TimedHeaders
from padir.translator import Translator


class Gated(Translator):
    """A translator that waits for its gate before each batch, and fails where a source has `bad_length` tokens."""

    def __init__(self, translator, bad_length=None):
        super().__init__(translator.params, translator.card, translator.tokenizer)
        self.gate, self.entered, self.bad_length = threading.Event(), threading.Semaphore(0), bad_length
        self.batches = []
        self.gate.set()

    def batch_translator(self, decoding, *, trace=False):
        made = super().batch_translator(decoding, trace=trace)

        def translate_batch(sources):
            self.enter(sources)
            return made(sources)

        return translate_batch

    def busy(self, pool, client):
        """A request whose batch waits for the gate, which is closed now."""
        self.gate.clear()
        asked = pool.submit(ask, client, "eins")
        assert self.entered.acquire(timeout=30)
        return asked

    def enter(self, sources):
        self.entered.release()
        assert self.gate.wait(30)
        self.batches.append(len(sources))
        if self.bad_length in [len(source.tokens) for source in sources]:
            raise RuntimeError("out of memory")


def engine_of(translator, decoding=Decoding(batch_size=4), limits=Limits(), **options):  # noqa: B008
    return Engine(translator, decoding, limits, **{"warm_up": 0, **options})


@contextlib.contextmanager
def running(engine, wait=True, origins=()):
    """A client of the engine's server, whose `uvicorn` is the server and `port` the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = make_app(engine, "tiny", hosts=["Mine.example"], origins=origins)
    how = {"http": TimedHeaders, "lifespan": "on", "ws": "none", "proxy_headers": False}
    config = uvicorn.Config(app, **how, log_level="critical")
    server = Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    port = listener.getsockname()[1]
    try:
        # uvicorn closes a connection after an internal error, so that the next request must not use it.
        fresh = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120, limits=fresh) as client:
            client.uvicorn, client.port = server, port
            until(lambda: client.get("/health").status_code == 200 if wait else server.started)
            yield client
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def ask(client, text, **fields):
    """The translations that a server gives."""
    response = client.post("/translate", json={"text": text, **fields})
    assert response.status_code == 200, response.text
    return response.json()["translations"]


def turned_away(client, status, words, headers=None, **fields):
    """The answer to a request that the server refuses with a status and words."""
    response = client.post("/translate", json={"text": "eins"} | fields, headers=headers)
    assert response.status_code == status and words in response.json()["error"]
    return response


def same(answers, expected):
    """Equal, but for the last bits of scores: batches of other shapes are other matrix products."""
    names = ("text", "length", "passes", "hypotheses")
    assert [[a[name] for name in names] for a in answers] == [[getattr(e, name) for name in names] for e in expected]
    assert [a["score"] for a in answers] == pytest.approx([e.score for e in expected], abs=1e-4)


def connection(port, *sent, body=b""):
    """A raw connection that has sent bytes, or the head of a request for a translation with a body of that length."""
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    found = socket.create_connection(("127.0.0.1", port), timeout=120)
    for each in sent or [f"{head}Content-Length: {len(body)}\r\n\r\n".encode()]:
        found.sendall(each)
    return found


def until(condition, seconds=30):
    """Waits until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def figure(client, name):
    """One of the server's figures, 0 where there is none yet."""
    lines = client.get("/metrics").text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"padir_{name} ")), 0.0)

"""Clients side by side: the work, the queue, the log and the memory that one of them can take from the others."""

import concurrent.futures
import contextlib
import gc
import sys
import threading

import httpx
import pytest
from support.serving import ask, connection, engine_of, figure, running, turned_away, until

from padir.cli import entry
from padir.serve.messages import Limits
from padir.serve.server import serve
from padir.text.sentences import Paragraph

OTHER = "127.0.0.2"  # another address of this machine
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no further loopback address")


@contextlib.contextmanager
def at(client, address):
    """A client at another address."""
    transport = httpx.HTTPTransport(local_address=address)
    with httpx.Client(base_url=client.base_url, timeout=120, transport=transport) as other:
        yield other


@needs_linux
def test_one_address_leaves_room_for_another(gated):
    with running(engine_of(gated, limits=Limits(max_queue=8, max_sentences=4))) as client, at(client, OTHER) as other:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = [gated.busy(pool, client)]
            asked += [pool.submit(ask, client, ["eins", "zwei"]) for _ in range(2)]
            until(lambda: figure(client, "queue_sentences") == 4)
            turned_away(client, 429, "4 of this client", {"X-Forwarded-For": "10.0.0.1"})
            asked.append(pool.submit(ask, other, ["drei", "vier"]))
            until(lambda: figure(client, "queue_sentences") == 6)
            gated.gate.set()
            assert [len(future.result(60)) for future in asked] == [1, 2, 2, 2]


def test_no_header_changes_the_address_of_a_client(translator, monkeypatch):
    configs = []
    monkeypatch.setattr("padir.serve.server.Server.run", lambda server, sockets: configs.append(server.config))
    serve(engine_of(translator), "tiny", host="127.0.0.1", port=0, tell=lambda _: None)
    assert configs[0].proxy_headers is False


@needs_linux
def test_a_text_that_takes_long_holds_up_its_own_client_alone(translator, monkeypatch):
    """While it is split, the event loop answers; then clients take turns, whoever has sent more."""
    gate, begun, split = threading.Event(), [], Paragraph.split

    def slow(text, *how):
        begun.append(text)
        assert gate.wait(30)
        return split(text, *how)

    monkeypatch.setattr(Paragraph, "split", slow)
    engine = engine_of(translator)
    with running(engine) as client, at(client, OTHER) as other:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            greedy = [pool.submit(ask, client, "eins zwei", split=True) for _ in range(4)]
            until(lambda: begun and engine._preparer.waiting == 3)
            plain = pool.submit(ask, other, "acht", split=True)
            until(lambda: engine._preparer.waiting == 4)
            assert client.get("/health").status_code == 200
            gate.set()
            [future.result(60) for future in [*greedy, plain]]
    assert begun.index("acht") <= 2 and len(begun) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (["e" * 201, "eins"], "sentence 1 has more than 200 characters: split it"),
        (["eins", " " * 201], "sentence 2 has more than 200 characters: split it"),
        (["<b>" * 5 + "eins" + "</b>" * 5], "sentence 1 has more than the 7 tokens or spans of the model"),
    ],
)
def test_what_would_take_long_is_refused_before_it_does(translator, monkeypatch, text, message):
    read, tokens = [], type(translator.loaded).source_tokens
    monkeypatch.setattr(
        type(translator.loaded), "source_tokens", lambda *how, **more: read.append(how[1]) or tokens(*how, **more)
    )
    with running(engine_of(translator, limits=Limits(max_characters=200))) as client:
        turned_away(client, 422, message, text=text, placeholders=["tags"])
    assert not any(len(each) > 200 for each in read) and len(read) < 2


def test_spans_beside_the_words_that_fit(translator):
    with running(engine_of(translator)) as client:
        (answer,) = ask(client, "<b>" * 3 + "eins" + "</b>" * 3, placeholders=["tags"])
        assert answer["text"].count("<b>") == 3 == answer["text"].count("</b>")
        assert [each["text"] for each in ask(client, ["<b></b>", "", "  "], placeholders=["tags"])] == [
            "<b></b>",
            "",
            "",
        ]


def test_clients_that_left_leave_nothing_behind(gated, caplog):
    """Neither a job, nor a line in the log about a result that nobody fetched."""
    engine = engine_of(gated)
    body = b'{"text": ["eins", "zwei", "drei"]}'
    with running(engine) as client:
        gated.gate.clear()
        with contextlib.ExitStack() as stack:
            leaving = [stack.enter_context(connection(client.port, body=body)) for _ in range(20)]
            for one in leaving:
                one.sendall(body)
            assert gated.entered.acquire(timeout=30)
            until(lambda: figure(client, "queue_sentences") >= 50)
        until(lambda: figure(client, "queue_sentences") == 0)
        until(lambda: figure(client, 'requests_total{status="499"}') == 20)
        gated.gate.set()
        gc.collect()
        assert client.get("/health").status_code == 200
    gc.collect()
    assert not [record for record in caplog.records if "never retrieved" in record.getMessage()]
    assert not engine._batcher._clients and not engine._preparer._clients


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/" + "x" * 9_000, {}),
        ("/translate", {"x" * 3_000: 1}),
        ("/translate", {"text": "eins", "mode": "x" * 3_000}),
        ("/translate", {"text": "eins", "placeholders": ["x" * 3_000]}),
    ],
)
def test_messages_do_not_grow_with_what_they_quote(client, path, fields):
    refused = client.post(path, json=fields)
    assert refused.status_code in (404, 422) and 20 < len(refused.json()["error"]) <= 500


def test_threads_of_tensorstore_print_nothing_after_a_failed_write(capsys, monkeypatch):
    monkeypatch.setattr("padir.cli.entry.main", lambda: 3)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with pytest.raises(SystemExit):
        entry.command()

    class Closing:
        def __init__(self, message):
            self.message = message

        def __del__(self):
            raise RuntimeError(self.message)

    Closing("Event loop is closed")
    assert capsys.readouterr().err == ""
    Closing("another")
    assert "another" in capsys.readouterr().err

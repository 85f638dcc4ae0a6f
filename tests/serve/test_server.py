"""The server under load: the queue, time limits, the warm-up, half requests, and an orderly end."""

import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax.monitoring
import pytest
from support.serving import Gated, ask, connection, engine_of, figure, running, same, turned_away, until
from support.tiny_model import random_model_dir, random_translator

from padir.cli import main
from padir.decoding.encoding import encode
from padir.decoding.options import Decoding
from padir.decoding.program_cache import PROGRAMS
from padir.decoding.refine_batch import refine_drafts
from padir.serve.engine import Engine, row_lengths
from padir.serve.messages import Limits


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return random_model_dir(tmp_path_factory.mktemp("served"), max_length=9)


class TestUnderLoad:
    def test_a_full_queue_is_refused_until_there_is_room(self, gated):
        with running(engine_of(gated, limits=Limits(max_queue=6, max_sentences=3))) as client:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                first = gated.busy(pool, client)
                second = pool.submit(ask, client, ["eins", "zwei"])
                until(lambda: figure(client, "queue_sentences") == 2)
                words = "2 jobs wait, 2 of this client: 2 more exceed its share"
                assert turned_away(client, 429, words, text=["eins", "zwei"]).headers["retry-after"] == "1"
                third = pool.submit(ask, client, "drei")
                until(lambda: figure(client, "queue_sentences") == 3)
                gated.gate.set()
                same(
                    first.result(30) + second.result(30) + third.result(30),
                    gated.translate(["eins", "eins", "zwei", "drei"], batch_size=1),
                )
            assert figure(client, 'requests_total{status="429"}') == 1

    def test_what_takes_too_long_is_refused_and_not_done(self, gated):
        with running(engine_of(gated, limits=Limits(timeout=0.5))) as client:
            gated.gate.clear()
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                asked = [pool.submit(client.post, "/translate", json={"text": "eins"})]
                assert gated.entered.acquire(timeout=30)
                asked.append(pool.submit(client.post, "/translate", json={"text": ["eins", "zwei"]}))
                for response in (future.result(30) for future in asked):
                    assert response.status_code == 504 and "more than 0.5 s" in response.json()["error"]
            assert figure(client, "queue_sentences") == 0
            gated.gate.set()
            ask(client, "drei")
            assert gated.batches == [1, 1]  # what had begun, and the last

    def test_the_time_for_compiling_does_not_count(self, gated):
        def compile(batch, event="/jax/core/compile/backend_compile_duration"):
            jax.monitoring.record_scalar(event, 0.0)
            time.sleep(1.5)
            jax.monitoring.record_event_duration_secs(event, 1.5)

        gated.enter = compile
        with running(engine_of(gated, limits=Limits(timeout=2.0))) as client:
            with concurrent.futures.ThreadPoolExecutor(2) as pool:  # the one waits for the other's batch, too
                answers = list(pool.map(lambda text: ask(client, text, num_steps=len(text)), ["eins", "sieben"]))
        assert [one["passes"] <= len(text) for (one,), text in zip(answers, ["eins", "sieben"], strict=True)]

    def test_an_error_of_the_model_is_of_one_request(self, translator):
        failing = Gated(translator, bad_length=5)  # [LENGTH], three words, EOS
        with running(engine_of(failing)) as client:
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                first = failing.busy(pool, client)
                good = pool.submit(ask, client, "eins zwei")
                bad = pool.submit(client.post, "/translate", json={"text": "eins zwei drei"})
                until(lambda: figure(client, "queue_sentences") == 2)
                failing.gate.set()
                first.result(30)
                same(good.result(30), translator.translate(["eins zwei"]))
                response = bad.result(30)
            assert response.status_code == 500 and response.json()["status"] == 500
            assert "memory" not in response.text
            assert ask(client, "eins")


class TestWarmUp:
    def test_ready_means_that_single_sentences_compile_nothing(self, tokenizer):
        gated = Gated(random_translator(tokenizer, max_length=9))  # no other test has compiled its programs
        gated.gate.clear()
        with running(engine_of(gated, warm_up=8), wait=False) as client:
            assert gated.entered.acquire(timeout=30)
            health = client.get("/health")
            assert health.status_code == 503 and health.json()["status"] == "warming up"
            assert figure(client, "ready") == 0
            assert turned_away(client, 503, "").headers["retry-after"] == "5"
            gated.gate.set()
            until(lambda: client.get("/health").status_code == 200, 120)
            languages = {"source": "de", "target": "en"}
            assert client.get("/health").json() == {"status": "ready", "model": "tiny", "languages": languages}
            assert figure(client, "ready") == 1 and figure(client, "sentences_total") == 0
            assert gated.batches == [1, 1]  # with and without a trace
            before = encode._cache_size(), refine_drafts._cache_size()
            for steps in (1, 4):
                for text in ("eins", "zwei drei vier fünf"):
                    ask(client, text, num_steps=steps)
                    ask(client, text, num_steps=steps, trace=True)
            assert (encode._cache_size(), refine_drafts._cache_size()) == before

    def test_lengths_of_the_model(self, tokenizer):
        """Sources of 16 and 32 tokens have programs of their own, and a model that takes fewer compiles them once."""
        for most, expected in ((8, [(1, 16)]), (24, [(1, 16), (1, 32)])):
            model, seen = random_translator(tokenizer, max_length=most), set()

            def record(sources, model=model, seen=seen):
                tokens = [each.tokens for each in sources]
                seen.add(model.loaded.padded(tokens, 1, row_lengths(model.card.config)).shape)

            model.batch_translator = lambda decoding, *, trace, record=record: record
            engine = Engine(model, Decoding())
            engine.start()
            until(lambda engine=engine: engine.ready, 120)
            engine.close()
            assert sorted(seen) == expected

    def test_a_failure_ends_it(self, translator):
        engine = engine_of(Gated(translator, bad_length=6), warm_up=8)  # [LENGTH], four pieces, EOS
        with running(engine, wait=False) as client:
            until(lambda: engine.failure is not None)
            assert client.get("/health").json()["status"] == "failed" and client.get("/health").status_code == 503
            turned_away(client, 503, "")
        assert len(engine.translator.batches) == 1  # and tried no more

    def test_the_server_may_end_in_its_middle(self, gated):
        gated.gate.clear()
        engine = engine_of(gated, warm_up=8)
        with running(engine, wait=False) as client:
            assert gated.entered.acquire(timeout=30)
            client.uvicorn.should_exit = True
            until(lambda: engine.state == "stopping")
            gated.gate.set()
        assert engine.state == "stopped" and len(gated.batches) == 1


def test_programs_do_not_use_up_the_memory_mappings(client, monkeypatch):
    dropped = PROGRAMS.times_dropped
    monkeypatch.setattr(PROGRAMS, "mappings", lambda: (90, 100))
    monkeypatch.setattr(PROGRAMS, "_known", 0)  # as if the request's had been compiled just now
    ask(client, "eins")
    assert PROGRAMS.times_dropped > dropped


def test_the_end_waits_for_answers(gated):
    """Asked to end, the server takes no more connections, and answers those who had asked."""
    engine = engine_of(gated)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        with running(engine) as client:
            asked = [gated.busy(pool, client)]
            asked += [pool.submit(ask, client, text) for text in ("zwei drei", "vier")]
            until(lambda: figure(client, "queue_sentences") == 2)
            client.uvicorn.should_exit = True
            until(lambda: not _connects(client.port))
            assert not any(future.done() for future in asked)
            gated.gate.set()
            answers = [future.result(30) for future in asked]
    same([one for (one,) in answers], [gated.translate([text])[0] for text in ("eins", "zwei drei", "vier")])
    assert engine.state == "stopped"


def _connects(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


class TestCommand:
    @pytest.mark.slow
    def test_ends_in_good_order_when_it_is_told_to(self, model_dir, tmp_path):
        """Sixty requests just before SIGHUP, as just before SIGTERM: all get answers, and the exit status is 0."""
        figures = tmp_path / "figures.json"
        command = [sys.executable, "-m", "padir", "serve", "--model", model_dir, "--port", "0"]
        command += ["--batch_size", "1", "--json", figures]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, env=environment) as server:
            try:
                ready = next(line for line in server.stderr if "ready at" in line)
                assert ready.startswith("padir: ready at http://127.0.0.1:")
                port = int(ready.split()[-1].strip("/").rpartition(":")[2])
                bodies = [json.dumps({"text": "eins " * (n % 7 + 1)}).encode() for n in range(60)]
                asked = [connection(port, body=body) for body in bodies]
                for one, body in zip(asked, bodies, strict=True):
                    one.sendall(body)
                server.send_signal(signal.SIGHUP)
                for one in asked:
                    with one:
                        assert one.recv(10_000).startswith(b"HTTP/1.1 200")
                assert server.wait(60) == 0, server.stderr.read()
                assert {*server.stderr.read().splitlines()} <= {"padir: compiling ..."}  # said if it takes long
            finally:
                server.kill()
        assert json.loads(figures.read_text())["sentences"] == 60

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--set", "max_queue=8"], "max_queue must be at least twice max_sentences (64)"),
            (["--num_steps", "17"], "num_steps must be at most 16, the limit of requests, got 17"),
            (["--num_lengths", "9"], "num_lengths must be at most 8, the limit of requests, got 9"),
            (["--num_drafts", "9"], "num_drafts must be at most 8, the limit of requests, got 9"),
            (["--beam", "2"], "--beam applies only to the mode causal, got 'refine'"),
            (["--host", "256.0.0.1"], "host must be an address or a name of this machine, got '256.0.0.1'"),
            (["--host", ".."], "host must be an address or a name of this machine, got '..'"),
            (["--port", "65536"], "port must be in 0 .. 65535, got 65536"),
            (["--port", "-1"], "port must be in 0 .. 65535, got -1"),
        ],
    )
    def test_refuses_what_makes_no_sense(self, model_dir, capsys, options, message):
        assert main(["serve", "--model", str(model_dir), *options]) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("padir: error: ") and message in errors

    def test_a_port_that_is_taken(self, model_dir, capsys):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            assert main(["serve", "--model", str(model_dir), "--port", str(port)]) == 2
        assert f"Address already in use: 127.0.0.1:{port}" in capsys.readouterr().err

    def test_without_the_extra(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "padir.serve.engine", None)
        assert main(["serve", "--model", str(tmp_path)]) == 2
        assert "padir[serve]" in capsys.readouterr().err


class TestConnections:
    @pytest.mark.parametrize(
        "host", ["localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:8000", "192.168.0.7", "mine.example"]
    )
    def test_known_host_names_are_served(self, client, host):
        assert client.get("/health", headers={"Host": host}).status_code == 200

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "a@b", "[::1", "1"]
    )
    def test_other_host_names_are_refused(self, client, host):
        """A web page can lead a browser here under a name of its own, and would read the answers."""
        for response in (
            client.get("/", headers={"Host": host}),
            client.post("/translate", json={"text": "eins"}, headers={"Host": host}),
        ):
            assert response.status_code == 421 and "allowed_hosts" in response.json()["error"]

    @pytest.mark.parametrize(
        ("version", "hosts", "status"),
        [
            ("1.1", [], 400),
            ("1.1", [b""], 400),
            ("1.1", [b"localhost", b"localhost"], 400),
            ("1.1", [b"localhost"], 200),
            ("1.0", [], 200),
            ("1.0", [b"evil.example"], 421),
        ],
    )
    def test_a_request_names_its_host(self, client, version, hosts, status):
        head = b"".join(b"Host: %s\r\n" % host for host in hosts)
        with connection(client.port, b"GET /health HTTP/%s\r\n%s\r\n" % (version.encode(), head)) as asking:
            assert asking.recv(100).split()[1] == b"%d" % status

    @pytest.mark.parametrize("sent", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"])
    def test_half_a_request_is_not_held_for_ever(self, client, monkeypatch, sent):
        monkeypatch.setattr("padir.serve.server.HEADER_SECONDS", 0.2)
        with connection(client.port, sent) as half:
            assert half.recv(100) == b""  # closed by the server

    def test_half_a_request_after_a_whole_one_is_not_held(self, client, monkeypatch):
        monkeypatch.setattr("padir.serve.server.HEADER_SECONDS", 0.2)
        with connection(client.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as half:
            assert half.recv(10_000).startswith(b"HTTP/1.1 200")
            half.sendall(b"GET /hea")
            while answer := half.recv(10_000):
                assert b"HTTP" not in answer  # at most the rest of the body

    def test_a_client_that_does_not_read_is_left(self, client, monkeypatch):
        monkeypatch.setattr("padir.serve.server.STALLED_SECONDS", 0.2)
        asked, answer = 1_000, b""
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(30)
            connection.connect(("127.0.0.1", client.port))
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * asked)
                time.sleep(1.5)
                while part := connection.recv(1_000_000):
                    answer += part
        assert answer.count(b"HTTP/1.1 200") < asked
        assert client.get("/health").status_code == 200

    def test_a_request_that_takes_longer_than_its_headers_is_answered(self, client, monkeypatch):
        monkeypatch.setattr("padir.serve.server.HEADER_SECONDS", 0.05)
        body = b'{"text": "eins"}'
        with connection(client.port, body=body) as slow:
            time.sleep(0.3)
            slow.sendall(body)
            assert slow.recv(10_000).startswith(b"HTTP/1.1 200")

"""`padir serve` over loopback: right answers for many clients at once, every limit, and faults."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import jax
import pytest
from support.serving import Gated, engine_of, figure, running, until
from support.small_corpus import small_tokenizer
from support.tiny_model import TINY, random_model_dir, random_translator

from padir.cli import main
from padir.decoding.lengths import LengthSearch
from padir.decoding.options import Decoding, Prune
from padir.decoding.pipeline import PROGRAMS
from padir.decoding.refine_batch import encode, refine_drafts
from padir.decoding.search import Greedy
from padir.errors import PadirError
from padir.serve.app import answer_json
from padir.serve.request import Limits, Options, Request
from padir.serve.warm_up import Shape, batch_shapes, usual_shapes

TEXTS = [
    "eins",
    "zwei drei vier fünf sechs sieben acht",
    "",
    "acht acht",
    "neun null",
    "  ",
    "vier drei zwei eins",
    "sieben sechs fünf vier drei zwei",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return small_tokenizer(tmp_path_factory.mktemp("serve") / "vocab.model")


@pytest.fixture(scope="module")
def translator(tokenizer):
    return random_translator(tokenizer, max_length=8)  # few lengths are few programs


@pytest.fixture(scope="module")
def client(translator):
    # A machine with other work on it may compile for longer than a request takes by default.
    limits = Limits(max_body=4_000, max_sentences=12, max_characters=300, max_steps=8, max_lengths=4, timeout=120.0)
    with running(engine_of(translator, limits=limits)) as client:
        yield client


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return random_model_dir(tmp_path_factory.mktemp("served"), max_length=9)


@pytest.fixture
def gated(translator):
    model = Gated(translator)
    yield model
    model.gate.set()


def ask(client, text, **fields):
    response = client.post("/translate", json={"text": text, **fields})
    assert response.status_code == 200, response.text
    return response.json()["translations"]


def same(answers, expected):
    """Equal, but for the last bits of scores: batches of other shapes are other matrix products."""
    names = ("text", "length", "passes", "hypotheses")
    assert [[a[name] for name in names] for a in answers] == [[getattr(e, name) for name in names] for e in expected]
    assert [a["score"] for a in answers] == pytest.approx([e.score for e in expected], abs=1e-4)


class TestAnswers:
    @pytest.mark.parametrize("fields", [pytest.param({}, marks=pytest.mark.slow), {"num_steps": 7, "top_k": 2}])
    def test_are_the_translators(self, client, translator, fields):
        lengths = LengthSearch(fields.get("top_k", 1))
        expected = translator.translate(TEXTS, num_steps=fields.get("num_steps", 4), lengths=lengths, batch_size=4)
        assert len({result.text for result in expected}) > 3
        same(ask(client, TEXTS, **fields), expected)

    def test_do_not_depend_on_the_place_in_a_request(self, client):
        first = dict(zip(TEXTS, ask(client, TEXTS), strict=True))
        for texts in (["null eins", *TEXTS[::-1]], [TEXTS[4], TEXTS[1], TEXTS[1]], [TEXTS[6]]):
            answers = ask(client, texts)
            known = [(answer, first[text]) for answer, text in zip(answers, texts, strict=True) if text in first]
            assert [answer["text"] for answer, _ in known] == [expected["text"] for _, expected in known]

    def test_one_sentence_is_a_list_of_one(self, client, translator):
        same(ask(client, TEXTS[1]), translator.translate([TEXTS[1]]))
        assert ask(client, []) == [] and [a["text"] for a in ask(client, "")] == [""]

    def test_a_paragraph_is_split_and_joined(self, client):
        text = "Acht.\n\nEins!  Null"
        (answer,) = ask(client, [text], split=True, trace=True, n_best=1)
        parts = answer["sentences"]
        assert [part["source"] for part in parts] == ["Acht.", "Eins!", "Null"]
        alone = ask(client, [part["source"] for part in parts], trace=True, n_best=1)
        assert [part["text"] for part in parts] == [each["text"] for each in alone]
        assert answer["text"] == "{}\n\n{}  {}".format(*(each["text"] for each in alone))
        assert "trace" not in answer and all(len(part["trace"]) > 1 and part["candidates"] for part in parts)
        assert answer["passes"] == sum(part["passes"] for part in parts)
        (single,) = ask(client, "eins", split=True)
        assert single["text"] == single["sentences"][0]["text"] == ask(client, "eins")[0]["text"]
        many = client.post("/translate", json={"text": "Ja. " * 13, "split": True})
        assert many.status_code == 422 and "a request has at most 12 sentences, got 13" in many.json()["error"]

    def test_with_candidates_and_every_step(self, client, translator):
        decoding = Decoding(num_steps=3, lengths=LengthSearch(2), n_best=2, batch_size=1)
        expected = translator.translate(TEXTS[:2], decoding, trace=True)
        answers = ask(client, TEXTS[:2], num_steps=3, top_k=2, n_best=2, trace=True)
        same(answers, expected)
        for answer, result in zip(answers, expected, strict=True):
            assert [(c["text"], c["length"]) for c in answer["candidates"]] == [
                (text, length) for (text, _), length in zip(result.candidates, result.candidate_lengths, strict=True)
            ]
            assert answer["candidates"][0]["length"] == answer["length"]
            assert [tuple(step["pieces"]) for step in answer["trace"]] == [pieces for pieces, _ in result.trace]
            for step, (_, log_probs) in zip(answer["trace"], result.trace, strict=True):
                assert step["log_probs"] == pytest.approx(log_probs, abs=1e-4, nan_ok=False)

    def test_each_has_its_own_number_of_candidates_in_a_shared_batch(self, gated):
        engine = engine_of(gated)
        engine.state = "ready"  # its thread is not: both requests wait for one batch
        requests = [Request((text,), Options(2, 2), n_best=n) for text, n in (("eins", 0), ("acht", 2), ("neun", 1))]
        futures = [future for request in requests for future in engine.submit(request)]
        engine.start()
        try:
            answers = [future.result(120) for future in futures]
        finally:
            engine.close()
        assert gated.batches == [3]
        assert [len(answer.candidates) for answer in answers] == [0, 2, 1]
        assert [len(answer.candidate_lengths) for answer in answers] == [0, 2, 1]

    def test_hold_what_was_asked_for_alone(self, client):
        (plain,) = ask(client, "eins")
        assert set(plain) == {"text", "score", "length", "passes", "hypotheses"}
        (traced,) = ask(client, "eins", trace=True, num_steps=2)
        assert set(traced) - set(plain) == {"trace"} and len(traced["trace"]) == 3

    def test_of_many_clients_are_their_own(self, client, translator):
        """Eight at once, with two kinds of options; what a client gets depends on no other."""
        words = TEXTS[1].split()

        def one(n):
            texts = [" ".join(words[n % 5 : 5 + n % 6]), " ".join(words[-1 - n % 6 :])][: 1 + n % 2]
            steps = 2 + 3 * (n % 2)
            with httpx.Client(base_url=client.base_url, timeout=120) as own:
                return texts, steps, ask(own, texts, num_steps=steps)

        before = figure(client, "batch_sentences_count"), figure(client, "sentences_total")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answered = list(pool.map(one, range(24)))
        for texts, steps, answers in answered:
            same(answers, translator.translate(texts, num_steps=steps, batch_size=4))
        batches = figure(client, "batch_sentences_count") - before[0]
        sentences = figure(client, "sentences_total") - before[1]
        assert sentences == 36 and batches < 36  # some were translated together

    def test_of_a_causal_model(self, tokenizer):
        causal = random_translator(tokenizer, causal=True, max_length=8)
        with running(engine_of(causal, Decoding(search=Greedy(), batch_size=1), warm_up=8)) as client:
            same(ask(client, TEXTS[2:5]), causal.translate(TEXTS[2:5], search=Greedy()))
            refused = client.post("/translate", json={"text": "eins", "trace": True})
            assert refused.status_code == 422 and "autoregressive" in refused.json()["error"]

    def test_of_an_engine_with_hypotheses_pruned(self, translator):
        decoding = Decoding(num_steps=4, lengths=LengthSearch(3), prune=Prune(1), batch_size=4)
        with running(engine_of(translator, decoding)) as client:
            same(ask(client, TEXTS[0]), translator.translate(TEXTS[:1], decoding))


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "status", "message"),
        [
            (b'{"text": "eins"', 400, "must be JSON"),
            (b"[" * 3_000, 400, "nested"),
            (b'{"text": 7}', 422, "text must be a string or a list of strings, got a number"),
            (b'{"text": "eins", "steps": 3}', 422, "unknown field 'steps'"),
            (b'{"text": "eins", "num_steps": 9}', 422, "num_steps must be in 1 .. 8, got 9"),
            (b'{"text": "eins", "top_k": 5}', 422, "top_k must be in 1 .. 4, got 5"),
            (b'{"text": "' + b"e" * 301 + b'"}', 422, "sentence 1 has 301 characters, the server takes 300"),
            (json.dumps({"text": ["eins"] * 13}).encode(), 422, "at most 12 sentences, got 13"),
            (b'{"text": ["eins", "' + b"eins " * 40 + b'"]}', 422, "sentence 2 has more than the 7 tokens"),
            (b'{"text": "\\ud800"}', 422, "surrogates"),
            (b'{"text": "' + b"e" * 4_000 + b'"}', 413, "a request has at most 4,000 bytes"),
        ],
    )
    def test_say_why(self, client, body, status, message):
        response = client.post("/translate", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == status and response.headers["content-type"] == "application/json"
        assert response.json()["status"] == status and message in response.json()["error"]

    def test_a_body_of_unknown_size_is_read_no_further_than_the_limit(self, client):
        sent = []

        def body():
            for _ in range(2_000):
                sent.append(b" " * 10_000)
                yield sent[-1]

        headers = {"Content-Type": "application/json"}
        try:
            assert client.post("/translate", content=body(), headers=headers).status_code == 413
        except httpx.WriteError:
            assert len(sent) < 2_000
        assert ask(client, "eins")

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
    def test_what_a_foreign_page_could_send(self, client, kind):
        response = client.post("/translate", content=b'{"text": "eins"}', headers={"Content-Type": kind})
        assert response.status_code == 415 and "application/json" in response.json()["error"]

    def test_a_compressed_body(self, client):
        headers = {"Content-Type": "application/json; charset=utf-8", "Content-Encoding": "gzip"}
        assert client.post("/translate", content=b"\x1f\x8b", headers=headers).status_code == 415

    def test_other_paths_and_methods(self, client):
        assert client.get("/other").status_code == 404 and client.get("/other").json()["status"] == 404
        refused = client.get("/translate")
        assert refused.status_code == 405 and refused.headers["allow"] == "POST" and "error" in refused.json()
        assert client.post("/health").status_code == 405

    def test_control_characters_and_markup_are_text(self, client, translator):
        texts = ["\x00\x1b[J", "</s>", "1\r\n", "\u202e\ufeff", "🙂"]
        same(ask(client, texts), translator.translate(texts, batch_size=4))

    def test_a_body_that_never_ends(self, translator):
        with running(engine_of(translator, limits=Limits(timeout=0.3))) as client:
            with socket.create_connection(("127.0.0.1", client.port), timeout=20) as slow:
                slow.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
                slow.sendall(b"Content-Length: 99\r\n\r\n{")
                assert slow.recv(100).startswith(b"HTTP/1.1 408 ")


class TestUnderLoad:
    def test_a_full_queue_is_refused_until_there_is_room(self, gated):
        with running(engine_of(gated, limits=Limits(max_queue=3, max_sentences=3))) as client:
            gated.gate.clear()
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                first = pool.submit(ask, client, "eins")
                assert gated.entered.acquire(timeout=30)
                second = pool.submit(ask, client, ["eins", "zwei"])
                until(lambda: figure(client, "queue_sentences") == 2)
                refused = client.post("/translate", json={"text": ["eins", "zwei"]})
                assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
                assert "2 sentences wait, 2 more do not fit into 3" in refused.json()["error"]
                third = pool.submit(ask, client, "drei")
                until(lambda: figure(client, "queue_sentences") == 3)
                gated.gate.set()
                same(
                    first.result(30) + second.result(30) + third.result(30),
                    [
                        *gated.translate(["eins"]),
                        *gated.translate(["eins", "zwei"]),
                        *gated.translate(["drei"]),
                    ],
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

    def test_the_work_of_a_client_that_left_is_not_done(self, gated):
        with running(engine_of(gated)) as client:
            gated.gate.clear()
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                first = pool.submit(ask, client, "eins")
                assert gated.entered.acquire(timeout=30)
                body = b'{"text": ["zwei", "drei"]}'
                head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                head += f"Content-Length: {len(body)}\r\n\r\n"
                with socket.create_connection(("127.0.0.1", client.port)) as leaving:
                    leaving.sendall(head.encode() + body)
                    until(lambda: figure(client, "queue_sentences") == 2)
                until(lambda: figure(client, "queue_sentences") == 0)
                until(lambda: figure(client, 'requests_total{status="499"}') == 1)
                gated.gate.set()
                first.result(30)
            ask(client, "vier")
            assert gated.batches == [1, 1]

    def test_an_error_of_the_model_is_of_one_request(self, translator):
        failing = Gated(translator, bad_length=5)  # [LENGTH], three words, EOS
        with running(engine_of(failing)) as client:
            failing.gate.clear()
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                first = pool.submit(ask, client, "eins")
                assert failing.entered.acquire(timeout=30)
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


class TestHealth:
    def test_is_ready_only_when_the_commonest_shapes_are_compiled(self, gated):
        gated.gate.clear()
        encode.clear_cache()
        refine_drafts.clear_cache()
        with running(engine_of(gated, Decoding(batch_size=2), warm_up=8), wait=False) as client:
            assert gated.entered.acquire(timeout=30)
            health = client.get("/health")
            assert health.status_code == 503 and health.json()["status"] == "warming up"
            assert health.json()["shapes_left"] == 3 == figure(client, "shapes_left")  # 1 and 2 rows; a trace
            assert figure(client, "ready") == 0
            refused = client.post("/translate", json={"text": "eins"})
            assert refused.status_code == 503 and refused.headers["retry-after"] == "5"
            gated.gate.set()
            until(lambda: client.get("/health").status_code == 200)
            until(lambda: client.get("/health").json()["shapes_left"] == 0, 120)
            health = client.get("/health").json()
            languages = {"source": "de", "target": "en"}
            assert health == {"status": "ready", "shapes_left": 0, "model": "tiny", "languages": languages}
            assert figure(client, "ready") == 1 and figure(client, "sentences_total") == 0
            assert set(gated.batches) == {1, 2}
            # Usual requests compile nothing now.
            before = encode._cache_size(), refine_drafts._cache_size()
            for steps in (1, 4):
                ask(client, ["eins", "zwei drei", "vier"], num_steps=steps)
                ask(client, "zwei", num_steps=steps, trace=True)
            assert (encode._cache_size(), refine_drafts._cache_size()) == before

    def test_requests_come_before_what_is_left_of_the_warm_up(self, translator, monkeypatch):
        engine = engine_of(translator, Decoding(batch_size=2), warm_up=8)
        done, entered, go_on, run = [], threading.Semaphore(0), threading.Semaphore(0), engine._run

        def compile(shape):
            entered.release()
            assert go_on.acquire(timeout=30)
            done.append(shape)

        monkeypatch.setattr(engine, "_compile", compile)
        monkeypatch.setattr(engine._batcher, "_run", lambda key, works: done.append("request") or run(key, works))
        engine.start()
        assert entered.acquire(timeout=30) and not engine.ready
        go_on.release()
        assert entered.acquire(timeout=30) and engine.ready and engine.shapes_left == 2
        futures = engine.submit(Request(("eins zwei",), engine.defaults))
        go_on.release()
        assert futures[0].result(30).text == translator.translate(["eins zwei"])[0].text
        go_on.release(9)
        until(lambda: engine.shapes_left == 0)
        engine.close()
        shapes = [shape for shape in done if shape != "request"]
        assert shapes == usual_shapes(translator.card.config, 2, 8) and shapes[0] == Shape(source=8, target=8, rows=1)
        assert done.index("request") == 2

    def test_goes_on_where_what_is_left_of_the_warm_up_fails(self, gated, caplog):
        shapes = []

        def once(batch):
            shapes.append(len(batch.tokens))
            if len(shapes) == 2:
                raise RuntimeError("out of memory")

        gated.enter = once
        with running(engine_of(gated, Decoding(batch_size=2), warm_up=8)) as client:
            until(lambda: client.get("/health").json()["shapes_left"] == 0)
            assert (
                len(shapes) == 2 and "the warm-up ended at Shape(source=8, target=8, rows=1, trace=True)" in caplog.text
            )
            assert ask(client, "eins")

    def test_programs_do_not_use_up_the_memory_mappings(self, translator, monkeypatch, caplog):
        monkeypatch.setattr(PROGRAMS, "mappings", lambda: (90, 100))
        with running(engine_of(translator, Decoding(batch_size=2), warm_up=8)) as client:
            until(lambda: client.get("/health").json()["shapes_left"] == 0)
            assert "no room for more programs: 2 shapes are left out" in caplog.text
            ask(client, "eins")
            dropped = PROGRAMS.times_dropped
            monkeypatch.setattr(PROGRAMS, "_known", 0)  # as if the request's had been compiled just now
            ask(client, "eins")
            assert PROGRAMS.times_dropped == dropped + 1

    def test_says_so_where_the_warm_up_failed(self, translator):
        engine = engine_of(Gated(translator, bad_length=8), warm_up=8)
        with running(engine, wait=False) as client:
            until(lambda: engine.failure is not None)
            assert client.get("/health").json()["status"] == "failed" and client.get("/health").status_code == 503
            assert client.post("/translate", json={"text": "eins"}).status_code == 503
        assert len(engine.translator.batches) == 1  # and tried no more

    def test_ends_in_the_middle_of_the_warm_up(self, gated):
        gated.gate.clear()
        engine = engine_of(gated, warm_up=24)
        with running(engine, wait=False) as client:
            assert gated.entered.acquire(timeout=30)
            client.uvicorn.should_exit = True
            until(lambda: engine.state == "stopping")
            gated.gate.set()
        assert engine.state == "stopped" and len(gated.batches) == 1

    def test_usual_shapes_are_the_commonest_first(self):
        shapes = usual_shapes(dataclasses.replace(TINY, max_length=16), batch_size=2, longest_source=16)
        assert shapes[:2] == [Shape(8, 8, 1), Shape(16, 16, 1)]  # before the first request
        others = [(8, 16), (16, 8)]
        traced = [Shape(*lengths, 1, trace=True) for lengths in ((8, 8), (8, 16), (16, 16), (16, 8))]
        assert shapes[2:4] == [Shape(8, 8, 1, trace=True), Shape(16, 16, 1, trace=True)]  # what the page asks for
        assert {*shapes[2:6]} == {*traced} and {*shapes[6:8]} == {Shape(*lengths, 1) for lengths in others}
        assert {*shapes[8:]} == {Shape(*lengths, 2) for lengths in [*others, (8, 8), (16, 16)]}

    def test_batches_are_padded_to_these_sizes(self):
        assert batch_shapes(1) == [1] and batch_shapes(32) == [1, 2, 4, 8, 16, 32]


def test_a_long_answer_is_written_while_others_are_served():
    translations = [{"text": "ü\u2028", "trace": [{"pieces": ["a"], "log_probs": [None]}]}] * 20
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both():
        task = asyncio.ensure_future(other())
        body = await answer_json('a "model"', 0.5, translations)
        task.cancel()
        return body

    body = asyncio.run(both())
    assert json.loads(body) == {"model": 'a "model"', "translations": translations, "seconds": 0.5}
    assert turns >= 20


def test_metrics(translator):
    with running(engine_of(translator)) as client:
        results = ask(client, ["eins", "zwei drei", ""], num_steps=3)
        client.post("/translate", content=b"{", headers={"Content-Type": "application/json"})
        response = client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=")
        odd = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=newest"})
        assert odd.status_code == 200 and odd.headers["content-type"].startswith("text/plain")
        assert figure(client, 'requests_total{status="200"}') == 1 == figure(client, 'requests_total{status="400"}')
        assert figure(client, "sentences_total") == 2
        assert figure(client, "passes_total") == sum(result["passes"] for result in results)
        assert figure(client, "batch_sentences_count") == 1 and figure(client, "batch_sentences_sum") == 2
        assert figure(client, 'request_seconds_bucket{le="+Inf"}') == 1 == figure(client, "request_seconds_count")
        assert figure(client, "batch_seconds_count") == 1 and figure(client, "queue_sentences") == 0


def test_the_end_waits_for_answers(gated):
    """Asked to end, the server takes no more connections, and answers those who had asked."""
    engine = engine_of(gated)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        with running(engine) as client:
            gated.gate.clear()
            asked = [pool.submit(ask, client, "eins")]
            assert gated.entered.acquire(timeout=30)
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
        """SIGTERM while eight requests are being answered: all get their answers, and the exit status is 0."""
        figures = tmp_path / "figures.json"
        command = [sys.executable, "-m", "padir", "serve", "--model", model_dir, "--port", "0"]
        command += ["--warm_up", "0", "--batch_size", "1", "--json", figures]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, env=environment) as server:
            try:
                lines = [server.stderr.readline(), server.stderr.readline()]
                assert "model at http://127.0.0.1:" in lines[0] and lines[1].startswith("padir: ready at http://")
                url = lines[1].split()[-1]
                texts = [" ".join(TEXTS[1].split()[: n % 7 + 1]) for n in range(8)]
                with httpx.Client(base_url=url, timeout=60) as client, concurrent.futures.ThreadPoolExecutor(8) as pool:
                    asked = [pool.submit(ask, client, text) for text in texts]
                    until(lambda: figure(client, "queue_sentences") >= 5)
                    server.send_signal(signal.SIGTERM)
                    assert all(future.result(60)[0]["text"] for future in asked)
                assert server.wait(60) == 0, server.stderr.read()
                assert {*server.stderr.read().splitlines()} <= {"padir: compiling ..."}  # said if it takes long
            finally:
                server.kill()
        assert json.loads(figures.read_text())["sentences"] == 8

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--max_queue", "8"], "would never fit a queue of 8"),
            (["--num_steps", "17"], "--num_steps must be at most 16, the limit of requests, got 17"),
            (["--top_k", "9"], "--top_k must be at most 8, the limit of requests, got 9"),
            (["--max_wait", "-1"], "max_wait must be in 0 .. 30 seconds (timeout), got -0.001"),
            (["--warm_up", "-1"], "--warm_up must be at least 0, got -1"),
            (["--beam", "2"], "--beam applies only to autoregressive models; this model refines drafts"),
            (["--host", "256.0.0.1"], "--host must be an address or a name of this machine, got '256.0.0.1'"),
            (["--port", "65536"], "--port must be in 0 .. 65535, got 65536"),
            (["--port", "-1"], "--port must be in 0 .. 65535, got -1"),
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

    def test_a_model_that_needs_lengths(self, tokenizer):
        with pytest.raises(PadirError, match="must be given lengths: serve another model"):
            engine_of(random_translator(tokenizer, length_head="oracle", max_length=8))

    def test_a_length_head_with_one_length(self, tokenizer):
        with running(engine_of(random_translator(tokenizer, length_head="affine", max_length=8))) as client:
            refused = client.post("/translate", json={"text": "eins", "top_k": 2})
            assert refused.status_code == 422 and "gives 1 lengths, got top_k=2" in refused.json()["error"]

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
            assert response.status_code == 421 and "--allowed_host" in response.json()["error"]

    @pytest.mark.parametrize("sent", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"])
    def test_half_a_request_is_not_held_for_ever(self, client, monkeypatch, sent):
        monkeypatch.setattr("padir.serve.connections.HEADER_SECONDS", 0.2)
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(sent)
            assert connection.recv(100) == b""  # closed by the server

    def test_half_a_request_after_a_whole_one_is_not_held(self, client, monkeypatch):
        monkeypatch.setattr("padir.serve.connections.HEADER_SECONDS", 0.2)
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
            connection.sendall(b"GET /hea")
            while answer := connection.recv(10_000):
                assert b"HTTP" not in answer  # at most the rest of the body

    def test_a_client_that_does_not_read_is_left(self, client, monkeypatch):
        monkeypatch.setattr("padir.serve.connections.STALLED_SECONDS", 0.2)
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

    def test_a_request_that_takes_longer_than_its_headers_is_answered(self, translator, monkeypatch):
        monkeypatch.setattr("padir.serve.connections.HEADER_SECONDS", 0.05)
        with running(engine_of(translator, limits=Limits(timeout=120.0))) as client:
            body = b'{"text": "eins"}'
            head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            with socket.create_connection(("127.0.0.1", client.port), timeout=120) as connection:
                connection.sendall(head.encode())
                time.sleep(0.3)
                connection.sendall(body)
                assert connection.recv(10_000).startswith(b"HTTP/1.1 200")


def test_a_client_forces_few_shapes_by_top_k(translator):
    jax.clear_caches()
    with running(engine_of(translator, limits=Limits(max_lengths=8, timeout=120.0))) as client:
        answers = [ask(client, "eins zwei", top_k=top_k)[0] for top_k in (2, 3, 4)]
    assert refine_drafts._cache_size() == 2  # for 2 and 4 candidates
    expected = translator.translate(["eins zwei"], top_k=3)[0]
    assert (answers[1]["text"], answers[1]["hypotheses"]) == (expected.text, expected.hypotheses)

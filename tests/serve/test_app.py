"""`padir serve` over loopback: right answers for many clients at once, and every refusal."""

import concurrent.futures
import dataclasses
import json
import re

import httpx
import msgspec
import pytest
from support.refusals import refuses
from support.serving import ask, connection, engine_of, figure, running, same, turned_away
from support.tiny_model import random_translator

from padir import Decoding, Translator
from padir.decoding.encoding import encode
from padir.decoding.hypothesis import not_finite
from padir.decoding.refine_batch import refine_drafts
from padir.serve.engine import Key
from padir.serve.messages import REFUSALS, Answer, Health, Limits, Refusal, TranslateRequest

TEXTS = ["eins", "zwei drei vier fünf sechs sieben acht", "", "acht acht", "neun null"]
TEXTS += ["  ", "vier drei zwei eins", "sieben sechs fünf vier drei zwei"]


class TestAnswers:
    def test_are_the_translators(self, client, translator):
        expected = translator.translate(TEXTS, batch_size=1, num_steps=7, num_lengths=2)
        assert len({result.text for result in expected}) > 3
        same(ask(client, TEXTS, num_steps=7, num_lengths=2), expected)

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
        assert len(ask(client, "Ja. " * 12, split=True)[0]["sentences"]) == 12
        turned_away(client, 422, "at most 12 sentences, got 13", text="Ja. " * 13, split=True)

    def test_with_candidates_and_every_step(self, client, translator):
        decoding = Decoding(num_steps=3, num_lengths=2, n_best=2, batch_size=1)
        expected = translator.translate(TEXTS[:2], decoding, trace=True)
        answers = ask(client, TEXTS[:2], num_steps=3, num_lengths=2, n_best=2, trace=True)
        same(answers, expected)
        for answer, result in zip(answers, expected, strict=True):
            assert [(c["text"], c["length"]) for c in answer["candidates"]] == [
                (each.text, each.length) for each in result.candidates
            ]
            assert answer["candidates"][0]["length"] == answer["length"] and answer["read_again"] is False
            assert [tuple(step["pieces"]) for step in answer["trace"]] == [pieces for pieces, _ in result.trace]
            for step, (_, log_probs) in zip(answer["trace"], result.trace, strict=True):
                assert step["log_probs"] == pytest.approx(log_probs, abs=1e-4, nan_ok=False)

    def test_more_candidates_than_hypotheses_are_refused(self, client):
        turned_away(client, 422, "n_best must be at most 2, the number of hypotheses", n_best=3, num_lengths=2)

    def test_another_engine_says_how_many_hypotheses_it_has(self, translator):
        class One:
            most_hypotheses = 1

            def write(self, sources):
                raise NotImplementedError

        engine = engine_of(translator.with_writer(lambda *_, **__: One()))
        engine.state = "ready"
        refuses(engine.prepare, "n_best must be at most 1", TranslateRequest(("eins",), num_lengths=2, n_best=2))

    def test_each_has_its_own_number_of_candidates_in_a_shared_batch(self, gated):
        engine = engine_of(gated)
        engine.state = "ready"  # its thread is not: all requests wait for one batch
        asked = [("eins", 0), ("acht", 2), ("neun", 1)]
        requests = [TranslateRequest((text,), 2, 2, n_best=n) for text, n in asked]
        futures = [each for request in requests for each in engine.submit(engine.prepare(request)[1])]
        engine.start()
        try:
            answers = [future.result(120) for future in futures]
        finally:
            engine.close()
        assert gated.batches == [3]
        assert [len(answer.candidates) for answer in answers] == [0, 2, 1]

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
            same(answers, translator.translate(texts, num_steps=steps, batch_size=1))
        batches = figure(client, "batch_sentences_count") - before[0]
        sentences = figure(client, "sentences_total") - before[1]
        assert sentences == 36 and batches < 36  # some were translated together

    def test_of_a_causal_model(self, tokenizer):
        causal = random_translator(tokenizer, causal=True, max_length=8)
        with running(engine_of(causal, Decoding(beam=1, batch_size=1), warm_up=8)) as client:
            same(ask(client, TEXTS[2:5]), causal.translate(TEXTS[2:5], beam=1, batch_size=1))
            turned_away(client, 422, "unknown field `trace`", trace=True)

    def test_are_what_the_open_api_document_says(self, client):
        """The types that make the document read what the server writes, and no field is theirs or its alone."""
        document = client.get("/openapi.json").json()
        schemas = document["components"]["schemas"]
        assert {*document["paths"]} == {"/translate", "/health", "/metrics"} and {*schemas} >= {
            "Request",
            "Answer",
            "Refusal",
        }
        fields = schemas["Request"]["properties"]
        assert [*fields] == [
            "text",
            "split",
            "placeholders",
            "n_best",
            "mode",
            "num_steps",
            "num_lengths",
            "trace",
            "strategy",
        ]
        assert fields["mode"]["anyOf"][0]["enum"] == ["refine"] and "padir" in json.dumps(fields["strategy"])
        assert {*document["paths"]["/translate"]["post"]["responses"]} == {"200", *map(str, REFUSALS)}
        health = msgspec.json.decode(client.get("/health").content, type=Health)
        assert health.status == "ready" and health.languages == {"source": "de", "target": "en"}
        assert [fields[name]["anyOf"][0]["maximum"] for name in ("num_steps", "num_lengths")] == [8, 4]
        named = re.findall('"#/components/schemas/(\\w+)"', json.dumps(document))
        assert {*named} <= {*schemas}
        split = {"text": "Acht. Eins", "split": True, "n_best": 2, "trace": True}
        for asked in (split | {"num_lengths": 2}, {"text": ["eins", ""], "n_best": 1, "trace": True}):
            found = client.post("/translate", json=asked).content
            assert json.loads(msgspec.json.encode(msgspec.json.decode(found, type=Answer))) == json.loads(found)
        refused = client.post("/translate", json={}).content
        assert msgspec.json.decode(refused, type=Refusal).status == 422


class TestModes:
    def test_a_strategy_of_ones_own(self, client, translator):
        for strategy in ("threshold", None):
            expected = translator.translate(TEXTS, strategy=strategy or "padir", batch_size=1)
            same(ask(client, TEXTS, strategy=strategy), expected)
        turned_away(client, 422, "strategy", strategy="threshold:tau=0.7")

    def test_a_dual_model_writes_in_either(self, tokenizer):
        dual = random_translator(tokenizer, dual=True, max_length=8)
        with running(engine_of(dual, Decoding(batch_size=4, rerank="causal"))) as client:
            assert ask(client, "eins", num_lengths=2, n_best=2)[0]["read_again"] is True
            for mode in ("refine", "causal"):
                same(ask(client, TEXTS[:2], mode=mode), dual.translate(TEXTS[:2], mode=mode, batch_size=1))
            (best,) = dual.translate(["eins"], mode="causal", n_best=2)
            (listed,) = ask(client, "eins", mode="causal", n_best=2)
            assert [each["text"] for each in listed["candidates"]] == [each.text for each in best.candidates]
            for fields in ({"num_steps": 2}, {"trace": True}, {"strategy": "padir"}):
                turned_away(client, 422, "leave", mode="causal", **fields)

    def test_a_requests_placeholders_replace_the_servers(self, tokenizer):
        engine = engine_of(random_translator(tokenizer, dual=True), Decoding(placeholders=("tags",)))
        asked = TranslateRequest(()), TranslateRequest((), placeholders=frozenset(["urls"]))
        assert [engine.options_of(each).placeholders for each in asked] == [("tags",), ("urls",)]

    def test_a_server_that_writes_from_left_to_right(self, tokenizer):
        """Requests refine if they say so, or set what only refining reads, and then with the card's options."""
        made = random_translator(tokenizer, dual=True, max_length=8)
        card = dataclasses.replace(made.card, decoding={"beam": 1, "num_lengths": 2})
        dual = Translator(made.params, card, tokenizer)
        with running(engine_of(dual, dual.decoding.changed(mode="causal", batch_size=4), warm_up=1)) as client:
            same(ask(client, TEXTS[:2]), dual.translate(TEXTS[:2], mode="causal", batch_size=1))
            same(ask(client, TEXTS[:2], mode="refine"), dual.translate(TEXTS[:2], mode="refine", batch_size=1))
            assert ask(client, "eins", mode="refine")[0]["hypotheses"] == 2
            for fields in ({"num_steps": 3}, {"num_lengths": 2}):
                same(ask(client, TEXTS[:2], **fields), dual.translate(TEXTS[:2], batch_size=1, **fields))
                turned_away(client, 422, "different modes exclude each other", mode="causal", **fields)


def test_pages_of_named_origins_may_read_answers(client, translator):
    ours, theirs = {"Origin": "https://mine.example"}, {"Origin": "https://evil.example"}
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    with running(engine_of(translator), origins=["https://mine.example"]) as open_client:
        assert open_client.options("/translate", headers=ours | asks).status_code == 200
        assert open_client.options("/translate", headers=theirs | asks).status_code == 400
        answer = open_client.post("/translate", json={"text": "eins"}, headers=ours)
        assert answer.headers["access-control-allow-origin"] == ours["Origin"]
        other = open_client.post("/translate", json={"text": "eins"}, headers=theirs)
        assert "access-control-allow-origin" not in other.headers
    assert "access-control-allow-origin" not in client.get("/health", headers=ours).headers


def test_every_answer_has_an_id(client, monkeypatch, caplog):
    def broken(*_):
        raise not_finite()

    given = {"X-Request-ID": "order-17.3"}
    for response in (client.get("/health", headers=given), client.post("/translate", json={}, headers=given)):
        assert response.headers["x-request-id"] == "order-17.3"
    for odd in ("", "a b", "x" * 65):
        assert re.fullmatch("[0-9a-f]{16}", client.get("/", headers={"X-Request-ID": odd}).headers["x-request-id"])
    monkeypatch.setattr("padir.decoding.sentences.BatchTranslator.__call__", broken)
    turned_away(client, 500, "not finite")
    assert "a batch failed: the log-probability of a hypothesis is not finite" in caplog.text
    monkeypatch.undo()
    monkeypatch.setattr("padir.serve.app.translated", None)
    assert turned_away(client, 500, "", given).headers["x-request-id"] == "order-17.3"
    assert "request order-17.3 failed" in caplog.text


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "status", "message"),
        [
            (b'{"text": ["eins", "' + b"eins " * 40 + b'"]}', 422, "sentence 2 has more than the 7 tokens"),
            (b'{"text": "' + b"e" * 4_000 + b'"}', 413, "a request must have at most 4,000 bytes"),
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

    @pytest.mark.parametrize(
        ("parameters", "status"),
        [
            ("; charset=utf-16", 415),
            (";charset=ISO-8859-1", 415),
            (' ; x=1 ; Charset = "latin-1"', 415),
            ("; charset=utf-8; charset=utf-16", 415),
            ("; charset=", 415),
            ("; charset=utf-80", 415),
            ("; charset*=utf-16''", 415),
            ("; charset=UTF-8", 200),
            (' ; x=1;charset = "utf8" ; y', 200),
            ("; profile=charset; charsets=utf-16", 200),
            (";", 200),
        ],
    )
    def test_another_charset(self, client, parameters, status):
        headers = {"Content-Type": f"Application/JSON{parameters}"}
        response = client.post("/translate", content=b'{"text": ""}', headers=headers)
        assert response.status_code == status
        assert status == 200 or "send JSON in UTF-8" in response.json()["error"]

    def test_a_compressed_body(self, client):
        headers = {"Content-Type": "application/json; charset=utf-8", "Content-Encoding": "gzip"}
        assert client.post("/translate", content=b"\x1f\x8b", headers=headers).status_code == 415

    def test_other_paths_and_methods(self, client):
        assert client.get("/other").status_code == 404 and client.get("/other").json()["status"] == 404
        refused = client.get("/translate")
        assert refused.status_code == 405 and refused.headers["allow"] == "POST" and "error" in refused.json()
        assert client.post("/health").status_code == 405

    def test_control_characters_and_markup_are_text(self, client, translator):
        texts = ["\x00\x1b[J", "</s>", "1\r\n", "\u202e\ufeff", "🙂", "\t- **eins**", "EINS ZWEI"]
        same(ask(client, texts), translator.translate(texts, batch_size=1))

    def test_a_body_that_never_ends(self, translator):
        with running(engine_of(translator, limits=Limits(timeout=0.3))) as client:
            with connection(client.port, body=b" " * 99) as slow:
                slow.sendall(b"{")
                assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
            assert figure(client, 'requests_total{status="408"}') == 1


class TestLengths:
    @pytest.mark.parametrize("options", [{"mode": "causal"}, {"mode": "refine", "num_lengths": 5}])
    def test_no_batch_takes_long(self, tokenizer, options):
        """Each mode has batches of 32 sentences up to 32 tokens; more tokens, lengths or passes have 8 or 1."""
        engine = engine_of(random_translator(tokenizer, dual=True), Decoding(batch_size=32, **options))
        key = Key(32, engine.options_of(TranslateRequest(())))

        def sizes(**fields):
            return engine.batch_sizes(Key(32, engine.options_of(TranslateRequest((), **fields))))

        assert engine.batch_sizes(key) == (1, 8, 32)
        assert engine.batch_sizes(key._replace(source_length=128)) == (1, 8)
        assert engine.batch_sizes(key._replace(source_length=136)) == (1,)
        assert engine.batch_sizes(key._replace(trace=True)) == (1,)
        if options["mode"] == "refine":
            assert sizes(num_lengths=6) == sizes(num_steps=16) == (1, 8)
            assert sizes(num_steps=16, num_lengths=6) == (1,)

    def test_a_canvas_of_one_length(self, tokenizer):
        """It gives several sentences, but not beside several draws."""
        translator = random_translator(tokenizer, readout="ctc", max_length=16)
        with running(engine_of(translator)) as client:
            assert ask(client, "eins", prefix_beam=2)[0]["hypotheses"] == 2
        with running(engine_of(translator, Decoding(batch_size=4, num_drafts=2))) as client:
            turned_away(client, 422, "`int` <= 1 - at `$.prefix_beam`", prefix_beam=2)

    def test_a_client_forces_few_shapes(self, tokenizer):
        translator = random_translator(tokenizer, max_length=25)  # no other test has compiled its programs
        before = encode._cache_size(), refine_drafts._cache_size()

        def programs():
            return encode._cache_size() - before[0], refine_drafts._cache_size() - before[1]

        with running(engine_of(translator, limits=Limits(max_lengths=8))) as client:
            answers = [ask(client, "eins zwei", num_lengths=num_lengths)[0] for num_lengths in (2, 3, 4)]
            assert programs() == (1, 2)  # for 2 and 4 candidates
            [ask(client, " ".join(["eins"] * words), num_lengths=4) for words in (1, 5, 9)]
            assert programs() == (1, 2)  # rows of 16 tokens
            ask(client, " ".join(["eins"] * 17), num_lengths=4)
            assert programs() == (2, 3)
        same(answers[1:2], translator.translate(["eins zwei"], num_lengths=3))


def test_metrics(translator):
    with running(engine_of(translator)) as client:
        results = ask(client, ["eins", "zwei drei", "", "acht"], num_steps=3)
        client.post("/translate", content=b"{", headers={"Content-Type": "application/json"})
        response = client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=")
        assert figure(client, 'requests_total{status="200"}') == 1 == figure(client, 'requests_total{status="400"}')
        assert figure(client, "sentences_total") == 3
        assert figure(client, "passes_total") == sum(result["passes"] for result in results)
        assert figure(client, "batch_sentences_count") == 1 and figure(client, "batch_sentences_sum") == 3
        assert figure(client, 'request_seconds_bucket{le="+Inf"}') == 1 == figure(client, "request_seconds_count")
        assert figure(client, "batch_seconds_count") == 1 and figure(client, "queue_sentences") == 0

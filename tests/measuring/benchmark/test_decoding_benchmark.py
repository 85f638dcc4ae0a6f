"""Benchmarks of decoding: what is timed is what a user gets, and the figures are those of the run."""

import dataclasses

import numpy as np
import pytest
from support.fakes import Clock
from support.refusals import refused
from support.small_corpus import Numbers
from support.tiny_model import TINY, prepared_numbers, random_translator

from padir import Decoding
from padir.evaluation import TestSet, describe_row
from padir.measuring import benchmark
from padir.measuring.benchmark import speed_report
from padir.metrics.scores import bleu
from padir.refinement.strategies import MaskPredict, Rejecter
from padir.text.ids import Ids

IDS = Ids(vocab_size=400)


@pytest.fixture(scope="module")
def translators(tokenizer, translator):
    """A model that refines drafts and one that writes from left to right, of random weights."""
    return [("padir", translator), ("ar", random_translator(tokenizer, causal=True))]


@pytest.fixture(scope="module")
def test_set():
    sources, references = zip(*Numbers().pairs("validation"), strict=True)
    return TestSet("counted", "de", "en", ["", *sources], ["", *references])


@pytest.fixture(scope="module")
def rows(translators, test_set):
    systems = benchmark.systems(translators, [Decoding(num_lengths=k) for k in (1, 2)])
    measured = benchmark.measure(systems, benchmark.batches_of(test_set, 4, 8), repeats=2, clock=Clock())
    return [describe_row(row, test_set) | {"details": details} for row, details in measured]


def said(results):
    """What must be equal; the scores' last bits depend on the batch."""
    return [(result.text, result.length, result.passes, result.hypotheses) for result in results]


class TestSystem:
    def test_translates_as_the_translator_does_stage_by_stage_or_in_one(self, translators, test_set):
        (batch,) = benchmark.batches_of(test_set, 5, 5)
        for system in benchmark.systems(translators, [Decoding(num_lengths=3)]):
            whole = system.translator.translate(batch.texts, system.decoding)
            assert said(system(batch)) == said(whole)
            assert said([*system.timed_stages(batch)][-1][1]) == said(whole)

    def test_stages_take_all_of_the_time(self, translators, test_set):
        (batch,) = benchmark.batches_of(test_set, 2, 2)
        padir, ar = benchmark.systems(translators, [Decoding()])
        last = "choose and detokenise"
        assert padir.stages(batch, Clock()) == dict.fromkeys(("tokenise", "encode", "lengths", "refine", last), 1)
        assert ar.stages(batch, Clock()) == dict.fromkeys(("tokenise", "encode and write", last), 1)

    def test_given_lengths_are_written_by_both_kinds(self):
        kinds = {"padir": TINY, "ar": dataclasses.replace(TINY, causal=True)}
        translators = [(name, benchmark.random_translator(config, 400)) for name, config in kinds.items()]
        systems = benchmark.systems(translators, [Decoding(num_lengths=3)], given_lengths=True)
        (batch,) = benchmark.batches_of_numbers(benchmark.equal_lengths(9, 4), 4, translators[0][1].card.ids)
        for system in systems:
            results = system(batch)
            assert [result.length for result in results] == [9] * 4
            assert all(1 <= result.passes <= (9 if system.causal else 4) for result in results)
        assert systems[0](batch)[0].hypotheses == 3  # drafts of the one length

    def test_what_has_no_meaning_is_left_out(self, translators):
        strategies = [Decoding(strategy=None), Decoding(strategy=Rejecter())]
        assert len(benchmark.systems(translators[:1], strategies)) == 1
        with refused("rejecter"):
            benchmark.systems(translators[:1], strategies[1:])

    def test_what_is_refused_is_said_once(self, translators):
        said = []
        strategies = [Decoding(), *(Decoding(strategy=Rejecter(), num_steps=steps) for steps in (1, 2))]
        (system,) = benchmark.systems(translators[:1], strategies, warn=said.append)
        assert len(said) == 1 and said[0].startswith(f"some options make no row of {system.model}: ")

    def test_repeats_are_dropped_from_all_rows_or_from_none(self, translators):
        strategies = [Decoding(strategy=MaskPredict()), Decoding()]  # by themselves only the second one drops them
        for tried, dropped in ((strategies, [True, True]), (strategies[:1], [False])):
            systems = benchmark.systems(translators[:1], tried)
            assert [system.decoding.drops_repeats for system in systems] == dropped


class TestBatches:
    def test_are_drawn_and_whole(self, test_set):
        batches = benchmark.batches_of(test_set, 4, 10)
        assert [len(batch.texts) for batch in batches] == [4, 4]
        pairs = dict(zip(test_set.sources, test_set.references, strict=True))
        for batch in batches:
            assert all(batch.texts) and batch.references == tuple(pairs[text] for text in batch.texts)
        assert batches == benchmark.batches_of(test_set, 4, 10)

    def test_of_too_few_sentences(self, test_set):
        with refused("needs 99 sentences, got 20 text"):
            benchmark.batches_of(test_set, 4, 99)
        with refused("least batch 4 sentences, got 3"):
            benchmark.batches_of(test_set, 4, 3)

    def test_of_numbers_have_that_many_tokens(self):
        tokenizer = benchmark.NumberTokenizer(IDS)
        (batch,) = benchmark.batches_of_numbers(benchmark.equal_lengths(7, 3), 3, IDS)
        tokens = tokenizer.encode_batch(batch.texts)
        assert [len(each) for each in tokens] == [6, 6, 6] and batch.target_lengths == (7, 7, 7)
        assert all(IDS.first_regular <= i < IDS.end_regular for each in tokens for i in each)
        assert tokenizer.encode_batch([tokenizer.decode(tokens[0])]) == tokens[:1]

    def test_of_a_corpus_have_its_lengths(self, tmp_path):
        folder = str(prepared_numbers(tmp_path))
        length_N2 = benchmark.drawn_lengths(folder, "validation", 8)
        every = {tuple(pair) for pair in np.load(f"{folder}/validation.lengths.npy").tolist()}
        assert {tuple(pair) for pair in length_N2.tolist()} <= every and len(set(length_N2[:, 0].tolist())) > 1
        batches = benchmark.batches_of_numbers(length_N2, 4, IDS)
        source = [len(text.split()) + 1 for batch in batches for text in batch.texts]
        target = [length for batch in batches for length in batch.target_lengths]
        assert np.array_equal(np.stack([source, target], axis=1), length_N2)
        with refused("needs 999 lengths"):
            benchmark.drawn_lengths(folder, "validation", 999)
        with refused("no split 'dev': use train, validation"):
            benchmark.drawn_lengths(folder, "dev", 1)


class TestRows:
    @pytest.mark.slow
    def test_say_what_was_timed(self, rows):
        assert [(row["model"], row["causal"], row["batch_size"]) for row in rows] == [
            ("padir", False, 4),
            ("padir", False, 4),
            ("ar", True, 4),
        ]
        for row in rows:
            figures = {name: score["value"] for name, score in row["scores"].items()}
            assert figures["p50_ms"] == 1000 and "p99_ms" not in figures  # a call is two looks at the clock; few calls
            assert figures["sentences_per_second"] == 4 and figures["ratio"] == 1
            assert figures["tokens_per_second"] == pytest.approx(4 * figures["tokens"])
            assert figures["compile_seconds"] == 0
            assert "batch:4|calls:4|compile:no" in row["scores"]["p50_ms"]["signature"]
            assert row["details"]["repeat_seconds"] == [2, 2]

    def test_the_quality_is_that_of_what_was_timed(self, translators, test_set, rows):
        batches = benchmark.batches_of(test_set, 4, 8)
        sources = [text for batch in batches for text in batch.texts]
        texts = [result.text for result in translators[0][1].translate(sources)]  # whatever the size of batches
        references = [reference for batch in batches for reference in batch.references]
        assert rows[0]["scores"]["bleu"]["value"] == bleu(texts, references, "en").value

    def test_as_a_report(self, rows, tmp_path):
        text = speed_report.to_markdown(rows, speed_report.environment())
        assert "| # | model |" in text and "encode and write" in text and "jax" in text
        speed_report.plot(rows, tmp_path / "x.png", "title")
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
        for row in rows:
            del row["scores"]["bleu"]
        with refused("needs references"):
            speed_report.plot(rows, tmp_path / "y.png", "title")

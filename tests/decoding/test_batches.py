"""Batches: drafts of several widths, rows without a candidate, few programs, and a thread that works ahead."""

import threading

import jax
import numpy as np
import pytest
from support.tiny_model import random_model_dir, random_translator

from padir.decoding import Decoding, MinimumBayesRisk, refiner
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.planned_drafts import PlannedDraft
from padir.decoding.sentences import BatchTranslator, make_writer, one_ahead

WORDS = "eins zwei drei vier fünf sechs sieben acht neun".split()
TEXTS = [" ".join((WORDS * 2)[n : n + 1 + n % 7]) for n in range(9)]


@pytest.fixture(scope="module")
def wide(tokenizer):
    return random_translator(tokenizer, max_length=96)


def written(translator, texts, tried):
    """Drafts of the candidates of each text, and the widths of the canvases that programs were called with."""
    made = translator.refiner(translator.resolved(Decoding(num_lengths=3, num_steps=3)))
    tokens, _ = translator.loaded.source_tokens(texts, truncate=False)
    return made.refine(made.encode([*map(SourceSentence, texts, tokens)]), tried)


def test_candidates_of_other_widths_change_nothing(wide, monkeypatch):
    """Groups of 32 positions: canvases of 8 to 24 positions are refined apart, each row in one of them."""
    tried = [[PlannedDraft(3 + (5 * b + n) % 20, n) for n in range(1 + b % 3)] for b in range(len(TEXTS))]
    widths = []

    def noted(model, params, inputs, options, call=refiner.refine_drafts):
        widths.append(options.max_target_length)
        return call(model, params, inputs, options)

    monkeypatch.setattr(refiner, "refine_drafts", noted)
    drafts = []
    for positions, expected in ((10_000, [24]), (32, [8, 12, 16, 24])):
        monkeypatch.setattr("padir.decoding.encoding.POSITIONS", positions)
        widths.clear()
        drafts.append(written(wide, TEXTS, tried))
        assert widths == expected
    together, apart = drafts
    for whole, parts in zip(jax.tree.leaves(together), jax.tree.leaves(apart), strict=True):
        np.testing.assert_allclose(parts, whole, atol=1e-4)


def test_a_row_without_a_candidate_takes_no_pass(wide):
    """Sentences with 1, 3 and 2 candidates have 4 rows each; a fourth sentence pads the batch."""
    drafts = written(wide, TEXTS[:3], [[PlannedDraft(5, n) for n in range(count)] for count in (1, 3, 2)])
    passes_BN = drafts.passes_R.reshape(4, -1)
    assert (passes_BN > 0).sum(1).tolist() == [1, 3, 2, 0] and (drafts.length_R > 0).sum() == 6


def test_a_corpus_compiles_few_programs(wide, monkeypatch):
    """Sources of all lengths that the model takes, in batches of 32 and with 5 lengths each."""
    shapes = set()

    def noted(model, params, inputs, options):
        rows, width = inputs.length_BN.size, options.max_target_length
        shapes.add((inputs.source_BS.shape, inputs.length_BN.shape, width))
        zeros_R = np.zeros(rows)
        zeros_RL = np.zeros((rows, width), int)
        lengths_R = np.asarray(inputs.length_BN).reshape(-1)
        return refiner.Drafts(zeros_RL, zeros_RL > 0, lengths_R, zeros_R, zeros_R, zeros_R, None)

    monkeypatch.setattr(refiner, "refine_drafts", noted)
    rng = np.random.default_rng(0)
    made = wide.refiner(wide.resolved(Decoding(num_lengths=5)))
    for longest in range(2, 95):
        tokens = [[*map(int, rng.integers(300, 320, longest)), 1]] * 32
        sources = [SourceSentence("", each) for each in tokens]
        mean = rng.normal(longest, 0.2 * longest + 1, 32)
        tried = [[PlannedDraft(int(np.clip(each + d, 2, 96)), 0) for d in range(5)] for each in mean]
        made.refine(made.encode(sources), tried)
    assert len(shapes) <= 18


class TestOneAhead:
    def test_results_come_in_order_from_two_threads(self):
        started, names = threading.Event(), set()

        def work(item):
            names.add(threading.current_thread().name)
            if item == 0:
                assert started.wait(10), "nobody works on the second item"
            started.set()
            return item**2

        assert [*one_ahead(work, range(5))] == [0, 1, 4, 9, 16] and len(names) == 2

    def test_only_what_padir_brings_is_called_in_them(self, wide, tmp_path, monkeypatch):
        """A rule that is named, as by its model, is padir's own; so is the writer that constraints take."""
        named = str(random_model_dir(tmp_path, causal=True))
        engine = wide.with_writer(lambda *given, **more: make_writer(*given, **more))
        own = [(wide, "own"), (wide, named), (engine.with_writer(make_writer), "mbr")]
        foreign = [(engine, "own"), (wide, MinimumBayesRisk())]
        for translator, rule in [*own, *foreign]:
            threads = set()

            def noted(*given, read=BatchTranslator.read, threads=threads):
                threads.add(threading.current_thread())
                return read(*given)

            monkeypatch.setattr(BatchTranslator, "read", noted)
            translator.translate_sentences(TEXTS, Decoding(num_lengths=2, num_steps=1, batch_size=3, rerank=rule))
            assert (threading.main_thread() in threads) == ((translator, rule) in foreign)
            monkeypatch.undo()

    @pytest.mark.parametrize("items", [[], [7]])
    def test_a_single_batch_needs_no_thread(self, items):
        assert [*one_ahead(lambda item: (item, threading.current_thread()), items)] == [
            (item, threading.main_thread()) for item in items
        ]

    def test_an_error_comes_in_its_place_and_ends_the_work(self):
        seen = []

        def work(item):
            seen.append(item)
            if item == 1:
                raise ValueError("item 1")
            return item

        results = one_ahead(work, range(100))
        assert next(results) == 0
        with pytest.raises(ValueError, match="item 1"):
            next(results)
        assert len(seen) <= 4

    @pytest.mark.parametrize(
        "context",
        [
            lambda: jax.default_matmul_precision("float32"),
            lambda: jax.default_device(jax.devices("cpu")[0]),
            lambda: jax.threefry_partitionable(False),
            lambda: jax.debug_nans(True),
        ],
    )
    def test_settings_of_the_callers_thread_hold(self, context):
        with context():
            assert {*one_ahead(lambda _: threading.current_thread(), range(4))} == {threading.main_thread()}

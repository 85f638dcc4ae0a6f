"""The objectives of causal models and of dual ones: values, packing, gradients, and training runs with them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.objectives import check_packing, run
from support.refusals import refused
from support.tiny import one_layer_model, pairs, rows_of
from support.tiny_model import TINY, random_translator
from support.training import train_tiny

from padir.data.plan import Batching
from padir.decoding import Decoding
from padir.decoding.fit import default_decoding
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.scoring import score_pairs
from padir.models import ModelConfig, Transformer, load_model
from padir.models.directory import ModelCard
from padir.options import OPTIONS
from padir.refinement import Padir, Uniform
from padir.refinement.transitions import Glat
from padir.text.cleaning import without_repeats
from padir.text.ids import EOS
from padir.training import Adam, Causal, Cosine, Intervals, Objective, Sum, TrainConfig
from padir.training.metrics import step_metrics
from padir.translator import Translator

PAIRS = pairs([(4, 5), (6, 3), (3, 7)], length_token=False)
APART = rows_of([[pair] for pair in PAIRS], 8, 8)
PACKED = rows_of([PAIRS], 24, 20)
BATCH = rows_of([[pair] for pair in pairs([(4, 5), (6, 3), (3, 7)])], 8, 8)
DUAL = Sum(Objective(label_smoothing=0.1, length_weight=2.0), Causal(label_smoothing=0.1))


class TestLoss:
    def test_uniform_logits_cost_log_v_a_token(self):
        model, params = one_layer_model(causal=True)
        loss, sums = run(model, jax.tree.map(jnp.zeros_like, params), APART, Causal(z_loss=0.1))
        assert sums.tokens == 18 and sums.segments == 3  # 5 + 3 + 7 pieces and an EOS each
        assert_allclose(loss, 18 * (np.log(64) + 0.1 * np.log(64) ** 2), rtol=1e-5)
        assert_allclose(sums.stage_z_loss_S, [18 * 0.1 * np.log(64) ** 2], rtol=1e-5)
        assert_allclose(sums.stage_loss_S, [loss])
        assert sums.length_loss == 0 and sums.length_correct == 0

    def test_counts_the_tokens_that_are_right(self):
        model, params = one_layer_model(causal=True, dropout_rate=0.0)
        zeros = jax.tree.map(jnp.zeros_like, params)  # all logits are equal, so that each target has a largest one
        assert run(model, zeros, APART, Causal())[1].stage_correct_S == 18
        assert run(model, params, APART, Causal())[1].stage_correct_S < 9

    def test_packed_and_unpacked_losses_and_gradients_agree(self):
        check_packing(*one_layer_model(causal=True), Causal(label_smoothing=0.1, z_loss=1e-3), APART, PACKED)

    def test_label_smoothing_and_dropout_count(self):
        model, params = one_layer_model(causal=True, dropout_rate=0.3)
        plain, _ = run(model, params, APART, Causal())
        assert plain != run(model, params, APART, Causal(label_smoothing=0.1))[0]
        one, two = (run(model, params, APART, Causal(), dropout=True, key=key)[0] for key in (0, 1))
        assert len({float(plain), float(one), float(two)}) == 3

    @pytest.mark.parametrize(
        ("causal", "objective", "words"),
        [(False, Causal(), "only a causal model left to right"), (True, Objective(), "draft: train it with Causal")],
    )
    def test_each_objective_is_for_its_models(self, causal, objective, words):
        model, params = one_layer_model(causal=causal)
        with refused(words):
            run(model, params, APART, objective)


class TestTraining:
    def test_learns_and_writes_a_model_directory(self, data, tmp_path):
        config = dataclasses.replace(TINY, causal=True, dropout_rate=0.0)
        folder = tmp_path / "model"
        train_tiny(
            data,
            folder,
            model=config,
            objective=Causal(label_smoothing=0.1),
            optimizer=Adam(Cosine(peak=1e-2, warmup_steps=2)),
            batching=Batching(rows=8, row_length=24),
            intervals=Intervals(log=30, evaluate=0, checkpoint=60),
            num_steps=60,
        )
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert rows[-1]["loss"] < 0.8 * rows[0]["loss"] and rows[0]["loss"] == rows[0]["stage_1_loss"]
        _, card, _ = load_model(folder)
        assert card.config == config and card.corruption is None and card.strategy is None


def as_causal(model):
    return Transformer(model.config.as_causal(), model.ids)


@pytest.fixture(scope="module")
def dual():
    return one_layer_model(dual=True)


def test_the_loss_is_the_sum_of_both(dual):
    model, params = dual
    _, key_refine, key_write = jax.random.split(jax.random.key(3), 3)

    def loss_of(objective, way, key):
        return jax.jit(lambda params: objective(key, params, BATCH, model=way, dropout=False))(params)

    refining, refining_sums = loss_of(DUAL.refining, model, key_refine)
    writing, writing_sums = loss_of(DUAL.causal, as_causal(model), key_write)
    loss, sums = run(model, params, BATCH, dataclasses.replace(DUAL, causal_weight=0.5), key=3)
    assert_allclose(loss, refining + 0.5 * writing, rtol=1e-5)
    assert DUAL.causal_weight == 1.0 and writing > 0 and sums.stage_loss_S.shape == (3,)
    assert_allclose(sums.stage_loss_S[:2], refining_sums.stage_loss_S, rtol=1e-5)
    assert_allclose(sums.stage_loss_S[2:], writing_sums.stage_loss_S, rtol=1e-5)
    metrics = step_metrics(sums, seconds=1.0)
    assert_allclose(metrics["loss"], loss / sums.tokens, rtol=1e-5)
    assert "stage_3_accuracy" in metrics


def test_a_transition_hears_how_far_the_run_is(dual):
    """Glancing, for example, shows less of the target as training goes on."""
    model, params = dual
    heard = []

    @dataclasses.dataclass(frozen=True)
    class Watched(Glat):
        def __call__(self, *args, progress=0.0):
            heard.append(progress)
            return super().__call__(*args, progress=progress)

    objective = Sum(Objective(transition=Watched()), Causal())
    how = {"model": model, "dropout": False, "progress": 0.25}
    jax.eval_shape(lambda: objective(jax.random.key(0), params, BATCH, **how)[0])
    assert heard == [0.25]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sum(Objective(normaliser="sentences")), "normaliser must be 'tokens' dual"),
        (lambda: TrainConfig(ModelConfig(dual=True)), "objective of dual models, got Objective"),
        (lambda: TrainConfig(ModelConfig(), Sum()), "objective of refining models, got Sum"),
        (lambda: TrainConfig(ModelConfig(dual=True, causal=True), Sum()), "leave ModelConfig.causal out"),
        (lambda: ModelConfig(dual=True, rejecter=True), "dual=True excludes"),
        (lambda: ModelConfig().as_causal(), "several modes this one refines leave the mode out"),
        (lambda: ModelConfig(causal=True).as_causal(), "several modes this one always left to right"),
        *(
            (lambda make=make, wrong=wrong: make(**wrong), "options of different modes exclude")
            for make in (Decoding, Decoding(seed=1).changed)
            for wrong in (
                {"beam": 2, "num_steps": 2},
                {"mode": "causal", "num_lengths": 2},
                {"mode": "refine", "beam": 2},
            )
        ),
        (lambda: Decoding().changed(card_options={}), "no decoding option 'card_options'"),
        (lambda: Decoding().changed(templates="a ___"), "no decoding option 'templates': did you mean 'template'?"),
        (lambda: Decoding(trace=True), "no decoding option 'trace': it is an argument of Translator.translate"),
    ],
)
def test_what_is_refused(make, words):
    with refused(words):
        make()


def test_the_causal_side_chooses_among_drafts(tokenizer, monkeypatch):
    """The score of each draft is that of the mode "causal" for its tokens without repeats; the best one wins."""
    translator, texts = random_translator(tokenizer, dual=True), ["eins zwei", "drei vier fünf", "eins"]
    refiner = translator.refiner(
        translator.resolved(Decoding(rerank="causal", length_normalization=0.5, num_lengths=3, n_best=3))
    )
    tokens, _ = translator.loaded.source_tokens(texts, False)
    sources = [*map(SourceSentence, texts, tokens)]
    encoded = refiner.encode(sources)
    drafts = refiner.refine(encoded, refiner.plan_drafts(sources, encoded))
    rows = [
        tokens_L[editable_L].tolist() for tokens_L, editable_L in zip(drafts.tokens_RL, drafts.editable_RL, strict=True)
    ]
    targets = [[*without_repeats(row, translator.tokenizer.copied), EOS] for row in rows[: 3 * len(texts)]]
    scored = score_pairs(translator.loaded.side("causal"), [own for own in tokens for _ in range(3)], targets, 32)
    monkeypatch.setattr(
        "padir.decoding.reading.broken", lambda text, source: 0
    )  # bytes that are no text choose nothing here
    results = translator.batch_translator(refiner.decoding)(sources)
    for b, result in enumerate(results):
        expected = sorted((each.log_prob / each.tokens**0.5 for each in scored[3 * b : 3 * b + 3]), reverse=True)
        assert expected[0] - expected[2] > 0.01
        assert_allclose([each.score for each in result.candidates], expected, rtol=1e-4)
        first = result.candidates[0]
        assert (result.text, result.score) == (first.text, first.score)
    with_others = translator.translate([*texts, ""], rerank="causal", length_normalization=0.5, num_lengths=3)
    assert [each.text for each in with_others] == [*(each.text for each in results), ""]
    monkeypatch.setattr("padir.decoding.reading.with_causal_scores", None)  # with one draft nothing is read again
    assert translator.translate(texts, rerank="causal") == translator.translate(texts, rerank="own")


def test_only_a_dual_model_has_a_causal_score(translator):
    for rule, words in (
        ("causal", "'causal' dual model rescores 'own'"),
        ("casual", "neither rule model mean 'causal'"),
    ):
        with refused(words):
            translator.translate(["eins"], rerank=rule)


@pytest.mark.parametrize("readout", ["plain", "ctc"])
def test_a_run_trains_a_model_with_two_modes(data, tmp_path, readout):
    config = dataclasses.replace(TINY, dual=True, readout=readout, max_length=48)
    batching, objective = Batching(rows=4, row_length=24, mode="bucket"), Sum(Objective(stage_weights=("all",)))
    train_tiny(data, tmp_path / "run", model=config, objective=objective, batching=batching, num_steps=2)
    translator, texts = Translator.load(tmp_path / "run"), ["eins zwei", "", "drei vier fünf"]
    refined, written = (translator.translate(texts, mode=m) for m in ("refine", "causal"))
    assert refined == translator.translate(texts) and written != refined
    assert [each.tokens for each in translator.score(texts[:1], ["one"])] == [2]


def test_each_mode_reads_its_own_options():
    own = dataclasses.replace(Decoding(), num_lengths=5, beam=2)
    assert own.mode is None and Decoding().changed(seed=3).mode is None
    assert own.changed(mode="causal").changed(num_lengths=3) == dataclasses.replace(own, mode="refine", num_lengths=3)
    assert Decoding(beam=3).mode == Decoding(num_lengths=2).changed(temperature=1.0).mode == "causal"
    assert Decoding(num_steps=4).mode == Decoding(beam=3).changed(num_steps=2).mode == "refine"
    assert Decoding(beam=3).changed(mode=None).mode is None and Decoding(mode=None, beam=3).mode == "causal"
    every = {name: getattr(own, name) for name in OPTIONS}
    assert Decoding(**every) == own and Decoding(**every | {"mode": "refine"}).mode == "refine"
    del every["mode"]
    for both in (every, {"mode": "causal", "num_steps": 3, "beam": 2}, {"mode": None, "num_steps": 3, "beam": 2}):
        with refused("options of different modes exclude"):
            Decoding(**both)


def test_a_card_has_options_of_both_modes_and_names_none(tokenizer):
    config = dataclasses.replace(TINY, dual=True)
    card = ModelCard(config, tokenizer.ids, Uniform(), Padir(), "de", "en", "numbers")
    options = {"beam": 2, "temperature": 0.5, "num_drafts": 2, "num_lengths": 5, "rerank": "causal"}
    own = default_decoding(dataclasses.replace(card, decoding=options))
    assert own == dataclasses.replace(Decoding(), **options)
    assert own.mode is None and own.changed(mode="refine").changed(mode="causal") == own.changed(mode="causal")
    for wrong in ({"num_lengths": 0}, {"card_options": {}}, {"mode": "refine"}):
        with refused("wrong decoding options"):
            default_decoding(dataclasses.replace(card, decoding=options | wrong))
    without = default_decoding(dataclasses.replace(card, decoding={"length_penalty": 1.4}))
    assert without.mode is None and without.changed(mode="causal").length_penalty == 1.4

"""Dual models: the objective is the sum of both losses, on one encoder's output; one directory has three modes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.tiny import one_layer_model, pairs, rows_of
from support.tiny_model import TINY
from support.training import train_tiny

from padir.decoding.batches import SourceBatch
from padir.decoding.drafters import load_draft
from padir.decoding.modes import in_mode
from padir.decoding.options import Decoding
from padir.decoding.text import without_repeats
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.models.transformer import Transformer
from padir.refinement.corruption import Mask
from padir.refinement.transitions import Glat
from padir.text.ids import EOS
from padir.training.config import TrainConfig
from padir.training.ctc import Ctc
from padir.training.dual import Dual
from padir.training.objective import Objective
from padir.training.step import step_metrics
from padir.training.teacher_forcing import TeacherForcing

BATCH = rows_of([[pair] for pair in pairs([(4, 5), (6, 3), (3, 7)])], 8, 8)
DUAL = Dual(Objective(label_smoothing=0.1, length_weight=2.0), TeacherForcing(label_smoothing=0.1))


def as_causal(model):
    return Transformer(model.config.as_causal(), model.ids)


@functools.partial(jax.jit, static_argnames=("model", "objective", "dropout"))
def run(model, params, objective, key, dropout=False):
    return objective(key, params, BATCH, model=model, dropout=dropout)


@pytest.fixture(scope="module")
def dual():
    return one_layer_model(dual=True)


def test_the_loss_is_the_sum_of_both(dual):
    model, params = dual
    _, key_refine, key_write = jax.random.split(jax.random.key(3), 3)
    refining, refining_sums = run(model, params, DUAL.refining, key_refine)
    writing, writing_sums = run(as_causal(model), params, DUAL.writing, key_write)
    loss, sums = run(model, params, DUAL, jax.random.key(3))
    np.testing.assert_allclose(loss, refining + writing, rtol=1e-5)
    assert writing > 0 and sums.stage_loss_S.shape == (3,)
    np.testing.assert_allclose(sums.stage_loss_S[:2], refining_sums.stage_loss_S, rtol=1e-5)
    np.testing.assert_allclose(sums.stage_loss_S[2:], writing_sums.stage_loss_S, rtol=1e-5)
    metrics = step_metrics(sums, DUAL, seconds=1.0)
    np.testing.assert_allclose(metrics["loss"], loss / sums.tokens, rtol=1e-5)
    assert "stage_3_accuracy" in metrics


def test_packed_rows_have_the_loss_of_rows_of_their_own(dual):
    model, params = dual
    objective = Dual(Objective(Mask(1.0)), TeacherForcing())
    packed = rows_of([pairs([(4, 5), (6, 3), (3, 7)])], 24, 24)
    options = {"model": model, "dropout": False}
    alone, _ = objective(jax.random.key(0), params, BATCH, **options)
    together, sums = objective(jax.random.key(0), params, packed, num_segments=3, **options)
    assert sums.segments == 3
    np.testing.assert_allclose(together, alone, rtol=1e-5)


def test_a_transition_hears_how_far_the_run_is(dual):
    """Glancing, for example, shows less of the target as training goes on."""
    model, params = dual
    heard = []

    @dataclasses.dataclass(frozen=True)
    class Watched(Glat):
        def __call__(self, *args, progress=0.0):
            heard.append(progress)
            return super().__call__(*args, progress=progress)

    objective = Dual(Objective(between=Watched()), TeacherForcing())
    objective(jax.random.key(0), params, BATCH, model=model, dropout=False, progress=0.25)
    assert heard == [0.25]


def test_both_ways_train_encoder_and_decoder(dual):
    model, params = dual
    for objective, way in ((DUAL.refining, model), (DUAL.writing, as_causal(model)), (DUAL, model)):
        grads = jax.grad(lambda params: run(way, params, objective, jax.random.key(0))[0])(params)  # noqa: B023
        for part in ("encoder", "decoder", "token_embedder"):
            assert any(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(grads[part])), (objective, part)


def test_dropout_changes_with_the_key():
    """Dropout alone makes the autoregressive loss, the last stage's, depend on the key."""
    model, params = one_layer_model(dual=True, dropout_rate=0.3)

    def writing(seed, dropout):
        return float(run(model, params, DUAL, jax.random.key(seed), dropout)[1].stage_loss_S[-1])

    assert writing(0, True) != writing(1, True) and writing(0, False) == writing(1, False) != writing(0, True)


def test_the_decoder_writes_from_left_to_right(dual):
    """A changed token changes the logits to its right alone, and the distances are those of the refining decoder."""
    model, params = dual
    bound = as_causal(model).bind({"params": params})
    encoded = bound.encode(BATCH.source_BS, BATCH.source_segment_BS)
    cross_kv = bound.cross_kv(encoded.memory_BSD)

    def logits(target_BL):
        return bound.teacher_force(target_BL, BATCH.target_segment_BL, cross_kv, encoded.segment_BS)

    whole, changed = logits(BATCH.target_BL), logits(BATCH.target_BL.at[:, 3].add(1))
    np.testing.assert_allclose(changed[:, :4], whole[:, :4], rtol=1e-5, atol=1e-5)
    assert (jnp.abs(changed[0, 4] - whole[0, 4]).max(-1) > 1e-3).all()
    assert bound.decoder.relpos_bias.bidirectional and not ModelConfig(causal=True).signed_distances


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dual(Ctc(stage_weights=("all",))), "Dual.refining must be an instance of Objective, got Ctc"),
        (lambda: Dual(Objective(normaliser="sentences")), "normaliser must be 'tokens' in a dual objective"),
        (lambda: TrainConfig(ModelConfig(dual=True)), "belong together: set both"),
        (lambda: TrainConfig(ModelConfig(), Dual()), "belong together: set both"),
        (lambda: TrainConfig(ModelConfig(dual=True, causal=True), Dual()), "leave ModelConfig.causal out"),
        (lambda: ModelConfig(dual=True, rejecter=True), "dual=True excludes"),
        (lambda: ModelConfig(dual=True, length_head="ctc"), "dual=True excludes"),
        (lambda: ModelConfig().as_causal(), "two ways, and this one refines drafts: leave the mode out"),
        (lambda: ModelConfig(causal=True).as_causal(), "two ways, and this one always writes from left to right"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(PadirError, match=message):
        make()


def test_the_causal_side_chooses_among_drafts(data, tmp_path):
    """The score of each draft is that of the mode "causal" for its tokens without repeats; the best one wins."""
    config = dataclasses.replace(TINY, dual=True)
    train_tiny(data, tmp_path / "run", model=config, objective=Dual(), num_steps=4)
    translator, texts = Translator.load(tmp_path / "run"), ["eins zwei", "drei vier fünf", "eins"]
    causal = in_mode(translator, "causal")
    pipeline = translator.pipeline(Decoding().changed(rerank="causal", brevity=0.5, top_k=3, n_best=3))
    batch = SourceBatch(texts, translator.loaded.source_tokens(texts, False)[0])
    refined = pipeline.run_to_drafts(batch)
    rows = zip(refined.drafts.tokens_RL, refined.drafts.free_RL, strict=True)
    targets = [[*without_repeats(*row, translator.tokenizer.copied), EOS] for row in rows][: 3 * len(texts)]
    sources = [tokens for tokens in causal.loaded.source_tokens(texts, False)[0] for _ in range(3)]
    scored = causal.pipeline(Decoding()).score(sources, targets)
    for b, result in enumerate(pipeline.choose(refined)):
        expected = sorted((each.log_prob / each.tokens**0.5 for each in scored[3 * b : 3 * b + 3]), reverse=True)
        assert expected[0] - expected[2] > 0.01
        np.testing.assert_allclose([score for _, score in result.candidates], expected, rtol=1e-4)
        assert result.text == result.candidates[0][0] and result.score == result.candidates[0][1]
    with_others = translator.translate([*texts, ""], rerank="causal", brevity=0.5, top_k=3)
    assert [each.text for each in with_others] == [*(each.text for each in pipeline.run(batch)), ""]


def test_only_a_dual_model_has_a_causal_score(data, tmp_path):
    train_tiny(data, tmp_path / "run", num_steps=1)
    translator = Translator.load(tmp_path / "run")
    with pytest.raises(PadirError, match="'causal' needs a dual model.*rescores, or take the rule 'own'"):
        translator.translate(["eins"], rerank="causal")
    with pytest.raises(PadirError, match="rerank must be one of own, causal, pseudo, mbr, mbr_bleu, got 'casual'"):
        translator.translate(["eins"], rerank="casual")


def test_a_run_trains_a_model_with_three_modes(data, tmp_path):
    config = dataclasses.replace(TINY, dual=True)
    train_tiny(data, tmp_path / "run", model=config, objective=Dual(), num_steps=4)
    translator, texts = Translator.load(tmp_path / "run"), ["eins zwei", "", "drei vier fünf"]
    with pytest.raises(PadirError, match="is a mode of a dual model already"):
        in_mode(in_mode(translator, "causal"), "refine")
    with pytest.raises(PadirError, match="draft applies only to autoregressive.*choose the mode causal or verify"):
        translator.translate(texts, draft=load_draft("jacobi"))
    assert in_mode(translator, "verify").quantised().decoding.draft is not None
    refined, written, verified = (in_mode(translator, m).translate(texts) for m in ("refine", "causal", "verify"))
    greedy = in_mode(translator, "causal").translate(texts, size=1)
    assert refined == translator.translate(texts) and written != refined
    assert [each.text for each in verified] == [each.text for each in greedy] != ["", "", ""]
    assert all(mine.passes <= its.passes for mine, its in zip(verified, greedy, strict=True))
    assert [each.tokens for each in in_mode(translator, "causal").score(texts[:1], ["one"])] == [2]
    with pytest.raises(PadirError, match="a mode of a dual model cannot be saved"):
        in_mode(translator, "causal").save(tmp_path / "saved")
    with pytest.raises(PadirError, match="mode must be one of refine, causal, verify, got 'draft'"):
        in_mode(translator, "draft")

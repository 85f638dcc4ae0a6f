"""What saves memory saves it and changes nothing else: logits of some rows at a time, layers computed again."""

import dataclasses
import functools
import re
import subprocess
import sys

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import IDS, keys
from support.objectives import EXPECTED
from support.tiny import pairs, rows_of, tiny_model
from support.workers import environment_with

from padir.models import ModelConfig, Transformer
from padir.refinement import Glat, Lifted, Mask, MaskPredict, Padir, Rejecter, SampledUnroll, Smart, from_tokens, veil
from padir.text.ids import Ids
from padir.training import Causal, Objective
from padir.training.batch import StageRows, by_rows

ROWS = [[(4, 6), (5, 8)], [(7, 9)], [(3, 3), (4, 4)], [(9, 12)], [], [(2, 2)]]
BATCH = rows_of([pairs(row, seed=seed) for seed, row in enumerate(ROWS)], 16, 16)
OBJECTIVES = {**EXPECTED, "autoregressive": Causal()}


SIZES = dict(encoder_layers=1, decoder_layers=1, dropout_rate=0.0)
CHANGES = {
    "disco": {"decontextualised": True},
    "rejecter": {"rejecter": True, "tied": False, "mlp_activations": ("gelu", "linear")},
    "autoregressive": {"causal": True, "dropout_rate": 0.2},
}


def loss_fn(model, objective, batch=BATCH):
    """params -> (loss, sums)."""
    settings = dict(model=model, num_segments=2, dropout=model.config.dropout_rate > 0, progress=0.5)
    return lambda params: objective(jax.random.key(0), params, batch, **settings)


def gradient_fn(model, objective, batch=BATCH):
    """params -> ((loss, sums), gradient)."""
    return jax.jit(jax.value_and_grad(loss_fn(model, objective, batch), has_aux=True))


def shapes_of(model):
    """Its parameters, without their values."""
    ones_BL = jnp.ones((1, 1), jnp.int32)
    return jax.eval_shape(lambda: model.init(jax.random.key(0), *[ones_BL] * 4))["params"]


def temporaries(compiled):
    return compiled.memory_analysis().temp_size_in_bytes


def check_same(one, two):
    """Two results of `gradient_fn` are equal to rounding, and no parameter is without a gradient."""
    ((loss_one, sums_one), gradient_one), ((loss_two, sums_two), gradient_two) = one, two
    np.testing.assert_allclose(loss_one, loss_two, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(sums_one), jax.tree.leaves(sums_two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    flat = flax.traverse_util.flatten_dict(gradient_two, sep="/")
    for path, a in flax.traverse_util.flatten_dict(gradient_one, sep="/").items():
        largest = float(jnp.abs(a).max())
        assert largest > 0, path
        np.testing.assert_allclose(a, flat[path], rtol=1e-3, atol=1e-5 * largest, err_msg=path)


@pytest.mark.parametrize(
    "name", ["rejecter", *(pytest.param(name, marks=pytest.mark.slow) for name in ("disco", "autoregressive"))]
)
def test_both_leave_loss_and_gradient_as_they_are(name):
    """Of models with unlike decoders; test_objective_files.py trains with every objective row by row."""
    model, params = tiny_model(**{**SIZES, **CHANGES[name]})
    objective = dataclasses.replace(OBJECTIVES[name], label_smoothing=0.1, z_loss=1e-2)
    again = Transformer(dataclasses.replace(model.config, remat=True), IDS)
    in_parts = dataclasses.replace(objective, positions_at_once=2 * 16 + 8)  # 3 chunks of 2 rows
    check_same(gradient_fn(model, objective)(params), gradient_fn(again, in_parts)(params))


class TestPositionsAtOnce:
    @pytest.mark.parametrize(
        "between",
        [*map(Lifted, (Padir("logits"), MaskPredict(), Rejecter())), Smart(), SampledUnroll(), Glat()],
        ids=str,
    )
    def test_the_next_canvas_is_the_same_to_the_token(self, between):
        model, params = tiny_model(**SIZES)
        free_BL = (BATCH.target_segment_BL > 0) & (BATCH.target_BL != IDS.eos)
        noisy_BL, chosen_BL = Mask(0.5)(keys(6), BATCH.target_BL, free_BL, BATCH.target_segment_BL, ids=IDS)
        start_BL = jnp.where(free_BL, IDS.mask, BATCH.target_BL)
        canvas = veil(from_tokens(noisy_BL, start_BL, free_BL, BATCH.target_segment_BL, IDS), chosen_BL)
        states_BLD = jax.random.normal(jax.random.key(1), (6, 16, 16))
        keep_BL = jax.random.normal(jax.random.key(2), (6, 16))
        rows = StageRows(canvas, keep_BL, BATCH.target_BL, chosen_BL, free_BL, keys(6, seed=3))
        end = functools.partial(Objective(between=between).end_stage, model, params, 0.5, False)
        whole, parts = (jax.jit(functools.partial(by_rows, end, n))(states_BLD, rows)[1] for n in (None, 32))
        assert (whole[0].tokens_BL != noisy_BL).any()
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
            if a.dtype == jnp.float32:  # scores
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(a, b)

    @pytest.mark.slow
    def test_logits_of_all_rows_never_exist(self):
        batch = jax.tree.map(lambda x: jnp.concatenate([x, x]), BATCH)
        # So many pieces that nothing is as large as the logits.
        config = ModelConfig(width=16, heads=2, head_dim=8, mlp=32, max_length=32, **SIZES)
        model = Transformer(config, Ids(vocab_size=3001, num_sentinels=32, first_regular=6))
        causal = Transformer(dataclasses.replace(config, causal=True), model.ids)

        def compiled(model, objective):
            return gradient_fn(model, objective, batch).lower(shapes_of(model)).compile()

        def largest(program):
            shapes = re.findall(r"\b[a-z]+\d+\[(\d[\d,]*)\]", program.as_text())
            return max(int(np.prod([int(size) for size in shape.split(",")])) for shape in shapes)

        whole = compiled(model, Objective(between=SampledUnroll()))
        parts = compiled(model, Objective(between=SampledUnroll(), positions_at_once=32))
        assert largest(whole) == 12 * 16 * 3001 and largest(parts) == 2 * 16 * 3001
        assert largest(compiled(causal, Causal(positions_at_once=32))) == 2 * 16 * 3001
        assert temporaries(whole) - temporaries(parts) > 4 * 12 * 16 * 3001  # more than one float32 of all logits


class TestRemat:
    def test_parameters_keep_their_names_and_decoding_is_the_same_program(self):
        model, params = tiny_model(**SIZES)
        again, params_again = tiny_model(**SIZES, remat=True)
        jax.tree.map(np.testing.assert_array_equal, params, params_again)
        args = (BATCH.source_BS, BATCH.source_segment_BS, BATCH.target_BL, BATCH.target_segment_BL)
        one, two = (
            jax.jit(lambda params, model=model: model.apply({"params": params}, *args)[0].logits_BLV).lower(params)
            for model in (model, again)
        )
        np.testing.assert_array_equal(one.compile()(params), two.compile()(params))
        assert "optimization_barrier" not in two.as_text()

    def test_of_a_layer_only_what_it_is_given_is_kept(self):
        def kept(encoder_layers=1, decoder_layers=1):
            """Numbers that the backward pass is given."""
            sizes = dict(encoder_layers=encoder_layers, decoder_layers=decoder_layers, dropout_rate=0.0)
            config = ModelConfig(width=16, heads=2, head_dim=8, mlp=32, max_length=32, remat=True, **sizes)
            model = Transformer(config, IDS)
            loss = loss_fn(model, Objective(stage_weights=("all",)))
            residuals = jax.eval_shape(lambda params: jax.vjp(loss, params, has_aux=True)[1], shapes_of(model))
            return sum(leaf.size for leaf in jax.tree.leaves(residuals))

        x, attention, mlp, norm = 6 * 16 * 16, 4 * 16 * 16, 2 * 16 * 32, 16
        assert kept(encoder_layers=2) - kept() == x + attention + mlp + 2 * norm
        cross_kv = 2 * x
        assert kept(decoder_layers=2) - kept() == x + cross_kv + 3 * attention + mlp + 4 * norm


X_BLD = jax.random.normal(jax.random.key(0), (6, 4, 3))


def end(weight_D, x_BLD, key_B, nothing):
    """Sums and rows as of a stage, and how many rows there were."""
    assert nothing is None
    score_BL = jnp.sin(x_BLD @ weight_D)
    draw_B = jax.vmap(jax.random.uniform)(key_B)
    return {"loss": (score_BL**2).sum(), "chunks": jnp.float32(1)}, (score_BL > 0, draw_B)


@pytest.mark.parametrize(
    ("positions", "chunks"), [(None, 1), (24, 1), (99, 1), (23, 2), (12, 2), (8, 3), (7, 6), (1, 6)]
)
def test_chunks_are_of_whole_rows_and_give_what_all_at_once_give(positions, chunks):
    @jax.jit
    @jax.value_and_grad
    def whole(weight_D):
        return end(weight_D, X_BLD, keys(6), None)[0]["loss"]

    @jax.jit
    def parts(weight_D, x_BLD):
        def loss(weight_D, x_BLD):
            sums, rows = by_rows(lambda *rows: end(weight_D, *rows), positions, x_BLD, keys(6), None)
            return sums["loss"], (sums["chunks"], rows)

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(weight_D, x_BLD)

    weight_D = jnp.array([0.5, -1.0, 2.0])
    (loss, (count, (positive_BL, draw_B))), (gradient_D, gradient_BLD) = parts(weight_D, X_BLD)
    expected, expected_D = whole(weight_D)
    assert count == chunks
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient_D, expected_D, rtol=1e-5)
    angle_BL = X_BLD @ weight_D
    np.testing.assert_allclose(gradient_BLD, jnp.sin(2 * angle_BL)[..., None] * weight_D, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(positive_BL, angle_BL % (2 * jnp.pi) < jnp.pi)
    np.testing.assert_array_equal(draw_B, jax.vmap(jax.random.uniform)(keys(6)))


def test_each_device_has_a_part_of_each_chunk():
    """Rows spread over two devices: chunks of two rows need no row of another device, and sums are added up."""
    code = """
import jax, jax.numpy as jnp, numpy as np, re
from padir.training.batch import by_rows
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
def place(x, *axes):
    return jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)))
x_BLD = place(np.arange(96, dtype=np.float32).reshape(8, 4, 3) / 96, "data")
weight_DV = place(np.ones((3, 50), np.float32))
def run(x_BLD, weight_DV):
    def end(x_BLD):
        logits_BLV = x_BLD @ weight_DV
        return logits_BLV.sum(), logits_BLV.max(-1)
    return by_rows(end, 8, x_BLD)
compiled = jax.jit(run).lower(x_BLD, weight_DV).compile()
total, best_BL = compiled(x_BLD, weight_DV)
np.testing.assert_allclose(total, 50 * x_BLD.sum(), rtol=1e-5)
np.testing.assert_allclose(best_BL, x_BLD.sum(-1), rtol=1e-5)
text = compiled.as_text()
sizes = [np.prod([int(n) for n in shape.split(",")]) for shape in re.findall(r"f32\\[([\\d,]+)\\]", text)]
assert max(sizes) == 4 * 50, sorted(sizes)  # one row's
assert "while(" in text and "all-reduce(" in text, text
assert not any(op in text for op in ("all-gather(", "collective-permute(", "all-to-all(")), text
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=environment_with(devices=2))

"""The autoregressive objective: its value, its packing, and that the trainer gives it to causal models only."""

import dataclasses
import functools
import json

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.tiny import one_layer_model, pairs, rows_of
from support.tiny_model import TINY
from support.training import train_tiny

from padir.data.plan import Batching
from padir.errors import PadirError
from padir.models.decoder import shift_right
from padir.models.directory import load_model
from padir.training.config import Intervals, TrainConfig
from padir.training.objective import Objective
from padir.training.optimizer import Adam, Cosine
from padir.training.teacher_forcing import TeacherForcing

PAIRS = pairs([(4, 5), (6, 3), (3, 7)], length_token=False)
APART = rows_of([[pair] for pair in PAIRS], 8, 8)
PACKED = rows_of([PAIRS], 24, 20)


@functools.partial(jax.jit, static_argnames=("model", "objective", "dropout", "num_segments"))
def run(model, params, batch, objective, num_segments=1, dropout=False, key=0):
    segments = num_segments if num_segments > 1 else None
    return objective(jax.random.key(key), params, batch, model=model, num_segments=segments, dropout=dropout)


class TestLoss:
    def test_uniform_logits_cost_log_v_a_token(self):
        model, params = one_layer_model(causal=True)
        loss, sums = run(model, jax.tree.map(jnp.zeros_like, params), APART, TeacherForcing(z_loss=0.1))
        assert sums.tokens == 18 and sums.segments == 3  # 5 + 3 + 7 pieces and an EOS each
        np.testing.assert_allclose(loss, 18 * (np.log(64) + 0.1 * np.log(64) ** 2), rtol=1e-5)
        np.testing.assert_allclose(sums.stage_z_loss_S, [18 * 0.1 * np.log(64) ** 2], rtol=1e-5)
        np.testing.assert_allclose(sums.stage_loss_S, [loss])
        assert sums.length_loss == 0 and sums.length_correct == 0

    def test_counts_the_tokens_that_are_right(self):
        model, params = one_layer_model(causal=True)
        params = jax.tree.map(jnp.zeros_like, params)  # equal logits, of which the argmax is id 0
        assert run(model, params, APART, TeacherForcing())[1].stage_correct_S == 0
        zeros = dataclasses.replace(APART, target_BL=jnp.zeros_like(APART.target_BL))
        assert run(model, params, zeros, TeacherForcing())[1].stage_correct_S == 18

    def test_packed_and_unpacked_losses_and_gradients_agree(self):
        model, params = one_layer_model(causal=True)
        objective = TeacherForcing(label_smoothing=0.1, z_loss=1e-3)

        def total(params, batch, num_segments):
            return run(model, params, batch, objective, num_segments)

        (one, sums_one), grad_one = jax.value_and_grad(total, has_aux=True)(params, APART, 1)
        (two, sums_two), grad_two = jax.value_and_grad(total, has_aux=True)(params, PACKED, 3)
        np.testing.assert_allclose(one, two, rtol=1e-5)
        for a, b in zip(jax.tree.leaves(sums_one), jax.tree.leaves(sums_two), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5)
        flat = flax.traverse_util.flatten_dict(grad_two, sep="/")
        for name, grad in flax.traverse_util.flatten_dict(grad_one, sep="/").items():
            assert float(jnp.abs(grad).max()) > 0, name
            np.testing.assert_allclose(grad, flat[name], rtol=1e-3, atol=2e-3, err_msg=name)

    def test_label_smoothing_and_dropout_count(self):
        model, params = one_layer_model(causal=True, dropout_rate=0.3)
        plain, _ = run(model, params, APART, TeacherForcing())
        assert plain != run(model, params, APART, TeacherForcing(label_smoothing=0.1))[0]
        one, two = (run(model, params, APART, TeacherForcing(), dropout=True, key=key)[0] for key in (0, 1))
        assert len({float(plain), float(one), float(two)}) == 3

    def test_segments_begin_apart(self):
        inputs_BL = shift_right(PACKED.target_BL, PACKED.target_segment_BL)
        begin = 0
        for _, target in PAIRS:
            assert inputs_BL[0, begin : begin + len(target)].tolist() == [0, *target[:-1]]
            begin += len(target)

    def test_wrong_label_smoothing(self):
        with pytest.raises(PadirError, match=r"label_smoothing must be in \[0, 1\), got 1.0"):
            TeacherForcing(label_smoothing=1.0)

    def test_is_not_for_models_that_refine(self):
        model, params = one_layer_model()
        with pytest.raises(PadirError, match="only a causal model predicts from left to right"):
            run(model, params, APART, TeacherForcing())
        model, params = one_layer_model(causal=True)
        with pytest.raises(PadirError, match="cannot decode a draft: train it with TeacherForcing"):
            run(model, params, APART, Objective())


class TestTraining:
    def test_learns_and_writes_a_model_directory(self, data, tmp_path):
        config = dataclasses.replace(TINY, causal=True, dropout_rate=0.0)
        folder = tmp_path / "model"
        train_tiny(
            data,
            folder,
            model=config,
            objective=TeacherForcing(label_smoothing=0.1),
            optimizer=Adam(Cosine(peak=1e-2, warmup_steps=2)),
            batching=Batching(rows=8, row_length=24),
            intervals=Intervals(log=30, evaluate=0, checkpoint=60),
            num_steps=60,
        )
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert rows[-1]["loss"] < 0.8 * rows[0]["loss"] and rows[0]["loss"] == rows[0]["stage_1_loss"]
        _, card, _ = load_model(folder)
        assert card.config == config and card.corruption is None and card.strategy is None

    @pytest.mark.parametrize(("causal", "objective"), [(True, Objective()), (False, TeacherForcing())])
    def test_refuses_the_other_objective(self, causal, objective):
        config = dataclasses.replace(TINY, causal=causal)
        message = f"causal = {causal} is trained with .*, got {type(objective).__name__}: bind train.objective"
        with pytest.raises(PadirError, match=message):
            TrainConfig(model=config, objective=objective)

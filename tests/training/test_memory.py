"""What saves memory saves it and changes nothing else: logits of some ids at a time, layers computed again."""

import dataclasses
import functools
import math
import re
import subprocess
import sys

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.closeness import assert_close
from support.fakes import IDS, keys
from support.objectives import EXPECTED
from support.tiny import pairs, rows_of, tiny_model
from support.workers import environment_with

from padir.models import ModelConfig, Transformer
from padir.readout import tally as tally_module
from padir.readout.tally import Tally, tally_by_block
from padir.refinement import (
    FromStrategy,
    Glat,
    Mask,
    Padir,
    Rejecter,
    SampledUnroll,
    from_tokens,
    restrict_visibility,
)
from padir.refinement.scores import best_tokens, forbid
from padir.text.ids import Ids, positions_in_segment
from padir.training import Causal, Objective

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
    assert_allclose(loss_one, loss_two, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(sums_one), jax.tree.leaves(sums_two), strict=True):
        assert_allclose(a, b, rtol=1e-5)
    flat = flax.traverse_util.flatten_dict(gradient_two, sep="/")
    for path, a in flax.traverse_util.flatten_dict(gradient_one, sep="/").items():
        largest = float(jnp.abs(a).max())
        assert largest > 0, path
        assert_allclose(a, flat[path], rtol=1e-3, atol=1e-5 * largest, err_msg=path)


@pytest.mark.parametrize(
    "name", ["rejecter", *(pytest.param(name, marks=pytest.mark.slow) for name in ("disco", "autoregressive"))]
)
def test_both_leave_loss_and_gradient_as_they_are(name, monkeypatch):
    """Of models with unlike decoders; test_objective_files.py trains with every objective block by block."""
    model, params = tiny_model(**{**SIZES, **CHANGES[name]})
    objective = dataclasses.replace(OBJECTIVES[name], label_smoothing=0.1, z_loss=1e-2)
    again = Transformer(dataclasses.replace(model.config, remat="all"), IDS)
    whole = gradient_fn(model, objective)(params)
    monkeypatch.setattr(tally_module, "LOGITS_AT_ONCE", 6 * 16 * 20)  # 4 blocks of 32 ids, half of which are padding
    check_same(whole, gradient_fn(again, objective)(params))


class TestVocabularyByBlock:
    """VOCABULARY is no multiple of the number of blocks: the last rows of the last blocks are padding."""

    SIZE, BANNED = 61, (0, 1, 2, 59, 60)

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def tallies(self, blocks, target_BL, states_BLD, table_VD):
        """Of all logits at once, and block by block."""
        product = lambda states, table: states @ table.T  # noqa: E731
        whole = Tally.of(product(states_BLD, table_VD), target_BL)
        return whole, Tally(*tally_by_block(product, blocks, self.BANNED, states_BLD, table_VD, target_BL))

    @pytest.mark.parametrize("blocks", [1, 2, 4, 8, 64, 128])
    def test_sums_and_gradients_are_those_of_all_logits(self, blocks):
        table_VD = jax.random.normal(jax.random.key(1), (self.SIZE, 5))
        states_BLD = 3 * jax.random.normal(jax.random.key(2), (4, 61, 5))
        target_BL = jnp.tile(jnp.arange(self.SIZE), (4, 1))  # every id, so that each block has its first and last
        weight_3BL = jax.random.normal(jax.random.key(3), (3, 4, 61))

        def loss(number, states_BLD, table_VD):
            tally = self.tallies(blocks, target_BL, states_BLD, table_VD)[number]
            sums = jnp.stack([tally.log_z, tally.at_target, tally.total])
            return (sums * weight_3BL).sum(), (sums, tally.best, tally.most, tally.at_target == tally.most)

        whole, by_block = (
            jax.jit(jax.value_and_grad(functools.partial(loss, n), argnums=(0, 1), has_aux=True))(states_BLD, table_VD)
            for n in (0, 1)
        )
        assert_close(by_block, whole)
        _, best_BL, _, is_best_BL = whole[0][1]
        assert_array_equal(is_best_BL, best_BL == target_BL)

    @pytest.mark.parametrize("blocks", [1, 4])
    def test_what_is_found_is_the_best_writable_token(self, blocks):
        table_VD = jax.random.normal(jax.random.key(1), (self.SIZE, 5)).at[59].set(100.0)
        states_BLD = jnp.abs(jax.random.normal(jax.random.key(2), (4, 9, 5)))
        _, tally = self.tallies(blocks, jnp.zeros((4, 9), int), states_BLD, table_VD)
        assert (tally.best == 59).all()
        token_BL, score_BL = best_tokens(forbid(states_BLD @ table_VD.T, self.BANNED))
        assert_array_equal(tally.found[0], token_BL)
        assert_allclose(tally.found[1], score_BL, rtol=1e-5)

    @pytest.mark.parametrize("blocks", [1, 4, 32])
    def test_the_first_of_equal_logits_is_the_best(self, blocks):
        table_VD = jnp.zeros((self.SIZE, 5)).at[jnp.array([13, 30, 44])].set(1.0)
        whole, tally = self.tallies(blocks, jnp.zeros((2, 3), int), jnp.ones((2, 3, 5)), table_VD)
        assert (tally.best == 13).all() and (whole.best == 13).all()

    def test_added_rows_are_never_the_best_and_have_no_share(self):
        """All real logits are below 0, the logit of a row of zeros."""
        table_VD = -jnp.ones((self.SIZE, 5))
        _, tally = self.tallies(4, jnp.zeros((2, 3), int), jnp.full((2, 3, 5), 2.0), table_VD)
        assert (tally.best < self.SIZE).all()
        assert_allclose(tally.log_z, -10 + np.log(self.SIZE), rtol=1e-6)
        assert_allclose(tally.total, -10.0 * self.SIZE, rtol=1e-6)

    @pytest.mark.parametrize(
        "transition",
        [*map(FromStrategy, (Padir("logits"), Rejecter())), SampledUnroll(), Glat()],
        ids=str,
    )
    def test_the_next_canvas_is_the_same_to_the_token(self, transition, monkeypatch):
        model, params = tiny_model(**SIZES)
        editable_BL = (BATCH.target_segment_BL > 0) & (BATCH.target_BL != IDS.eos)
        noisy_BL, chosen_BL = Mask(0.5)(keys(6), BATCH.target_BL, editable_BL, BATCH.target_segment_BL, ids=IDS)
        initial_BL = jnp.where(editable_BL, IDS.mask, BATCH.target_BL)
        canvas = restrict_visibility(
            from_tokens(noisy_BL, initial_BL, editable_BL, BATCH.target_segment_BL, IDS), chosen_BL
        )
        states_BLD = jax.random.normal(jax.random.key(1), (6, 16, 16))
        keep_BL = jax.random.normal(jax.random.key(2), (6, 16))

        @jax.jit
        def following(states_BLD):
            logits = model.bind({"params": params}).all_logits(states_BLD)
            output = logits.output(logits.tally(BATCH.target_BL).found, keep_BL, "token")
            after = canvas, output, BATCH.target_BL, chosen_BL
            return transition(keys(6, seed=3), *after, progress=0.5)

        whole = following(states_BLD)
        monkeypatch.setattr(tally_module, "LOGITS_AT_ONCE", 1_000)
        by_block = jax.jit(following.__wrapped__)(states_BLD)
        assert (whole[0].tokens_BL != noisy_BL).any()
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(by_block), strict=True):
            if a.dtype == jnp.float32:  # scores
                assert_close(b, a)
            else:
                assert_array_equal(a, b)

    @pytest.mark.slow
    def test_logits_of_all_ids_never_exist(self, monkeypatch):
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

        whole = compiled(model, Objective())
        assert largest(whole) == 12 * 16 * 3001
        monkeypatch.setattr(tally_module, "LOGITS_AT_ONCE", 12 * 16 * 400)
        by_block = compiled(model, Objective())
        assert largest(by_block) == 12 * 16 * 3072 // 8
        assert largest(compiled(causal, Causal())) == 12 * 16 * 3072 // 8
        assert temporaries(whole) - temporaries(by_block) > 4 * 12 * 16 * 3001  # more than one float32 of all logits


class TestRemat:
    def test_parameters_keep_their_names_and_decoding_is_the_same_program(self):
        model, params = tiny_model(**SIZES)
        again, params_again = tiny_model(**SIZES, remat="all")
        jax.tree.map(assert_array_equal, params, params_again)
        args = (BATCH.source_BS, BATCH.source_segment_BS, BATCH.target_BL, BATCH.target_segment_BL)
        one, two = (
            jax.jit(lambda params, model=model: model.apply({"params": params}, *args)[0].logits_BLV).lower(params)
            for model in (model, again)
        )
        assert_array_equal(one.compile()(params), two.compile()(params))
        assert "optimization_barrier" not in two.as_text()

    def kept(self, remat="all", encoder_layers=1, decoder_layers=1, of=None):
        """The shapes of the arrays that the backward pass is given."""
        sizes = dict(encoder_layers=encoder_layers, decoder_layers=decoder_layers, dropout_rate=0.0)
        model = Transformer(
            ModelConfig(width=16, heads=2, head_dim=8, mlp=32, max_length=32, remat=remat, **sizes), IDS
        )
        loss = loss_fn(model, Objective(stage_weights=("all",))) if of is None else functools.partial(of, model)
        residuals = jax.eval_shape(lambda params: jax.vjp(loss, params, has_aux=True)[1], shapes_of(model))
        return [leaf.shape for leaf in jax.tree.leaves(residuals)]

    def test_of_a_layer_only_what_it_is_given_is_kept(self):
        position_BL = positions_in_segment(BATCH.target_segment_BL)

        def kept(**sizes):
            return sum(math.prod(shape) for shape in self.kept(**sizes))

        def positional(model, params):
            return model.bind({"params": params}).positional(16, position_BL), ()

        x, attention, mlp, norm = 6 * 16 * 16, 4 * 16 * 16, 2 * 16 * 32, 16
        assert kept(encoder_layers=2) - kept() == x + attention + mlp + 2 * norm
        of_positions = kept(decoder_layers=2, of=positional) - kept(of=positional)  # computed before the layers
        given = x + 2 * x + 2 * x  # the states, cross-attention's keys and values, positional queries and keys
        assert kept(decoder_layers=2) - kept() == of_positions + given + 5 * attention // 2 + mlp + 3 * norm

    def test_attention_keeps_products_but_no_weights(self):
        weights_BHLS, hidden_BLF = (6, 2, 16, 16), (6, 16, 32)
        stored, attention, everything = (self.kept(remat) for remat in (False, "attention", "all"))
        assert stored.count(weights_BHLS) >= 4 and attention.count(weights_BHLS) == everything.count(weights_BHLS) == 0
        assert attention.count(hidden_BLF) == 2 and everything.count(hidden_BLF) == 0


def test_devices_share_a_vocabulary_that_they_do_not_divide():
    """Eight devices share 3,001 ids: each has an eighth of every block's logits, and the loss stays the same."""
    code = """
import jax, jax.numpy as jnp, numpy as np, re
from padir.distributed.sharding import Sharding
from padir.readout import tally
tally.LOGITS_AT_ONCE = 4 * 16 * 200
mesh = Sharding(model_parallel=8).mesh()
states_BLD = np.random.default_rng(0).normal(size=(4, 16, 8)).astype(np.float32)
table_VD = np.random.default_rng(1).normal(size=(3001, 8)).astype(np.float32)
target_BL = jnp.full((4, 16), 3000)
def loss(states_BLD, table_VD, whole):
    product = lambda states, table: states @ table.T
    factors = None if whole else tally.Factors(product, states_BLD, table_VD)
    sums = tally.Logits(product(states_BLD, table_VD), factors).tally(target_BL)
    return (sums.log_z - sums.at_target).sum(), sums.best
step = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
expected = step(states_BLD, table_VD, True)
with jax.set_mesh(mesh):
    compiled = jax.jit(step, static_argnums=2).lower(states_BLD, table_VD, False).compile()
    found = compiled(states_BLD, table_VD)
for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found)):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
text = compiled.as_text()
sizes = [np.prod([int(n) for n in shape.split(",")]) for shape in re.findall(r"f32\\[([\\d,]+)\\]", text)]
assert tally.blocks_of(4, 16, 3001) == 16  # without a mesh; two blocks if eight devices share them
assert max(sizes) == 3072 * 8 and 4 * 16 * 3072 // 2 // 8 in sizes, sorted(set(sizes))
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=environment_with(devices=8))

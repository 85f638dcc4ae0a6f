"""Which part of which array a device holds, and what does not divide."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec
from numpy.testing import assert_array_equal
from support.fakes import IDS
from support.refusals import refused
from support.tiny_model import TINY

from padir.distributed.sharding import (
    DATA,
    MODEL,
    Sharding,
    all_devices,
    keep_rows,
    mesh_of,
    of_state,
    on_host,
    process_rows,
)
from padir.models import ModelConfig, Transformer, init_params, param_axes
from padir.training import Adafactor, Adam, Averaging, Batch, TrainConfig
from padir.training.sharded_step import ShardedStep

MESH = AbstractMesh((2, 4), (DATA, MODEL))
BOTH = Sharding(model_parallel=4, shard_parameters=True)


def specs(sharding, model, mesh=MESH):
    """The spec of every parameter, by its name."""
    like = jax.eval_shape(lambda: init_params(model, 0))
    shardings = sharding.of_params(param_axes(model), like, mesh)
    paths = jax.tree_util.tree_leaves_with_path(shardings)
    return {"/".join(key.key for key in path): sharding.spec for path, sharding in paths}, like, shardings


class TestParameters:
    def model(self, **changes):
        return Transformer(dataclasses.replace(TINY, heads=4, head_dim=4, **changes), IDS)

    def test_every_parameter_names_as_many_axes_as_it_has(self):
        for changes in (
            {},
            {"rejecter": True, "remat": "all"},
        ):
            model = self.model(tied=False, mlp_activations=("gelu", "linear"), **changes)
            axes = param_axes(model)
            like = jax.eval_shape(lambda model=model: init_params(model, 0))
            assert jax.tree.map(len, axes, is_leaf=lambda x: isinstance(x, tuple)) == jax.tree.map(
                lambda leaf: len(leaf.shape), like
            )

    def test_data_parallel_holds_everything_everywhere(self):
        found, _, _ = specs(Sharding(), self.model(), AbstractMesh((8, 1), (DATA, MODEL)))
        assert set(found.values()) == {PartitionSpec()}

    def test_tensor_parallel_splits_heads_mlp_and_vocabulary(self):
        found, _, _ = specs(Sharding(model_parallel=4), self.model())
        attention = "decoder/layers_0/encoder_decoder_attention"
        assert found[f"{attention}/query/kernel"] == PartitionSpec(None, MODEL)
        assert found[f"{attention}/out/kernel"] == PartitionSpec(MODEL)
        assert found["encoder/layers_0/mlp/wi/kernel"] == PartitionSpec(None, MODEL)
        assert found["encoder/layers_0/mlp/wo/kernel"] == PartitionSpec(MODEL)
        assert found["encoder/relpos_bias/rel_embedding"] == PartitionSpec(MODEL)
        assert found["decoder/decoder_norm/scale"] == PartitionSpec()
        assert IDS.num_embeddings % 4 == 0 and found["token_embedder/embedding"] == PartitionSpec(MODEL)

    def test_sharded_parameters_are_split_along_their_vectors_too(self):
        found, _, _ = specs(BOTH, self.model())
        assert found["encoder/layers_0/mlp/wi/kernel"] == PartitionSpec(DATA, MODEL)
        assert found["encoder/layers_0/mlp/wo/kernel"] == PartitionSpec(MODEL, DATA)
        assert found["token_embedder/embedding"] == PartitionSpec(MODEL, DATA)
        assert found["decoder/abs_pos_embed/embedding"] == PartitionSpec(None, DATA)
        assert found["encoder/encoder_norm/scale"] == PartitionSpec(DATA)

    def test_an_axis_that_does_not_divide_stays_whole(self):
        ids = dataclasses.replace(IDS, num_embeddings=IDS.num_embeddings + 1)
        found, _, _ = specs(BOTH, Transformer(self.model().config, ids))
        assert found["token_embedder/embedding"] == PartitionSpec(None, DATA)


class TestOptimizerState:
    """A state follows the parameters, whatever the optimizer."""

    config = ModelConfig(width=128, heads=4, head_dim=32, mlp=256, encoder_layers=1, decoder_layers=1, max_length=16)

    def placed(self, transformation):
        _, like, shardings = specs(BOTH, Transformer(self.config, IDS))
        state = jax.eval_shape(transformation.init, like)
        placed = of_state(state, like, shardings, MESH)
        return [
            (jax.tree_util.keystr(path), leaf.spec, np.shape(found))
            for (path, leaf), found in zip(
                jax.tree_util.tree_leaves_with_path(placed), jax.tree.leaves(state), strict=True
            )
        ]

    def spec(self, transformation, *words):
        ((_, spec, shape),) = [each for each in self.placed(transformation) if all(word in each[0] for word in words)]
        return spec, shape

    def test_moments_of_a_parameters_shape(self):
        adam = Adam().transformation(10)
        for moment in (".mu", ".nu"):
            assert self.spec(adam, moment, "['encoder']", "['wi']") == (PartitionSpec(DATA, MODEL), (128, 256))
        assert self.spec(Adafactor().transformation(10), ".v[", "encoder_norm") == (PartitionSpec(DATA), (128,))

    def test_factored_moments_are_on_every_device(self):
        adafactor = Adafactor().transformation(10)
        for moment in (".v_row", ".v_col"):
            assert self.spec(adafactor, moment, "['encoder']", "['wi']")[0] == PartitionSpec()
        assert self.spec(adafactor, ".v[", "['encoder']", "['wi']") == (PartitionSpec(), (1,))

    def test_a_moving_average_and_clipping_are_in_the_way_of_nothing(self):
        optimizer = Averaging(kind="ema").transformation(Adafactor(clip_norm=1.0, momentum=0.9).transformation(10))
        assert self.spec(optimizer, ".average", "['encoder']", "['wo']") == (PartitionSpec(MODEL, DATA), (256, 128))
        assert self.spec(optimizer, ".v_row", "['encoder']", "['wi']") == (PartitionSpec(), (128,))


class TestWhatDoesNotDivide:
    def test_devices(self):
        devices = jax.devices() * 6
        with refused("divide number devices, 6, got 4: choose 1, 2, 3, 6"):
            Sharding(model_parallel=4).mesh(devices)

    @pytest.mark.parametrize(
        ("model", "rows", "words"),
        [
            ({}, 7, "Batching.rows multiple 2, devices share rows (of 8 4), got 7"),
            ({"heads": 6}, 8, "ModelConfig.heads multiple Sharding.model_parallel, 4, got 6"),
            ({"mlp": 30}, 8, "ModelConfig.mlp multiple Sharding.model_parallel, 4, got 30"),
            (
                {"width": 15},
                8,
                "ModelConfig.width multiple 2, devices share parameters , got 15",
            ),
        ],
    )
    def test_sizes(self, model, rows, words):
        fits = dataclasses.replace(TINY, heads=4, head_dim=4)
        BOTH.check(MESH, fits, 6)  # the 4 devices of a row do not share the rows
        with refused(words):
            BOTH.check(MESH, dataclasses.replace(fits, **model), rows)


def test_one_device_is_no_mesh():
    mesh = Sharding().mesh(jax.devices()[:1])
    array = jax.device_put(np.arange(3), jax.sharding.NamedSharding(mesh, PartitionSpec()))
    assert mesh_of({"a": array}) is None and mesh_of({"a": np.arange(3)}) is None and mesh_of({}) is None
    assert process_rows(mesh) == (0, 1)
    assert_array_equal(on_host({"a": array})["a"], [0, 1, 2])
    assert on_host(None) is None


def test_rows_are_kept_where_there_are_several_devices_only():
    x = jnp.ones((4, 3))
    assert keep_rows(x) is x
    with jax.set_mesh(Sharding().mesh(jax.devices()[:1])):
        assert keep_rows(x) is x


def test_devices_of_a_process_go_together(monkeypatch):
    """Ids of a pod of 2 x 2 chips, whose processes have a column each, go along its rows."""
    chips = [types.SimpleNamespace(id=number, process_index=number % 2) for number in range(4)]
    monkeypatch.setattr(jax, "devices", lambda: chips)
    assert [chip.id for chip in all_devices()] == [0, 2, 1, 3]


def test_a_step_says_where_every_array_of_its_state_lies():
    """Left to itself, the compiler would choose, and another version of it might choose otherwise."""
    step = ShardedStep(TrainConfig(TINY, sharding=Sharding(shard_parameters=True)), IDS, jax.devices()[:1])
    arrays = {name: jnp.ones((1, 4), int) for name in Batch.__annotations__ if name.startswith(("source", "target"))}
    with jax.set_mesh(step.mesh):
        (equation,) = jax.make_jaxpr(step._step)(step.like, arrays).eqns
    expected = jax.tree.leaves(step.shardings)
    assert len(expected) > 50 and [*equation.params["out_shardings"]][: len(expected)] == expected

"""Benchmarks of training: operations counted as in the program, figures as the clock says."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import Clock
from support.refusals import refused
from support.tiny_model import TINY, prepared_numbers

from padir.data import Batching, Mixture
from padir.data.loader import make_loader
from padir.measuring.benchmark import training_speed
from padir.measuring.compilation.costs import matrix_flops
from padir.models import Transformer, init_params
from padir.text.ids import Ids
from padir.training import Batch, Objective, TrainConfig

IDS = Ids(vocab_size=400)


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"causal": True},
        {"positional_attention": False},
        {"mlp_activations": ("gelu", "linear"), "decoder_layers": 2},
    ],
    ids=str,
)
def test_model_flops_are_those_of_the_forward_pass_three_times(sizes):
    config = dataclasses.replace(TINY, **sizes)
    model = Transformer(config, IDS)
    params = init_params(model, 0)
    source, target = jnp.ones((3, 10), jnp.int32), jnp.ones((3, 7), jnp.int32)

    def forward(params):
        return model.apply({"params": params}, source, source, target, target)

    length_head = 0 if config.causal else 2 * 3 * config.width * config.max_length
    shared = matrix_flops(jax.make_jaxpr(forward)(params)) - length_head
    if config.positional_attention:  # one row's logits serve all, which a packed row's do not
        shared += 2 * config.decoder_layers * 2 * 7 * 7 * config.heads * config.head_dim
    assert training_speed.model_flops(config, 400, 3, 10, 7, stages=("all",)) == 3 * shared


def test_the_decoder_counts_once_a_stage():
    one, two, three = (training_speed.model_flops(TINY, 400, 3, 10, 7, ("all",) * stages) for stages in (1, 2, 3))
    assert three - two == two - one > 0


@pytest.mark.parametrize("weights", [("all", "all"), ("none", "all")], ids="-".join)
def test_model_flops_are_about_those_of_the_gradient(weights):
    model = Transformer(TINY, IDS)
    params = init_params(model, 0)
    tokens = jnp.full((3, 10), 300, jnp.int32)
    batch = Batch(tokens, jnp.ones_like(tokens), tokens, jnp.ones_like(tokens))
    objective = Objective(stage_weights=weights)

    def loss(params):
        return objective(jax.random.key(0), params, batch, model=model, num_segments=1, dropout=False)[0]

    counted = matrix_flops(jax.make_jaxpr(jax.grad(loss))(params))
    assert training_speed.model_flops(TINY, 400, 3, 10, 10, weights) == pytest.approx(counted, rel=0.1)


@pytest.mark.slow
def test_a_larger_vocabulary_than_the_data_have_counts_as_such(tokenizer, tmp_path):
    data = prepared_numbers(tmp_path)
    config = TrainConfig(TINY, batching=Batching(rows=4, row_length=32))
    options = {"steps": 1, "clock": Clock()}
    own = training_speed.measure([str(data)], config, **options)
    larger = training_speed.measure([str(data)], config, num_embeddings=4_000, **options)
    more = 4_000 - tokenizer.ids.num_embeddings
    assert larger.parameters - own.parameters == more * TINY.width
    assert larger.flops - own.flops == pytest.approx(3 * 2 * 2 * 4 * 32 * TINY.width * more)  # in both stages
    with refused("num_embeddings least"):
        training_speed.measure([str(data)], config, num_embeddings=10, **options)


@pytest.mark.slow
def test_metrics_of_a_short_run(tokenizer, tmp_path):
    data = prepared_numbers(tmp_path)
    batching = Batching(rows=4, row_length=32)
    measured = training_speed.measure([str(data)], TrainConfig(TINY, batching=batching), steps=2, clock=Clock())
    metrics = measured.metrics
    assert measured.step_seconds == (1.0, 1.0) and measured.loader_seconds == (1.0, 1.0)
    assert metrics["positions_per_second"] == 4 * 32 / 2  # a second of waiting, a second of work
    assert 0.5 < metrics["tokens_per_second"] / (4 * 32 / 2) == pytest.approx(1 - metrics["padding_share"])
    loader = make_loader(Mixture((str(data),)), batching, row_multiple=1, length_token=True, seed=0)
    ends = [int((next(loader)["target_BL"] == 1).sum()) for _ in range(5)][3:]  # one EOS a pair
    assert metrics["pairs_per_second"] == np.mean(ends) / 2
    assert metrics["loader_share"] == 1 and metrics["step_ms"] == 1000
    assert metrics["share_of_matmul"] == pytest.approx(measured.flops / 2 / measured.matmul_flops)
    logits = 4 * 32 * tokenizer.ids.num_embeddings
    assert metrics["temporary_mb"] > 2 * 4e-6 * logits  # of both stages


def test_temporaries_may_not_be_known(monkeypatch):
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda self: None)
    assert training_speed._temporary_bytes(jax.jit(jnp.sin).lower(1.0).compile()) is None
    monkeypatch.undo()
    square = jax.jit(lambda x: jnp.sort(x @ x) @ x).lower(jnp.ones((100, 100))).compile()
    assert training_speed._temporary_bytes(square) >= 4 * 100 * 100


def test_random_batches_are_full_rows_of_whole_sentences():
    batching = Batching(rows=4, row_length=64)
    arrays = next(training_speed.random_batches(batching, IDS, 2))
    for side, length in (("source_{}BS", 72), ("target_{}BL", 64)):
        tokens, segment = (arrays[side.format(part)] for part in ("", "segment_"))
        assert tokens.shape == segment.shape == (4, length) and segment.min() == 1 and segment.max() == 2
        ends = np.diff(segment, append=3) > 0
        assert np.array_equal(tokens == IDS.eos, ends) and tokens.max() < IDS.end_regular
    with refused("rows multiple"):
        training_speed.random_batches(batching, IDS, 3)


def test_steps_are_timed_without_data():
    config = TrainConfig(TINY, batching=Batching(rows=2, row_length=32))
    measured = training_speed.measure((), config, steps=1, num_embeddings=400, clock=Clock())
    assert measured.metrics["padding_share"] == 0 and measured.pairs == 2


def test_no_steps():
    with refused("steps least 1, got 0"):
        training_speed.measure(["data"], steps=0)

"""Every configs/objective/*.gin, read after a run's file as on the command line, and the shapes of a step with it."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from support.fakes import IDS
from support.objectives import EXPECTED
from support.tiny import drawn_params, pairs, rows_of

from padir import config
from padir.data.plan import Batching
from padir.models import ModelConfig, Transformer
from padir.refinement import Glat, Padir
from padir.training import Adam, Causal, Cosine, Objective, Sum, TrainConfig
from padir.training.state import TrainState
from padir.training.step import make_step

REPOSITORY = Path(__file__).parents[2]
BATCH = rows_of([pairs([(4, 6), (5, 8)]), pairs([(7, 9)], seed=1)], 16, 16)


@pytest.fixture(params=EXPECTED)
def name(request, monkeypatch, blank_config):
    monkeypatch.chdir(REPOSITORY)
    sizes = dict(
        width=16, heads=2, head_dim=8, mlp=32, encoder_layers=1, decoder_layers=1, max_length=16, dropout_rate=0.0
    )
    files = ["configs/run/toy_cpu.gin", f"configs/objective/{request.param}.gin"]
    config.parse(files, [f"ModelConfig.{key}={value}" for key, value in sizes.items()])
    return request.param


def test_each_file_is_listed_here():
    names = {path.stem for path in (REPOSITORY / "configs/objective").glob("*.gin")}
    assert names == {*EXPECTED, "autoregressive", "ctc", "dual"}


@pytest.mark.parametrize("name", ["autoregressive"], indirect=True)
def test_the_autoregressive_baseline_is_teacher_forced(name):
    assert config.configured(ModelConfig)().causal
    assert config.gin.query_parameter("train.objective").configurable.wrapped is Causal


@pytest.mark.parametrize("name", ["dual"], indirect=True)
def test_a_dual_model_has_the_runs_objective_and_teacher_forcing(name):
    made = config.configured(TrainConfig)()
    assert made.objective == Sum(Objective(length_weight=5.0), Causal()) and made.model.dual  # the run's weight


@pytest.mark.parametrize("name", ["ctc"], indirect=True)
def test_ctc_trains_with_glancing(name):
    made = config.configured(TrainConfig)()
    assert made.objective == Objective(transition=Glat(), stage_weights=("none", "all"), length_weight=5.0)
    assert made.model.readout_rules.name == "CTC" and made.batching.mode == "bucket"
    assert made.objective.decoded_with(made.model) == Padir(remask="none")  # a canvas may hold equal neighbours


@pytest.fixture(autouse=True)
def logits_block_by_block(monkeypatch):
    monkeypatch.setattr("padir.readout.tally.LOGITS_AT_ONCE", 2_000)


def test_makes_its_objective(name):
    objective, model_config = config.configured(Objective)(), config.configured(ModelConfig)()
    length_weight = 0.8 if name == "rdm" else 5.0  # the run's, but for rdm, whose token losses weigh less
    assert objective == dataclasses.replace(EXPECTED[name], length_weight=length_weight)
    assert type(objective.transition) is type(EXPECTED[name].transition)
    assert model_config.length_unit == (2 if name == "sundae" else 1)
    assert model_config.rejecter == (name == "rejecter") and model_config.decontextualised == (name == "disco")
    model, optimizer = Transformer(model_config, IDS), Adam(learning_rate=Cosine(peak=1e-2)).transformation(2)
    settings = TrainConfig(model_config, objective, batching=Batching(row_length=16), num_steps=2)
    params = drawn_params(model)
    state = TrainState(step=jnp.int32(0), params=params, opt_state=optimizer.init(params))
    step_fn = jax.jit(make_step(model, optimizer, settings))
    out = [aval.shape for aval in step_fn.trace(state, BATCH).jaxpr.out_avals]  # compiling would take seconds each
    before = [jnp.shape(leaf) for leaf in jax.tree.leaves(state)]
    assert out[: len(before)] == before and (len(objective.stage_weights),) in out[len(before) :]

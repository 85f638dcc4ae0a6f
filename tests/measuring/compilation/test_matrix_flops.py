"""The count of matrix products, against the count from a model's sizes and against loops that are unrolled."""

import functools

import jax
import jax.numpy as jnp
import pytest

from padir.data.plan import Batching
from padir.measuring.benchmark.training_speed import model_flops
from padir.measuring.compilation.costs import matrix_flops
from padir.measuring.compilation.program_list import train_program
from padir.models.config import ModelConfig
from padir.text.ids import Ids
from padir.training import Causal, Objective, TrainConfig

SIDE = 4
PRODUCT = 2.0 * SIDE**3
X = jnp.ones((SIDE, SIDE))


def count(fn, **options):
    return matrix_flops(jax.make_jaxpr(fn)(X), **options)


def test_scans_count_as_often_as_they_run():
    def scanned(x):
        return jax.lax.scan(lambda x, _: (x @ x, None), x, length=5)[0] @ x

    assert (count(scanned), count(scanned, scans=False)) == (6 * PRODUCT, 2 * PRODUCT)


def test_the_outermost_while_loop_counts_as_often_as_asked():
    def inner(x):
        return jax.lax.while_loop(lambda y: y.sum() < 0, lambda y: y @ y, x)

    def outer(x):
        return jax.lax.while_loop(lambda y: y.sum() < 0, lambda y: inner(y) @ y, x @ x)

    assert count(outer, trips=10) == (1 + 10 * 2) * PRODUCT


def test_a_condition_counts_its_larger_branch():
    def branches(x):
        return jax.lax.cond(x.sum() > 0, lambda y: y @ y @ y, lambda y: y @ y, x)

    assert count(branches) == 2 * PRODUCT


def test_the_branch_of_the_platform_counts():
    def branches(x):
        return jax.lax.platform_dependent(x, tpu=lambda y: y @ y, default=lambda y: y @ y @ y)

    assert [count(branches, platform=name) for name in ("tpu", "cpu")] == [PRODUCT, 2 * PRODUCT]


def test_products_that_nothing_uses_do_not_count():
    def wasteful(x):
        unused = x @ x
        return x @ x + jnp.zeros_like(unused)

    assert count(wasteful) == PRODUCT


@pytest.mark.parametrize(
    ("model", "objective"),
    [(ModelConfig(), Objective()), (ModelConfig(causal=True), Causal())],
    ids=["refining", "causal"],
)
def test_a_training_step_has_the_flops_of_its_sizes(model, objective):
    """The paper's sizes, within 2 %: the count from the sizes leaves out the length head."""
    config = TrainConfig(model=model, objective=objective, batching=Batching(rows=2, row_length=256, max_segments=8))
    program = train_program(config, Ids(32_100), jax.devices(), 288)
    stages = getattr(objective, "stage_weights", ("all",))
    expected = model_flops(model, 32_100, 2, 288, 256, stages)
    assert matrix_flops(program.trace().jaxpr) == pytest.approx(expected, rel=0.02)


def test_the_parts_of_a_batch_have_the_flops_of_the_whole():
    """But each part computes the queries and keys of positional attention."""
    small = ModelConfig(width=64, heads=2, head_dim=32, mlp=128, encoder_layers=1, decoder_layers=1, max_length=32)
    traced = functools.partial(train_program, ids=Ids(500), devices=jax.devices(), source_row_length=32)
    one, four = (
        matrix_flops(
            traced(TrainConfig(small, batching=Batching(rows=8, row_length=32, accumulation_steps=parts))).trace().jaxpr
        )
        for parts in (1, 4)
    )
    assert one < four < 1.02 * one

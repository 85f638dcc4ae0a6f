"""Rows worked on some at a time: sums, rows and gradients are those of all at once, on one device and on two."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fakes import keys
from support.workers import environment_with

from padir.training.batch import by_rows, rows_at_once

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


def test_the_number_of_rows_divides_the_batch():
    assert [rows_at_once(12, 8, positions) for positions in (1, 8, 15, 16, 40, 47, 48, 95, 96)] == [
        *(1, 1, 1, 2, 4, 4, 6, 6, 12)
    ]
    assert rows_at_once(7, 8, 50) == 1


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

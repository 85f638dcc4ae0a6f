"""Decoders from random canvases, by hand on two spins, and the experiment that compares them with masks."""

import math

import numpy as np
import pytest

from padir.errors import PadirError
from padir.ising import canvas, decoders, passes
from padir.ising.tensorisation import divergence

ALIKE = np.array([0.499, 0.001, 0.001, 0.499])  # two spins that nearly always agree


def test_products_and_noise_by_hand():
    assert canvas.product(np.array([0.25, 1.0])) == pytest.approx([0.0, 0.0, 0.75, 0.25])
    assert canvas.plus_of(np.array([0.1, 0.2, 0.3, 0.4])) == pytest.approx([0.6, 0.7])
    assert canvas.noise(2, 0.5)[3] == pytest.approx([1 / 16, 3 / 16, 3 / 16, 9 / 16])  # from (+, +)


def test_a_clean_canvas_is_kept_and_a_noisy_one_is_mended():
    assert canvas.denoised(ALIKE, 0.0) == pytest.approx(np.eye(4))
    sure = canvas.posterior(ALIKE, 0.5)
    # Both spins shown +: (+, +) against (-, -) is 0.75² to 0.25², as both spins turned by noise.
    assert sure[3, 3] / sure[3, 0] == pytest.approx(9.0)
    assert sure[1, 3] == pytest.approx(sure[1, 0])  # they disagree: either may be the truth


def test_a_map_of_the_canvas_reaches_what_no_product_can():
    floor = divergence(ALIKE, canvas.denoising_law(ALIKE, [1.0]))
    assert floor == pytest.approx(math.log(2), abs=0.02)
    mapped_S = canvas.canvas_map(ALIKE, 1024)
    assert mapped_S * 1024 == pytest.approx(np.round(mapped_S * 1024))  # whole canvases
    assert mapped_S.sum() == pytest.approx(1.0)
    assert divergence(ALIKE, mapped_S) < 0.005 < floor
    oracle = decoders.Oracle(ALIKE)
    assert canvas.mapped_law(oracle, (1, 2), 1024) == pytest.approx(ALIKE, abs=2e-3)
    assert canvas.mapped_bound(oracle, (3,), 1024) == pytest.approx(-math.log(1 - 4 / 1024))


def test_more_passes_never_cost_more():
    rows = passes.canvas_costs(passes.CanvasSizes(num_spins=3))
    found = {(row["model"], row["decoder"], row["passes"]): row["kl"] for row in rows}
    for (name, decoder, count), kl in found.items():
        assert kl <= found.get((name, decoder, count - 1), math.inf) + 1e-12
        if count == 1 and not decoder.endswith("mapped"):
            assert kl == pytest.approx(found[name, "mask, random order", 1])
    assert found["two modes", "mask, random order", 3] == pytest.approx(0.0, abs=1e-12)
    assert found["two modes", "random canvas, mapped", 1] < found["two modes", "mask, fixed order", 1] / 5
    with pytest.raises(PadirError, match="2 to 6 spins, got 7"):
        passes.CanvasSizes(num_spins=7)

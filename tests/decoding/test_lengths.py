"""Lengths of planned drafts: the predicted lengths and parallel draws."""

import random

import jax.numpy as jnp
import pytest

from padir.decoding.planned_drafts import planned_drafts
from padir.interop.packing import draft_rows


@pytest.mark.parametrize(
    "lengths, num_drafts, expected",
    [
        ([5], 1, [(5, 0)]),
        ([5, 6, 4], 1, [(5, 0), (6, 0), (4, 0)]),
        ([5, 6], 2, [(5, 0), (5, 1), (6, 0), (6, 1)]),
        ([14, -4, 8, 1], 1, [(8, 0), (2, 0)]),
    ],
)
def test_candidates(lengths, num_drafts, expected):
    assert [each[:2] for each in planned_drafts(lengths, num_drafts, max_length=8)] == expected


def test_arrays_hold_the_same_candidates():
    """For 100 random lists: the same drafts in the same order, but that arrays repeat some."""
    draw = random.Random(0)
    for _ in range(100):
        lengths = [draw.randint(-2, 20) for _ in range(draw.randint(1, 6))]
        num_drafts, longest = draw.randint(1, 3), draw.randint(2, 16)
        length_BN, draw_BN = draft_rows(jnp.array([lengths]), num_drafts, longest)
        rows = zip(length_BN[0].tolist(), draw_BN[0].tolist(), strict=True)
        assert list(dict.fromkeys(rows)) == [each[:2] for each in planned_drafts(lengths, num_drafts, longest)]

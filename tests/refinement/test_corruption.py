import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.fakes import IDS, keys
from support.refusals import refused

from padir.refinement import (
    Cmlm,
    Mask,
    MaskRange,
    Mixed,
    RandomVisible,
    Uniform,
    UniformRate,
    from_tokens,
    restrict_visibility,
)
from padir.text.ids import Ids

ROWS, LENGTH = 400, 20
TOKENS_BL = jnp.full((ROWS, LENGTH), 7)
FREE_BL = jnp.ones((ROWS, LENGTH), bool)
SEGMENT_BL = jnp.ones((ROWS, LENGTH), jnp.int32)


def corrupt(corruption, ids=IDS):
    return corruption(keys(ROWS), TOKENS_BL, FREE_BL, SEGMENT_BL, ids=ids)


@pytest.mark.parametrize("scheme", [Uniform, Mask, MaskRange])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_rate_is_the_share_replaced(scheme, rate):
    _, chosen_BL = corrupt(scheme(rate=rate))
    # 8,000 draws: the mean is within 4 standard deviations.
    assert abs(float(chosen_BL.mean()) - rate) <= 4 * np.sqrt(rate * (1 - rate) / chosen_BL.size)


def test_uniform_draws_every_regular_piece_equally_often():
    noisy_BL, _ = corrupt(Uniform(rate=1.0))
    counts = np.bincount(np.asarray(noisy_BL).ravel(), minlength=IDS.vocab_size)
    regular = counts[IDS.first_regular : IDS.end_regular]
    assert counts.sum() == regular.sum()
    expected = counts.sum() / len(regular)
    assert np.square(regular - expected).sum() / expected < 60  # chi-squared, 25 degrees of freedom: p < 1e-4


def test_masks_are_the_top_ids():
    assert (corrupt(Mask(rate=1.0))[0] == 63).all()
    assert_array_equal(corrupt(MaskRange(rate=1.0))[0][0], 60 - np.arange(LENGTH))


def test_mask_range_counts_from_the_start_of_each_segment():
    segment_BL = jnp.array([[1, 1, 1, 2, 2]])
    noisy_BL, _ = MaskRange(1.0)(keys(1), jnp.full((1, 5), 7), jnp.ones((1, 5), bool), segment_BL, ids=IDS)
    assert noisy_BL.tolist() == [[60, 59, 58, 60, 59]]


def test_mask_range_needs_a_sentinel_for_each_position():
    with refused("20 positions 3 more, got 22"):
        corrupt(MaskRange(), Ids(vocab_size=64, num_sentinels=22, first_regular=3))


def test_mixed_shares():
    noisy_BL, chosen_BL = corrupt(Mixed(correct=0.2, random=0.3, mask=0.5))
    masked = float((noisy_BL == IDS.mask).mean())
    assert abs(float(chosen_BL.mean()) - 0.8) < 0.02 and abs(masked - 0.5) < 0.025
    full = Mixed(correct=0.2, random=0.3, mask=0.5).full()
    assert (full.correct, full.random, full.mask) == pytest.approx((0, 0.375, 0.625))


def chi_squared(counts):
    """Of counts that should all be equal."""
    expected = counts.sum() / len(counts)
    return np.square(counts - expected).sum() / expected


def test_cmlm_masks_each_number_of_positions_and_each_position_equally():
    rows = jnp.full((4_000, 4), 7)
    noisy_BL, chosen_BL = Cmlm()(keys(4_000), rows, rows > 0, jnp.ones_like(rows), ids=IDS)
    assert_array_equal(noisy_BL == IDS.mask, chosen_BL)
    numbers = np.bincount(np.asarray(chosen_BL.sum(-1)), minlength=5)
    assert numbers[0] == 0 and len(numbers) == 5
    assert chi_squared(numbers[1:]) < 21.1  # 3 degrees of freedom: p = 1e-4
    # A position is among the masked in (1 + 2 + 3 + 4) / 16 of all cases.
    assert_allclose(chosen_BL.mean(0), 10 / 16, atol=4 * np.sqrt(0.625 * 0.375 / 4_000))
    pairs = np.asarray(chosen_BL)[np.asarray(chosen_BL.sum(-1)) == 2]
    _, each = np.unique(pairs, axis=0, return_counts=True)
    assert len(each) == 6 and chi_squared(each) < 25.7  # 5 degrees of freedom: p = 1e-4


def test_cmlm_masks_a_lone_position_and_counts_each_segment():
    segment_BL = jnp.repeat(jnp.array([[1, 2, 2, 2, 2, 2, 2]]), 50, 0)
    editable_BL = jnp.repeat(jnp.array([[True] * 6 + [False]]), 50, 0)
    _, chosen_BL = Cmlm()(keys(50), jnp.full((50, 7), 7), editable_BL, segment_BL, ids=IDS)
    assert chosen_BL[:, 0].all()
    assert set(np.asarray(chosen_BL[:, 1:].sum(-1)).tolist()) == {1, 2, 3, 4, 5}


def test_uniform_rate_replaces_each_number_of_positions_equally_often():
    noisy_BL, chosen_BL = corrupt(UniformRate())
    assert (np.asarray(noisy_BL)[np.asarray(chosen_BL)] < IDS.end_regular).all()
    # With the rate from U(0, 1), the number replaced is uniform over 0 .. 20.
    counts = np.bincount(np.asarray(chosen_BL.sum(-1)), minlength=LENGTH + 1)
    assert chi_squared(counts) < 52.4  # 20 degrees of freedom: p = 1e-4


class TestRandomVisible:
    def seen(self, key_B, segment_BL, editable_BL):
        canvas = from_tokens(jnp.full(segment_BL.shape, 7), jnp.full(segment_BL.shape, 7), editable_BL, segment_BL, IDS)
        return np.asarray(RandomVisible()(key_B, restrict_visibility(canvas, jnp.zeros_like(editable_BL))).visible_BLL)

    def test_each_position_sees_every_number_of_others_equally_often(self):
        segment_BL = jnp.ones((2_000, 4), jnp.int32)
        seen_BLL = self.seen(keys(2_000), segment_BL, jnp.ones((2_000, 4), bool))
        assert not seen_BLL[:, np.arange(4), np.arange(4)].any()
        counts = np.bincount(seen_BLL[:, 1].sum(-1), minlength=4)
        assert len(counts) == 4 and chi_squared(counts) < 21.1  # 3 degrees of freedom: p = 1e-4
        others = ~np.eye(4, dtype=bool)
        assert_allclose(seen_BLL.mean(0)[others], 0.5, atol=4 * 0.5 / np.sqrt(2_000))
        first, second = seen_BLL.sum(-1)[:, :2].T  # each its own set
        assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(2_000)

    def test_eos_is_always_seen_and_other_segments_never(self):
        segment_BL = jnp.repeat(jnp.array([[1, 1, 1, 2, 2, 0]]), 50, 0)
        editable_BL = jnp.repeat(jnp.array([[True, True, False, True, False, False]]), 50, 0)
        seen_BLL = self.seen(keys(50), segment_BL, editable_BL)
        assert seen_BLL[:, :2, 2].all() and seen_BLL[:, 3, 4].all()
        assert not seen_BLL[:, 0, 1].all() and not seen_BLL[:, 1, 0].all()
        others = seen_BLL[:, :3, 3:], seen_BLL[:, 3:5, :3], seen_BLL[:, :5, 5]
        assert not any(seen.any() for seen in others)

    def test_packing_changes_nothing(self):
        alone = [self.seen(keys(1), jnp.full((1, n), g), jnp.ones((1, n), bool))[0] for g, n in ((1, 3), (2, 4))]
        segment_BL = jnp.array([[1] * 3 + [2] * 4 + [0]])
        together = self.seen(keys(1), segment_BL, segment_BL > 0)[0]
        assert_array_equal(together[:3, :3], alone[0])
        assert_array_equal(together[3:7, 3:7], alone[1])


def test_draws_of_neighbours_segments_and_rows_differ():
    noisy_BL, _ = corrupt(Uniform(rate=1.0))
    rows = {tuple(row) for row in np.asarray(noisy_BL).tolist()}
    assert len(rows) == ROWS
    two = jnp.repeat(jnp.array([[1, 2]]), 10, 1)
    noisy_BL, _ = Uniform(1.0)(keys(1), jnp.full((1, 20), 7), jnp.ones((1, 20), bool), two, ids=IDS)
    assert noisy_BL[0, :10].tolist() != noisy_BL[0, 10:].tolist()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mixed(correct=0.5, random=0.1, mask=0.1), "add up 1"),
        (lambda: Mixed(correct=1.0, random=0.0, mask=0.0), "changes no token"),
    ],
)
def test_wrong_hyperparameters(make, words):
    with refused(words):
        make()

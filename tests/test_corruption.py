import jax.numpy as jnp
import numpy as np
import pytest
from fakes import IDS, keys

from padir.corruption import Mask, MaskRange, Mixed, Uniform
from padir.errors import PadirError
from padir.tokens import Ids

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
    np.testing.assert_array_equal(corrupt(MaskRange(rate=1.0))[0][0], 60 - np.arange(LENGTH))


def test_mask_range_counts_from_the_start_of_each_segment():
    segment_BL = jnp.array([[1, 1, 1, 2, 2]])
    noisy_BL, _ = MaskRange(1.0)(keys(1), jnp.full((1, 5), 7), jnp.ones((1, 5), bool), segment_BL, ids=IDS)
    assert noisy_BL.tolist() == [[60, 59, 58, 60, 59]]


def test_mask_range_needs_a_sentinel_for_each_position():
    with pytest.raises(PadirError, match="20 positions and 3 more, got 22"):
        corrupt(MaskRange(), Ids(vocab_size=64, num_sentinels=22, first_regular=3))


def test_mixed_shares():
    noisy_BL, chosen_BL = corrupt(Mixed(correct=0.2, random=0.3, mask=0.5))
    masked = float((noisy_BL == IDS.mask).mean())
    assert abs(float(chosen_BL.mean()) - 0.8) < 0.02 and abs(masked - 0.5) < 0.025
    full = Mixed(correct=0.2, random=0.3, mask=0.5).full()
    assert (full.correct, full.random, full.mask) == pytest.approx((0, 0.375, 0.625))


def test_draws_of_neighbours_segments_and_rows_differ():
    noisy_BL, _ = corrupt(Uniform(rate=1.0))
    rows = {tuple(row) for row in np.asarray(noisy_BL).tolist()}
    assert len(rows) == ROWS
    two = jnp.repeat(jnp.array([[1, 2]]), 10, 1)
    noisy_BL, _ = Uniform(1.0)(keys(1), jnp.full((1, 20), 7), jnp.ones((1, 20), bool), two, ids=IDS)
    assert noisy_BL[0, :10].tolist() != noisy_BL[0, 10:].tolist()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Uniform(rate=1.5), r"rate must lie in \[0, 1\]"),
        (lambda: Mask(rate=-0.1), r"rate must lie in \[0, 1\]"),
        (lambda: Mixed(correct=0.5, random=0.1, mask=0.1), "add up to 1"),
        (lambda: Mixed(correct=1.0, random=0.0, mask=0.0), "corrupts nothing"),
    ],
)
def test_wrong_hyperparameters(make, message):
    with pytest.raises(PadirError, match=message):
        make()

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.fakes import IDS, keys

from padir.refinement import Mask, draft, remask, repeats, restore, restrict_visibility, write
from padir.refinement.scores import best_by_block, best_tokens, forbid
from padir.refinement.segments import count_in_segment, worst


def row(lengths=(4,), max_length=5):
    return draft(keys(len(lengths)), jnp.array(lengths), max_length, Mask(), IDS)


def test_draft_has_noise_then_eos_then_padding():
    canvas = row((4, 1, 5))
    assert canvas.tokens_BL.tolist() == [[63, 63, 63, 1, 0], [1, 0, 0, 0, 0], [63, 63, 63, 63, 1]]
    assert canvas.editable_BL.sum(-1).tolist() == [3, 0, 4]
    assert not canvas.done_B.any() and canvas.ids == IDS


def test_write_and_hide_touch_free_positions_only():
    everywhere = jnp.ones((1, 5), bool)
    written = write(row(), everywhere, jnp.full((1, 5), 20), jnp.full((1, 5), -0.5))
    assert written.tokens_BL.tolist() == [[20, 20, 20, 1, 0]]
    assert written.score_BL.tolist() == [[-0.5, -0.5, -0.5, 0.0, 0.0]]
    hidden = remask(written, jnp.array([[False, True, False, True, True]]))
    assert hidden.tokens_BL.tolist() == [[20, 63, 20, 1, 0]]
    assert hidden.score_BL.tolist() == [[-0.5, 0.0, -0.5, 0.0, 0.0]]
    assert [each.written_BL.astype(int).tolist() for each in (written, hidden)] == [
        [[1, 1, 1, 0, 0]],
        [[1, 0, 1, 0, 0]],
    ]


def test_written_positions_are_visible_in_their_segment_hidden_ones_not():
    canvas = restrict_visibility(row(), row().editable_BL)  # three editable positions, EOS, padding
    seen = canvas.visible_BLL[0].astype(int).tolist()
    assert seen == [[0, 0, 0, 1, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    where_BL = jnp.array([[True, True, False, True, True]])
    written = write(canvas, where_BL, jnp.full((1, 5), 20), jnp.full((1, 5), -0.5))
    seen = written.visible_BLL[0].astype(int).tolist()
    assert seen == [[0, 1, 0, 1, 0], [1, 0, 0, 1, 0], [1, 1, 0, 1, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
    hidden = remask(written, jnp.array([[True, False, False, True, False]]))
    assert hidden.visible_BLL[0].astype(int).tolist() == [
        [0, 1, 0, 1, 0],
        [0, 0, 0, 1, 0],
        [0, 1, 0, 1, 0],
        [0, 1, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    # Back to what stood there before it was written: nothing that anyone sees.
    back = restore(written, jnp.array([[False, True, True, True, True]]), canvas)
    assert back.tokens_BL.tolist() == [[20, 63, 63, 1, 0]] and back.score_BL.tolist() == [[-0.5, 0, 0, 0, 0]]
    assert back.written_BL.tolist() == [[True, False, False, False, False]]
    assert back.visible_BLL[0].sum(0).tolist() == [3, 0, 0, 3, 0]


def test_canvases_of_other_decoders_have_no_visibility():
    everywhere = jnp.ones((1, 5), bool)
    written = write(row(), everywhere, jnp.full((1, 5), 20), jnp.full((1, 5), -0.5))
    assert written.visible_BLL is None and remask(written, everywhere).visible_BLL is None
    assert_array_equal(restore(written, everywhere, row()).tokens_BL, row().tokens_BL)


def test_repeats():
    canvas = row((5,))
    assert repeats(jnp.array([[20, 20, 20, 21, 1]]), canvas).tolist() == [[False, True, True, False, False]]


def test_worst_counts_within_each_segment():
    score_BL = jnp.array([[-1.0, -3.0, -2.0, -9.0, -8.0, -7.0]])
    segment_BL = jnp.array([[1, 1, 1, 2, 2, 2]])
    among_BL = jnp.array([[True, True, True, False, True, True]])
    chosen_BL = worst(score_BL, among_BL, segment_BL, jnp.array([[2, 2, 2, 1, 1, 1]]))
    assert chosen_BL.tolist() == [[False, True, True, False, True, False]]
    assert count_in_segment(among_BL, segment_BL).tolist() == [[3, 3, 3, 2, 2, 2]]


def test_best_tokens_are_normalised_over_the_allowed_ids():
    logits_BLV = jnp.log(jnp.array([[[0.5, 0.3, 0.2]]]))
    token_BL, score_BL = best_tokens(forbid(logits_BLV, (0,)))
    assert token_BL.tolist() == [[1]]
    assert_allclose(jnp.exp(score_BL), [[0.6]], rtol=1e-6)
    assert forbid(logits_BLV, ()) is logits_BLV


@pytest.mark.parametrize("block", [1, 3, 10, 64])
def test_the_best_tokens_by_block_are_the_best_tokens(block):
    """Rounded, so that ties are there: within a block and between blocks."""
    logits_BLV = jnp.asarray(np.random.RandomState(0).normal(size=(6, 7, 23)).round(1), jnp.float32)
    banned_ids = (0, 9, 10, 11, 22)  # all of one block of three
    token_BL, score_BL = best_by_block(
        lambda begin, size: jax.lax.dynamic_slice_in_dim(logits_BLV, begin, size, axis=-1), 23, banned_ids, block
    )
    expected_BL, expected_score_BL = best_tokens(forbid(logits_BLV, banned_ids))
    assert_array_equal(token_BL, expected_BL)
    assert_allclose(score_BL, expected_score_BL, atol=1e-6)

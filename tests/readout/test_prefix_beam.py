"""Prefix beam search against enumeration of all alignments."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from padir.readout.prefix_beam import prefix_beam

BLANK = 9


def sums(logits_LV, length):
    """Log-probability of every sentence: the sum over its alignments, by the definition."""
    return sums_of(np.asarray(jax.nn.log_softmax(logits_LV))[:length])


def sums_of(log_prob_LV):
    totals = collections.defaultdict(list)
    for path in itertools.product(range(log_prob_LV.shape[1]), repeat=len(log_prob_LV)):
        merged = [token for token, _ in itertools.groupby(path)]
        sentence = tuple(token for token in merged if token)  # column 0 is the blank
        totals[sentence].append(sum(log_prob_LV[at, token] for at, token in enumerate(path)))
    return {sentence: np.logaddexp.reduce(each) for sentence, each in totals.items()}


def found(logits_BLV, editable_BL, size, pieces=None):
    log_prob_BLV = jax.nn.log_softmax(logits_BLV)
    score_BLK, index_BLK = jax.lax.top_k(log_prob_BLV[..., 1:], pieces or logits_BLV.shape[-1] - 1)
    search = jax.jit(prefix_beam, static_argnums=(4, 5))
    canvas_BNL, log_prob_BN = search(log_prob_BLV[..., 0], index_BLK + 1, score_BLK, editable_BL, size, BLANK)
    rows = []
    for canvas_NL, log_prob_N in zip(np.asarray(canvas_BNL), np.asarray(log_prob_BN), strict=True):
        read = []
        for canvas_L, log_prob in zip(canvas_NL, log_prob_N.tolist(), strict=True):
            merged = [token for token, _ in itertools.groupby(canvas_L.tolist())]
            read.append((tuple(token for token in merged if token != BLANK), log_prob))
        rows.append(read)
    return rows


def test_all_prefixes_give_the_exact_order_and_sums():
    logits_BLV = 2.0 * jax.random.normal(jax.random.key(0), (3, 5, 3))
    editable_BL = jnp.arange(5) < jnp.array([[5], [4], [2]])
    for b, (row, length) in enumerate(zip(found(logits_BLV, editable_BL, 90), (5, 4, 2), strict=True)):
        truth = sums(logits_BLV[b], length)
        best = sorted(truth, key=truth.__getitem__, reverse=True)
        assert [sentence for sentence, _ in row[: len(best)]] == best
        assert_allclose([p for _, p in row[: len(best)]], [truth[each] for each in best], atol=1e-5)
        assert all(log_prob == -np.inf for _, log_prob in row[len(best) :])


def test_the_best_sentence_is_not_the_best_alignment():
    # Blank has 0.4 and the piece 0.3 at both positions; another piece has the rest. "a" has three alignments.
    probs = jnp.array([[[0.4, 0.35, 0.25], [0.4, 0.35, 0.25]]])
    (row,) = found(jnp.log(probs), jnp.ones((1, 2), bool), 4)
    assert row[0][0] == (1,) and np.exp(row[0][1]) == pytest.approx(2 * 0.4 * 0.35 + 0.35**2)
    assert [sentence for sentence, _ in row[:3]] == [(1,), (2,), ()]


def test_few_prefixes_are_different_and_never_too_likely():
    logits_BLV = jax.random.normal(jax.random.key(1), (2, 6, 4))
    for b, row in enumerate(found(logits_BLV, jnp.ones((2, 6), bool), 3, pieces=2)):
        truth = sums(logits_BLV[b], 6)
        assert len({sentence for sentence, _ in row}) == 3
        assert all(log_prob <= truth[sentence] + 1e-5 for sentence, log_prob in row)


def test_equal_neighbours_keep_a_blank_between_them():
    probs = jnp.array([[[0.01, 0.99], [0.99, 0.01], [0.01, 0.99]]])
    (row,) = found(jnp.log(probs), jnp.ones((1, 3), bool), 2)
    assert row[0][0] == (1, 1)


def test_positions_without_pieces_are_blanks_of_all_sentences():
    """Closed positions at the begin, inside (between equal pieces, too) and at the end, against all alignments."""
    logits_BLV = jax.random.normal(jax.random.key(2), (4, 6, 3))
    open_BL = jnp.array([[1, 1, 1, 1, 1, 1], [0, 1, 0, 1, 0, 0], [1, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]], bool)
    log_prob_BLV = jax.nn.log_softmax(logits_BLV)
    score_BLK = jnp.where(open_BL[..., None], log_prob_BLV[..., 1:], -jnp.inf)
    index_BLK = jnp.broadcast_to(jnp.arange(1, 3), score_BLK.shape)
    search = jax.jit(prefix_beam, static_argnums=(4, 5))
    canvas_BNL, log_prob_BN = search(log_prob_BLV[..., 0], index_BLK, score_BLK, jnp.ones((4, 6), bool), 200, BLANK)
    for b in range(4):
        closed_LV = jnp.where(
            open_BL[b][:, None], log_prob_BLV[b], log_prob_BLV[b] + jnp.array([0, -jnp.inf, -jnp.inf])
        )
        truth = sums_of(np.asarray(closed_LV))
        for canvas_L, log_prob in zip(np.asarray(canvas_BNL[b]), np.asarray(log_prob_BN[b]), strict=True):
            if np.isfinite(log_prob):
                merged = [token for token, _ in itertools.groupby(canvas_L.tolist())]
                sentence = tuple(token for token in merged if token != BLANK)
                assert log_prob == pytest.approx(truth.pop(sentence), abs=1e-4)
        assert not [each for each, log_prob in truth.items() if np.isfinite(log_prob)]


def test_a_score_that_is_no_number_is_seen_in_the_result():
    score_BLK = jnp.log(jnp.full((2, 3, 2), 0.3)).at[1, 1].set(jnp.nan)
    arrays = jnp.log(jnp.full((2, 3), 0.4)), jnp.broadcast_to(jnp.arange(1, 3), score_BLK.shape), score_BLK
    _, log_prob_BN = jax.jit(prefix_beam, static_argnums=(4, 5))(*arrays, jnp.ones((2, 3), bool), 4, BLANK)
    assert jnp.isfinite(log_prob_BN[0]).all() and jnp.isnan(log_prob_BN[1]).any()

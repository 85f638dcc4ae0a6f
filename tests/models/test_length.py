import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from support.published_rules import tried_lengths
from support.refusals import refused
from support.tiny import pairs, rows_of, tiny_model

from padir.decoding.planned_drafts import planned_drafts
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.models.length import LengthOutput, TokenLength, top_lengths
from padir.training.batch import length_correct, length_loss


@functools.partial(jax.jit, static_argnums=(0, 3))
def encode(model, params, batch, num_segments):
    return model.bind({"params": params}).encode(batch.source_BS, batch.source_segment_BS, num_segments=num_segments)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_published_lengths_are_tried(k):
    """Each once: the shorter of equally likely ones first, and 2 in place of 1."""
    for seed in range(20):
        logits_M = np.random.RandomState(seed).randint(0, 4, 9).astype(np.float32)
        length_BK = top_lengths(LengthOutput(jnp.asarray(logits_M)[None, None]), k)
        ours = [each.length for each in planned_drafts(length_BK[0].tolist(), num_drafts=1, max_length=9)]
        assert ours == list(dict.fromkeys(tried_lengths(logits_M, k).tolist()))


def test_adjacent_lengths_are_those_of_a_growing_window():
    log_prob_BM = jax.random.normal(jax.random.key(0), (200, 11))
    length_BK = top_lengths(LengthOutput(logits_BGM=log_prob_BM[:, None]), 6, True)
    for row, found in zip(np.pad(log_prob_BM, ((0, 0), (1, 1)), constant_values=-np.inf), length_BK, strict=True):
        low = high = int(row.argmax())  # the padded index is the length
        expected = [low]
        while len(expected) < 6:
            lower = row[low - 1] > row[high + 1]
            low, high = low - lower, high + (not lower)
            expected.append(low if lower else high)
        assert found.tolist() == expected


def test_a_readout_gives_one_length():
    output = LengthOutput(canvas_BG=jnp.array([[8, 2], [6, 0]]))
    assert top_lengths(output, 1).tolist() == [[8], [6]]
    with pytest.raises(PadirError):
        top_lengths(output, 2)


def test_a_class_of_two_lengths_is_shared_by_both():
    """Five lengths in three classes: 1 and 2, 3 and 4, and 5 alone. By hand: exp(logits) of the classes are 1, 3, 2."""
    head = TokenLength(width=3, max_length=5, unit=2)
    params = {"length_embed": {"embedding": jnp.eye(3)}}
    memory_BSD, ones_BS = jnp.log(jnp.array([[[1.0, 3.0, 2.0]]])), jnp.ones((1, 1), int)
    output = head.apply({"params": params}, memory_BSD, ones_BS > 0, ones_BS, 1)
    assert_allclose(jax.nn.softmax(output.logits_BGM[:, 0]), np.array([[1, 1, 3, 3, 2]]) / 10, rtol=1e-5)
    assert top_lengths(output, 3).tolist() == [[3, 4, 5]]
    assert top_lengths(output, 3, min_p=1.0).tolist() == [[3, 4, 0]]  # what is as likely as the best is not below it
    for length, share in ((3, 0.3), (4, 0.3), (5, 0.2)):
        assert length_loss(output, jnp.array([[length]])) == pytest.approx(-np.log(share), rel=1e-5)
    assert [float(length_correct(output, jnp.array([[length]]))) for length in range(6)] == [0, 0, 0, 1, 1, 0]


def test_a_model_of_halved_lengths():
    model, params = tiny_model(length_unit=2, max_length=15)
    assert params["length_predictor"]["length_embed"]["embedding"].shape == (8, model.config.width)
    batch = rows_of([[pair] for pair in pairs([(4, 5), (6, 3)])], 8, 8)
    logits_BM = encode(model, params, batch, 1).length.logits_BGM[:, 0]
    assert logits_BM.shape == (2, 15) and (logits_BM[:, :14:2] == logits_BM[:, 1::2]).all()
    assert len(np.unique(logits_BM[0])) == 8


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: top_lengths(LengthOutput(logits_BGM=jnp.ones((1, 1, 3))), 4), "most 3 lengths got 4"),
        (lambda: ModelConfig(length_head="length"), "None, token, got 'length'"),
        (lambda: ModelConfig(length_unit=0), "length_unit [1, 256], got 0"),
        (lambda: ModelConfig(length_head="oracle"), "None, token, got 'oracle'"),
        (lambda: ModelConfig(length_unit=2, readout="ctc"), "1 without a length head, which has classes, got 2"),
    ],
)
def test_wrong_choices(make, words):
    with refused(words):
        make()

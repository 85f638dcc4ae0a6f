import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.published_rules import tried_lengths
from support.tiny import pairs, rows_of, tiny_model

from padir.decoding.batches import candidates
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.models.length import LengthOutput, TokenLength, make_length_head, top_lengths
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
        ours = [each.length for each in candidates(length_BK[0].tolist(), num_drafts=1, max_length=9)]
        assert ours == list(dict.fromkeys(tried_lengths(logits_M, k).tolist()))


def test_top_lengths_count_from_one_and_come_best_first():
    logits_BGM = jnp.log(jnp.array([[[0.1, 0.2, 0.6, 0.1]]]))
    assert top_lengths(LengthOutput(logits_BGM=logits_BGM), 2).tolist() == [[3, 2]]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([1, 9, 2, 60, 5, 3, 8], [4, 5, 6, 7, 3]),  # 7 beats 3 and lies behind 6, which does, too
        ([30, 2, 6, 7, 1], [1, 2, 3, 4, 5]),  # at the lower edge
        ([1, 7, 6, 2, 30], [5, 4, 3, 2, 1]),
    ],
)
def test_adjacent_lengths_grow_from_the_most_likely_one(shares, expected):
    log_prob_BGM = jnp.log(jnp.array([[shares], [list(reversed(shares))]], jnp.float32))
    length_BK = top_lengths(LengthOutput(logits_BGM=log_prob_BGM), 5, True)
    assert length_BK[0].tolist() == expected
    assert sorted(length_BK[1].tolist()) == list(range(min(length_BK[1].tolist()), max(length_BK[1].tolist()) + 1))


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


def test_a_single_number_is_rounded():
    length_BK = top_lengths(LengthOutput(mean_BG=jnp.array([[6.6], [2.2]])), 1)
    assert length_BK.tolist() == [[7], [2]]


def test_a_class_of_two_lengths_is_shared_by_both():
    """Five lengths in three classes: 1 and 2, 3 and 4, and 5 alone. By hand: exp(logits) of the classes are 1, 3, 2."""
    head = TokenLength(width=3, max_length=5, unit=2)
    params = {"length_embed": {"embedding": jnp.eye(3)}}
    memory_BSD, ones_BS = jnp.log(jnp.array([[[1.0, 3.0, 2.0]]])), jnp.ones((1, 1), int)
    output = head.apply({"params": params}, memory_BSD, ones_BS > 0, ones_BS, 1)
    np.testing.assert_allclose(jax.nn.softmax(output.logits_BGM[:, 0]), np.array([[1, 1, 3, 3, 2]]) / 10, rtol=1e-5)
    assert top_lengths(output, 3).tolist() == [[3, 4, 5]]
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
    "mean, nearest", [(7.2, [7, 8, 6, 9, 5]), (6.8, [7, 6, 8, 5, 9]), (1.6, [2, 1, 3, 4, 5]), (0.2, [0, 1, 2, 3, 4])]
)
def test_the_lengths_of_a_head_of_one_number_are_the_nearest(mean, nearest):
    """The rounded number comes first; others are at least 1."""
    for k in (1, 2, 5):
        assert top_lengths(LengthOutput(mean_BG=jnp.array([[mean]])), k).tolist() == [nearest[:k]]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: top_lengths(LengthOutput(logits_BGM=jnp.ones((1, 1, 3))), 4), "at most the 3 lengths .* got 4"),
        (lambda: top_lengths(LengthOutput(), 1), "give the target lengths"),
        (lambda: ModelConfig(length_head="length"), "None, token, affine, fertility, oracle"),
        (lambda: ModelConfig(length_unit=0), r"length_unit must be in \[1, 256\], got 0"),
        (
            lambda: ModelConfig(length_unit=2, length_head="affine"),
            "1 without the length head 'token', which has classes, got 2",
        ),
    ],
)
def test_wrong_choices(make, message):
    with pytest.raises(PadirError, match=message):
        make()


def test_affine_starts_as_the_length_of_the_source():
    model, params = tiny_model(length_head="affine")
    batch = rows_of([[pair] for pair in pairs([(4, 5), (6, 3)], length_token=False)], 8, 8)
    params["length_predictor"] = {"len_factor": jnp.ones(1), "len_bias": jnp.zeros(1)}
    assert encode(model, params, batch, 1).length.mean_BG.tolist() == [[5.0], [7.0]]  # EOS counts


def test_fertility_sums_over_the_tokens_of_each_segment():
    model, params = tiny_model(length_head="fertility")
    head = params["length_predictor"]
    head["logits_dense"]["kernel"] = jnp.zeros_like(head["logits_dense"]["kernel"])
    batch = rows_of([pairs([(4, 5), (6, 3)], length_token=False)], 16, 12)
    encoded = encode(model, params, batch, 3)
    # Even odds over the changes -3 .. 2 make each token count 1 - 0.5; then comes the offset, which starts at 1.
    np.testing.assert_allclose(encoded.length.mean_BG, [[5 * 0.5 + 1, 7 * 0.5 + 1, 1.0]], rtol=1e-5)


@pytest.mark.parametrize(("name", "trains"), [("token", True), ("fertility", False)])
def test_the_fertility_head_alone_does_not_train_the_encoder(name, trains):
    head = make_length_head(ModelConfig(width=4, max_length=8, length_head=name))
    memory_BSD, ones_BS = jax.random.normal(jax.random.key(0), (1, 3, 4)), jnp.ones((1, 3), int)
    variables = head.init(jax.random.key(1), memory_BSD, ones_BS > 0, ones_BS, 1)

    def loss(params, memory_BSD):
        output = head.apply({"params": params}, memory_BSD, ones_BS > 0, ones_BS, 1)
        return length_loss(output, jnp.array([[5]]))

    largest = [
        max(float(jnp.abs(x).max()) for x in jax.tree.leaves(g))
        for g in jax.grad(loss, (0, 1))(variables["params"], memory_BSD)
    ]
    assert largest[0] > 0 and (largest[1] > 0) == trains

import jax.numpy as jnp
import numpy as np
import pytest
from support.refusals import refuses

from padir.text.ids import Ids, pad_rows, positions_in_segment, round_up, segment_lengths


def test_t5_layout_of_a_32k_vocabulary():
    ids = Ids(vocab_size=32_100)
    assert (ids.padding, ids.eos, ids.unk) == (0, 1, 2)
    assert (ids.mask, ids.length) == (32_099, 32_097)
    assert (ids.first_regular, ids.end_regular) == (259, 32_000)
    assert list(ids.mask_range(3)) == [32_096, 32_095, 32_094]


def test_special_ids_hold_no_byte_and_every_padded_row():
    ids = Ids(vocab_size=400, num_sentinels=100, num_embeddings=512)
    assert set(ids.special) == {0, 1, 2, *range(300, 512)}


def test_ids_are_equal_and_hash_alike_when_their_numbers_are():
    assert Ids(500) == Ids(500, num_embeddings=500) and hash(Ids(500)) == hash(Ids(500, num_embeddings=500))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Ids(vocab_size=300), "first_regular must be in [3, 199], got 259: use a larger"),
        (lambda: Ids(vocab_size=4), "vocab_size must be above 103, got 4: 103 ids are special"),
        (
            lambda: Ids(vocab_size=500, first_regular=2),
            "first_regular must be at least 3, got 2: padding, EOS and unk come first",
        ),
        (lambda: Ids(vocab_size=500, num_sentinels=2), "num_sentinels must be in [3, 131072], got 2"),
        (lambda: Ids(vocab_size=10**9 + 400, num_sentinels=10**9), "num_sentinels must be in [3, 131072]"),
        (lambda: Ids(vocab_size=500, num_embeddings=400), "at least 500, got 400"),
        (lambda: Ids(vocab_size=500).mask_range(98), "98 positions and 3 more, got 100"),
        (lambda: pad_rows([[1, 2, 3]], 2), "3 tokens does not fit into 2"),
    ],
)
def test_wrong_numbers(make, message):
    refuses(make, message)


def test_segments():
    segment_BL = jnp.array([[1, 1, 2, 3, 3, 0], [1, 0, 0, 0, 0, 0]])
    assert positions_in_segment(segment_BL).tolist() == [[0, 1, 0, 0, 1, 0], [0, 0, 1, 2, 3, 4]]
    assert segment_lengths(segment_BL, 4).tolist() == [[2, 1, 2, 0], [1, 0, 0, 0]]


def test_pad_rows_and_round_up():
    np.testing.assert_array_equal(pad_rows([[5], [6, 7]], 3, 3), [[5, 0, 0], [6, 7, 0], [0, 0, 0]])
    assert [round_up(n, 8) for n in (1, 8, 9)] == [8, 8, 16]

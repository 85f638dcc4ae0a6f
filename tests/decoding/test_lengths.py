"""Candidate lengths: the predicted lengths, their neighbours and parallel draws."""

import pytest

from padir.decoding.lengths import LengthSearch, candidates
from padir.errors import PadirError


@pytest.mark.parametrize(
    "search, expected",
    [
        (LengthSearch(), [(5, 0)]),
        (LengthSearch(top_k=3), [(5, 0), (6, 0), (4, 0)]),
        (LengthSearch(top_k=2, offsets=(0, 1, -1)), [(5, 0), (6, 0), (7, 0), (4, 0)]),
        (LengthSearch(top_k=2, draws=2), [(5, 0), (5, 1), (6, 0), (6, 1)]),
        (LengthSearch(offsets=(9, -9)), [(8, 0), (2, 0)]),
    ],
)
def test_candidates(search, expected):
    assert candidates([5, 6, 4], search, max_length=8) == expected


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"offsets": ()}, "at least one offset"),
    ],
)
def test_wrong_searches(wrong, message):
    with pytest.raises(PadirError, match=message):
        LengthSearch(**wrong)


@pytest.mark.parametrize("many", [{"draws": 10**6}, {"top_k": 5_000}, {"draws": 100, "top_k": 50}])
def test_more_drafts_than_memory_are_refused(many):
    with pytest.raises(PadirError, match="must be at most 4,096 drafts of a sentence, got .*: lower one of them"):
        LengthSearch(**many)

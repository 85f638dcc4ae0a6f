"""The paired bootstrap test: what is plainly different, what is equal, and what is refused."""

import random

import numpy as np
import pytest
from support.refusals import refuses

from padir.metrics.significance import compare

WORDS = "the a dog cat house runs sleeps on in old red sun".split()


def sentences(seed, count=60):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=8)) for _ in range(count)]


REFERENCES = sentences(0)
GOOD = [" ".join(line.split()[:-1] + ["x"]) for line in REFERENCES]
POOR = [" ".join(line.split()[: 4 + i % 3] + ["x"] * (4 - i % 3)) for i, line in enumerate(REFERENCES)]


def test_a_plain_difference_and_none():
    systems = [("poor", POOR), ("good", GOOD), ("same", POOR)]
    results = {(r.system, r.metric): r for r in compare(REFERENCES, systems, "en", samples=200)}
    assert set(results) == {(name, metric) for name, _ in systems for metric in ("BLEU", "chrF2")}
    for metric in ("BLEU", "chrF2"):
        poor, good, same = (results[name, metric] for name, _ in systems)
        assert poor.p_value is None and poor.difference is None
        low, high = good.difference
        assert 0 < low < good.score - poor.score < high
        assert same.difference == (0, 0)  # the same resamples
        assert good.score > poor.score
        assert good.p_value == pytest.approx(1 / 201)  # no resample of 200 says otherwise: the least there is
        assert same.p_value == 1 and same.score == poor.score
        assert abs(poor.mean - poor.score) < 2 and 0 < poor.interval < 20
        assert "bs:200" in good.signature and "seed:" in good.signature


def test_it_is_the_same_again():
    systems = [("poor", POOR), ("good", GOOD)]
    assert compare(REFERENCES, systems, "en", samples=100) == compare(REFERENCES, systems, "en", samples=100)


def test_the_language_chooses_the_tokenizer():
    systems = [("a", ["我们 去 公园"] * 2), ("b", ["我们 去 学校"] * 2)]
    assert any("tok:zh" in r.signature for r in compare(["我们去公园"] * 2, systems, "zh", samples=100))


def test_codes_of_one_language_give_one_figure_and_13a_none():
    references = ["我们今天去公园。", "一个人在骑车。"] * 20
    systems = [("a", ["我们明天去公园。", "一个人在走。"] * 20), ("b", references)]
    first, *others = (compare(references, systems, code, samples=100) for code in ("zh", "zho_Hans", "cmn", "yue"))
    assert first[0].score > 10 and all(other == first for other in others)
    refuses(compare, "13a splits at spaces", references, systems, "zh", samples=100, tokenize="13a")


TWO, NONE = [("a", POOR), ("b", GOOD)], [("a", []), ("b", [])]


def test_an_interval_holds_95_of_100_resamples(monkeypatch):
    resampled = iter([np.zeros(1001), np.arange(1001)] * 2)
    monkeypatch.setattr("padir.metrics.significance._resampled", lambda *_: next(resampled))
    assert [r.difference for r in compare(REFERENCES, TWO, "en", samples=100)] == [None, (25, 975)] * 2


@pytest.mark.parametrize(
    ("references", "systems", "samples", "words"),
    [
        (REFERENCES, TWO[:1], 1000, "at least one other system, got 1"),
        (REFERENCES, [("a", POOR), ("a", GOOD)], 1000, "a name of its own"),
        (REFERENCES, [("a", POOR), ("b", GOOD[:-1])], 1000, "got 60 references and 60 lines of a and 59 lines of b"),
        (REFERENCES, TWO, 10, "samples must be in [100, 10000], got 10: 1000 is usual"),
        (REFERENCES, TWO, 10**9, "samples must be in [100, 10000]"),
        ([], NONE, 1000, "at least one sentence to score, got none"),
        ([" "], [("a", [" "]), ("b", [" "])], 1000, "all references are empty"),
    ],
)
def test_refused(references, systems, samples, words):
    refuses(compare, words, references, systems, "en", samples)

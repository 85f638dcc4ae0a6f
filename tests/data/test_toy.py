"""The built-in corpus: its files, its splits, the judge, and the script that writes the files."""

import collections
import hashlib
import itertools
import random
import subprocess
import sys
from pathlib import Path

import pytest
from support.refusals import refuses

from padir.data.toy import ToyDeEn, are_judged, judge, references

SUMS = {"train": "d70f1e61abe34306", "validation": "df36312ba2b1ad78", "test": "aa8f1da630c7210d"}
SCRIPT = Path(__file__).parents[2] / "scripts" / "toy_corpus"


@pytest.fixture(scope="module")
def corpus():
    return {split: list(ToyDeEn().pairs(split)) for split in ToyDeEn.splits}


@pytest.fixture
def four(monkeypatch):
    """A sentence with four translations, and one with two of unequal length."""
    right = {
        "Im Herbst kauft der alte Mann eine Wohnung.": (
            "In autumn the old man buys a flat.",
            "The old man buys a flat in autumn.",
            "In the fall the old man buys an apartment.",
            "The old man buys an apartment in the fall.",
        ),
        "Die Frau gibt dem Kind das Buch.": (
            "The woman gives the child the book.",
            "The woman gives the book to the child.",
        ),
        "Der alte Mann kauft ein Buch.": ("The old man buys a book.",),
    }
    monkeypatch.setattr("padir.data.toy.references", right.__getitem__)


@pytest.mark.parametrize(
    "output, verdict",
    [
        ("In autumn the old man buys a flat.", "right"),
        ("  The old man buys an apartment  in the fall. ", "right"),
        ("In the fall the old man buys a flat.", "mixed"),  # American, then British: counted from the end
        ("In autumn the old man buys an flat.", "mixed"),
        ("In old man buys a flat in autumn.", "mixed"),  # the place, twice
        ("In autumn the young man buys a flat.", "wrong"),  # a word of no translation
        ("In autumn the old man buys flat.", "wrong"),  # shorter than any
        ("The old man buys a flat.", "wrong"),  # something is missing, nothing mixed
        ("", "wrong"),
    ],
)
def test_judge_of_four_translations(four, output, verdict):
    assert judge("Im Herbst kauft der alte Mann eine Wohnung.", output) == verdict


@pytest.mark.parametrize(
    "output, verdict",
    [
        ("The woman gives the book to the child.", "right"),
        ("The woman gives the child to book.", "mixed"),
        ("The woman gives the book the child.", "mixed"),  # 7 words, as the first; `child.` is the second's last
        ("The woman gives the book to the book.", "mixed"),
        ("The woman gives the the book child.", "wrong"),  # no translation has `the` as its fifth word, or third last
        ("The woman gives the book to book.", "mixed"),
        ("Woman the gives the child the book.", "wrong"),
    ],
)
def test_judge_of_two_translations_of_unequal_length(four, output, verdict):
    assert judge("Die Frau gibt dem Kind das Buch.", output) == verdict


def test_where_one_translation_is_right_nothing_is_mixed(four):
    right = "The old man buys a book.".split()
    for changed in itertools.product(*[(word, right[0]) for word in right]):
        verdict = judge("Der alte Mann kauft ein Buch.", " ".join(changed))
        assert verdict == ("right" if list(changed) == right else "wrong")


def test_independent_words_of_right_translations_are_right_or_mixed(corpus):
    """A decoder that knows every position's distribution, and nothing of the others, draws such words."""
    rng = random.Random(0)
    verdicts = collections.Counter()
    for source, _ in corpus["test"][:200]:
        right = [reference.split() for reference in references(source)]
        if len(right) == 1:
            continue
        for length in {len(words) for words in right}:
            columns = [[words[place] for words in right if place < len(words)] for place in range(length)]
            verdicts[judge(source, " ".join(rng.choice(column) for column in columns))] += 1
    assert verdicts.keys() == {"right", "mixed"}
    assert verdicts["mixed"] > verdicts["right"]


def test_the_corpus_is_the_same_for_ever(corpus):
    """Fixed sums: any change to a word or its order is a new corpus, and scores on it are not comparable."""
    texts = {split: "".join(f"{german}\t{english}\n" for german, english in pairs) for split, pairs in corpus.items()}
    assert {split: hashlib.sha256(text.encode()).hexdigest()[:16] for split, text in texts.items()} == SUMS


def test_splits_have_their_sizes_and_share_no_source(corpus):
    sources = {split: {german for german, _ in pairs} for split, pairs in corpus.items()}
    assert {split: len(found) for split, found in sources.items()} == {
        "train": 100_000,
        "validation": 500,
        "test": 1_000,
    }
    assert not sources["train"] & (sources["test"] | sources["validation"])
    assert not sources["validation"] & sources["test"]


def test_a_smaller_corpus_is_the_first_pairs(corpus):
    few = ToyDeEn(num_train=30, num_validation=20, num_test=10)
    for split, count in (("train", 30), ("validation", 20), ("test", 10)):
        assert list(few.pairs(split)) == corpus[split][:count]


def test_a_third_of_the_sentences_have_several_translations(corpus):
    several = 0
    for split in ("validation", "test"):
        for german, drawn in corpus[split]:
            right = references(german)
            assert drawn in right and len({*right}) == len(right)
            several += len(right) > 1
    assert 0.3 < several / 1_500 < 0.45


def test_the_script_writes_these_pairs(corpus):
    code = (
        f"import itertools, runpy, sys; sys.path.insert(0, {str(SCRIPT)!r}); "
        f"rows = runpy.run_path({str(SCRIPT / '__main__.py')!r})['rows']; "
        "[print(*row, sep='\\t') for split in ('train', 'test') for row in itertools.islice(rows(split), 40)]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, encoding="utf-8")
    found = [line.split("\t") for line in done.stdout.splitlines()]
    expected = [(*pair, *references(pair[0])) for pair in corpus["test"][:40]]
    assert [tuple(row[:2]) for row in found[:40]] == corpus["train"][:40]
    assert [tuple(row) for row in found[40:]] == expected


def test_bad_arguments_are_explained(corpus):
    refuses(ToyDeEn().pairs, "no split 'dev': use one of train, validation, test", "dev")
    refuses(references, "validation or test split, unchanged", corpus["train"][0][0])
    refuses(judge, "validation or test split, unchanged", "The man sleeps.", "")
    assert [are_judged(german for german, _ in corpus[split][:9]) for split in ToyDeEn.splits] == [False, True, True]

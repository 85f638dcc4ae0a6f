"""Mixtures: how often each folder's pairs come, and which folders go together."""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest
from support.refusals import refuses
from support.small_corpus import Listed, small_tokenizer

from padir.data import Batching, Mixture, load_manifest
from padir.data.loader import make_loader
from padir.data.prepare import prepare
from padir.text.tokenizer import train

RAW = (("eins", "one"), ("zwei", "two"), ("drei", "three"))
OTHER = (("eins", "nine"), ("zwei zwei", "nine nine"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    tokenizer = small_tokenizer(folder / "vocab.model")
    for name, pairs in (("raw", RAW), ("other", OTHER)):
        prepare(Listed(pairs), tokenizer, folder / name, progress=False)
    return folder


def mixture(folders, *weights):
    return Mixture((str(folders / "raw"), str(folders / "other")), weights)


def texts(folders, batches):
    """The target sentences of some batches, counted."""
    decode = small_tokenizer(folders / "vocab.model").decode
    counter = Counter()
    for batch in batches:
        for row, segment in zip(batch["target_BL"], batch["target_segment_BL"], strict=True):
            counter.update(decode(row[segment == number].tolist()) for number in range(1, segment.max() + 1))
    return counter


def epochs(folders, mixed, count):
    return texts(folders, make_loader(mixed, Batching(2, 16), num_epochs=count))


class TestChosen:
    @pytest.mark.parametrize("weight", [0.25, 0.4, 1.5, 2.75])
    def test_a_fraction_comes_to_its_share_and_leaves_none_out(self, weight):
        mixed = Mixture(("a", "b"), (1, weight))
        several = [mixed.chosen([3, 10], epoch, seed=1)[3:] for epoch in range(20)]
        for epoch, chosen in enumerate(several, 1):
            counts = np.bincount(np.concatenate(several[:epoch]) - 3, minlength=10)
            assert counts.sum() == int(epoch * weight * 10)
            assert counts.max() - counts.min() <= 1 and len(counts) == 10
            assert abs(len(chosen) - weight * 10) < 1

    def test_a_fraction_takes_other_records_with_another_seed_or_folder(self):
        first, again, other = (Mixture(("a",), (0.5,)).chosen([100], 0, seed).tolist() for seed in (1, 1, 2))
        assert first == again != other
        both = Mixture(("a", "b"), (0.5, 0.5)).chosen([100, 100], 0, seed=1).tolist()
        assert both[:50] == first and [number - 100 for number in both[50:]] != first


class TestBatches:
    def test_an_epoch_of_one_and_two(self, folders):
        once = Counter({"one": 1, "two": 1, "three": 1})
        assert epochs(folders, mixture(folders), 1) == once + Counter({"nine": 1, "nine nine": 1})
        assert epochs(folders, mixture(folders, 1, 2), 1) == once + Counter({"nine": 2, "nine nine": 2})

    def test_two_epochs_of_a_half(self, folders):
        both = epochs(folders, mixture(folders, 1, 0.5), 2)
        assert both == Counter({"one": 2, "two": 2, "three": 2, "nine": 1, "nine nine": 1})
        assert sum(epochs(folders, mixture(folders, 1, 0.5), 1).values()) == 4

    def test_one_folder_of_weight_1_is_the_folder(self, folders):
        plain, mixed = (
            make_loader(data, Batching(2, 16), seed=3) for data in (folders / "raw", Mixture((str(folders / "raw"),)))
        )
        assert plain.get_state() == mixed.get_state()
        for a, b in itertools.islice(zip(plain, mixed, strict=True), 5):
            np.testing.assert_array_equal(a["target_BL"], b["target_BL"])

    def test_a_state_of_other_weights_or_folders_is_refused(self, folders):
        state = make_loader(mixture(folders, 1, 2), Batching(2, 16)).get_state()
        swapped = Mixture((str(folders / "other"), str(folders / "raw")), (1, 2))
        for data in (mixture(folders), mixture(folders, 2, 2), swapped, folders / "raw"):
            refuses(make_loader(data, Batching(2, 16)).set_state, "belongs to other data", state)


class TestRefused:
    @pytest.mark.parametrize(
        ("names", "weights", "message"),
        [
            ((), (), "needs at least one prepared folder"),
            (("a", "b"), (1,), "2 folders need one weight each, got 1"),
            (("a", "b"), (1, 0), "weights must be above 0"),
            (("a",), (float("nan"),), "weights must be above 0"),
        ],
    )
    def test_numbers(self, names, weights, message):
        refuses(Mixture, message, names, weights)

    @pytest.mark.parametrize(
        ("other", "split", "words"),
        [
            ({}, "train", "new has another vocabulary than ... raw ... : mix folders"),
            ({"source_language": "nl"}, "train", "has other languages than ... nl-en, not de-en"),
            ({"splits": ("train",)}, "validation", "new has no split 'validation': use one of train"),
        ],
    )
    def test_folders_that_do_not_fit(self, tokenizer, folders, tmp_path, other, split, words):
        if not other:
            tokenizer = train(["eins zwei drei one two three"] * 9, tmp_path / "v", size=274)
        prepare(Listed(RAW, **other), tokenizer, tmp_path / "new", progress=False)
        refuses(Mixture((str(folders / "raw"), str(tmp_path / "new"))).manifests, words, split)

    def test_a_vocabulary_whose_checksum_begins_alike(self, folders, monkeypatch):
        """Messages show the first digits of the checksum; the comparison takes all of them."""

        def alike(folder, *, verify):
            manifest = load_manifest(folder, verify=verify)
            if folder.endswith("raw"):
                return manifest
            other = dataclasses.replace(manifest.vocabulary, sha256=manifest.vocabulary.sha256[:8] + 56 * "0")
            return dataclasses.replace(manifest, vocabulary=other)

        monkeypatch.setattr("padir.data.prepared.load_manifest", alike)
        refuses(mixture(folders).manifests, "other has another vocabulary than ... raw", "train")

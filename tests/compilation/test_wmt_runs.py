"""The twelve WMT runs have two programs, so that docs/devices.md speaks of two."""

import dataclasses
from pathlib import Path

import pytest

from padir import config
from padir.training.config import TrainConfig
from padir.training.optimizer import Cosine

FILES = sorted(Path("configs/run").glob("wmt*.gin"))
NAMES = ("model", "objective", "optimizer", "batching", "averaging", "not_finite", "sharding")


def settings(file):
    """What a run's training step depends on, with the numbers left out that change no shape."""
    config.parse([str(file)])
    try:
        found = {name: config.argument(TrainConfig, name) for name in NAMES}
    finally:
        config.clear()
    assert found["model"].dropout_rate > 0  # a rate of 0 would leave the draws out
    found["model"] = dataclasses.replace(found["model"], dropout_rate=0.1)
    found["optimizer"] = dataclasses.replace(found["optimizer"], learning_rate=Cosine())
    return tuple(found.items())


def test_there_are_twelve():
    assert len(FILES) == 12


@pytest.mark.parametrize("causal", [False, True], ids=["refining", "autoregressive"])
def test_languages_change_no_program(causal):
    files = [file for file in FILES if file.stem.endswith("_ar") == causal]
    found = {file.stem: settings(file) for file in files}
    assert len(found) == 6
    assert all(each == found["wmt14_de_en" + "_ar" * causal] for each in found.values())

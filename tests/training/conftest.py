"""One short training run that several test modules look at."""

import shutil

import pytest
from support.tiny_model import prepared_numbers
from support.training import SETTINGS

from padir.training.loop import train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(prepared_numbers(tmp_path_factory.mktemp("trainer")))


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory):
    """The run of six steps that nothing stopped."""
    folder = tmp_path_factory.mktemp("straight") / "model"
    calls = []

    def evaluate_fn(params, card, tokenizer):
        calls.append(card.step)
        return {"validation_bleu": float(card.step)}

    latest = train(data, str(folder), **SETTINGS, evaluate_fn=evaluate_fn, describe_config=lambda: "train.seed = 3\n")
    return folder, latest, calls


@pytest.fixture
def finished(straight, tmp_path):
    return shutil.copytree(straight[0], tmp_path / "model")

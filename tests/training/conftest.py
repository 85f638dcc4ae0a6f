"""One short training run that several test modules look at."""

import shutil

import pytest
from support.tiny_model import prepared_numbers
from support.training import train_tiny


@pytest.fixture
def logged(caplog):
    """Takes what padir has logged since it was last asked."""
    caplog.set_level("INFO", "padir")

    def take():
        text = "\n".join(caplog.messages)
        caplog.clear()
        return text

    return take


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return str(prepared_numbers(tmp_path_factory.mktemp("trainer")))


@pytest.fixture(scope="session")
def straight(data, tmp_path_factory):
    """The run of six steps that nothing stopped."""
    folder = tmp_path_factory.mktemp("straight") / "model"
    calls = []

    def evaluate_fn(params, card, tokenizer):
        calls.append(card.step)
        return {"validation_bleu": float(card.step)}

    latest = train_tiny(data, folder, evaluate_fn=evaluate_fn, config_text="train.seed = 3\n")
    return folder, latest, calls


@pytest.fixture
def finished(straight, tmp_path):
    return shutil.copytree(straight[0], tmp_path / "model")

"""`TrainConfig`: the settings that differ from the defaults, which a training run prints first."""

from pathlib import Path

import pytest
from support.training import train_tiny

from padir import config
from padir.models.config import ModelConfig
from padir.training import Adafactor, Adam, Cosine, Objective, TrainConfig

REPOSITORY = Path(__file__).parents[2]
RUNS = sorted(path.name for path in (REPOSITORY / "configs" / "run").glob("*.gin"))


@pytest.fixture(autouse=True)
def in_repository(monkeypatch, blank_config):
    monkeypatch.chdir(REPOSITORY)


@pytest.mark.parametrize("name", RUNS)
def test_the_changes_are_bindings_that_make_the_same_settings(name):
    config.parse([f"configs/run/{name}"])
    settings = config.configured(TrainConfig)()
    config.parse(bindings=settings.changes())
    assert config.configured(TrainConfig)() == settings
    assert len(settings.changes()) < 60


def test_changes_of_nested_settings():
    settings = TrainConfig(
        ModelConfig(width=256), Objective(length_weight=5.0), Adam(Cosine(peak=2e-3)), freeze=("encoder",)
    )
    assert settings.changes() == [
        "ModelConfig.width = 256",
        "Objective.length_weight = 5.0",
        "train.optimizer = @Adam()",
        "Cosine.peak = 0.002",
        "train.freeze = ('encoder',)",
    ]
    assert TrainConfig().changes() == []


@pytest.mark.parametrize("optimizer", [Adam(), Adafactor(), Adam(Cosine(peak=1e-2)), Adafactor(Cosine(peak=1e-3))])
def test_changes_of_an_optimizer(optimizer):
    settings = TrainConfig(optimizer=optimizer)
    config.parse(bindings=settings.changes())
    assert config.configured(TrainConfig)() == settings


def test_a_run_prints_the_changes_first_and_keeps_the_whole_configuration(data, tmp_path, capsys):
    text = "train.num_steps = 1\ntrain.seed = 3\nIntervals.max_to_keep = 2\n"
    train_tiny(data, tmp_path / "run", num_steps=1, config_text=text)
    printed = capsys.readouterr().err.splitlines()
    assert printed[1] == "settings that differ from the defaults:"
    assert "  train.num_steps = 1" in printed and not any("keep" in line for line in printed)
    assert (tmp_path / "run" / "config.gin").read_text() == text

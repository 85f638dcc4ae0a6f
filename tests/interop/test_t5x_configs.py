"""Names in configs/t5x and docs/t5x.md: every padir module and class that they name exists. T5X is not needed."""

import importlib
import re
from pathlib import Path

import pytest
from gin.resource_reader import system_path_file_exists

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs" / "t5x").glob("*.gin"))
DOCS = ROOT / "docs" / "t5x.md"
SELECTOR = re.compile(r"\b(decoding|models|refinement|training)\.([A-Z]\w+)\.(\w+)")
ADAPTER = ROOT / "padir" / "interop" / "t5x" / "adapter.py"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_t5x_finds_a_config_and_its_includes_from_any_folder(path, tmp_path, monkeypatch):
    """By the path in padir's package, as gin's reader of packages does; T5X's own files are not here."""
    monkeypatch.chdir(tmp_path)
    includes = re.findall(r'^include "(.+)"', path.read_text(), re.MULTILINE)
    for name in (f"padir/configs/t5x/{path.name}", *(each for each in includes if not each.startswith("t5x/"))):
        assert name.startswith("padir/") and system_path_file_exists(name)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_packages_that_a_config_imports_exist(path):
    packages = re.findall(r"^from (padir[\w.]*) import (\w+)", path.read_text(), re.MULTILINE)
    assert packages
    for package, name in packages:
        if name != "adapter":  # which needs T5X
            importlib.import_module(f"{package}.{name}")


def test_the_page_names_configs_by_their_package():
    """An installed padir has no other path."""
    named = re.findall(r"--gin_file=(\S+t5x/\S+\.gin)", DOCS.read_text())
    assert len(named) >= 12 and all(name.startswith("padir/configs/t5x/") for name in named)


@pytest.mark.parametrize("path", [*CONFIGS, DOCS], ids=lambda path: path.name)
def test_classes_that_gin_binds_exist_with_their_parameters(path):
    for package, name, parameter in SELECTOR.findall(path.read_text()):
        cls = getattr(importlib.import_module(f"padir.{package}"), name)
        assert parameter in cls.__dataclass_fields__, f"{package}.{name}.{parameter}"
    for name in re.findall(r"@?\badapter\.(\w+)", path.read_text()):
        assert f'"{name}"' in ADAPTER.read_text(), f"adapter.{name}"


def test_the_selectors_of_the_toy_model_are_found():
    """So that the tests above cannot pass for want of matches."""
    assert len(SELECTOR.findall((ROOT / "configs" / "t5x" / "toy.gin").read_text())) == 10
    assert len(SELECTOR.findall(DOCS.read_text())) >= 7

"""`padir export`: what it writes by default, and one line for what is missing or does not apply."""

import json
import sys

import pytest
from support.tiny_model import random_model_dir

from padir.cli import main


def exported(tmp_path, *words, **sizes):
    model = random_model_dir(tmp_path / "made", **sizes)
    return main(["export", "--model", str(model), "--output", str(tmp_path / "out"), *words])


def test_a_dual_model_is_exported_in_the_mode_refine(tmp_path):
    pytest.importorskip("onnx")
    assert exported(tmp_path, "--num_lengths", "3", "--num_steps", "2", dual=True) == 0
    described = json.loads((tmp_path / "out" / "export.json").read_text())
    assert described["programs"] == ["encode", "refine", "score"]
    assert (described["options"]["num_lengths"], described["options"]["num_steps"]) == (3, 2)


@pytest.mark.parametrize(
    ("sizes", "words", "what"),
    [
        ({}, [], "pip install 'padir[onnx]'"),
        ({"causal": True}, [], "needs the mode refine"),
        ({"dual": True}, ["--mode", "causal"], "needs the mode refine: choose it, or leave the mode out"),
        ({}, ["--num_drafts", "2"], "padir.interop.jax_programs"),
        ({}, ["--what", "weights", "--num_lengths", "2"], "num_lengths applies only to programs"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path, monkeypatch, capsys, sizes, words, what):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert exported(tmp_path, *words, **sizes) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert what in line and not (tmp_path / "out").exists()

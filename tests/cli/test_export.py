"""`padir export`: what it writes by default, and one line for what is missing or does not apply."""

import json
import sys

import pytest
from support.commands import refused, run
from support.tiny_model import random_model_dir


def export(tmp_path, options, **sizes):
    return f"export --model {random_model_dir(tmp_path / 'made', **sizes)} --output {tmp_path}/out {options}"


def test_a_dual_model_is_exported_in_the_mode_refine(tmp_path, capsys):
    pytest.importorskip("onnx")
    assert run(capsys, export(tmp_path, "--num_lengths 3 --num_steps 2", dual=True))[0] == 0
    described = json.loads((tmp_path / "out" / "export.json").read_text())
    assert described["programs"] == ["encode", "refine", "score"]
    assert (described["options"]["num_lengths"], described["options"]["num_steps"]) == (3, 2)


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        ({}, "", "pip install 'padir[onnx]'"),
        ({"dual": True}, "--mode causal", "needs the mode refine: choose it, or leave the mode out"),
        ({}, "--num_drafts 2", "padir.interop.jax_programs"),
        ({}, "--what weights --num_lengths 2", "--num_lengths applies only to programs"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path, monkeypatch, capsys, sizes, options, words):
    monkeypatch.setitem(sys.modules, "onnx", None)
    errors = refused(capsys, export(tmp_path, options, **sizes))
    assert words in errors and errors.count("\n") == 1 and not (tmp_path / "out").exists()

"""`padir compile`: its tables, its exit status and its refusals, for this machine's own devices."""

import importlib.util
import json

import pytest

from padir.cli import compiling, main
from padir.compilation import Chip, Topology

SMALL = ["ModelConfig.width=32", "ModelConfig.heads=2", "ModelConfig.mlp=64", "ModelConfig.encoder_layers=1"]
SMALL += ["ModelConfig.decoder_layers=1", "Batching.rows=2"]
COMMAND = ["compile", "--topology", "here", "--gin_file=configs/run/toy_cpu.gin", "--vocab_size", "500"]
COMMAND += [f"--gin.{binding}" for binding in SMALL]


def test_training_and_decoding(tmp_path, capsys):
    figures = tmp_path / "figures.json"
    assert main([*COMMAND, "--tokens", "10", "--batch_size", "2", "--top_k", "3", "--json", str(figures)]) == 0
    printed = capsys.readouterr()
    assert (
        "training step, 2 rows of 72 and 64 positions" in printed.out and "refinement, 2 × 3, 10 tokens" in printed.out
    )
    assert "source rows have 72 positions" in printed.err
    found = json.loads(figures.read_text())
    assert (found["topology"], found["devices"]) == ("cpu", 1)
    step, encoder, refinement = found["programs"]
    assert step["fits"] is None and step["memory"] > step["temporaries"] > 0
    assert refinement["flops"] > encoder["flops"] > 0


def test_the_status_says_that_a_program_does_not_fit(monkeypatch, capsys):
    tiny = Topology("tiny", Topology.here().devices, Chip(1e5, 1e9, 1e9))
    monkeypatch.setattr(compiling.Topology, "here", lambda: tiny)
    assert main([*COMMAND, "--what", "decode", "--batch_size", "1"]) == 1
    assert " no " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topology", "here"], "give its --gin_file"),
        (["--topology", "here", "--gin_file=configs/run/toy_cpu.gin", "--data", "d", "--vocab_size", "9"], "d "),
        (["--topology", "here", "--gin_file=configs/run/toy_cpu.gin", "--gin.Beam.size=3"], "Beam"),
    ],
)
def test_wrong_words(words, message, capsys):
    assert main(["compile", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("padir: error: ") and message in error


def test_without_libtpu(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([*COMMAND, "--topology", "v3:2x2"]) == 2
    assert "pip install 'padir[tpu]'" in capsys.readouterr().err


def test_without_the_cuda_plugin(capsys):
    if importlib.util.find_spec("jax_plugins"):
        pytest.skip("the plugin is here")
    assert main([*COMMAND, "--topology", "h100:1"]) == 2
    error = capsys.readouterr().err
    assert "cannot compile for 'h100:1'" in error and "jax-cuda13-plugin" in error


def test_verified_decoding_and_exports(tmp_path, capsys):
    figures, causal = tmp_path / "figures.json", ["--gin.ModelConfig.causal=True"]
    causal.append("--gin.train.objective=@TeacherForcing()")
    words = ["--what", "verify", "export", "--tokens", "10", "--batch_size", "1", "--rounds", "3"]
    assert main([*COMMAND, *causal, *words, "--json", str(figures)]) == 0
    names = [program["name"] for program in json.loads(figures.read_text())["programs"]]
    assert [name.partition(",")[0] for name in names] == [
        "encoder",
        "verified decoding",
        "exported search_16.jax_export",
    ]
    assert "3 rounds of 3 tokens" in names[1]

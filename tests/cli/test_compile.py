"""`padir compile`: its tables, its exit status and its refusals, for this machine's own devices."""

import importlib.util
import json

import pytest

from padir.cli import main, measuring
from padir.measuring.compilation import costs
from padir.measuring.compilation.devices import Chip, Topology

SMALL = ["ModelConfig.width=32", "ModelConfig.heads=2", "ModelConfig.mlp=64", "ModelConfig.encoder_layers=1"]
SMALL += ["ModelConfig.decoder_layers=1", "Batching.rows=2"]
COMMAND = ["compile", "--topology", "here", "--gin_file=configs/run/toy_cpu.gin", "--set", "vocab_size=500"]
COMMAND += [f"--gin.{binding}" for binding in SMALL]
CAUSAL = ["--gin.ModelConfig.causal=True", "--gin.train.objective=@Causal()"]


def on(topology):
    return [topology if word == "here" else word for word in COMMAND]


def test_training_and_decoding(tmp_path, capsys):
    figures = tmp_path / "figures.json"
    assert (
        main([*COMMAND, "--set", "tokens=10", "--batch_size", "2", "--num_lengths", "3", "--json", str(figures)]) == 0
    )
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


def test_programs_are_told_and_kept_when_the_command_is_stopped(tmp_path, monkeypatch, capsys):
    """The second program is stopped: its name is told before it is compiled, and the first one's row is written."""
    compile_ = costs._compile

    def stopped(trace):
        if "compiling refinement" in (said := capsys.readouterr().err):
            raise KeyboardInterrupt
        assert said.splitlines()[-1].startswith("compiling encoder")
        return compile_(trace)

    monkeypatch.setattr(costs, "_compile", stopped)
    words = ["--what", "decode", "--batch_size", "1", "--json", str(tmp_path / "figures.json")]
    assert main([*COMMAND, *words]) == 130
    assert "encoder, 1 × " in capsys.readouterr().out
    (encoder,) = json.loads((tmp_path / "figures.json").read_text())["programs"]
    assert encoder["name"].startswith("encoder") and encoder["buffers"][0][0] > 0


def test_the_status_says_that_a_program_does_not_fit(monkeypatch, capsys):
    tiny = Topology("tiny", Topology.here().devices, Chip(1e5))
    monkeypatch.setattr(measuring.Topology, "here", lambda: tiny)
    assert main([*COMMAND, "--what", "decode", "--batch_size", "1"]) == 1
    assert " no " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topology", "here"], "give --gin_file"),
        (["--topology", "here", "--gin_file=configs/run/toy_cpu.gin", "--data", "d", "--set", "vocab_size=9"], "d "),
        (["--topology", "here", "--gin_file=configs/run/toy_cpu.gin", "--gin.Decoding.beam=3"], "Decoding"),
        (["--topology", "", "--gin_file=configs/run/toy_cpu.gin"], "topology must be a kind and an arrangement"),
        ([*COMMAND[1:], "--batch_size", "1", "0"], "--batch_size must be at least 1, got 0"),
        ([*COMMAND[1:], "--batch_size", "1000000000000"], "--batch_size must be below 2**31"),
        ([*COMMAND[1:], "--beam", "5"], "--beam applies only to the mode causal, got 'refine': leave --beam out"),
        (
            [*COMMAND[1:], *CAUSAL, "--num_lengths", "5"],
            "--num_lengths applies only to the mode refine, got 'causal': leave --num_lengths out",
        ),
        ([*COMMAND[1:], "--set", "tokens=0"], "tokens must be at least 1, got 0"),
        ([*COMMAND[1:], "--set", "tokens=30000"], "tokens must be "),
        ([*COMMAND[1:], "--num_steps", "0"], "--num_steps must be at least 1, got 0"),
        (on("v5e:10000x10000")[1:], "topology must be a kind and an arrangement of at most 10,000 chips"),
        (on("v5e:")[1:], "topology must be a kind and an arrangement of at most 10,000 chips"),
        ([*COMMAND[1 : -len(SMALL) - 1], "vocab_size=1000000000000"], "vocab_size must be below 2**31"),
    ],
)
def test_wrong_words(words, message, capsys):
    assert main(["compile", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("padir: error: ") and message in error


def test_without_libtpu(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(on("v3:2x2")) == 2
    assert "pip install 'padir[tpu]'" in capsys.readouterr().err


def test_without_the_cuda_plugin(capsys):
    if importlib.util.find_spec("jax_plugins"):
        pytest.skip("the plugin is here")
    assert main(on("h100:1")) == 2
    error = capsys.readouterr().err
    assert "cannot compile for 'h100:1'" in error and "jax-cuda13-plugin" in error

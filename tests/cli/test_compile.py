"""`padir compile`: its tables, its exit status and its refusals, for this machine's own devices."""

import importlib.util
import json

import pytest
from support import compilers
from support.commands import refused, run

from padir.cli import measuring
from padir.measuring.compilation import costs
from padir.measuring.compilation.devices import Chip, Topology

SMALL = """
    --gin.ModelConfig.width=32 --gin.ModelConfig.heads=2 --gin.ModelConfig.mlp=64 --gin.ModelConfig.encoder_layers=1
    --gin.ModelConfig.decoder_layers=1 --gin.Batching.rows=2 --gin.Objective.stage_weights=('all',)
"""
TOY = "compile --topology here --gin_file=configs/run/toy_cpu.gin"
COMMAND = f"{TOY} {SMALL} --set vocab_size=500"
CAUSAL = "--set vocab_size=500 --gin.ModelConfig.causal=True --gin.train.objective=@Causal()"


def test_training_and_decoding(tmp_path, capsys):
    figures = tmp_path / "figures.json"
    command = f"{COMMAND} --set tokens=10 --batch_size 2 --num_lengths 3 --json {figures}"
    status, out, errors = run(capsys, command)
    assert status == 0 and "source rows have 72 positions" in errors
    assert "training step, 2 rows of 72 and 64 positions" in out and "refinement, 2 × 3, 10 tokens" in out
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
    status, out, _ = run(capsys, f"{COMMAND} --what decode --batch_size 1 --json {tmp_path}/figures.json")
    assert status == 130 and "encoder, 1 × " in out
    (encoder,) = json.loads((tmp_path / "figures.json").read_text())["programs"]
    assert encoder["name"].startswith("encoder") and encoder["buffers"][0][0] > 0


def test_the_status_says_that_a_program_does_not_fit(monkeypatch, capsys):
    tiny = Topology("tiny", Topology.here().devices, Chip(1e5))
    monkeypatch.setattr(measuring.Topology, "here", lambda: tiny)
    status, out, _ = run(capsys, f"{COMMAND} --what decode --batch_size 1")
    assert status == 1 and " no " in out


@pytest.fixture
def elsewhere(monkeypatch):
    """A topology that is not here, and a function that replaces its programs."""
    monkeypatch.setattr(measuring.Topology, "of", lambda name: Topology(name, Topology.here().devices, Chip(1e5)))
    return lambda programs: monkeypatch.setattr(measuring, "_programs", programs)


def test_a_crash_of_the_compiler_is_a_row(elsewhere, tmp_path, capsys):
    elsewhere(compilers.one_deadly)
    command = COMMAND.replace("here", "v5e:2x4")
    status, out, errors = run(capsys, f"{command} --json {tmp_path}/figures.json")
    assert status == 1 and "compiler crashed (SIGSEGV)" in out
    assert [name for name in ("first", "deadly", "third") if f"compiling {name} ..." in errors] == [
        "first",
        "deadly",
        "third",
    ]
    first, deadly, third = json.loads((tmp_path / "figures.json").read_text())["programs"]
    assert (deadly["failure"], deadly["fits"]) == ("compiler crashed (SIGSEGV)", None)
    assert first["fits"] and third["flops"] == 2 * first["flops"] > 0


def test_programs_that_cannot_be_made_are_an_error(elsewhere, capsys):
    command = COMMAND.replace("here", "v5e:2x4")
    elsewhere(compilers.refused)
    assert "heads must be a multiple of 8, got 6" in refused(capsys, command)
    elsewhere(compilers.none_made)
    assert "ended before a program (SIGSEGV)" in refused(capsys, command)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("compile --topology here", "give --gin_file"),
        (f"{TOY} --data d --set vocab_size=9", "d "),
        (f"{TOY} --gin.Decoding.beam=3", "Decoding"),
        (TOY.replace("here", "v5e:"), "topology must be a kind and an arrangement of at most 10,000 chips"),
        (COMMAND.replace("here", "v5e:10000x10000"), "topology must be a kind and an arrangement of at most 10,000"),
        (f"{COMMAND} --batch_size 1 0", "--batch_size must be at least 1, got 0"),
        (f"{COMMAND} --batch_size 1000000000000", "--batch_size must be below 2**31"),
        (f"{COMMAND} --beam 5", "--beam applies only to the mode causal, got 'refine': leave --beam out"),
        (
            f"{COMMAND} --gin.ModelConfig.dual=True --gin.train.objective=@Sum() --beam 5",
            "got 'refine': leave --beam out",
        ),
        (f"{TOY} {CAUSAL} --num_lengths 5", "--num_lengths applies only to the mode refine, got 'causal'"),
        (f"{COMMAND} --set tokens=0", "tokens must be at least 1, got 0"),
        (f"{COMMAND} --set tokens=30000", "tokens must be "),
        (f"{COMMAND} --num_steps 0", "--num_steps must be at least 1, got 0"),
        (f"{TOY} {SMALL} --set vocab_size=1000000000000", "vocab_size must be below 2**31"),
    ],
)
def test_wrong_words(command, words, capsys):
    assert words in refused(capsys, command)


def test_an_empty_topology_is_refused(capsys):
    assert "topology must be a kind" in refused(capsys, "compile --gin_file=configs/run/toy_cpu.gin --topology", "")


def test_without_libtpu(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'padir[tpu]'" in refused(capsys, COMMAND.replace("here", "v3:2x2"))


def test_without_the_cuda_plugin(capsys):
    if importlib.util.find_spec("jax_plugins"):
        pytest.skip("the plugin is here")
    error = refused(capsys, COMMAND.replace("here", "h100:1"))
    assert "cannot compile for 'h100:1'" in error and "jax-cuda13-plugin" in error

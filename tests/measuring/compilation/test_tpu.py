"""Programs compiled for a TPU v3, which the extra tpu makes possible without one."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu"),
]


def padir(*words, **variables):
    """Runs a command of padir in a process of its own, in which JAX may choose the platform."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"} | variables
    command = [sys.executable, "-m", "padir", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def compiled(tmp_path, *words):
    run = padir("compile", "--topology", "v3:2x2", *words, "--json", tmp_path / "figures.json")
    assert run.returncode == 0, run.stderr
    return json.loads((tmp_path / "figures.json").read_text())["programs"]


def test_the_paper_s_training_step_fits_a_v3_8(tmp_path):
    (step,) = compiled(tmp_path, "--gin_file=configs/run/wmt14_de_en.gin", "--what", "train")
    assert step["fits"] and step["memory"] < 9e9
    # Data parallel: gradients and sums. The queries and keys of positional attention are small.
    assert step["collectives"].pop("all-gather", 0) < 4e6
    assert {*step["collectives"]} == {"all-reduce"}
    assert step["flops"] * 8 == pytest.approx(step["matrix_flops"], rel=0.05)
    assert 0.1 < step["cycle_seconds"] < 0.3


def test_four_passes_hold_no_logits_and_convert_no_kernels(tmp_path):
    """The estimate by cycles is 2.6 ms; it was 3.7 ms with float32 kernels and with logits in memory."""
    words = ("--gin_file=configs/run/wmt14_de_en.gin", "--what", "decode", "--batch_size", "1")
    *_, refinement = compiled(tmp_path, *words)
    assert refinement["fits"] and refinement["memory"] < 0.2e9
    assert refinement["cycle_seconds"] < 3e-3


def test_greedy_search_sorts_nothing_and_uses_the_matrix_units(tmp_path):
    """The estimate by cycles is 11.6 ms; it was 20.6 ms, and more for sorts of the vocabulary."""
    words = ("--gin_file=configs/run/wmt14_de_en_ar.gin", "--what", "decode", "--batch_size", "1")
    *_, search = compiled(tmp_path, *words)
    assert search["fits"] and search["memory"] < 0.2e9
    assert search["cycle_seconds"] < 14e-3 and "sort" not in search["cycles"]["unestimated"]


def test_an_unknown_topology(tmp_path):
    run = padir("compile", "--topology", "v9:2x2", "--gin_file=configs/run/toy_cpu.gin")
    assert run.returncode == 2 and "such as v3:2x2" in run.stderr.splitlines()[-1]


def test_other_commands_compute_on_the_cpu_and_print_nothing(tmp_path):
    run = padir("translate", "Guten Morgen!", JAX_COMPILATION_CACHE_DIR=str(tmp_path))
    told = [line for line in run.stderr.splitlines() if not (line.startswith("padir: ") and line.endswith(" ..."))]
    assert (run.returncode, told) == (0, []) and run.stdout.strip()

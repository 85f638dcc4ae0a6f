"""The stages of `scripts/train_host.sh` with the true padir, small models and a store on disk."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.small_corpus import Numbers
from support.tiny_model import prepared_numbers

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
STUDENT = """
DATASET = "data/small_distilled"
MODEL_DIR = "runs/small"
train.num_steps = 4
train.model = @ModelConfig()
train.objective = @Objective()
train.optimizer = @Adafactor()
train.batching = @Batching()
train.intervals = @Intervals()
ModelConfig.width = 16
ModelConfig.heads = 2
ModelConfig.head_dim = 8
ModelConfig.mlp = 32
ModelConfig.encoder_layers = 1
ModelConfig.decoder_layers = 1
ModelConfig.max_length = 64
Objective.corruption = @Uniform()
Batching.rows = 8
Batching.row_length = 64
Intervals.evaluate = 4
Intervals.checkpoint = 2
"""
TEACHER = """
include "configs/run/small.gin"
DATASET = "data/small"
MODEL_DIR = "runs/small_ar"
train.objective = @Causal()
ModelConfig.causal = True
"""
PYTHON = f'PYTHONPATH="{ROOT}:{ROOT / "tests"}" exec "{sys.executable}"'
INSTALL = "import sys; from support.bucket import install; install(); exec(sys.stdin.read())"
STAND_INS = {
    "uv": "mkdir -p .venv/bin && cp ../fakes/padir ../fakes/python .venv/bin",
    "padir": f'JAX_COMPILATION_CACHE_DIR="$HOME/jax" {PYTHON} -m support.bucket "$@"',
    "python": f"""code="from support.bucket import install; install(); $2"
[[ $1 != -c || $2 == *jax.devices* ]] || {PYTHON} -c "$code" "${{@:3}}"
[[ $1 == -c ]] || {PYTHON} -c '{INSTALL}' "${{@:2}}" """,  # a CPU will do
}


def test_another_machine_goes_on(tmp_path):
    for path in ("scripts/train_host.sh", "constraints-3.11.txt"):
        (tmp_path / "clone" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / "clone" / path)
    for name, text in {"small": STUDENT, "small_ar": TEACHER}.items():
        config = tmp_path / "clone" / "configs" / "run" / f"{name}.gin"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(text)
    for name, text in STAND_INS.items():
        (tmp_path / "fakes").mkdir(exist_ok=True)
        (tmp_path / "fakes" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "fakes" / name).chmod(0o755)
    bucket = tmp_path / "buckets" / "bucket"
    numbers = Numbers(splits=("train", "validation", "test"))
    shutil.copytree(prepared_numbers(tmp_path / "prepared", numbers), bucket / "data" / "small")
    names = {"HOME": "home", "BUCKETS": "buckets", "PADIR_COPIES": "copies"}
    environment = {name: str(tmp_path / path) for name, path in names.items()}
    environment |= {"PATH": f"{tmp_path / 'fakes'}:/usr/bin:/bin", "PAUSE": "0", "JAX_PLATFORMS": "cpu"}

    def messages(stages):
        script = tmp_path / "clone" / "scripts" / "train_host.sh"
        command = [script, "tpu", "gs://bucket", "small", stages]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stderr

    assert "300 of 300 sentences" in messages("teacher,distill")
    shutil.rmtree(tmp_path / "copies")
    second = messages("teacher,distill,student,evaluate")
    assert second.count("it has all 4 steps, and nothing was done") == 1 and "300 of 300 sentences" not in second
    sent = {path.name for path in (bucket / "results").iterdir()}
    assert {"small.json", "small.md", "small.rows"} <= sent and (bucket / "runs" / "small" / "manifest.json").is_file()

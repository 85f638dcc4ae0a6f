"""The harness that kills a training, in short; `python scripts/torture.py --kills 50` is the long version."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.faults import flip_a_bit

from padir.storage.manifest import write_manifest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # five starts of `padir train`
def test_killed_and_stopped_it_ends_as_if_nothing_had_been(tmp_path):
    process = subprocess.run(
        [sys.executable, "scripts/torture.py", "--kills=2", "--stops=1", f"--folder={tmp_path / 'runs'}"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    lines = process.stdout.splitlines()
    assert re.match("2 kills survived: .*while a checkpoint was being written", lines[-4])
    assert lines[-3].startswith("1 stops, of which the longest took")
    assert lines[-1] == "equal bit by bit: parameters, optimizer state, place in the data, metrics"

    spec = importlib.util.spec_from_file_location("torture", ROOT / "scripts" / "torture.py")
    torture = importlib.util.module_from_spec(spec)
    sys.modules["torture"] = torture
    spec.loader.exec_module(torture)
    runs = [torture.Run(tmp_path / "runs" / name, tmp_path, 90) for name in ("straight", "killed")]
    assert torture.differences(*runs) == []
    flip_a_bit(runs[1].model / "weights.safetensors")
    log = runs[1].model / "metrics.jsonl"
    log.write_text(log.read_text().replace('"step": 7,', '"step": 8,'))
    write_manifest(runs[1].model)
    assert torture.differences(*runs) == ["weights.safetensors", "metrics.jsonl"]

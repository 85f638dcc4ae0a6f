"""The help of every command without any optional package, and what `padir serve` says without its own."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from padir.cli.entry import GROUPS

ROOT = Path(__file__).parents[2]
# Hides packages as if they were not installed, then runs one command after the other.
HIDDEN = """
import contextlib, importlib.abc, io, json, sys
from padir.cli import main

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

hidden, commands = json.loads(sys.argv[1]), json.loads(sys.argv[2])
sys.meta_path.insert(0, Absent())
found = []
for words in commands:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    found.append([status, out.getvalue(), errors.getvalue()])
print(json.dumps(found))
"""
MODULES = {
    "tensorflow-text": "tensorflow_text",
    "tensorflow-datasets": "tensorflow_datasets",
    "prometheus-client": "prometheus_client",
}
NEEDED = {"padir", "jax", "absl-py", "chex", "importlib_resources"}  # other packages need them


def without_extras(commands):
    """Status, output and errors of commands where no optional package is installed."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {
        line.partition(">")[0].partition("[")[0]
        for name in extras
        if name not in ("dev", "docs")
        for line in extras[name]
    }
    hidden = [MODULES.get(name, name) for name in sorted(names - NEEDED)]
    assert {"msgspec", "uvicorn", "starlette", "prometheus_client"} <= {*hidden}
    command = [sys.executable, "-c", HIDDEN, json.dumps(hidden), json.dumps(commands)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_every_command_has_help_without_the_extras(tmp_path):
    names = [[command.name] for group in GROUPS.values() for command in group] + [["t5x", "import"], ["t5x", "export"]]
    *helps, serve = without_extras([*([*words, "--help"] for words in names), ["serve", "--model", str(tmp_path)]])
    found = {}
    for words, (status, out, errors) in zip(names, helps, strict=True):
        assert (status, errors) == (0, "") and out.startswith(f"usage: padir {' '.join(words)} "), words
        found[" ".join(words)] = " ".join(out.split())
    for command in (command for group in GROUPS.values() for command in group):
        out = found[command.name]
        assert command.sentence in out and f"example: padir {command.name} " in out
        assert "--gin.NAME=VALUE bind" in out or command.name == "t5x"
    assert "the model's card" not in found["analyse"]  # whose options no study reads
    status, out, errors = serve
    assert (status, out) == (2, "") and errors.count("\n") == 1 and "pip install 'padir[serve]'" in errors

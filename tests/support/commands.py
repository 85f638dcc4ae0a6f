"""Commands of padir, run in the process of the tests."""

import json

from padir.cli import main


def run(capsys, *arguments):
    """The exit status, stdout and stderr of a command."""
    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refused(capsys, *arguments):
    """The message of a command that must fail as bad input does."""
    status, out, errors = run(capsys, *arguments)
    assert status == 2 and out == ""
    lines = errors.splitlines()
    assert 1 <= len(lines) <= 2 and any(line.startswith("padir: error: ") for line in lines)
    return errors


def results(capsys, path, *arguments):
    """What a command, which must succeed, writes with --json, and its stdout."""
    status, out, errors = run(capsys, *arguments, "--json", path)
    assert status == 0, errors
    return json.loads(path.read_text()), out


def corpus(folder, *splits):
    """Options that name the text files of splits."""
    return ["--languages", "de-en"] + [
        argument for s in splits for argument in (f"--{s}", folder / f"{s}.de", folder / f"{s}.en")
    ]


TINY_GIN = [
    *(f"--gin.ModelConfig.{name}={size}" for name, size in (("width", 16), ("heads", 2), ("head_dim", 8), ("mlp", 32))),
    *(f"--gin.ModelConfig.{name}={size}" for name, size in (("encoder_layers", 1), ("decoder_layers", 1))),
    *(
        "--gin.ModelConfig.max_length=8",
        "--gin.ModelConfig.dropout_rate=0.0",
        "--gin.Batching.rows=2",
        "--gin.Batching.row_length=16",
    ),
    *("--gin.train.num_steps=2", "--gin.Objective.stage_weights=('all',)"),
]
"""Bindings of a training run of two steps of a tiny model."""

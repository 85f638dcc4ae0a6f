"""Commands of padir, run in the process of the tests; the first argument is split at its spaces, as a shell does."""

import json
import re

from padir.cli import main


def run(capsys, command, *arguments):
    """The exit status, stdout and stderr of a command."""
    capsys.readouterr()
    try:
        status = main([*str(command).split(), *map(str, arguments)])
    except SystemExit as exit_:  # wrong words
        status = exit_.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refused(capsys, command, *arguments):
    """The message of a command that must fail as bad input does."""
    status, out, errors = run(capsys, command, *arguments)
    assert status == 2 and out == ""
    lines = errors.splitlines()
    assert 1 <= len(lines) <= 2 and any(re.match("padir[ a-z0-9]*: error: ", line) for line in lines)
    return errors


def results(capsys, path, command, *arguments):
    """What a command, which must succeed, writes with --json, and its stdout."""
    status, out, errors = run(capsys, command, *arguments, "--json", path)
    assert status == 0, errors
    return json.loads(path.read_text()), out


def corpus(folder, *splits):
    """Options that name the text files of splits."""
    files = " ".join(f"--{split} {folder}/{split}.de {folder}/{split}.en" for split in splits)
    return f"--languages de-en {files}"


TINY_GIN = """
    --gin.ModelConfig.width=16 --gin.ModelConfig.heads=2 --gin.ModelConfig.head_dim=8 --gin.ModelConfig.mlp=32
    --gin.ModelConfig.encoder_layers=1 --gin.ModelConfig.decoder_layers=1 --gin.ModelConfig.max_length=8
    --gin.ModelConfig.dropout_rate=0.0 --gin.Batching.rows=2 --gin.Batching.row_length=16
    --gin.train.num_steps=2 --gin.Objective.stage_weights=('all',)
"""
"""Bindings of a training run of two steps of a tiny model."""

"""Atomic files, and addresses of buckets, which would be taken for folders such as `gs:`."""

import os
from pathlib import Path

import pytest
from support.commands import refused, run
from support.refusals import refuses
from support.tiny_model import random_model_dir

from padir.storage.files import check_local, write_text
from padir.storage.folders import atomic_folder

ADDRESS = "gs://bucket/run"


def replace_folder(path):
    with atomic_folder(path):
        pass


@pytest.mark.parametrize(
    "use", [check_local, lambda path: check_local(Path(path)), lambda path: write_text(path, "text"), replace_folder]
)
def test_an_address_is_refused_by_name(use, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses(use, "a local path is needed here, got 'gs:/ ... bucket/run': copy", ADDRESS)
    assert not os.listdir(tmp_path)


def test_paths_are_no_addresses():
    for path in ("runs/a:b", "C:/runs", "./gs://bucket", "/runs", "http", "a=b:/c"):
        check_local(path)


@pytest.mark.parametrize(
    "command",
    [
        f"prepare --task toy_de_en --vocab {ADDRESS} --output data/toy",
        f"evaluate --model de_en --data data/toy --output {ADDRESS}",
        f"translate --shortlist {ADDRESS} Hallo",
        "translate --json s3://bucket/a.json Hallo",
        f"t5x import {ADDRESS} --output model",
    ],
)
def test_the_command_line_refuses_addresses_of_files(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "a local path is needed here, got " in refused(capsys, command)
    assert not os.listdir(tmp_path)


def test_a_run_may_start_from_the_model_at_an_address(tmp_path, capsys):
    """Without the package of the bucket, the error names the package."""
    command = f"train toy_cpu --data {tmp_path}/d --model_dir {tmp_path}/m --print_config --start_from {ADDRESS}"
    assert "a local path is needed" not in run(capsys, command)[2]


def test_a_sentence_may_begin_with_an_address(tmp_path, capsys):
    model = random_model_dir(tmp_path, max_length=8)
    status, out, _ = run(capsys, f"translate --model {model} --num_steps 1", "http://example.org ist eine Adresse.")
    assert status == 0 and out


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    write_text(tmp_path / "private", "one")
    (tmp_path / "private").chmod(0o600)
    write_text(tmp_path / "private", "two")
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600

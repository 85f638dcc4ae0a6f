"""`padir distill` to an address: what another machine takes over after this one went away."""

import shutil
from pathlib import Path

import pytest
from support.tiny_model import prepared_numbers, random_model_dir

from padir.cli import main
from padir.data import load_manifest

OUTPUT = "gs://bucket/out"


@pytest.fixture
def command(bucket, tmp_path):
    data, model = prepared_numbers(tmp_path / "data"), random_model_dir(tmp_path / "model")
    options = ["--num_steps", "1", "--batch_size", "4"]  # 300 sentences in chunks of 64
    return ["distill", "--model", str(model), "--data", str(data), "--output", OUTPUT, *options]


def chunks(bucket):
    return {path.name for path in bucket.root.glob("bucket/out/unfinished/*/*")}


def takes_chunks_alone(operation, name):
    """A store that goes away after the address was tried."""
    if operation == "put" and not ("unfinished" in name or "/.padir." in name):
        raise ConnectionError


def test_another_machine_goes_on_after_the_last_chunk(bucket, command, tmp_path, capsys):
    def stop(operation, name):
        if operation == "put" and Path(name).name.startswith("chunk_0000000128"):
            raise KeyboardInterrupt

    bucket.before = staticmethod(stop)
    assert main(command) == 130
    assert chunks(bucket) == {"validation.json", "chunk_0000000000.json", "chunk_0000000064.json"}
    shutil.rmtree(tmp_path / "copies")
    bucket.before = staticmethod(lambda *_: None)
    bucket.calls.clear()
    assert main(command) == 0
    sent = [Path(name).name for operation, name in bucket.calls if operation == "put" and "/unfinished/" in name]
    assert sent == ["chunk_0000000128.json", "chunk_0000000192.json", "chunk_0000000256.json"]
    assert not chunks(bucket)
    resumed = bucket.root / "bucket" / "out"
    assert main([str(tmp_path / "straight") if word == OUTPUT else word for word in command]) == 0
    assert load_manifest(resumed, verify=True) == load_manifest(tmp_path / "straight")


def test_chunks_stay_until_the_folder_was_sent(bucket, command, capsys):
    bucket.before = staticmethod(takes_chunks_alone)
    assert main(command) == 1
    assert len(chunks(bucket)) == 6
    bucket.before = staticmethod(lambda *_: None)
    assert main(command) == 0
    assert not chunks(bucket) and (bucket.root / "bucket" / "out" / "manifest.json").is_file()


def test_a_chunk_that_could_not_be_sent_is_sent_by_the_next_call(bucket, command, capsys):
    def fail(operation, name):
        if operation == "put" and Path(name).name in ("chunk_0000000064.json", "manifest.json"):
            raise ConnectionError

    bucket.before = staticmethod(fail)
    assert main(command) == 1 and "chunk_0000000064.json" not in chunks(bucket)
    bucket.before = staticmethod(lambda *_: None)
    bucket.calls.clear()
    assert main(command) == 0
    sent = [Path(name).name for operation, name in bucket.calls if operation == "put" and "/unfinished/" in name]
    assert "chunk_0000000064.json" in sent and "chunk_0000000000.json" not in sent


def test_chunks_of_other_options_are_not_taken(bucket, command, tmp_path, capsys):
    bucket.before = staticmethod(takes_chunks_alone)
    assert main(command) == 1
    shutil.rmtree(tmp_path / "copies")
    bucket.before = staticmethod(lambda *_: None)
    bucket.calls.clear()
    assert main([*command, "--seed", "1"]) == 0
    assert sum(operation == "put" and "/unfinished/" in name for operation, name in bucket.calls) == 6

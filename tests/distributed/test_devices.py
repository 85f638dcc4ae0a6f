"""Many devices, which the CPU pretends to be: they train, resume and translate as one does."""

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from support.many_devices import KINDS, MODEL, SETTINGS, Processes, losses, prepared, training, translate_as
from support.refusals import refused
from support.tiny_model import random_model_dir
from support.workers import environment_with

from padir.distributed.processes import agreed, join
from padir.models import Transformer, init_params, load_model
from padir.training import Checkpoints, TrainConfig, train

TESTS = Path(__file__).parents[1]
TOLERANCE = 1e-4  # of a loss: sums over devices are added up in another order, and every step goes on from them


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("devices"))


@pytest.fixture(scope="module")
def one(data, tmp_path_factory):
    """Six steps on one device, with a checkpoint of the fourth."""
    folder = tmp_path_factory.mktemp("one") / "model"
    train(data, str(folder), TrainConfig(**SETTINGS, num_steps=6))
    return folder


@pytest.fixture(scope="module")
def eight(data, worker, tmp_path_factory):
    """The same on eight devices, two that share rows and parameters times four that share the work on a row."""
    folder = tmp_path_factory.mktemp("eight") / "model"
    worker(8).do("train", "2x4", data, folder, 6)
    return folder


def assert_same_losses(folder, other, steps):
    found, expected = losses(folder), losses(other)
    assert list(found) == list(expected) == list(range(1, steps + 1))
    assert_allclose(list(found.values()), list(expected.values()), rtol=TOLERANCE)


def assert_same_params(params, expected):
    jax.tree.map(assert_array_equal, params, expected)


@pytest.mark.slow
def test_eight_devices_that_share_everything_train_as_one(one, eight):
    assert_same_losses(eight, one, 6)
    # Not to the last bit, though, or they have not shared the work.
    assert losses(eight) != losses(one)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["data", "fsdp", "tensor", "4x2"])
def test_eight_devices_train_as_one(data, worker, one, tmp_path, kind):
    worker(8).do("train", kind, data, tmp_path / "model", 6)
    assert_same_losses(tmp_path / "model", one, 6)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "parts"), [("4x2", 2), ("2x4", 4)])
def test_eight_devices_that_take_a_batch_in_parts_train_as_one(data, worker, one, tmp_path, kind, parts):
    worker(8).do("train", kind, data, tmp_path / "model", 6, parts)
    assert_same_losses(tmp_path / "model", one, 6)


def resumed_from_four(folder, tmp_path):
    return resumed(folder, 4, tmp_path / "model")


def resumed(folder, step, target):
    """The training as it was after a step, when nothing but the checkpoint was there."""
    shutil.copytree(folder / "checkpoints" / str(step), target / "checkpoints" / str(step))
    rows = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (target / "metrics.jsonl").write_text("".join(rows[:step]))
    return target


@pytest.mark.slow
def test_one_device_goes_on_from_the_checkpoint_of_eight(data, one, eight, tmp_path):
    folder = resumed_from_four(eight, tmp_path)
    train(data, str(folder), TrainConfig(**SETTINGS, num_steps=4))
    assert_same_params(load_model(folder)[0], Checkpoints(eight / "checkpoints").params(4))
    train(data, str(folder), TrainConfig(**SETTINGS, num_steps=6))
    assert_same_losses(folder, one, 6)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "kind"), [(4, "4x2"), (8, "tensor"), (8, "fsdp")])
def test_more_devices_go_on_from_the_checkpoint_of_one(data, worker, one, tmp_path, devices, kind):
    folder = resumed_from_four(one, tmp_path)
    worker(devices).do("train", kind, data, folder, 4)
    assert_same_params(load_model(folder)[0], Checkpoints(one / "checkpoints").params(4))
    worker(devices).do("train", kind, data, folder, 6)
    assert_same_losses(folder, one, 6)


@pytest.mark.slow
def test_four_devices_go_on_from_eight_and_eight_from_four(data, worker, one, eight, tmp_path):
    """Each on another mesh: what is read is what the others wrote, and the losses are those of one device."""
    folder = resumed_from_four(eight, tmp_path)
    worker(4).do("train", "fsdp", data, folder, 4)
    assert_same_params(load_model(folder)[0], Checkpoints(eight / "checkpoints").params(4))
    worker(4).do("train", "fsdp", data, folder, 6)
    assert_same_losses(folder, one, 6)
    back = resumed(folder, 6, tmp_path / "back")
    worker(8).do("train", "4x2", data, back, 6)
    assert_same_params(load_model(back)[0], Checkpoints(folder / "checkpoints").params(6))


@pytest.mark.slow
def test_eight_devices_do_an_eighth_of_the_work_and_hold_their_parts(tmp_path):
    """FLOPs and memory of a device, as XLA plans them, against those of one device and against the state's shapes."""
    command = [sys.executable, "-m", "support.sharded_steps", str(tmp_path / "figures.json")]
    subprocess.run(command, env=environment_with(8), cwd=TESTS, check=True, capture_output=True)
    figures = json.loads((tmp_path / "figures.json").read_text())
    one = figures.pop("one")
    assert not one["collectives"]
    for kind, ways in {"data": 1, "fsdp": 8, "tensor": 8, "2x4": 8}.items():
        eight = figures[kind]
        assert eight["devices"] == 8 and eight["matrix_flops"] == one["matrix_flops"], kind
        assert eight["flops"] == pytest.approx(one["flops"] / 8, rel=0.1), kind
        # A device holds its part of the state, its rows and a few numbers.
        held = sum(part for _, part in eight["held"].values())
        assert held < eight["arguments"] < held + 20_000, kind
        whole = {name for name, (size, part) in eight["held"].items() if size >= 10_000 and part * ways > size}
        assert not whole, kind
        # The largest arrays of a step, its logits, are shared; no other array is as large.
        assert eight["buffers"][0][0] == one["buffers"][0][0] / 8, kind
        assert eight["temporaries"] < 0.35 * one["temporaries"], kind
        assert "all-reduce" in eight["collectives"], kind


@pytest.mark.slow
def test_arrays_of_one_process_or_of_both_come_to_the_host(pair):
    two = pair(1)
    for worker in two.workers:
        worker.start("to_host")
    assert two.wait()[0] == [None, None]


def test_two_devices_make_the_same_keys():
    code = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from padir.distributed.sharding import Sharding
from padir.refinement.segments import sentence_keys
source_BS = np.random.RandomState(0).randint(0, 9, (4, 16)).astype(np.int32)
mesh = Sharding().mesh()
assert mesh.shape["data"] == 2
expected = jax.random.key_data(sentence_keys(jax.numpy.asarray(source_BS), 3))
for axes in (PartitionSpec("data"), PartitionSpec(None, "data")):
    shared_BS = jax.device_put(source_BS, NamedSharding(mesh, axes))
    np.testing.assert_array_equal(jax.random.key_data(jax.jit(sentence_keys)(shared_BS, 3)), expected)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=environment_with(devices=2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_eight_devices_translate_as_one(worker, tmp_path, kind, causal):
    sizes = {"heads": MODEL.heads, "head_dim": MODEL.head_dim, "causal": causal, "max_length": 8}  # one shape
    folder = random_model_dir(tmp_path, **sizes)
    translate_as("data", str(folder), str(tmp_path / "one.json"))
    worker(8).do("translate", kind, folder, tmp_path / "eight.json")
    found, expected = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("eight", "one"))
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    assert len({text for text, *_ in found}) > 10  # not all the same
    assert_allclose([row[3] for row in found], [row[3] for row in expected], rtol=1e-4)


class TestJoining:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("localhost:1234",), "needs num_processes process_id"),
            (("localhost:1234", 2, 2), "process_id [0, 1], got 2"),
            (("localhost", 2, 0), "HOST:PORT `auto`, got 'localhost'"),
            (("auto", 2, 0), "takes processes environment"),
        ],
    )
    def test_wrong_arguments(self, arguments, words):
        with refused(words):
            join(*arguments)

    def test_numbers_without_a_place_to_meet(self, capsys):
        from padir.cli import main

        assert main(["train", "--data=x", "--model_dir=y", "--coordinator=localhost:1,2"]) == 2
        assert "coordinator must be HOST:PORT,N,I" in capsys.readouterr().err


class TestAgreeing:
    """One of two processes is simulated: `from_all` returns its part, too."""

    def agreed(self, monkeypatch, make, other):
        """The result of process 0, where process 1 has `other` or fails (None)."""
        digest = hashlib.sha256(repr(other).encode()).hexdigest()
        said = json.dumps({"error": "no room"} if other is None else {"made": digest}).encode()

        def from_all(mine):
            theirs = np.frombuffer(said.ljust(mine.size), np.uint8) if mine.ndim else np.int32(len(said))
            return np.stack([mine, theirs])

        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr("padir.distributed.processes.from_all", from_all)
        return agreed("the numbers", make)

    def test_on_the_same(self, monkeypatch):
        assert self.agreed(monkeypatch, lambda: 3, 3) == 3

    @pytest.mark.parametrize(
        ("other", "words"), [(4, "the numbers process 1 process 0 differ"), (None, "process 1 stopped: no room")]
    )
    def test_on_different_things_or_where_the_other_fails(self, monkeypatch, other, words):
        with refused(words):
            self.agreed(monkeypatch, lambda: 3, other)

    def test_this_one_fails(self, monkeypatch):
        with pytest.raises(ZeroDivisionError):
            self.agreed(monkeypatch, lambda: 1 // 0, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "bindings"),
    [
        (1, []),
        (1, ["Sharding.model_parallel=2"]),
        (2, []),
        (2, ["Sharding.shard_parameters=True"]),
        (2, ["Sharding.shard_parameters=True", "Batching.accumulation_steps=2"]),
        (2, ["Sharding.shard_parameters=True", "Sharding.model_parallel=2"]),
    ],
)
def test_two_processes_train_as_one(data, pair, one, tmp_path, devices, bindings):
    folder = tmp_path / "model"
    elsewhere = tmp_path / "elsewhere"
    command = training(data, folder, *bindings)
    statuses, errors = pair(devices).run(*command, second=(f"--model_dir={elsewhere}",))
    assert statuses == [0, 0], errors
    assert_same_losses(folder, one, 6)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "validation_bleu" in row] == [3, 6]
    # One of them says it all.
    assert f"{2 * devices} devices: " in errors[0] and "step 6/6" in errors[0] and "step" not in errors[1]
    assert load_model(folder)[1].step == 6 and not elsewhere.exists()


@pytest.mark.slow
def test_two_processes_start_from_the_encoder_of_a_model(data, pair, one, tmp_path):
    start = (f'StartFrom.model="{one}"', 'StartFrom.parts=("encoder",)', "train.start_from=@StartFrom()")
    still = ("Cosine.peak=1e-30", "train.num_steps=1", "Intervals.evaluate=0", "Sharding.shard_parameters=True")
    statuses, errors = pair(2).run(*training(data, tmp_path / "two", *start, *still))
    assert statuses == [0, 0], errors
    (params, card, _), (theirs, *_) = load_model(tmp_path / "two"), load_model(one)
    assert_same_params(params["encoder"], theirs["encoder"])
    fresh = init_params(Transformer(MODEL, card.ids), SETTINGS["seed"])
    assert_same_params(params["decoder"], fresh["decoder"])


@pytest.mark.slow
def test_two_processes_that_are_stopped_resume_together(data, tmp_path):
    """SIGTERM to the second one alone: both stop after the same step; the weights are those of a run that never did."""
    settings = ("train.num_steps=100", "Intervals.evaluate=0", "Intervals.checkpoint=100")
    statuses, errors = Processes(*training(data, tmp_path / "straight", *settings), devices=2).wait()
    assert statuses == [0, 0], errors
    stopped = tmp_path / "stopped"
    processes = Processes(*training(data, stopped, *settings), devices=2)
    deadline = time.monotonic() + 300
    while not ((stopped / "metrics.jsonl").exists() and (stopped / "metrics.jsonl").read_text().count("\n") > 5):
        assert time.monotonic() < deadline and all(process.poll() is None for process in processes.running)
        time.sleep(0.05)
    processes.running[1].send_signal(signal.SIGTERM)
    statuses, errors = processes.wait()
    assert statuses == [130, 130], errors
    steps = {re.search(r"saved step (\d+) of 100", error)[1] for error in errors}
    assert len(steps) == 1 and [path.name for path in (stopped / "checkpoints").iterdir()] == [*steps]
    statuses, errors = Processes(*training(data, stopped, *settings), devices=2).wait()
    assert statuses == [0, 0] and f"going on from step {steps.pop()}" in errors[0]
    assert_same_params(load_model(stopped)[0], load_model(tmp_path / "straight")[0])


@pytest.mark.slow
def test_what_the_first_process_meets_stops_the_others(data, pair, one, tmp_path):
    folder = shutil.copytree(one, tmp_path / "model", ignore=shutil.ignore_patterns("checkpoints"))
    statuses, errors = pair(1).run(*training(data, folder))
    assert statuses == [2, 2]
    assert all("model_dir must be new" in error for error in errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("second", "of_the_first", "of_the_second"),
    [
        ("--gin.train.seed=4", "the configurations must be the same", "the configurations must be the same"),
        ("--data=nowhere", "process 1 stopped: the prepared folder nowhere", "nowhere"),
    ],
)
def test_processes_that_do_not_go_together_stop_at_once(data, pair, tmp_path, second, of_the_first, of_the_second):
    statuses, errors = pair(1).run(*training(data, tmp_path / "model"), second=(second,))
    assert statuses == [2, 2]
    assert of_the_first in errors[0] and of_the_second in errors[1]
    assert not (tmp_path / "model").exists()

"""Training at an address: a fresh machine goes on from what was sent, whatever was lost on the way."""

import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from support.bucket import nothing
from support.faults import flip_a_bit
from support.many_devices import Processes, prepared, training
from support.refusals import refused
from support.training import assert_same_params, train_tiny

from padir import Translator
from padir.cli import main
from padir.storage import remote
from padir.storage.manifest import MANIFEST, check_manifest
from padir.storage.remote import RemoteFolder, Unreachable, copy_of, fetched
from padir.training import Checkpoints, Intervals
from padir.training.remote_run import RemoteRun

TESTS = Path(__file__).parents[1]
RUN = "gs://bucket/run"
EVERY_STEP = {"intervals": Intervals(log=2, evaluate=3, checkpoint=1, max_to_keep=2)}


class Killed(BaseException):
    """A process that is killed at this point."""


def evaluate_fn(params, card, tokenizer):
    return {"validation_bleu": float(card.step)}


def train(data, **changes):
    return train_tiny(data, RUN, evaluate_fn=evaluate_fn, config_text="train.seed = 3\n", **changes)


def there(bucket):
    return bucket.root / "bucket" / "run"


def saved(bucket, step):
    return there(bucket) / "checkpoints" / str(step)


def lose_the_machine(bucket, tmp_path):
    """What follows happens on a machine that has no copy of anything."""
    bucket.before = staticmethod(nothing)
    bucket.calls.clear()
    remote._fetched.cache_clear()
    shutil.rmtree(tmp_path / "copies")


def figures(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("time", "tokens_per_second")} for row in rows]


def state_of(folder, step):
    """All arrays of a checkpoint, and the place in the data."""
    import orbax.checkpoint as ocp

    path = folder.absolute() / "checkpoints" / str(step)
    with ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.metadata(path / "state").item_metadata.tree
        like = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), tree)
        return checkpointer.restore(path / "state", like), json.loads((path / "loader.json").read_text())


def assert_same_run(folder, other, step=6):
    (state, place), (expected, expected_place) = state_of(folder, step), state_of(other, step)
    jax.tree.map(assert_array_equal, state, expected)
    assert place == expected_place and len(jax.tree.leaves(state)) > 50
    assert figures(folder) == figures(other)
    assert_same_params(folder, other)
    check_manifest(folder)


def failing(bucket, error, when):
    """Lets each call for which `when` is true end with an error."""

    def before(operation, name):
        if when(operation, name):
            raise error

    bucket.before = staticmethod(before)


def put(bucket, step):
    """Files of a checkpoint that were sent, or at which the sending failed."""
    return [name for kind, name in bucket.calls if kind == "put" and f"/checkpoints/{step}/" in name]


class TestOnAFreshMachine:
    def test_a_finished_run_is_all_there(self, data, straight, bucket, tmp_path, logged):
        train(data)
        assert_same_run(there(bucket), straight[0])
        lose_the_machine(bucket, tmp_path)
        assert train(data)["validation_bleu"] == 6.0
        assert "is finished" in logged()

    @pytest.mark.parametrize("number", [1, 7, "the manifest"])
    def test_killed_while_a_checkpoint_is_sent_it_ends_as_if_nothing_had_been(
        self, data, straight, bucket, tmp_path, caplog, number
    ):
        def when(operation, name):
            return operation == "put" and (
                name.endswith("/checkpoints/6/manifest.json")
                if number == "the manifest"
                else len(put(bucket, 6)) > number
            )

        failing(bucket, Killed(), when)
        with pytest.raises(Killed):
            train(data)
        assert put(bucket, 6) and not (saved(bucket, 6) / MANIFEST).exists()
        lose_the_machine(bucket, tmp_path)
        train(data)
        assert not [name for _, name in bucket.calls if "/checkpoints/6/" in name and _ == "get"]
        assert "skipping" not in caplog.text
        assert_same_run(there(bucket), straight[0])
        Checkpoints(there(bucket) / "checkpoints").params(6)  # no file of the earlier sending is left in the way

    def test_killed_while_old_checkpoints_are_removed(self, data, straight, bucket, tmp_path):
        def when(operation, name):
            return (operation, name) == ("remove", "bucket/run/checkpoints/3") and f"{name[:-1]}5/{MANIFEST}" in put(
                bucket, 5
            )

        failing(bucket, Killed(), when)
        with pytest.raises(Killed):
            train(data, **EVERY_STEP)
        assert not saved(bucket, 1).exists()
        assert not (saved(bucket, 3) / MANIFEST).exists()
        check_manifest(saved(bucket, 5))
        lose_the_machine(bucket, tmp_path)
        train(data, **EVERY_STEP)
        assert_same_params(there(bucket), straight[0])
        assert sorted(path.name for path in (there(bucket) / "checkpoints").iterdir()) == ["5", "6"]

    def test_a_damaged_checkpoint_is_skipped_and_sent_anew(self, data, straight, bucket, tmp_path, caplog):
        train(data)
        flip_a_bit(max(saved(bucket, 6).rglob("*"), key=lambda path: path.stat().st_size))
        lose_the_machine(bucket, tmp_path)
        train(data)
        assert "skipping the checkpoint of step 6: gs://bucket/run/checkpoints/6/" in caplog.text
        check_manifest(saved(bucket, 6))
        assert_same_run(there(bucket), straight[0])

    def test_a_stop_is_sent(self, data, straight, bucket, tmp_path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("padir.training.run.TrainRun.stop_requested", lambda run: run.at == 2)
            with refused("saved step 2 of 6", KeyboardInterrupt):
                train(data)
        assert (saved(bucket, 2) / MANIFEST).exists()
        lose_the_machine(bucket, tmp_path)
        train(data)
        assert_same_run(there(bucket), straight[0])
        assert not saved(bucket, 2).exists()


class TestOnTheSameMachine:
    def test_checkpoints_are_removed_after_newer_ones_are_whole(self, data, bucket):
        train(data, **EVERY_STEP)
        order = [
            (kind, name) for kind, name in bucket.calls if name.endswith("manifest.json") and "checkpoints" in name
        ]
        for step in (1, 2, 3, 4):
            removed = order.index(
                ("remove", f"bucket/run/checkpoints/{step}/manifest.json"),
                order.index(("put", f"bucket/run/checkpoints/{step}/manifest.json")),
            )
            assert removed > order.index(("put", f"bucket/run/checkpoints/{step + 2}/manifest.json"))
        assert sorted(path.name for path in (there(bucket) / "checkpoints").iterdir()) == ["5", "6"]
        bucket.calls.clear()
        train(data, **EVERY_STEP)
        assert not [name for kind, name in bucket.calls if kind == "get"]

    def test_a_connection_that_is_lost_for_a_while_loses_nothing(self, data, straight, bucket, logged):
        manifest = "bucket/run/checkpoints/4/manifest.json"
        failing(
            bucket,
            ConnectionResetError("gone"),
            lambda *call: call == ("put", manifest) and bucket.calls.count(call) < 4,
        )
        train(data)
        told = logged()
        assert "not sent (gs://bucket/run/checkp" in told
        assert_same_run(there(bucket), straight[0])
        assert_same_run(there(bucket), straight[0], step=4)

    def test_a_connection_that_stays_lost_leaves_a_whole_run_to_send(self, data, straight, bucket):
        failing(
            bucket, TimeoutError("no answer"), lambda operation, name: "checkpoints/" in name and operation == "put"
        )
        with refused("cannot be reached no answer same command", Unreachable):
            train(data)
        assert_same_run(copy_of(RemoteFolder(RUN), "write"), straight[0])
        bucket.before = staticmethod(nothing)
        train(data)
        assert_same_run(there(bucket), straight[0])

    def test_what_another_machine_did_meanwhile_counts(self, data, straight, bucket, tmp_path, monkeypatch):
        train(data, **EVERY_STEP, num_steps=4)
        monkeypatch.setenv("PADIR_COPIES", str(tmp_path / "elsewhere"))
        train(data, **EVERY_STEP)
        bucket.calls.clear()
        monkeypatch.setenv("PADIR_COPIES", str(tmp_path / "copies"))
        train(data, **EVERY_STEP)
        assert not [step for step in range(7) if put(bucket, step)]
        assert figures(copy_of(RemoteFolder(RUN), "write"))[-1]["step"] == 6

    def test_a_newer_model_is_not_replaced_by_the_copys(self, data, bucket, tmp_path, monkeypatch):
        """This machine finished 2 steps, another one 4, and this one is to take 6."""
        train(data, num_steps=2)
        monkeypatch.setenv("PADIR_COPIES", str(tmp_path / "elsewhere"))
        train(data, num_steps=4)
        newer = (there(bucket) / MANIFEST).read_bytes()
        monkeypatch.setenv("PADIR_COPIES", str(tmp_path / "copies"))

        def kill_after_a_checkpoint(operation, name):
            if operation == "remove" and name.endswith("checkpoints/2/manifest.json"):
                raise Killed

        bucket.before = staticmethod(kill_after_a_checkpoint)
        with pytest.raises(Killed):
            train(data, **EVERY_STEP)
        assert (saved(bucket, 5) / MANIFEST).exists()
        assert (there(bucket) / MANIFEST).read_bytes() == newer

    def test_a_run_json_that_is_damaged_meanwhile_ends_the_run(self, data, bucket):
        def damage(operation, name):
            if name.endswith("checkpoints/4/manifest.json"):
                (there(bucket) / "run.json").write_text("{")

        bucket.before = staticmethod(damage)
        with refused(f"run.json {RUN} damaged"):
            train(data)

    def test_a_copy_of_another_run_is_refused(self, data, bucket, tmp_path):
        train(data, num_steps=2)
        shutil.rmtree(there(bucket))
        with refused(f"copy of {RUN}, now no"):
            train(data, num_steps=2)
        shutil.move(tmp_path / "copies", tmp_path / "old")
        train(data, num_steps=1)
        shutil.rmtree(tmp_path / "copies")
        shutil.move(tmp_path / "old", tmp_path / "copies")
        with refused("another run: remove the copy"):
            train(data, num_steps=2)


def test_of_two_trainers_the_later_goes_on(data, straight, bucket, tmp_path, monkeypatch):
    def second_begins(operation, name):
        if operation == "put" and name.endswith("checkpoints/4/manifest.json"):
            bucket.before = staticmethod(nothing)
            with pytest.MonkeyPatch.context() as elsewhere:
                elsewhere.setenv("PADIR_COPIES", str(tmp_path / "elsewhere"))
                RemoteRun(RUN)._claim()

    bucket.before = staticmethod(second_begins)
    with refused("one trainer run.json process let one"):
        train(data)
    assert not put(bucket, 6)
    monkeypatch.setenv("PADIR_COPIES", str(tmp_path / "elsewhere"))
    train(data)
    assert_same_run(there(bucket), straight[0])


@pytest.mark.slow
def test_two_machines_train_at_an_address(bucket, tmp_path):
    """Each has copies of its own, and both are lost with the last checkpoint."""
    data, every = prepared(tmp_path), ("Intervals.evaluate=0", "Sharding.shard_parameters=True")
    shutil.copytree(data, bucket.root / "bucket" / "data")

    def run(number):
        paths = {"BUCKETS": str(bucket.root), "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
        machines = tuple({**paths, "PADIR_COPIES": str(tmp_path / f"machine_{number}_{each}")} for each in range(2))
        how = {"devices": 2, "module": "support.bucket", "variables": machines}
        statuses, errors = Processes(*training("gs://bucket/data", RUN, *every), **how).wait()
        assert statuses == [0, 0], errors

    assert Processes(*training(data, tmp_path / "straight", *every), devices=2).wait()[0] == [0, 0]
    run(1)
    assert_same_run(there(bucket), tmp_path / "straight")
    shutil.rmtree(saved(bucket, 6))
    (there(bucket) / MANIFEST).unlink()
    run(2)
    assert_same_run(there(bucket), tmp_path / "straight")
    assert not [*tmp_path.glob("machine_*_1/write/*/checkpoints")]  # the first process alone sends and fetches the run


def test_runs_are_read_whether_finished_or_not(data, straight, bucket, tmp_path):
    shutil.copytree(straight[0], there(bucket))
    assert Translator.load(RUN, step=4).card.step == 4
    assert main(["average", "--model_dir", RUN, "--best", "1", "--output", str(tmp_path / "mean")]) == 0
    (there(bucket) / MANIFEST).unlink()
    remote._fetched.cache_clear()
    assert Translator.load(RUN).card.step == 6
    shutil.rmtree(saved(bucket, 6))
    remote._fetched.cache_clear()
    assert Translator.load(RUN).card.step == 4
    assert [path.name for path in fetched(RUN).glob("checkpoints/*")] == ["4"]

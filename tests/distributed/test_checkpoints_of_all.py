"""Checkpoints that two processes write together: complete or not there, and read on any devices bit for bit."""

import contextlib
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from numpy.testing import assert_array_equal
from support.many_devices import SETTINGS, Processes, prepared, training

from padir.models.directory import load_model
from padir.storage.manifest import check_manifest
from padir.training import Checkpoints, TrainConfig, train

FSDP = "Sharding.shard_parameters=True"
SHARED = "Sharding.shared_filesystem=True"
QUICK = ("Intervals.evaluate=0",)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("devices"))


@pytest.fixture(scope="module")
def run(data, pair):
    def run(folder, *bindings, **how):
        statuses, errors = pair(2).run(*training(data, folder, *QUICK, *bindings), **how)
        assert statuses == [0, 0], errors
        return folder

    return run


@pytest.fixture(scope="module")
def by_both(run, tmp_path_factory):
    """Six steps with a checkpoint of the fourth, the state shared by four devices of two processes."""
    return run(tmp_path_factory.mktemp("both") / "model", FSDP, SHARED)


def writers(checkpoint):
    """Processes that have written arrays, with the number of bytes that each wrote.

    An index that was written anew counts too, so that the bytes vary from run to run.
    """
    sizes = {
        path.name: sum(each.stat().st_size for each in path.glob("d/*")) for path in checkpoint.glob("state/ocdbt*")
    }
    return {name: size for name, size in sizes.items() if size}


def state_of(folder, step):
    """All arrays of a checkpoint, by name."""
    path = folder.absolute() / "checkpoints" / str(step) / "state"
    with ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.metadata(path).item_metadata.tree
        tree = checkpointer.restore(path, jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), tree))
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def assert_same_state(folder, other, step):
    found, expected = state_of(folder, step), state_of(other, step)
    assert found.keys() == expected.keys() and len(found) > 50
    for name, array in expected.items():
        assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.slow
def test_each_writes_its_part_and_the_state_is_that_of_a_gathered_one(run, by_both, tmp_path):
    assert writers(by_both / "checkpoints" / "4").keys() == {"ocdbt.process_0", "ocdbt.process_1"}
    # Each writes the half of the state that its devices hold, compressed, and its index.
    sizes, state = writers(by_both / "checkpoints" / "4").values(), state_of(by_both, 4)
    assert min(sizes) > 0.3 * sum(array.nbytes for array in state.values()) and max(sizes) < 10 * min(sizes)
    gathered = run(tmp_path / "model", FSDP, second=(f"--model_dir={tmp_path / 'elsewhere'}",))
    assert writers(gathered / "checkpoints" / "4").keys() == {"ocdbt.process_0"}
    assert not (tmp_path / "elsewhere").exists()
    for step in (4, 6):
        assert_same_state(by_both, gathered, step)
        assert not list((by_both / "checkpoints" / str(step)).glob("written.*"))


def started_with(folder, other, step):
    """A model directory that has nothing but a checkpoint of another."""
    folder = folder / "model"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / str(step)).symlink_to(other / "checkpoints" / str(step))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("sharding", [(), (FSDP,), (FSDP, "Sharding.model_parallel=2")])
def test_two_processes_read_what_they_and_others_wrote(data, run, by_both, tmp_path, sharding):
    whole = TrainConfig(**SETTINGS, num_steps=4)
    alone = started_with(tmp_path / "alone", by_both, 4)
    train(data, str(alone), whole)
    params, expected = load_model(alone)[0], Checkpoints(by_both / "checkpoints").params(4)
    jax.tree.map(assert_array_equal, params, expected)
    train(data, str(tmp_path / "one"), whole)
    for name, source in (("again", by_both), ("ones", tmp_path / "one")):
        folder = run(started_with(tmp_path / name, source, 4), "train.num_steps=4", SHARED, *sharding)
        expected = Checkpoints(source / "checkpoints").params(4)
        jax.tree.map(assert_array_equal, load_model(folder)[0], expected)


TWELVE = ("train.num_steps=12", "Intervals.checkpoint=1", FSDP, SHARED)


@pytest.fixture(scope="module")
def straight(run, tmp_path_factory):
    """Twelve steps, each with a checkpoint."""
    return run(tmp_path_factory.mktemp("straight") / "model", *TWELVE)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_while_saving_leaves_whole_checkpoints(data, run, straight, tmp_path, killed):
    folder = tmp_path / "model"
    processes = Processes(*training(data, folder, *QUICK, *TWELVE), devices=2)
    deadline = time.monotonic() + 200
    while not [*folder.glob("checkpoints/.[3-8].*.partial/written.*")]:
        assert time.monotonic() < deadline and all(process.poll() is None for process in processes.running)
    processes.running[killed].kill()
    with contextlib.suppress(Exception):
        processes.running[1 - killed].wait(timeout=10)
    processes.running[1 - killed].kill()  # after a while it ends by itself
    processes.wait()
    saved = Checkpoints(folder / "checkpoints").steps()
    assert saved and saved[-1] < 12
    for step in saved:
        check_manifest(folder / "checkpoints" / str(step))
    run(folder, *TWELVE)
    assert_same_state(folder, straight, 12)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"11", "12"}


@pytest.mark.slow
def test_a_part_that_cannot_be_written_stops_both(data, run, tmp_path):
    """JAX may abort a process whose neighbour has ended: its exit status and its leftovers are not known beforehand."""
    command = training(data, tmp_path / "model", *QUICK, FSDP, SHARED)
    statuses, errors = Processes(*command, devices=2, limit=2_000).wait()
    assert 0 not in statuses
    assert "the checkpoint of step 4 could not be written" in errors[0] + errors[1]
    checkpoints = tmp_path / "model" / "checkpoints"
    assert not Checkpoints(checkpoints).steps()
    run(tmp_path / "model", FSDP, SHARED)
    assert {path.name for path in checkpoints.iterdir()} == {"4", "6"}

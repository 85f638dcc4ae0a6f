"""Models of runs that have not finished, and of earlier steps."""

import json
import os
import shutil

import orbax.checkpoint as ocp
import pytest
from support.refusals import refused
from support.training import assert_equal

from padir import Translator
from padir.jobs import Teacher, average_run
from padir.models.directory import load_model
from padir.storage.manifest import write_manifest
from padir.training.checkpoints import Checkpoints, load_step


@pytest.fixture
def unfinished(finished):
    """A run of six steps, with checkpoints of 4 and 6, that was stopped before it wrote its model."""
    for name in ("manifest.json", "model.json", "vocab.model", "weights.safetensors", "config.gin"):
        (finished / name).unlink()
    return finished


def test_a_checkpoint_gives_the_model_that_the_run_writes(straight, logged):
    params, card, tokenizer = load_step(straight[0])
    expected, written, vocabulary = load_model(straight[0])
    assert_equal(params, expected)
    assert (card.step, card.weights, card.config) == (written.step, written.weights, written.config)
    assert tokenizer.sha256 == vocabulary.sha256
    assert logged() == f"{straight[0]}: the checkpoint of step 6 is used"


def test_the_newest_checkpoint_of_an_unfinished_run_is_used(straight, unfinished, logged):
    translator = Translator.load(unfinished)
    assert_equal(translator.params, load_model(straight[0])[0])
    assert "the checkpoint of step 6 is used; the training run has not finished" in logged()
    assert Translator.load(unfinished, step=4).card.step == 4
    assert translator.translate(["eins"], num_steps=1)


def test_a_step_of_a_finished_run_has_its_own_parameters(straight):
    (early, card, _), (late, _, _) = load_step(straight[0], 4), load_step(straight[0], 6)
    assert card.step == 4
    with pytest.raises(AssertionError):
        assert_equal(early, late)


def test_steps_that_are_not_there(unfinished, tmp_path):
    for folder, words in ((unfinished, "it has those of 4, 6"), ("de_en", "give the folder of a training run")):
        with refused(f"no checkpoint of step 5: {words}"):
            Translator.load(folder, step=5)
    weights = next(path for path in (unfinished / "checkpoints" / "6" / "state").rglob("*") if path.stat().st_size > 99)
    weights.write_bytes(b"x" + weights.read_bytes()[1:])
    with refused("changed or damaged"):
        Translator.load(unfinished)
    for step in (4, 6):
        (unfinished / "checkpoints" / str(step) / "model.json").unlink()
    with refused("cannot read model.json"):
        Translator.load(unfinished)
    shutil.rmtree(unfinished / "checkpoints")
    with refused("no manifest.json"):
        Translator.load(unfinished)


def test_checkpoints_up_to_a_step_are_averaged(straight, unfinished, tmp_path, caplog):
    caplog.set_level("INFO", "padir")
    card = average_run(unfinished, tmp_path / "four", kind="last", count=1, step=4)
    assert card.weights.steps == (4,)
    assert_equal(load_model(tmp_path / "four")[0], load_step(straight[0], 4)[0])
    assert "checkpoints up to step 4 are used" in caplog.text
    assert average_run(unfinished, tmp_path / "both", kind="last", count=2).weights.steps == (4, 6)
    assert (tmp_path / "both" / "config.gin").read_text() == "train.seed = 3\n"


def test_a_teacher_has_finished(unfinished):
    with refused("run has not finished"):
        Teacher.load(unfinished)


def forge(run, **forged):
    """Writes the newest checkpoint with another shape or other chunks than its embedding has."""
    folder = run / "checkpoints" / "6"
    state = {"params": load_step(run)[0]}
    shutil.rmtree(folder / "state")
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        checkpointer.save((folder / "state").absolute(), args=ocp.args.PyTreeSave(state))
    path = folder / "state" / "params.token_embedder.embedding" / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | forged))
    write_manifest(folder)
    return state


def test_forged_shapes_are_refused_before_memory_is_taken(unfinished, tmp_path):
    state = forge(unfinished, shape=[10**7, 10**7], chunks=[1, 1])
    for read in (lambda: load_step(unfinished), lambda: average_run(unfinished, tmp_path / "x", kind="last", count=1)):
        with refused("embedding shape got (10000000, 10000000)"):
            read()
    with refused("shapes of its arrays differ"):
        Checkpoints(unfinished / "checkpoints").restore_latest(state)


def test_forged_chunks_are_refused_before_memory_is_taken(unfinished):
    forge(unfinished, chunks=[10**7, 10**7])
    with refused("chunks must not be larger than its shape"):
        load_step(unfinished)


def test_a_pipe_in_a_checkpoint_is_refused(unfinished):
    os.mkfifo(unfinished / "checkpoints" / "6" / "state" / "pipe")
    with refused("pipe is no file of a checkpoint"):
        load_step(unfinished)

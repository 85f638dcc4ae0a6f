"""Disks fill up, files get damaged, processes die: each ends in a message that helps, with nothing lost."""

import os
import re
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from support.faults import DAMAGES, damaged, files_in, flip_a_bit, full_disk, read_only
from support.refusals import refused
from support.small_corpus import Numbers, number_lines, small_tokenizer
from support.tiny_model import prepared_numbers, random_model_dir, random_translator
from support.training import assert_equal, assert_same_params, save_all, state_at, train_tiny

from padir.data import Batching, load_tokenizer, read_text
from padir.data.loader import make_loader
from padir.data.prepare import prepare
from padir.errors import PadirError
from padir.models.directory import load_model, save_model
from padir.storage.files import beside
from padir.storage.folders import LOCK, atomic_folder, folder_lock
from padir.storage.manifest import MANIFEST, check_manifest, write_manifest
from padir.text.tokenizer import Tokenizer
from padir.text.tokenizer import train as train_vocabulary
from padir.training import Checkpoints, Intervals
from padir.training.log import TrainingLog

ORBAX_LEAVES_COROUTINES = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("damage", DAMAGES)
class TestEveryFile:
    def test_of_a_checkpoint(self, tmp_path, damage, logged):
        checkpoints = Checkpoints(tmp_path / "all")
        save_all(checkpoints, 1, 2)
        shutil.copytree(tmp_path / "all", tmp_path / "copy")
        names = []
        for path in damaged(tmp_path / "copy" / "2", damage):
            folder = shutil.copytree(tmp_path / "copy", tmp_path / "now")
            state, loader_state = Checkpoints(folder).restore_latest(state_at(0))
            assert_equal(state, state_at(1))
            assert loader_state["batch"] == 1
            assert re.search(rf"skipping the checkpoint of step 2: .*{path.name} (was|is) ", logged())
            assert sorted(each.name for each in folder.iterdir()) == ["1", "2.damaged"]
            shutil.rmtree(folder)
            names.append(path.name)
        assert len(names) > 5 and {"manifest.json", "loader.json"} < {*names}
        assert_equal(checkpoints.restore_latest(state_at(0))[0], state_at(2))

    def test_that_a_translation_is_scored_with(self, tmp_path, damage):
        folder = prepared_numbers(tmp_path)
        for path in damaged(folder, damage):
            if path.name in ("validation.de.txt", "validation.en.txt", "manifest.json"):
                with refused(path.name):
                    read_text(folder, "validation")
            if path.name == "vocab.model":
                with refused(path.name):
                    load_tokenizer(folder)

    def test_of_records_that_were_not_verified(self, tmp_path, damage):
        folder = prepared_numbers(tmp_path)
        for path in damaged(folder, damage):
            if path.name.startswith("train") and path.name != "train.lengths.npy":
                with refused("set overwrite"):
                    list(make_loader(folder, Batching(4, 32), num_epochs=1))


def test_training_reads_only_what_it_has_compared(tmp_path):
    folder = prepared_numbers(tmp_path)
    flip_a_bit(folder / "train-00000-of-00001.arrayrecord")
    with refused("arrayrecord prepare"):
        train_tiny(folder, str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


class TestEveryBit:
    """A manifest has the sums of the other files, and its own."""

    def test_of_a_manifest(self, tmp_path):
        (tmp_path / "file").write_text("text")
        write_manifest(tmp_path)
        path = tmp_path / MANIFEST
        whole = path.read_bytes()
        for bit in range(0, 8 * len(whole), 5):  # every place within a byte
            flip_a_bit(path, bit)
            with pytest.raises(PadirError):
                check_manifest(tmp_path)
            path.write_bytes(whole)
        for size in range(0, len(whole) - 1, 5):  # the last byte is a newline
            path.write_bytes(whole[:size])
            with pytest.raises(PadirError):
                check_manifest(tmp_path)
        path.write_bytes(whole)
        check_manifest(tmp_path)


def export(path, tokenizer):
    with atomic_folder(path) as folder:
        (folder / "kind").write_bytes(bytes(2000))


WRITERS = {
    "vocabulary": lambda path, tokenizer: train_vocabulary(number_lines(), path, size=301),
    "prepared": lambda path, tokenizer: prepare(Numbers(), tokenizer, path, progress=False),
    "exported": export,
}
FULL, READ_ONLY = "too large):", "give a folder that you may write to"
FAULTS = [(kind, most, FULL) for kind in WRITERS for most in (100, 1_000)]
FAULTS += [*(("prepared", most, FULL) for most in (3_000, 9_000)), *((kind, None, READ_ONLY) for kind in WRITERS)]


@pytest.mark.parametrize(("kind", "most", "remedy"), FAULTS)
def test_nothing_is_left_of_what_cannot_be_written(tokenizer, open_folder, kind, most, remedy):
    """On a disk that takes no file of more than so many bytes, or in a folder in which nobody may write."""
    with read_only(open_folder) if most is None else full_disk(most):
        with refused(f"cannot write out {remedy}"):
            WRITERS[kind](open_folder / "out", tokenizer)
    assert not list(open_folder.iterdir())


class TestFullDisk:
    @ORBAX_LEAVES_COROUTINES
    def test_checkpoint(self, tmp_path, caplog):
        checkpoints = Checkpoints(tmp_path)
        save_all(checkpoints, 1)
        caplog.set_level("ERROR")
        with full_disk(300), refused("step 2 could not be written: room"):
            save_all(checkpoints, 2)
        assert not caplog.records  # Orbax would log two tracebacks before padir's message
        assert [path.name for path in tmp_path.iterdir()] == ["1"]
        assert_equal(checkpoints.restore_latest(state_at(0))[0], state_at(1))
        save_all(checkpoints, 2)
        assert checkpoints.steps() == [1, 2]

    def test_model_directory(self, tokenizer, tmp_path):
        folder = random_model_dir(tmp_path)
        before = {path: path.read_bytes() for path in files_in(folder)}
        translator = random_translator(tokenizer, width=8, heads=1)
        with full_disk(10_000), refused("cannot write"):
            save_model(folder, translator.params, translator.card, translator.tokenizer, "")
        assert {path: path.read_bytes() for path in files_in(folder)} == before

    def test_figures(self, tmp_path):
        with TrainingLog(tmp_path, num_steps=9, start=0, parameters=1) as log:
            log._files._history.close()
            log._files._history = open("/dev/full", "w")
            with refused("cannot write No space left on device): make room"):
                log.write(1, {"loss": 0.5})

    def test_tensorboard(self, tmp_path):
        """Its writer must not wait for a thread that has died."""
        with TrainingLog(tmp_path, num_steps=9, start=0, parameters=1) as log, full_disk(2000):
            with refused("cannot write File too large"):
                for step in range(1000):
                    log.rows.clear()
                    log._files._history.truncate(0)
                    log.write(step, {f"figure_{number}": 0.5 for number in range(20)})


class TestReadOnlyFolder:
    @pytest.mark.parametrize("name", ["model", "."])
    def test_training(self, open_folder, name):
        data = prepared_numbers(open_folder)
        before = files_in(open_folder)
        with read_only(open_folder), refused(f"cannot {READ_ONLY}"):
            train_tiny(data, str(open_folder / name))
        assert files_in(open_folder) == before

    def test_checkpoint(self, open_folder):
        save_all(Checkpoints(open_folder), 1)
        with read_only(open_folder), refused(f"step 2 could not be written: {READ_ONLY}"):
            save_all(Checkpoints(open_folder), 2)
        assert [path.name for path in open_folder.iterdir()] == ["1"]

    def test_model_directory(self, open_folder):
        folder = random_model_dir(open_folder)
        params, card, tokenizer = load_model(folder)
        with read_only(folder):
            with refused(f"cannot {READ_ONLY}"):
                save_model(folder, params, card, tokenizer, "")
            load_model(folder)  # whoever may read the folder can use the model


class TestOneTrainerAFolder:
    @pytest.mark.slow
    def test_a_second_one_is_refused_and_changes_nothing(self, data, finished, logged):
        before = {path: path.read_bytes() for path in files_in(finished) if path.name != LOCK}
        with folder_lock(finished, "trained in"):
            with refused(f"one process at a time, {os.getpid()} at work"):
                train_tiny(data, finished, num_steps=7)
        assert {path: path.read_bytes() for path in files_in(finished) if path.name != LOCK} == before
        train_tiny(data, finished)
        assert "is finished" in logged()

    def test_the_lock_of_a_killed_process_is_gone(self, tmp_path):
        code = (
            "import sys, time; from pathlib import Path; from padir.storage.folders import folder_lock\n"
            "with folder_lock(Path(sys.argv[1]), 'trained in'): print('locked', flush=True); time.sleep(600)"
        )
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout.readline() == "locked\n"
            with refused(f"process {process.pid} at work"):
                with folder_lock(tmp_path, "trained in"):
                    pass
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert str(process.pid) in (tmp_path / LOCK).read_text()  # its file is still there, and does not matter
        with folder_lock(tmp_path, "trained in"):
            pass


class TestVocabularyFile:
    """A vocabulary that stands alone has no manifest: it has the sum of itself at its end."""

    def test_every_damage_is_noticed(self, tmp_path):
        path = tmp_path / "vocab.model"
        whole = small_tokenizer(path).model_bytes
        rng = np.random.RandomState(0)
        for bit in rng.randint(8 * len(whole), size=100):
            flip_a_bit(path, int(bit))
            with refused("vocab.model not a SentencePiece model damaged: restore"):
                Tokenizer.load(path)
            path.write_bytes(whole)
        for size in {*range(0, len(whole), 31)} - {len(whole) - 35}:  # all but the sum is all that counts
            path.write_bytes(whole[:size])
            with refused("damaged"):
                Tokenizer.load(path)

    def test_one_made_elsewhere_has_none(self, tokenizer):
        whole = tokenizer.model_bytes
        assert Tokenizer(whole[:-35]).ids == Tokenizer(whole).ids


class TestModelOfAFinishedTraining:
    def test_is_written_again_from_the_checkpoint_if_it_is_damaged(self, data, straight, finished, logged):
        flip_a_bit(finished / "weights.safetensors")
        train_tiny(data, finished)
        assert "writing the model again from the last checkpoint: " in logged()
        assert_same_params(finished, straight[0])


def test_what_a_killed_save_left_is_removed_by_the_next_run(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save_all(checkpoints, 1)
    shutil.copytree(tmp_path / "1", beside(tmp_path / "2", "partial"))
    jax.tree.map(np.asarray, checkpoints.restore_latest(state_at(0)))
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize("moved", [True, False])
def test_a_folder_that_is_deleted_or_moved_is_noticed_soon(data, tmp_path, moved):
    validated = []

    def evaluate(params, card, tokenizer):
        validated.append(card.step)
        shutil.move(tmp_path / "run", tmp_path / "elsewhere") if moved else shutil.rmtree(tmp_path / "run")
        return {}

    intervals = Intervals(log=1, evaluate=3, checkpoint=6)
    with refused("run deleted moved while wrote move back"):
        train_tiny(data, tmp_path / "run", intervals=intervals, evaluate_fn=evaluate)
    assert validated == [3]  # and not another time at step 6

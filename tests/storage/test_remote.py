"""Folders at addresses: fetched whole and checked, sent with the manifest last, and messages where a store fails."""

import json
import shutil
from pathlib import Path

import fsspec
import pytest
from support.commands import refused, run
from support.faults import files_in, full_disk, refuses_damage
from support.refusals import refuses
from support.small_corpus import Numbers, small_tokenizer
from support.tiny_model import prepared_numbers, random_model_dir

from padir import PadirError
from padir.data.prepare import prepare
from padir.data.prepared import LengthLimits, load_manifest
from padir.storage import remote
from padir.storage.manifest import MANIFEST, sealed, write_manifest
from padir.storage.remote import RemoteFolder, Unreachable, fetched, sent_folder

RUN = "gs://bucket/run"
SHORT = LengthLimits(max_source_tokens=50)


@pytest.fixture
def there(bucket):
    """The folder that the fake store has at `RUN`, with two files and their manifest."""
    folder = bucket.root / "bucket" / "run"
    (folder / "sub").mkdir(parents=True)
    (folder / "one").write_text("1")
    (folder / "sub" / "two").write_text("2" * 1000)
    write_manifest(folder)
    return folder


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_in(folder)}


def naming(folder, name, renamed):
    """Lets a manifest, whose sum is right, name a file of the store under another name, too."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][renamed] = manifest["files"][name]
    (folder / MANIFEST).write_text(json.dumps(sealed(manifest)))


@pytest.fixture
def step(bucket):
    """The folder of a checkpoint at `RUN`."""
    step = bucket.root / "bucket" / "run" / "checkpoints" / "6"
    step.mkdir(parents=True)
    return step


def names(bucket, operation):
    return [name for kind, name in bucket.calls if kind == operation]


def again():
    """What a new process fetches."""
    remote._fetched.cache_clear()
    return fetched(RUN)


class TestFetching:
    def test_a_folder_is_fetched_once(self, there, bucket):
        copy = fetched(RUN)
        assert contents(copy) == contents(there)
        assert fetched("gs:/bucket/run/") == fetched(Path(RUN)) == copy
        assert sorted(names(bucket, "get")) == ["bucket/run/one", "bucket/run/sub/two"]
        assert again() == copy
        assert len(names(bucket, "get")) == 2

    def test_a_damaged_copy_is_mended_and_a_changed_folder_fetched(self, there, bucket):
        copy = fetched(RUN)
        (copy / "one").write_text("x")
        assert contents(again()) == contents(there)
        (there / "one").write_text("3")
        write_manifest(there)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bucket, "before", bucket.before)
            bucket.fail(PermissionError(), "get")
            with pytest.raises(Unreachable):
                again()
        assert not (copy / MANIFEST).exists(), "neither the old folder nor the new one is whole"
        assert contents(again()) == contents(there)
        assert names(bucket, "get").count("bucket/run/sub/two") == 1

    def test_a_file_that_was_damaged_on_the_way_is_fetched_again(self, there, bucket, monkeypatch):
        def get_file(self, rpath, lpath, **settings):
            whole(self, rpath, lpath, **settings)
            if names(bucket, "get").count("bucket/run/one") == 1:
                Path(lpath).write_text("x")

        whole = bucket.get_file
        monkeypatch.setattr(bucket, "get_file", get_file)
        assert contents(fetched(RUN)) == contents(there)
        assert names(bucket, "get").count("bucket/run/one") == 2

    def test_every_damage_is_found(self, there, bucket, tmp_path):
        def read(_):
            shutil.rmtree(tmp_path / "copies", ignore_errors=True)
            try:
                again()
            except PadirError:
                assert not (remote.copy_of(RemoteFolder(RUN), "read") / MANIFEST).exists()
                raise

        refuses_damage(read, there)

    def test_a_full_disk_is_named(self, there, bucket):
        with full_disk(500):
            refuses(fetched, "cannot write ... two (File too large): raise the limit", RUN)
        assert len(names(bucket, "get")) <= 2  # another attempt is of no use

    def test_no_file_is_written_outside_the_copy(self, there, bucket):
        naming(there, "one", "../outside")
        (there.parent / "outside").write_text("1")
        refuses(fetched, "is outside its folder", RUN)
        assert not [*remote.copy_of(RemoteFolder(RUN), "read").parent.glob("outside")]

    @pytest.mark.parametrize(
        "odd", ["x" * 300, "x/" * 3_000 + "y", "", ".", "sub/", "sub/..", "sub", "one/1", "\ud800"]
    )
    def test_odd_names_are_refused(self, there, bucket, odd):
        """Also a folder's, and one of a folder that is a file."""
        naming(there, "one", odd)
        refuses(fetched, "manifest.json is damaged", RUN)

    def test_a_checkpoint_of_another_run_is_no_copy(self, step):
        """The run at the address was removed, and another one was trained there."""
        for content in ("old", "new"):
            (step / "state").write_text(content)
            write_manifest(step)
            assert (again() / "checkpoints" / "6" / "state").read_text() == content

    def test_a_checkpoint_that_finds_no_room_is_not_damaged(self, step, tmp_path):
        (step / "state").write_text("1" * 5_000)
        write_manifest(step)
        with full_disk(1_000):
            refuses(lambda: remote.fetch_steps(RemoteFolder(RUN), tmp_path), "cannot write ... : raise the limit")
        assert not [*(tmp_path / "checkpoints").iterdir()]

    @pytest.mark.parametrize("change", [lambda step: (step / MANIFEST).unlink(), write_manifest])
    def test_a_checkpoint_that_vanishes_or_changes_meanwhile_is_skipped(self, bucket, step, tmp_path, caplog, change):
        """The run's trainer removes old checkpoints, their manifest first."""
        write_manifest(step)
        (step / "state").write_text("of another run")

        def changed(operation, name):
            if name.endswith(MANIFEST) and bucket.calls.count((operation, name)) == 2:
                change(step)

        bucket.before = staticmethod(changed)
        assert remote.fetch_steps(RemoteFolder(RUN), tmp_path) == ["6"]
        assert "was removed or replaced" in caplog.text
        assert not (tmp_path / "checkpoints" / "6").exists()


class TestSending:
    def test_the_manifest_is_sent_last_and_removed_first(self, there, bucket, tmp_path):
        folder = shutil.copytree(there, tmp_path / "folder")
        for name in ("", "part"):
            bucket.calls.clear()
            RemoteFolder(RUN).send(folder, name)
            home = f"bucket/run/{name}".rstrip("/")
            assert bucket.calls[0] == ("remove", f"{home}/{MANIFEST}")
            assert bucket.calls[-1] == ("put", f"{home}/{MANIFEST}")
        assert contents(there / "part") == contents(folder)

    @pytest.mark.parametrize("sent", range(3))
    def test_a_folder_that_was_sent_in_part_is_not_whole(self, there, bucket, tmp_path, sent):
        folder = shutil.copytree(there, tmp_path / "folder")

        def fail(operation, name):
            if operation == "put" and len(names(bucket, "put")) > sent:
                raise PermissionError(name)

        bucket.before = staticmethod(fail)
        refuses(
            lambda: RemoteFolder(RUN).send(folder),
            "cannot be reached ... PermissionError ... : check the address",
            error=Unreachable,
        )
        refuses(fetched, "holds no manifest.json", RUN)

    def test_a_lost_connection_is_tried_again(self, there, bucket):
        seen = set()

        def fail(operation, name):
            if (operation, name) not in seen:
                seen.add((operation, name))
                raise ConnectionResetError("connection reset")

        bucket.before = staticmethod(fail)
        assert contents(fetched(RUN)) == contents(there)

    @pytest.mark.parametrize(("error", "attempts"), [(TimeoutError, 3), (PermissionError, 1)])
    def test_a_store_that_does_not_answer_or_refuses_has_a_message(self, there, bucket, error, attempts):
        bucket.fail(error("no answer"))
        refuses(
            lambda: fetched(RUN),
            f"run/manifest.json cannot be reached ({error.__name__}: no answer)",
            error=Unreachable,
        )
        assert len(bucket.calls) == attempts


class TestAddresses:
    @pytest.mark.parametrize(
        ("address", "message"),
        [
            ("ftp://host/run", "the scheme of ftp://host/run must be one of gs, s3, az, hf, got 'ftp'"),
            ("gs://bucket", "an address must be a bucket and a folder, such as gs://bucket/run, got 'gs://bucket'"),
            ("gs://bucket/../run", "an address must be a bucket and a folder"),
        ],
    )
    def test_wrong_ones_are_refused(self, bucket, address, message):
        refuses(fetched, message, address)

    def test_a_missing_package_is_named(self, monkeypatch, capsys):
        def absent(scheme):
            raise ImportError("Please install gcsfs to access Google Storage")

        monkeypatch.setattr(fsspec, "filesystem", absent)
        said = "addresses gs:// need the package gcsfs, got gs://bucket/run: pip install gcsfs\n"
        assert refused(capsys, f"evaluate --model {RUN} --data data/toy") == f"padir: error: {said}"

    def test_a_store_that_does_not_answer_has_a_status_of_its_own(self, bucket, tmp_path, capsys, monkeypatch):
        """A loop that starts padir again goes on after it, and ends after wrong options."""
        monkeypatch.setattr("padir.storage.remote._WAITS", [])
        shutil.copytree(random_model_dir(tmp_path), bucket.root / "bucket" / "run")

        bucket.fail(ConnectionError("no route"))
        status, _, errors = run(capsys, f"translate --model {RUN} a")
        assert status == 1 and "cannot be reached (ConnectionError: no route)" in errors

    @pytest.mark.parametrize(
        "command",
        [
            "prepare --task toy_de_en --vocab vocab.model --output",
            "average --model_dir runs/toy --last 2 --output",
            "distill --model runs/toy --data data/toy --output",
            "bigrams --model runs/toy --data data/toy --output",
            "train toy_cpu --data data/toy --model_dir",
        ],
    )
    @pytest.mark.parametrize(("failing", "error"), [("put", FileNotFoundError), ("remove", PermissionError)])
    def test_a_bucket_that_cannot_be_written_is_found_before_the_work(self, bucket, capsys, command, failing, error):
        """Stores say FileNotFoundError where there is no such bucket. None of the inputs is here."""
        bucket.fail(error("gs://typo"), failing)
        status, _, errors = run(capsys, f"{command} gs://typo/run")
        assert status == 1 and f"cannot be reached ({error.__name__}: gs://typo)" in errors

    def test_the_file_that_is_tried_does_not_stay(self, bucket, tmp_path, capsys):
        model = prepared_numbers(tmp_path)
        assert run(capsys, f"average --model_dir {model} --last 2 --output gs://bucket/run")[0] == 2
        assert [kind for kind, _ in bucket.calls][:2] == ["put", "remove"] and not files_in(bucket.root)

    def test_names_of_models_may_stand_in_front(self, bucket, tmp_path, capsys):
        shutil.copytree(random_model_dir(tmp_path, max_length=8), bucket.root / "bucket" / "run")
        shutil.copytree(prepared_numbers(tmp_path, Numbers(longest=5)), bucket.root / "bucket" / "data")
        data = "--data gs://bucket/data --split validation"
        status, out, _ = run(capsys, f"evaluate --model mine={RUN} --num_steps 1 {data}")
        assert status == 0 and "mine" in out


class TestPrepared:
    def test_data_are_read(self, bucket, tmp_path, capsys):
        shutil.copytree(prepared_numbers(tmp_path), bucket.root / "bucket" / "data")
        train = f"train toy_cpu --gin.DATASET='gs://bucket/data' --model_dir {tmp_path}/run"
        assert run(capsys, f"{train} --print_config")[0] == 0 and not bucket.calls
        for command, status in (
            (f"shortlist --data gs://bucket/data --output {tmp_path}/shortlist.npz", 0),
            (f"{train} --validate top_j=2", 2),  # refused when the data are here
        ):
            assert run(capsys, command)[0] == status
            remote._fetched.cache_clear()
        got = [name for name in names(bucket, "get") if name.endswith("arrayrecord")]
        assert len(got) == len(set(got)) == 2

    def test_a_model_with_a_table_of_bigrams_is_sent(self, bucket, tmp_path, capsys):
        model, data = random_model_dir(tmp_path, max_length=8), prepared_numbers(tmp_path, Numbers(longest=5))
        status, _, errors = run(capsys, f"bigrams --data {data} --model {model} --output gs://bucket/model")
        assert status == 0 and (bucket.root / "bucket" / "model" / "bigrams.npz").exists(), errors

    def test_a_prepared_folder_is_sent_and_kept_or_refused_as_a_local_one(self, tokenizer, bucket, tmp_path):

        def write(**settings):
            bucket.calls.clear()
            with sent_folder("gs://bucket/data") as output:
                return prepare(Numbers(), tokenizer, output, progress=False, **settings)

        manifest = write()
        assert load_manifest(bucket.root / "bucket" / "data", verify=True) == manifest
        shutil.rmtree(tmp_path / "copies")
        assert write() == manifest and not names(bucket, "put")
        refuses(lambda: write(limits=SHORT), "set overwrite")
        assert not names(bucket, "put")
        write(limits=SHORT, overwrite=True)
        assert load_manifest(bucket.root / "bucket" / "data", verify=True).limits == SHORT

    @pytest.mark.parametrize("earlier", [False, True])
    @pytest.mark.parametrize("failing", ["read", "remove", "put"])
    def test_what_could_not_be_sent_is_sent_by_the_next_call(self, bucket, tmp_path, monkeypatch, failing, earlier):
        """Nothing is made again, whether the address held an earlier folder or nothing."""
        if earlier:
            self.write(tmp_path, limits=SHORT)
        refuses(
            lambda: self.write(tmp_path, bucket, failing, overwrite=True),
            "run the same command again",
            error=Unreachable,
        )
        with monkeypatch.context() as patch:
            patch.setattr("padir.data.prepare._write_split", None)
            self.write(tmp_path)
        assert load_manifest(bucket.root / "bucket" / "data", verify=True).limits == LengthLimits()

    def test_what_others_wrote_since_is_not_replaced(self, bucket, tmp_path):
        with pytest.raises(Unreachable):
            self.write(tmp_path, bucket, "put", limits=SHORT)
        folder = prepared_numbers(tmp_path)
        shutil.copytree(folder, bucket.root / "bucket" / "data")
        refuses(lambda: self.write(tmp_path, limits=SHORT), "set overwrite")
        assert load_manifest(bucket.root / "bucket" / "data", verify=True) == load_manifest(folder)

    def test_an_address_that_was_cleared_is_written_anew(self, bucket, tmp_path):
        self.write(tmp_path)
        shutil.rmtree(bucket.root / "bucket" / "data")
        self.write(tmp_path, limits=SHORT)
        assert load_manifest(bucket.root / "bucket" / "data", verify=True).limits == SHORT

    def test_a_training_run_gets_no_other_manifest(self, bucket, tmp_path):
        (bucket.root / "bucket" / "data" / "checkpoints" / "4").mkdir(parents=True)
        (bucket.root / "bucket" / "data" / "checkpoints" / "4" / "file").write_text("x")
        refuses(lambda: self.write(tmp_path), "gs://bucket/data holds a training run: give another address")

    @staticmethod
    def write(tmp_path, bucket=None, failing="", **settings):
        """Prepares a folder; the store fails from the end of the block to the end of the call."""
        with pytest.MonkeyPatch.context() as patch, sent_folder("gs://bucket/data") as output:
            prepare(Numbers(), small_tokenizer(tmp_path / "vocab.model"), output, progress=False, **settings)
            if bucket is not None:
                patch.setattr(bucket, "before", bucket.before)
                bucket.fail(TimeoutError("no answer"), failing)

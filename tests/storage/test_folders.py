"""Atomic folders: complete under their name or absent, whatever happens while they are written."""

import subprocess
import sys

import pytest
from support.refusals import refuses

from padir.storage.files import beside
from padir.storage.folders import atomic_folder, check_replaceable, remove_leftovers
from padir.storage.manifest import write_manifest


def write(folder, text):
    with atomic_folder(folder) as partial:
        (partial / "file").write_text(text)


def test_a_folder_appears_when_its_block_ends(tmp_path):
    with atomic_folder(tmp_path / "inner" / "out") as partial:
        (partial / "file").write_text("text")
        assert not (tmp_path / "inner" / "out").exists()
    assert (tmp_path / "inner" / "out" / "file").read_text() == "text"
    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["out"]


def test_a_folder_is_replaced_only_by_a_complete_one(tmp_path):
    write(tmp_path / "out", "old")
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "out") as partial:
        (partial / "file").write_text("new")
        raise ZeroDivisionError
    assert (tmp_path / "out" / "file").read_text() == "old"
    write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("function", ["pathlib.Path.rename", "shutil.rmtree"])
def test_a_kill_while_a_folder_is_replaced_leaves_the_old_or_the_new(tmp_path, function):
    """The process ends right after the first renaming, or before the old files are deleted."""
    write(tmp_path / "out", "old")
    module, name = function.rsplit(".", 1)
    code = f"""if True:
        import os, pathlib, shutil
        from padir.storage.folders import atomic_folder
        before = {function}
        with atomic_folder({str(tmp_path / "out")!r}) as partial:
            (partial / "file").write_text("new")
            {module}.{name} = lambda *a, **b: (before(*a) if {name!r} == "rename" else None, os._exit(9))
    """
    subprocess.run([sys.executable, "-c", code])
    assert (tmp_path / "out" / "file").read_text() in ("old", "new")


def refused_at_its_end(folder, change):
    """A folder cannot take its place, because something was changed while it was written."""

    def write():
        with atomic_folder(folder) as partial:
            change(partial)

    refuses(write, "cannot write ... out ")


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(tmp_path):
    write(tmp_path / "out", "old")
    refused_at_its_end(tmp_path / "out", lambda partial: partial.rename(tmp_path / "elsewhere"))  # nothing is left
    assert (tmp_path / "out" / "file").read_text() == "old"


def test_a_folder_that_a_killed_process_had_set_aside_gets_its_name_back(tmp_path):
    partial = beside(tmp_path / "out", "partial")
    write(partial.with_suffix(".old"), "old")
    write(partial, "new")
    partial.with_suffix(".lock").touch()
    remove_leftovers(tmp_path)
    assert (tmp_path / "out" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


WRITES = """if True:
    import os, pathlib, sys
    from padir.storage.folders import atomic_folder
    with atomic_folder(sys.argv[1]) as partial:
        (partial / "one").touch()
        print(os.getpid(), flush=True)
        sys.stdin.read()
        (partial / "two").touch()
"""


def test_processes_of_one_number_do_not_mix_their_folders(tmp_path):
    """Two containers on one volume: the second writer is refused, until the first one is killed or done."""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a namespace of process numbers")
    command = [*alone, sys.executable, "-c", WRITES, str(tmp_path / "out")]
    pipes: dict = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    for end in ("killed", "done"):
        with subprocess.Popen(command, text=True, **pipes) as first:
            assert first.stdout.readline() == "1\n"
            second = subprocess.run(command, text=True, input="", capture_output=True)
            assert "must be written by one process at a time" in second.stderr and not second.stdout
            if end == "killed":
                first.kill()
                first.stdout.read()  # until the writer, too, has ended
            else:
                first.communicate("")
        assert (tmp_path / "out").exists() == (end == "done")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["one", "two"]


def test_a_folder_that_another_process_made_meanwhile_is_not_replaced(tmp_path):
    def change(partial):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()

    refused_at_its_end(tmp_path / "out", change)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]


def test_only_exports_of_the_same_kind_are_replaced(tmp_path):
    letters = tmp_path / "letters"
    check_replaceable(letters, "kind", overwrite=False)  # absent
    letters.mkdir()
    check_replaceable(letters, "kind", overwrite=False)  # empty
    (letters / "file").write_text("dear")
    refuses(check_replaceable, "holds no kind of an earlier export", letters, "kind", overwrite=True)
    (letters / "kind").touch()
    write_manifest(letters)
    check_replaceable(letters, "kind", overwrite=True)
    refuses(check_replaceable, "give another folder, or set overwrite", letters, "kind", overwrite=False)
    (letters / "notes").mkdir()
    (letters / "notes" / "mine.txt").touch()
    refuses(check_replaceable, "did not make, such as notes/mine.txt: move them away", letters, "kind", overwrite=True)

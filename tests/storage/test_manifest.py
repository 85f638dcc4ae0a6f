"""Manifests: which changes of a folder are noticed."""

import json

import pytest

from padir.errors import PadirError
from padir.storage.manifest import MANIFEST, Manifest, check_manifest, sealed, write_manifest


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("text")
    write_manifest(tmp_path)
    return tmp_path


def rewrite(folder, change):
    contents = json.loads((folder / MANIFEST).read_text())
    change(contents)
    (folder / MANIFEST).write_text(json.dumps(sealed(contents)))


def test_files_of_inner_folders_are_compared(folder):
    check_manifest(folder, ["inner/file"])
    (folder / "inner" / "file").write_text("next")
    with pytest.raises(PadirError, match=r"inner/file was changed or damaged \(its sha256 differs\): restore"):
        check_manifest(folder)
    Manifest.read(folder).check(folder, sums=False)
    (folder / "inner" / "file").write_text("longer")
    with pytest.raises(PadirError, match=r"inner/file was changed or damaged \(it has 6 bytes, not 4\)"):
        Manifest.read(folder).check(folder, sums=False)
    (folder / "inner" / "file").unlink()
    with pytest.raises(PadirError, match="inner/file is missing"):
        check_manifest(folder)


def test_a_needed_file_must_be_named(folder):
    with pytest.raises(PadirError, match="does not name weights, so this file cannot be checked"):
        check_manifest(folder, ["inner/file", "weights"])


def test_a_manifest_needs_its_format_and_a_sum_of_its_own(folder):
    contents = json.loads((folder / MANIFEST).read_text())
    del contents["manifest_sha256"]
    for format, message in ((2, "is damaged"), (1, "must be of format 2, got 1"), (3, "must be of format 2, got 3")):
        (folder / MANIFEST).write_text(json.dumps({**contents, "format": format}))
        with pytest.raises(PadirError, match=message):
            check_manifest(folder)


@pytest.mark.parametrize("entry", [None, 3, {}, {"sha256": "a"}, {"sha256": "a", "bytes": "4"}])
def test_entries_of_another_type_are_damage(folder, entry):
    rewrite(folder, lambda contents: contents["files"].update(file=entry))
    with pytest.raises(PadirError, match="manifest.json is damaged: restore"):
        check_manifest(folder)

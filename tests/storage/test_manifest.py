"""Manifests: which changes of a folder are noticed."""

import json

import pytest
from support.refusals import refuses

from padir.storage.manifest import MANIFEST, Manifest, check_manifest, sealed, write_manifest


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("text")
    write_manifest(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "sums", "words"),
    [
        ("next", True, "inner/file was changed or damaged (its sha256 differs): restore"),
        ("longer", False, "inner/file was changed or damaged (it has 6 bytes, not 4)"),
        (None, True, "inner/file is missing"),
    ],
)
def test_files_of_inner_folders_are_compared(folder, text, sums, words):
    check_manifest(folder, ["inner/file"])
    (folder / "inner" / "file").unlink()
    if text is not None:
        (folder / "inner" / "file").write_text(text)
    if text == "next":
        Manifest.read(folder).check(folder, sums=False)
    refuses(Manifest.read(folder).check, words, folder, sums=sums)


def test_a_needed_file_must_be_named(folder):
    refuses(check_manifest, "does not name weights, so this file cannot be checked", folder, ["inner/file", "weights"])


@pytest.mark.parametrize(
    ("format", "words"), [(2, "is damaged"), (1, "must be of format 2, got 1"), (3, "must be of format 2, got 3")]
)
def test_a_manifest_needs_its_format_and_a_sum_of_its_own(folder, format, words):
    contents = json.loads((folder / MANIFEST).read_text())
    del contents["manifest_sha256"]
    (folder / MANIFEST).write_text(json.dumps({**contents, "format": format}))
    refuses(check_manifest, words, folder)


@pytest.mark.parametrize("entry", [None, 3, {}, {"sha256": "a"}, {"sha256": "a", "bytes": "4"}])
def test_entries_of_another_type_are_damage(folder, entry):
    contents = json.loads((folder / MANIFEST).read_text())
    contents["files"]["file"] = entry
    (folder / MANIFEST).write_text(json.dumps(sealed(contents)))
    refuses(check_manifest, "manifest.json is damaged: restore", folder)

"""Faults of disks: damaged files, a full disk, a folder that nobody may write to."""

import contextlib
import hashlib
import json
import os
import resource
from pathlib import Path

import pytest

from padir.errors import PadirError
from padir.storage.manifest import MANIFEST, sealed

_NOBODY = 65534


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path, where=None):
    content = bytearray(path.read_bytes())
    where = 8 * (len(content) // 2) + 3 if where is None else where
    content[where // 8] ^= 1 << where % 8
    path.write_bytes(content)


DAMAGES = [truncate, flip_a_bit]


def files_in(folder):
    """All files that are not empty, also in inner folders."""
    return sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size)


def damaged(folder, damage):
    """Yields each file of a folder damaged; the file is restored afterwards."""
    for path in files_in(folder):
        content = path.read_bytes()
        damage(path)
        yield path
        path.write_bytes(content)


def refuses_damage(read, folder, error=PadirError):
    """Reading a folder fails, in one line that names the file, if any file is cut, changed, emptied or removed."""
    names = [path.name for path in files_in(folder)]
    for damage in (*DAMAGES, lambda path: path.write_bytes(b""), Path.unlink):
        for path in damaged(folder, damage):
            _refused(read, folder, error, names if path.name == MANIFEST else [path.name])  # by whose sum it seems so
    read(folder)


def refuses_forgery(read, folder, needed=(), error=PadirError):
    """Reading fails if the manifest names a file outside the folder, or what is no file, or lacks a needed file.

    The sums of such a manifest are right: whoever makes a folder can write it.
    """
    before = (folder / MANIFEST).read_text()
    contents = json.loads(before)
    (folder.parent / "outside").write_text("secret")
    (folder / "inner").mkdir()
    for link, target in (("link", "../outside"), ("links", "/etc"), ("circle", "circle")):
        (folder / link).symlink_to(target)
    os.mkfifo(folder / "fifo")  # whoever opens it waits for ever
    entry = {"sha256": hashlib.sha256(b"secret").hexdigest(), "bytes": 6}

    def refused(files, message):
        (folder / MANIFEST).write_text(json.dumps(sealed(contents | {"files": files})))
        _refused(read, folder, error, match=message)

    for name in ("../outside", "inner/../../outside", "/etc/passwd", "/dev/zero", "links/passwd", "link"):
        refused(contents["files"] | {name: entry}, "outside its folder")
    for name in ("a\0b", "x" * 5_000, "circle", "fifo", "."):
        refused(contents["files"] | {name: entry}, "outside its folder|is no file|is missing")
    for name in needed:
        refused({each: sums for each, sums in contents["files"].items() if each != name}, f"does not name {name}")
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)
    _refused(read, folder, error, [MANIFEST])
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).write_text(before)
    read(folder)


def _refused(read, folder, error, names=("",), match=None):
    with pytest.raises(error, match=match) as found:
        read(folder)
    assert any(name in str(found.value) for name in names) and "\n" not in str(found.value)


@contextlib.contextmanager
def full_disk(most_bytes):
    """No file can grow beyond so many bytes: the write fails as one on a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def read_only(folder):
    """Nothing in the folder can be written; as root, who may write anywhere, we are nobody meanwhile."""
    folder.chmod(0o555)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(_NOBODY)
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)

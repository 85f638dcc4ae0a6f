"""What goes wrong with disks, for tests: damaged files, a full disk, a folder that nobody may write to."""

import contextlib
import os
import resource
import shutil
import tempfile
from pathlib import Path

import pytest

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
    """All files that hold something, those of inner folders, too."""
    return sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size)


def damaged(folder, damage):
    """Each file of a folder in turn, damaged; it is whole again afterwards."""
    for path in files_in(folder):
        content = path.read_bytes()
        damage(path)
        yield path
        path.write_bytes(content)


@contextlib.contextmanager
def full_disk(most_bytes):
    """No file can grow beyond so many bytes: the write fails as one on a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def open_folder():
    """A folder that another user can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="padir-tests-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


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

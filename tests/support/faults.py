"""Faults of disks: damaged files, a full disk, a folder that nobody may write to."""

import contextlib
import os
import resource
from pathlib import Path

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

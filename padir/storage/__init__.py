"""Reading and writing on disk: atomic files and folders, manifests, locks, resumable work.

Every file or folder that padir writes is either complete under its final name or absent. While it is being written, it
has the name `.NAME.DIGITS.partial` in the same parent folder.
"""

from padir.storage.files import (
    atomic_file,
    check_writable,
    path_inside,
    read_json,
    write_errors,
    write_json,
    write_text,
)
from padir.storage.folders import Chunks, atomic_folder, folder_lock, partial_folder
from padir.storage.manifest import MANIFEST, FileSum, Manifest, check_manifest, sha256, write_manifest

__all__ = [
    "MANIFEST",
    "Chunks",
    "FileSum",
    "Manifest",
    "atomic_file",
    "atomic_folder",
    "check_manifest",
    "check_writable",
    "folder_lock",
    "partial_folder",
    "path_inside",
    "read_json",
    "sha256",
    "write_errors",
    "write_json",
    "write_manifest",
    "write_text",
]

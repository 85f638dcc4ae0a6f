"""Reading and writing on disk: atomic files and folders, manifests, locks, resumable work, type checks of JSON values.

Every file or folder that padir writes is either complete under its final name or absent. While it is being written, it
has the name `.NAME.PID.partial` in the same parent folder.
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
from padir.storage.folders import atomic_folder, folder_lock, partial_folder
from padir.storage.manifest import MANIFEST, FileSum, Manifest, check_manifest, sha256, write_manifest
from padir.storage.resumable import Chunks
from padir.storage.typecheck import fits, from_json

__all__ = [
    "MANIFEST",
    "Chunks",
    "FileSum",
    "Manifest",
    "atomic_file",
    "atomic_folder",
    "check_manifest",
    "check_writable",
    "fits",
    "folder_lock",
    "from_json",
    "partial_folder",
    "path_inside",
    "read_json",
    "sha256",
    "write_errors",
    "write_json",
    "write_manifest",
    "write_text",
]

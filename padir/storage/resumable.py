"""Chunks of long work, kept in a folder so that a stopped run resumes where it was."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from padir.errors import PadirError
from padir.storage.files import atomic_file
from padir.storage.folders import LOCK


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Results of long work as JSON files of a folder, which belongs to certain inputs.

    Attributes:
      folder: holds NAME.json for each result, and inputs.json.
    """

    folder: Path

    @staticmethod
    def open(folder: Path, inputs: dict[str, Any], overwrite: bool) -> Chunks:
        """Opens the folder; results from the same inputs are kept, `overwrite` removes those from other inputs.

        Raises:
          PadirError: the folder holds results from other inputs and may not be overwritten.
        """
        chunks = Chunks(folder)
        if chunks.read("inputs") not in (None, inputs):
            if not overwrite:
                raise PadirError(
                    f"{folder} holds the unfinished translations of another teacher, decoding or corpus: remove it, or"
                    " --overwrite"
                )
            for path in folder.iterdir():
                if path.name != LOCK:  # which the caller holds
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        chunks.once("inputs", lambda: inputs)
        return chunks

    def read(self, name: str) -> Any:
        """The result of that name, or None.

        Raises:
          PadirError: the file is damaged.
        """
        if name not in self:
            return None
        try:
            return json.loads(self._path(name).read_text(encoding="utf-8"))
        except ValueError:
            raise PadirError(f"{self._path(name)} is damaged: remove it, and run the same command again") from None

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The result of that name; the first call makes it and returns when it is safely on disk."""
        if name not in self:
            with atomic_file(self._path(name)) as file:
                json.dump(make(), file, ensure_ascii=False)
                file.flush()
                os.fsync(file.fileno())
        return self.read(name)

    def __contains__(self, name: str) -> bool:
        """True if there is a result of that name."""
        return self._path(name).exists()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

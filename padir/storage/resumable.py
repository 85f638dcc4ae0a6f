"""Results of long work in a folder, from which a stopped run resumes."""

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
    """Named results of long work, each a JSON file of a folder; all results in a folder are made from the same inputs.

    Attributes:
      folder: the folder, with NAME.json for each result and with inputs.json.
    """

    folder: Path

    @staticmethod
    def open(folder: Path, inputs: dict[str, Any], overwrite: bool) -> Chunks:
        """Opens a folder of results; `overwrite` removes results that were made from other inputs.

        Raises:
          PadirError: the folder holds results from other inputs, and `overwrite` is False.
        """
        chunks = Chunks(folder)
        if chunks.read("inputs") not in (None, inputs):
            if not overwrite:
                raise PadirError(
                    f"{folder} holds the unfinished translations of another teacher, decoding or corpus: remove it, or"
                    " set overwrite"
                )
            for path in folder.iterdir():
                if path.name != LOCK:  # the caller holds this lock
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        chunks.once("inputs", lambda: inputs)
        return chunks

    def read(self, name: str) -> Any:
        """Returns the result called `name`, or None if there is none.

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
        """Returns the result called `name`; the first call makes the result and writes it to disk before it returns."""
        if name not in self:
            with atomic_file(self._path(name)) as file:
                json.dump(make(), file, ensure_ascii=False)
                file.flush()
                os.fsync(file.fileno())
        return self.read(name)

    def __contains__(self, name: str) -> bool:
        """True if the folder has a result called `name`."""
        return self._path(name).exists()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

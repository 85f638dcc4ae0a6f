"""Results of long work that survive a stop: one file each, in a folder that belongs to certain inputs."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from padir.errors import PadirError
from padir.storage.files import LOCK, whole


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Results that survive a stop: JSON files in a folder that belongs to certain inputs."""

    folder: Path

    @staticmethod
    def open(folder: Path, inputs: dict[str, Any], overwrite: bool) -> Chunks:
        """Those of an earlier call with the same inputs, or none yet."""
        chunks = Chunks(folder)
        if chunks.read("inputs") not in (None, inputs):
            if not overwrite:
                raise PadirError(
                    f"{folder} holds the unfinished translations of another teacher, decoding or corpus: remove it, or"
                    " --overwrite"
                )
            for path in folder.iterdir():
                if path.name != LOCK:  # held by whoever opens them
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        chunks.once("inputs", lambda: inputs)
        return chunks

    def read(self, name: str) -> Any:
        """What was written under a name, or None.

        Raises:
          PadirError: it is damaged.
        """
        if name not in self:
            return None
        try:
            return json.loads(self._path(name).read_text(encoding="utf-8"))
        except ValueError:
            raise PadirError(f"{self._path(name)} is damaged: remove it, and run the same command again") from None

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gives, or gave before it was stopped; on disk, whole, before this returns."""
        if name not in self:
            with whole(self._path(name)) as file:
                json.dump(make(), file, ensure_ascii=False)
                file.flush()
                os.fsync(file.fileno())
        return self.read(name)

    def __contains__(self, name: str) -> bool:
        """Whether something was written under a name."""
        return self._path(name).exists()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

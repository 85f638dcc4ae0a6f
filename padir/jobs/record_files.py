"""Source sentences of a distillation's training records, and a temporary file of the teacher's translations."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np

from padir.data.manifest import PreparedManifest
from padir.data.prepared import load_tokenizer, read_lengths
from padir.data.records import read_records
from padir.storage.files import write_errors

SPLIT = "train"


class RecordSources:
    """The source side of the training records of a prepared folder.

    Attributes:
      tokenizer: the folder's vocabulary.
      longest_first_N: numbers of the N records, from the longest source to the shortest.
    """

    def __init__(self, data_dir: Path, manifest: PreparedManifest):
        self._folder = data_dir
        paths = [str(data_dir / shard) for shard in manifest.splits[SPLIT].shards]
        self._records: Any = grain.sources.ArrayRecordDataSource(paths)
        self.tokenizer = load_tokenizer(data_dir)
        self._length_N2 = length_N2 = read_lengths(data_dir, SPLIT, manifest.splits[SPLIT].written)
        # Longest sources first: memory runs out at once or never, and the estimated time errs on the long side.
        self.longest_first_N = np.argsort(-length_N2[:, 0], kind="stable")

    def read(self, numbers: list[int]) -> tuple[list[list[int]], list[str]]:
        """Source tokens with EOS, and source texts, of the records with these numbers."""
        vocab_size = self.tokenizer.ids.vocab_size
        pairs = read_records(self._records, numbers, self._length_N2[numbers], vocab_size, self._folder)
        tokens = [source.tolist() for source, _ in pairs]
        return tokens, [self.tokenizer.decode(ids) for ids in tokens]


class StoredTranslations:
    """A translation for each record, in a file that is removed at the end of the context.

    A translation is a dict: "text", and "truncated" if the teacher did not read all of the source. Memory holds two
    numbers for each record.

    Args:
      path: the file to create.
      count: number of records.
    """

    def __init__(self, path: Path, count: int):
        self._path = path
        self._begin_N, self._bytes_N = np.zeros(count, np.int64), np.zeros(count, np.int32)
        self._end = 0

    def __enter__(self) -> StoredTranslations:
        with write_errors(self._path):
            self._file = self._path.open("w+b", buffering=0)
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._begin_N)

    def put(self, numbers: Sequence[int], rows: list[dict[str, Any]]) -> None:
        """Stores the translations of the records with these numbers."""
        contents = [json.dumps(row, ensure_ascii=False).encode("utf-8") for row in rows]
        for number, content in zip(numbers, contents, strict=True):
            self._begin_N[number], self._bytes_N[number] = self._end, len(content)
            self._end += len(content)
        with write_errors(self._path):
            view = memoryview(b"".join(contents))
            while view:  # a write may take only a part
                view = view[self._file.write(view) :]

    def get(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The translations of the records with these numbers."""
        places = zip(self._bytes_N[numbers].tolist(), self._begin_N[numbers].tolist(), strict=True)
        return [json.loads(os.pread(self._file.fileno(), count, begin)) for count, begin in places]

"""Writes and reads the records of one split of a prepared folder.

A record is a sentence pair as little-endian int32: the number of source tokens, the source tokens, the target tokens.
Source and target end in EOS. Records hold no [LENGTH] tokens, which the loader adds.
"""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from padir.data.prepared import (
    FILTERS,
    REMEDY,
    LengthLimits,
    Mixture,
    PreparedManifest,
    SplitInfo,
    lengths_name,
    read_lengths,
)
from padir.data.sources import PathLike
from padir.errors import PadirError, first_line
from padir.text.ids import EOS, PADDING

LOST = "lost placeholder"  # of a distilled pair
NO_LETTERS = "no letters"  # on one side, although it has text
_LENGTHS = ("empty source", "empty target", "source too long", "target too long", "length ratio")
REASONS = (*_LENGTHS, *FILTERS, LOST, NO_LETTERS)

# Each group has one record, because the loader reads single records in shuffled order.
_WRITER_OPTIONS = "group_size:1"


class SplitWriter:
    """Writes a split's records, their lengths, and the list of dropped pairs into a folder; a context manager.

    Attributes:
      read: number of pairs given so far.
      corpus: name of the corpus that the next pairs are from, for the counts of `SplitInfo`; "" for none.
      info: the split's entry in the manifest, made when the context ends.
    """

    info: SplitInfo
    corpus = ""

    def __init__(self, directory: Path, split: str, limits: LengthLimits):
        self.directory = directory
        self._split = split
        self._limits = limits
        self._path = directory / f"{split}-00000-of-00001.arrayrecord"
        self._dropped: collections.Counter[str] = collections.Counter()
        self._corpora: dict[str, dict[str, int]] = {}
        self._digest = hashlib.sha256()
        self._lengths = array.array("i")  # source and target tokens of each record in turn
        self.read = 0

    def __enter__(self) -> SplitWriter:
        self._drops = (self.directory / f"dropped-{self._split}.jsonl").open("w", encoding="utf-8")
        self._records = ArrayRecordWriter(str(self._path), _WRITER_OPTIONS)
        return self

    def write(
        self, pair: tuple[str, str], source_ids: list[int], target_ids: list[int], reason: str | None = None
    ) -> None:
        """Writes the record of a pair, or the reason why the pair is dropped.

        Args:
          source_ids, target_ids: token ids of the pair in plain form, each ending in EOS.
          reason: one of `REASONS` to drop the pair whatever its lengths; None applies the limits.
        """
        self.read += 1
        self._digest.update(pair_bytes(pair))
        reason = reason or self._limits.reason_to_drop(len(source_ids), len(target_ids))
        counts = self._corpora.setdefault(self.corpus, {"read": 0, "written": 0})
        counts["read"] += 1
        if reason:
            self._dropped[reason] += 1
            self._drops.write(json.dumps({"line": self.read, "reason": reason}) + "\n")
            return
        counts["written"] += 1
        with self._room():
            self._records.write(np.array([len(source_ids), *source_ids, *target_ids], "<i4").tobytes())
        self._lengths.extend((len(source_ids), len(target_ids)))

    def __exit__(self, *exception: object) -> None:
        try:
            self._drops.close()
        finally:
            with self._room():
                self._records.close()
        length_N2 = np.array(self._lengths, "<i4").reshape(-1, 2)
        np.save(self.directory / lengths_name(self._split), length_N2, allow_pickle=False)
        totals = length_N2.sum(0, dtype=np.int64)
        longest = length_N2.max(0, initial=0)
        self.info = SplitInfo(
            read=self.read,
            written=len(length_N2),
            dropped={reason: self._dropped[reason] for reason in REASONS if self._dropped[reason]},
            source_tokens=int(totals[0]),
            target_tokens=int(totals[1]),
            longest_source=int(longest[0]),
            longest_target=int(longest[1]),
            shards=(self._path.name,),
            sha256=self._digest.hexdigest(),
            corpora={name: counts for name, counts in self._corpora.items() if name},
        )

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # ArrayRecord's error for a full disk
            why = str(error).split(";")[0]
            raise PadirError(f"cannot write {self._path} ({why})", remedy="make room on its disk") from error


@contextlib.contextmanager
def _readable(where: PathLike | Mixture) -> Iterator[None]:
    """Turns ArrayRecord's errors about damaged files into a `PadirError`."""
    try:
        yield
    except (RuntimeError, OSError, IndexError) as error:
        raise PadirError(f"the records of {where} are damaged ({first_line(error)})", remedy=REMEDY) from error


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """The records of a split, of one folder or several.

    Attributes:
      source: the records, a `grain.sources.ArrayRecordDataSource`.
      length_N2: the lengths of the two sides of each record, EOS included.
      vocab_size: number of ids.
      where: the folder or folders, for messages.
    """

    source: Any
    length_N2: np.ndarray
    vocab_size: int
    where: PathLike | Mixture

    @staticmethod
    def of(mixture: Mixture, manifests: list[PreparedManifest], split: str) -> Records:
        """Opens the records of a mixture's split, folder by folder.

        Raises:
          PadirError: a file cannot be read, or the numbers of records and of lengths differ.
        """
        parts = [(folder, each.splits[split]) for folder, each in zip(mixture.folders, manifests, strict=True)]
        paths = [str(Path(folder, shard)) for folder, info in parts for shard in info.shards]
        length_N2 = np.concatenate([read_lengths(folder, split, info.written) for folder, info in parts])
        with _readable(mixture):
            source: Any = grain.sources.ArrayRecordDataSource(paths)
        if len(source) != len(length_N2):
            what = f"{mixture} must have {len(length_N2)} pairs in {split}, got {len(source)} records"
            raise PadirError(what, remedy=REMEDY)
        return Records(source, length_N2, manifests[0].vocabulary.size, mixture)

    def read(self, numbers: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All source tokens and all target tokens of records, as two int32 arrays with one record after another.

        Raises:
          PadirError: a file cannot be read, a record has other lengths or ids, or a side of it does not end in EOS.
        """
        if not len(numbers):
            return np.zeros(0, np.int32), np.zeros(0, np.int32)
        with _readable(self.where):
            records = self.source.__getitems__([*map(int, numbers)])
        length_N2 = self.length_N2[numbers]
        source_N, target_N = length_N2.T.astype(np.int64)
        size_N = 1 + source_N + target_N

        def check(whole_N: np.ndarray) -> None:
            if not whole_N.all():
                lengths = " and ".join(map(str, length_N2[whole_N.argmin()].tolist()))
                raise PadirError(f"a record must be a pair of {lengths} ids below {self.vocab_size}", remedy=REMEDY)

        check((np.array([*map(len, records)]) == 4 * size_N) & (source_N > 0) & (target_N > 0))
        all_T = np.frombuffer(b"".join(records), "<i4")
        begin_N = np.cumsum(size_N) - size_N
        parts = np.stack([np.ones_like(source_N), source_N, target_N], axis=1)  # the source's length, and the two sides
        part_T = np.repeat(np.tile(np.arange(3, dtype=np.int8), len(parts)), parts.ravel())
        is_id_T = (part_T == 0) | ((all_T > PADDING) & (all_T < self.vocab_size))
        ends = (all_T[begin_N + source_N] == EOS) & (all_T[begin_N + size_N - 1] == EOS)
        check((all_T[begin_N] == source_N) & ends & np.logical_and.reduceat(is_id_T, begin_N))
        return all_T[part_T == 1], all_T[part_T == 2]


def pair_bytes(pair: tuple[str, str]) -> bytes:
    """The bytes of a pair for the SHA-256 of its split: each sentence, followed by a newline."""
    return f"{pair[0]}\n{pair[1]}\n".encode()

"""The records of one split of a prepared folder: which pairs become records, and writing them.

A record is little-endian int32: the number of source tokens, the source tokens, the target tokens. Both end in EOS;
the length token is the loader's business.
"""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from padir.data.prepared import lengths_name
from padir.errors import PadirError

REASONS = ("empty source", "empty target", "source too long", "target too long", "length ratio")

# One record a group: the loader reads single records in shuffled order.
_WRITER_OPTIONS = "group_size:1"


@dataclasses.dataclass(frozen=True)
class Limits:
    """Which pairs become records. Tokens are counted with EOS.

    Attributes:
      max_source_tokens, max_target_tokens: longer pairs are dropped.
      max_length_ratio: pairs whose longer side has more than this many times the tokens of the shorter one are
        dropped; None keeps them.
    """

    max_source_tokens: int = 256
    max_target_tokens: int = 256
    max_length_ratio: float | None = None

    def __post_init__(self):
        for name in ("max_source_tokens", "max_target_tokens"):
            if getattr(self, name) < 2:
                raise PadirError(f"{name} must be at least 2 (a token and EOS), got {getattr(self, name)}")
        if self.max_length_ratio is not None and not self.max_length_ratio >= 1:  # nan, too
            raise PadirError(f"max_length_ratio must be at least 1, or None for no limit, got {self.max_length_ratio}")

    def reason_to_drop(self, source: str, target: str, source_tokens: int, target_tokens: int) -> str | None:
        """The first of `REASONS` that speaks against a pair, or None."""
        if not source.strip():
            return "empty source"
        if not target.strip():
            return "empty target"
        if source_tokens > self.max_source_tokens:
            return "source too long"
        if target_tokens > self.max_target_tokens:
            return "target too long"
        shorter, longer = sorted((source_tokens, target_tokens))
        if self.max_length_ratio is not None and longer > self.max_length_ratio * shorter:
            return "length ratio"
        return None


class SplitWriter:
    """Writes a split's records, their lengths, and the list of the pairs that have none; a context manager.

    Attributes:
      read: pairs given so far.
      info: what the manifest says of the split; there after the context has ended.
    """

    def __init__(self, directory: Path, split: str, limits: Limits, per_shard: int):
        self._directory, self._split, self._limits = directory, split, limits
        self._stack = contextlib.ExitStack()
        self._shards = _Shards(directory, split, per_shard)
        self._dropped: collections.Counter[str] = collections.Counter()
        self._digest = hashlib.sha256()
        self._lengths = array.array("i")  # source and target tokens of each record in turn
        self.read = 0
        self.info: dict[str, Any] = {}

    def __enter__(self) -> SplitWriter:
        path = self._directory / f"dropped-{self._split}.jsonl"
        self._drops = self._stack.enter_context(path.open("w", encoding="utf-8"))
        self._stack.enter_context(self._shards)
        return self

    def write(
        self, pair: tuple[str, str], source_ids: list[int], target_ids: list[int], reason: str | None = None
    ) -> None:
        """Writes a pair's record, or notes why it has none: `reason`, or what the limits say. Both ids end in EOS."""
        self.read += 1
        self._digest.update(pair_bytes(pair))
        reason = reason or self._limits.reason_to_drop(*pair, len(source_ids), len(target_ids))
        if reason:
            self._dropped[reason] += 1
            self._drops.write(json.dumps({"line": self.read, "reason": reason}) + "\n")
            return
        self._shards.write(np.array([len(source_ids), *source_ids, *target_ids], "<i4").tobytes())
        self._lengths.extend((len(source_ids), len(target_ids)))

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
        length_N2 = np.array(self._lengths, "<i4").reshape(-1, 2)
        np.save(self._directory / lengths_name(self._split), length_N2, allow_pickle=False)
        totals = length_N2.sum(0, dtype=np.int64)
        longest = length_N2.max(0, initial=0)
        self.info = {
            "read": self.read,
            "written": len(length_N2),
            "dropped": {reason: self._dropped[reason] for reason in REASONS if self._dropped[reason]},
            "source_tokens": int(totals[0]),
            "target_tokens": int(totals[1]),
            "longest_source": int(longest[0]),
            "longest_target": int(longest[1]),
            "shards": self._shards.names,
            "sha256": self._digest.hexdigest(),
        }


class _Shards:
    """ArrayRecord files of at most `per_shard` records, named with their total once that is known."""

    def __init__(self, directory: Path, split: str, per_shard: int):
        self._directory, self._split, self._per_shard = directory, split, per_shard
        self._paths: list[Path] = []
        self._count = 0
        self._writer: ArrayRecordWriter | None = None
        self.names: list[str] = []

    def __enter__(self) -> _Shards:
        self._next()
        return self

    def _next(self) -> ArrayRecordWriter:
        self._close()
        self._paths.append(self._directory / f"{self._split}-{len(self._paths):05d}.partial")
        self._writer = ArrayRecordWriter(str(self._paths[-1]), _WRITER_OPTIONS)
        return self._writer

    def _close(self) -> None:
        if self._writer is not None:
            with self._written():
                self._writer.close()

    def write(self, record: bytes) -> None:
        writer = self._writer
        if writer is None or (self._count and self._count % self._per_shard == 0):
            writer = self._next()
        with self._written():
            writer.write(record)
        self._count += 1

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # a full disk, in ArrayRecord's words
            why = str(error).split(";")[0]
            raise PadirError(f"cannot write {self._paths[-1]} ({why}): make room on its disk") from error

    def __exit__(self, *exception: object) -> None:
        self._close()
        for number, path in enumerate(self._paths):
            name = f"{self._split}-{number:05d}-of-{len(self._paths):05d}.arrayrecord"
            path.rename(path.with_name(name))
            self.names.append(name)


@contextlib.contextmanager
def readable(where: object) -> Iterator[None]:
    """Says in padir's words that ArrayRecord found a shard damaged.

    Args:
      where: the folder, or what else names the records.
    """
    try:
        yield
    except (RuntimeError, OSError, IndexError) as error:
        what = str(error).splitlines()[0][:200]
        raise PadirError(f"the records of {where} are damaged ({what}): run `padir prepare --overwrite`") from error


def read_record(record: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The source tokens and the target tokens of a record, int32, both with their EOS."""
    numbers = np.frombuffer(record, "<i4")
    source, target = np.split(numbers[1:], [numbers[0]])
    return source, target


def pair_bytes(pair: tuple[str, str]) -> bytes:
    """What a split's sha256 is taken of; a newline cannot occur in a sentence, so the pairs can be told apart."""
    return f"{pair[0]}\n{pair[1]}\n".encode()

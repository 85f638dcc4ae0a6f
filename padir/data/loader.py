"""The loader: a prepared folder to batches of token arrays, packed or bucketed by length.

Which pair goes where follows from (seed, epoch) and the pairs' lengths alone (`padir.data.plan`). So the loader's whole
state is (epoch, batch), restoring it is exact, and every process of a multi-host run makes the same plan and reads only
its own rows of it.

    pack     several pairs in a row of fixed length, source and target of a pair under the same segment number
    bucket   one pair a row; rows of like length together, shorter rows in batches of more of them

A batch is a dict of int32 arrays: source_BS, source_segment_BS, target_BL, target_segment_BL. Segments are numbered
from 1 in each row; padding has segment 0. A source segment is [length token] + source + EOS, a target segment is
target + EOS. Every pair comes once in an epoch; the epoch's last batch is filled up with empty rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np

from padir.data.plan import BUCKET_STEP, PLANS, Layout, Rows, Shape
from padir.data.prepared import load_manifest
from padir.data.sources import PathLike
from padir.errors import PadirError
from padir.tokens import Ids, round_up

Batch = dict[str, np.ndarray]

_PREFETCHED_BATCHES = 4


def make_loader(
    directory: PathLike,
    split: str = "train",
    *,
    rows: int,
    row_length: int,
    source_row_length: int | None = None,
    mode: str = "pack",
    max_segments: int | None = None,
    row_multiple: int = 1,
    length_token: bool = True,
    seed: int = 0,
    shuffle: bool = True,
    num_epochs: int | None = None,
    shard_index: int = 0,
    shard_count: int = 1,
    verify: bool = False,
) -> grain.DatasetIterator[Batch]:
    """An iterator over the batches of a prepared split.

    Its `get_state()` is a small dict for JSON; `set_state()` on an iterator made with the same arguments goes on with
    exactly the batches that would have followed. Each epoch is shuffled over the whole split, in an order of its own.

    >>> batches = make_loader("prepared", rows=32, row_length=128)  # doctest: +SKIP
    >>> next(batches)["target_BL"].shape  # doctest: +SKIP
    (32, 128)

    Args:
      rows, row_length, source_row_length, mode, max_segments, row_multiple: see `Layout`. source_row_length is
        `default_source_length` if not given, max_segments an eighth of row_length. Bucketed batches have about
        rows * row_length target positions each.
      length_token: put the length token in front of every source.
      seed: of the order; the same seed gives the same batches on every machine.
      num_epochs: None goes on forever.
      shard_index, shard_count: this process and how many there are; each gets rows / shard_count of every batch.
      verify: compare the sha256 of the files with the manifest, too, not only their sizes.

    Raises:
      PadirError: the folder is not whole, has no such split, holds pairs longer than a row, or an argument makes no
        sense. `set_state` raises it for a state of other data or arguments.
    """
    directory = Path(directory)
    manifest = load_manifest(directory, verify=verify)
    if split not in manifest["splits"]:
        raise PadirError(f"{directory} has the splits {', '.join(manifest['splits'])}, got {split!r}")
    if not 0 <= shard_index < shard_count:
        raise PadirError(f"shard_index must be in 0 .. shard_count - 1, got {shard_index} of {shard_count}")
    if not 0 <= seed < 2**32:
        raise PadirError(f"seed must be in 0 .. 2**32 - 1, got {seed}")
    if num_epochs is not None and num_epochs < 1:
        raise PadirError(f"num_epochs must be at least 1, or None to go on forever, got {num_epochs}")
    if source_row_length is None:
        source_row_length = default_source_length(manifest, row_length, length_token=length_token)
    if max_segments is None:
        max_segments = max(1, row_length // 8)
    layout = Layout(rows, row_length, source_row_length, mode, max_segments, math.lcm(row_multiple, shard_count))
    _check_room(manifest, split, layout, length_token)
    batches = _Batches(
        directory,
        manifest,
        split,
        layout,
        length_token=length_token,
        seed=seed if shuffle else None,
        num_epochs=num_epochs,
        shard=slice(shard_index, None, shard_count),
    )
    return iter(grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=_PREFETCHED_BATCHES))


def default_source_length(manifest: dict[str, Any], row_length: int, *, length_token: bool = True) -> int:
    """S for rows of L target tokens: what their sources take on average and a tenth more, at least the longest source.

    The tenth keeps the source side from being what fills a row up. Counted on the training split if there is one, so
    that all splits get the same shape; rounded up to a multiple of 8.
    """
    splits = manifest["splits"]
    main = splits.get("train") or next(iter(splits.values()))
    source_tokens = main["source_tokens"] + length_token * main["written"]
    average = row_length * source_tokens / max(1, main["target_tokens"])
    longest = max(split["longest_source"] for split in splits.values()) + length_token
    return round_up(max(math.ceil(1.1 * average), longest), BUCKET_STEP)


def _check_room(manifest: dict[str, Any], split: str, layout: Layout, length_token: bool) -> None:
    info = manifest["splits"][split]
    if not info["written"]:
        raise PadirError(f"{split} has no pairs after preparation: prepare text that has some, or with other limits")
    for side, name, room in (
        ("source", "source_row_length", layout.source_row_length - length_token),
        ("target", "row_length", layout.row_length),
    ):
        longest = info[f"longest_{side}"]
        if longest > room:
            raise PadirError(
                f"{name} must be at least {longest + getattr(layout, name) - room} for the longest {side} of {split},"
                f" got {getattr(layout, name)}: raise it, or prepare with --max_{side}_tokens={room}"
            )


class _Batches(grain.IterDataset):
    """The batches as a Grain dataset; `seed` None keeps the records' order."""

    def __init__(
        self,
        directory: Path,
        manifest: dict[str, Any],
        split: str,
        layout: Layout,
        *,
        length_token: bool,
        seed: int | None,
        num_epochs: int | None,
        shard: slice,
    ):
        super().__init__()
        info, vocabulary = manifest["splits"][split], manifest["vocabulary"]
        ids = Ids(vocabulary["size"], vocabulary["num_sentinels"])
        self._layout, self._seed, self.num_epochs, self._shard = layout, seed, num_epochs, shard
        self._prefix = [ids.length] if length_token else []
        length_N2 = np.load(directory / f"{split}.lengths.npy", allow_pickle=False)
        self._length_N2 = length_N2 + np.array([len(self._prefix), 0], np.int32)
        self._records: Any = grain.sources.ArrayRecordDataSource([str(directory / name) for name in info["shards"]])
        if not len(self._records) == len(length_N2) == info["written"]:
            raise PadirError(
                f"{directory} must have {info['written']} pairs in {split}, got {len(self._records)} records and"
                f" {len(length_N2)} lengths: run `padir prepare --overwrite`"
            )
        # What must be the same for a saved state to mean the same batches (the number of processes need not).
        same = [info["sha256"], vocabulary, manifest["limits"], layout.mode, layout.shapes(), layout.max_segments]
        self.fingerprint = hashlib.sha256(json.dumps([*same, self._prefix, seed]).encode()).hexdigest()[:16]

    def plan(self, epoch: int) -> Iterator[tuple[Shape, Rows]]:
        order = np.arange(len(self._length_N2))
        if self._seed is not None:
            # RandomState, because NumPy promises its stream for good; Generator's may change between versions.
            order = np.random.RandomState([self._seed, epoch]).permutation(order)
        return PLANS[self._layout.mode](order, self._length_N2, self._layout)

    def fill(self, shape: Shape, rows: Rows) -> Batch:
        """Reads the records of this process's rows and lays them out."""
        B, S, L = shape
        B = len(range(B)[self._shard])
        rows = rows[self._shard]
        records = iter(self._records.__getitems__([record for row in rows for record in row]))
        batch = {
            "source_BS": np.zeros((B, S), np.int32),
            "source_segment_BS": np.zeros((B, S), np.int32),
            "target_BL": np.zeros((B, L), np.int32),
            "target_segment_BL": np.zeros((B, L), np.int32),
        }
        for b, row in enumerate(rows):
            s = t = 0
            for segment in range(1, len(row) + 1):
                record = np.frombuffer(next(records), "<i4")
                source, target = np.split(record[1:], [record[0]])
                first = s + len(self._prefix)
                batch["source_BS"][b, s:first] = self._prefix
                batch["source_BS"][b, first : first + len(source)] = source
                batch["source_segment_BS"][b, s : first + len(source)] = segment
                batch["target_BL"][b, t : t + len(target)] = target
                batch["target_segment_BL"][b, t : t + len(target)] = segment
                s, t = first + len(source), t + len(target)
        return batch

    def __iter__(self) -> _BatchIterator:
        return _BatchIterator(self)


class _BatchIterator(grain.DatasetIterator):
    """Walks the plan of one epoch after the other; its state is how far it has come."""

    def __init__(self, batches: _Batches):
        super().__init__()
        self._batches = batches
        self._epoch = self._batch = 0
        self._plan: Iterator[tuple[Shape, Rows]] | None = None

    def __next__(self) -> Batch:
        while self._batches.num_epochs is None or self._epoch < self._batches.num_epochs:
            if self._plan is None:
                self._plan = self._batches.plan(self._epoch)
                for _ in range(self._batch):  # after a restore: planned again, but not read
                    next(self._plan, None)
            planned = next(self._plan, None)
            if planned is not None:
                self._batch += 1
                return self._batches.fill(*planned)
            self._epoch, self._batch, self._plan = self._epoch + 1, 0, None
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "batch": self._batch, "fingerprint": self._batches.fingerprint}

    def set_state(self, state: dict[str, Any]) -> None:
        if state.get("fingerprint") != self._batches.fingerprint:
            raise PadirError(
                "the loader's saved state belongs to other data, other batch shapes or another seed: resume with the"
                " settings of the first run, or start a new run"
            )
        self._epoch, self._batch, self._plan = state["epoch"], state["batch"], None


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """How full the batches of an epoch are: real tokens / positions. Length tokens and EOS are real."""

    source: float
    target: float
    pairs: int
    rows: int
    batches: int


def packing_efficiency(directory: PathLike, split: str = "train", **arguments: Any) -> Efficiency:
    """Measures one epoch of `make_loader(directory, split, **arguments)` by reading every batch; empty rows count."""
    tokens, positions = np.zeros(2, int), np.zeros(2, int)
    pairs = rows = batches = 0
    for batch in make_loader(directory, split, **{**arguments, "num_epochs": 1}):
        segments = batch["source_segment_BS"], batch["target_segment_BL"]
        tokens += [np.count_nonzero(side) for side in segments]
        positions += [side.size for side in segments]
        pairs += int(batch["target_segment_BL"].max(1).sum())
        rows += len(batch["target_BL"])
        batches += 1
    source, target = (tokens / positions).tolist()
    return Efficiency(source, target, pairs, rows, batches)

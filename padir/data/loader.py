"""The loader: batches of token arrays from prepared folders, packed or bucketed by length.

Only seed, epoch and the lengths of the pairs decide which pairs are in which batch (`padir.data.plan`). So the loader's
state is (epoch, batch), and a restored loader gives exactly the same batches. Every process of a training run makes the
same plan and reads only its own rows. There are two modes of batching:

    pack     several pairs in a row of fixed length; source and target of a pair have the same segment number
    bucket   one pair in a row; a batch has rows of similar length, and more rows if they are shorter

A batch is a dict of int32 arrays: source_BS, source_segment_BS, target_BL, target_segment_BL. Segments are numbered
from 1 in each row; padding has segment 0. A source segment is [length token] + source + EOS, a target segment is
target + EOS. Every pair comes once in an epoch, or as often as the weights of the mixture say. The last batch of an
epoch is filled up with empty rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

import grain
import numpy as np

from padir import checks
from padir.data.plan import BUCKET_STEP, PLANS, Batching, Rows, Shape
from padir.data.prepared import Mixture, PreparedManifest, SplitInfo
from padir.data.records import Records
from padir.data.sources import PathLike
from padir.errors import PadirError
from padir.text.ids import Ids, round_up

Arrays = dict[str, np.ndarray]  # the arrays of one batch, by name

_PREFETCHED_BATCHES = 4


def make_loader(
    data: PathLike | Mixture,
    batching: Batching,
    *,
    split: str = "train",
    row_multiple: int = 1,
    length_token: bool = True,
    seed: int | None = 0,
    num_epochs: int | None = None,
    shard: tuple[int, int] = (0, 1),
) -> grain.DatasetIterator[Arrays]:
    """Makes an iterator over the batches of one split of a prepared folder or of a mixture of folders.

    `get_state()` gives a small dict for JSON. `set_state()` on an iterator made with the same arguments continues with
    exactly the batches that would have followed. Each epoch shuffles the whole split in another order.

    >>> batches = make_loader("prepared", Batching(rows=32, row_length=128))  # doctest: +SKIP
    >>> next(batches)["target_BL"].shape  # doctest: +SKIP
    (32, 128)

    Args:
      batching: the shape of the batches; source_row_length is `default_source_length` if not given.
      row_multiple: the number of rows in a batch is a multiple of this number and of the batching's own row_multiple.
      length_token: put the length token in front of every source.
      seed: seed of the order of pairs; the same seed gives the same batches on every machine. None does not shuffle.
      num_epochs: None repeats the data forever.
      shard: (index of this process, number of processes); each process gets an equal share of every batch's rows.

    Raises:
      PadirError: a folder is not whole, lacks the split, or holds pairs longer than a row; the folders have different
        vocabularies or languages; an argument is out of range. `set_state` raises this error for a state of other data
        or arguments.
    """
    index, count = shard
    if not 0 <= index < count:
        raise PadirError("shard", "(index, count) with 0 <= index < count", shard)
    if seed is not None:
        checks.within(0, 2**32 - 1, "use None to keep the order of the records", seed=seed)
    if num_epochs is not None:
        checks.counts(1, "use None to repeat the data forever", num_epochs=num_epochs)
    mixture = Mixture.of(data)
    manifests = mixture.manifests(split)
    source_length = batching.source_row_length
    if source_length is None:
        source_length = max(
            default_source_length(manifest, batching.row_length, length_token=length_token) for manifest in manifests
        )
    batching = batching.resolved(source_length, math.lcm(row_multiple, count, batching.row_multiple))
    for folder, manifest in zip(mixture.folders, manifests, strict=True):
        _check_room(folder, manifest.splits[split], split, batching, length_token)
    batches = _Batches(
        mixture,
        manifests,
        split,
        batching,
        length_token=length_token,
        seed=seed,
        num_epochs=num_epochs,
        shard=shard,
    )
    return iter(grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=_PREFETCHED_BATCHES))


def default_source_length(manifest: PreparedManifest, row_length: int, *, length_token: bool = True) -> int:
    """The default source length S of packed rows with `row_length` target tokens.

    S is the average number of source tokens for `row_length` target tokens, plus a tenth, so that the source side of a
    row is seldom full before the target side. S is at least the longest source and a multiple of 8. The average is
    taken over the training split, if there is one, so that all splits get the same shape.
    """
    splits = manifest.splits
    main = splits.get("train") or next(iter(splits.values()))
    source_tokens = main.source_tokens + length_token * main.written
    average = row_length * source_tokens / max(1, main.target_tokens)
    longest = max(split.longest_source for split in splits.values()) + length_token
    return round_up(max(math.ceil(1.1 * average), longest), BUCKET_STEP)


def _check_room(folder: str, info: SplitInfo, split: str, batching: Batching, length_token: bool) -> None:
    if not info.written:
        remedy = "prepare other text, or prepare it with other limits"
        raise PadirError(f"{split} of {folder} has no pairs after preparation", remedy=remedy)
    for side, name, reserved in (("source", "source_row_length", int(length_token)), ("target", "row_length", 0)):
        length = getattr(batching, name)
        needed = getattr(info, f"longest_{side}") + reserved
        if length < needed:
            raise PadirError(
                name,
                f"at least {needed} for the longest {side} of {split}",
                length,
                f"raise gin's Batching.{name}, or prepare with max_{side}_tokens={length - reserved}",
            )


class _Batches(grain.IterDataset):
    """This process's share of the batches of a mixture's split, for `num_epochs` epochs (None: forever)."""

    def __init__(
        self,
        mixture: Mixture,
        manifests: list[PreparedManifest],
        split: str,
        batching: Batching,
        *,
        length_token: bool,
        seed: int | None,
        num_epochs: int | None,
        shard: tuple[int, int],
    ):
        super().__init__()
        infos = [manifest.splits[split] for manifest in manifests]
        vocabulary = manifests[0].vocabulary
        ids = Ids(vocabulary.size, vocabulary.num_sentinels)
        self.num_epochs = num_epochs
        self._shard = shard
        self._mixture = mixture
        self._batching = batching
        self._seed = seed
        self._counts = [info.written for info in infos]
        self._prefix = [ids.length] if length_token else []
        self._records = Records.of(mixture, manifests, split)
        self._added_2 = np.array([len(self._prefix), 0], np.int32)
        self._length_N2 = self._records.length_N2 + self._added_2
        # A saved state stands for the same batches if all these values are equal; the number of processes may differ.
        limits = [dataclasses.asdict(manifest.limits) for manifest in manifests]
        same: list[Any] = [infos[0].sha256, dataclasses.asdict(vocabulary), limits[0]]
        same += [batching.mode, batching.shapes(), batching.num_segments, self._prefix, seed]
        if any(manifest.placeholders for manifest in manifests):
            same.append([manifest.placeholders for manifest in manifests])
        if mixture.weights != (1.0,):
            same += [[info.sha256 for info in infos], limits, mixture.weights]
        self.fingerprint = hashlib.sha256(json.dumps(same).encode()).hexdigest()[:16]

    def __iter__(self) -> _BatchIterator:
        return _BatchIterator(self)

    def plan(self, epoch: int) -> Iterator[tuple[Shape, Rows]]:
        """Plans the batches of an epoch, as shapes and record numbers."""
        order = self._mixture.chosen(self._counts, epoch, self._seed or 0)
        if self._seed is not None:
            # NumPy promises that RandomState never changes its random numbers; a Generator's numbers may change.
            order = np.random.RandomState([self._seed, epoch]).permutation(order)
        return PLANS[self._batching.mode](order, self._length_N2, self._batching)

    def fill(self, shape: Shape, rows: Rows) -> Arrays:
        """Reads the records of this process's share of the rows and lays them out as arrays."""
        B, S, L = shape
        index, count = self._shard
        B //= count
        rows = rows[index * B : (index + 1) * B]
        numbers = [record for row in rows for record in row]  # may be empty in the last batch of an epoch
        stored_N2 = self._records.length_N2[np.array(numbers, int)]
        sides = self._records.read(numbers)
        count_B = np.array([len(row) for row in rows], int)
        first_N = np.repeat(np.cumsum(count_B) - count_B, count_B)  # number of the first pair of each pair's row
        row_N = np.repeat(np.arange(len(rows)), count_B)
        segment_N = np.arange(len(numbers)) - first_N + 1
        batch: Arrays = {}
        for name, length, tokens_T, stored_N, added in zip(
            ("source", "target"), (S, L), sides, stored_N2.T.astype(np.int64), self._added_2.tolist(), strict=True
        ):
            begin_N = np.cumsum(stored_N + added) - (stored_N + added)
            begin_N += length * row_N - begin_N[first_N]  # places in the flat batch
            values = np.zeros(B * length, np.int32)
            segments = np.zeros(B * length, np.int32)
            values[(begin_N[:, None] + np.arange(added)).ravel()] = np.tile(self._prefix[:added], len(numbers))
            values[_ranges(begin_N + added, stored_N)] = tokens_T
            segments[_ranges(begin_N, stored_N + added)] = np.repeat(segment_N, stored_N + added)
            axes = "BS" if name == "source" else "BL"
            batch |= {
                f"{name}_{axes}": values.reshape(B, length),
                f"{name}_segment_{axes}": segments.reshape(B, length),
            }
        return batch


def _ranges(begin_N: np.ndarray, size_N: np.ndarray) -> np.ndarray:
    """The numbers begin .. begin + size - 1 of every range, one range after another.

    >>> _ranges(np.array([5, 20]), np.array([3, 2])).tolist()
    [5, 6, 7, 20, 21]
    """
    before_N = np.cumsum(size_N) - size_N
    return np.repeat(begin_N - before_N, size_N) + np.arange(size_N.sum())


class _BatchIterator(grain.DatasetIterator):
    """Iterates over the planned batches, epoch after epoch; the state is the number of the epoch and of the batch."""

    def __init__(self, batches: _Batches):
        super().__init__()
        self._batches = batches
        self._epoch = self._batch = 0
        self._plan: Iterator[tuple[Shape, Rows]] | None = None

    def __next__(self) -> Arrays:
        while self._batches.num_epochs is None or self._epoch < self._batches.num_epochs:
            if self._plan is None:
                self._plan = self._batches.plan(self._epoch)
                for _ in range(self._batch):  # after a restore, earlier batches are planned again, but not read
                    next(self._plan, None)
            planned = next(self._plan, None)
            if planned is not None:
                self._batch += 1
                return self._batches.fill(*planned)
            self._epoch += 1
            self._batch = 0
            self._plan = None
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "batch": self._batch, "fingerprint": self._batches.fingerprint}

    def set_state(self, state: dict[str, Any]) -> None:
        if state.get("fingerprint") != self._batches.fingerprint:
            what = "the loader's saved state belongs to other data, other batch shapes or another seed"
            raise PadirError(what, remedy="resume with the settings of the first run, or start a new run")
        self._epoch = state["epoch"]
        self._batch = state["batch"]
        self._plan = None

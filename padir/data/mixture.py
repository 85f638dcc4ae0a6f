"""Mixtures of several prepared folders, each with a weight, that are read as one corpus.

The records of all folders are numbered consecutively. So the batches of a mixture are planned like those of one folder,
and the loader's state is (epoch, batch) in both cases.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from padir.data.manifest import PreparedManifest
from padir.data.prepared import load_manifest, read_lengths
from padir.data.sources import PathLike
from padir.errors import PadirError
from padir.storage.copies import fetched


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Prepared folders that are read as one corpus, such as raw and distilled pairs.

    Attributes:
      folders: folders from `padir prepare` or `padir distill`, or their addresses, with the same vocabulary and
        languages.
      weights: number of times that each pair of a folder comes in an epoch; with 0.5, each epoch has half of the
        folder's pairs. () gives every folder weight 1.

    Raises:
      PadirError: there is no folder, a weight is not above 0, or the numbers of folders and weights differ.
    """

    folders: tuple[str, ...]
    weights: tuple[int | float, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "folders", tuple(self.folders))
        if not self.folders:
            raise PadirError("a mixture needs at least one prepared folder")
        object.__setattr__(self, "weights", tuple(map(float, self.weights)) or (1.0,) * len(self.folders))
        if len(self.weights) != len(self.folders):
            raise PadirError(f"{len(self.folders)} folders need as many weights, got {len(self.weights)}")
        if not all(0 < weight < math.inf for weight in self.weights):
            raise PadirError("weights", "above 0", self.weights, "leave out a folder that is not to be read")

    @staticmethod
    def of(data: PathLike | Mixture) -> Mixture:
        """Makes a mixture of a single folder; a mixture is returned unchanged."""
        return data if isinstance(data, Mixture) else Mixture((str(data),))

    def __str__(self) -> str:
        return " and ".join(self.folders)

    def manifests(self, split: str, *, verify: bool = False) -> list[PreparedManifest]:
        """Reads the manifests of all folders and checks that the folders can be mixed.

        Raises:
          PadirError: a folder is not whole (see `load_manifest`), lacks the split, or has another vocabulary or other
            languages than the first.
        """
        manifests = [load_manifest(folder, verify=verify) for folder in self.folders]
        first = manifests[0]
        for folder, manifest in zip(self.folders, manifests, strict=True):
            manifest.split(split, folder)
            if manifest.vocabulary != first.vocabulary:
                raise self._differs(folder, "another vocabulary", manifest.vocabulary, first.vocabulary)
            if manifest.source.languages != first.source.languages:
                got, expected = ("-".join(each.source.languages) for each in (manifest, first))
                raise self._differs(folder, "other languages", got, expected)
        return manifests

    def _differs(self, folder: str, what: str, got: object, expected: object) -> PadirError:
        """The error that says in what a folder differs from the first one."""
        return PadirError(
            f"{folder} has {what} than {self.folders[0]} ({got}, not {expected})",
            remedy="mix folders of the same vocabulary and languages",
        )

    def records(self, manifests: list[PreparedManifest], split: str) -> tuple[list[str], np.ndarray]:
        """The paths of all shards, and the lengths [records, 2] of all pairs, folder by folder.

        Raises:
          PadirError: the lengths of a folder cannot be read, or their number differs from the manifest's.
        """
        paths: list[str] = []
        lengths = []
        for name, manifest in zip(self.folders, manifests, strict=True):
            folder, info = fetched(name), manifest.splits[split]
            paths += [str(folder / shard) for shard in info.shards]
            lengths.append(read_lengths(folder, split, info.written))
        return paths, np.concatenate(lengths)

    def chosen(self, counts: list[int], epoch: int, seed: int) -> np.ndarray:
        """The record numbers of an epoch, folder by folder; the numbers of a folder of weight 2 come twice.

        A folder whose weight is a fraction is read in shuffled passes that continue in the next epoch, so that every
        pair comes equally often over the epochs.

        >>> Mixture(("a", "b"), (1, 2)).chosen([3, 2], epoch=0, seed=0).tolist()
        [0, 1, 2, 3, 4, 3, 4]
        """
        parts, offset = [], 0
        for number, (count, weight) in enumerate(zip(counts, self.weights, strict=True)):
            if weight == int(weight):
                own = np.tile(np.arange(count), int(weight))
            else:
                first, last = (math.floor(e * weight * count) for e in (epoch, epoch + 1))
                passes = range(first // count, -(-last // count))
                orders = [np.random.RandomState([seed, number, one]).permutation(count) for one in passes]
                walk = np.concatenate(orders) if orders else np.arange(0)
                own = walk[first - passes.start * count :][: last - first]
            parts.append(own + offset)
            offset += count
        return np.concatenate(parts)

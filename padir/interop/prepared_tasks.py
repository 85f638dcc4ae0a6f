"""seqio Tasks of prepared folders, so that T5X trains on what `padir prepare` and `padir distill` write."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from padir.data.formats import Corpus
from padir.data.prepared import VOCABULARY, Mixture, PreparedManifest, load_manifest, read_text
from padir.data.records import Records
from padir.data.sources import PathLike
from padir.errors import PadirError
from padir.interop.seqio_tasks import import_seqio, register_source

_AT_ONCE = 1024  # records that are read together


@dataclasses.dataclass(frozen=True)
class PreparedText:
    """The evaluation sentences of a prepared folder as a `Source`; the folder has no text of its training pairs."""

    folder: PathLike
    manifest: PreparedManifest

    @property
    def name(self) -> str:
        return re.sub(r"\W", "_", Path(self.folder).name)  # seqio takes no other letters

    @property
    def source_language(self) -> str:
        return self.manifest.source.source_language

    @property
    def target_language(self) -> str:
        return self.manifest.source.target_language

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split in self.manifest.splits if split != "train")

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Sentence pairs of an evaluation split, one by one."""
        return zip(*read_text(self.folder, split), strict=True)

    def corpora(self, split: str) -> list[Corpus]:
        """The whole split as one part."""
        return [Corpus(self.name, self.pairs(split))]


def register_prepared(folder: PathLike, languages: str | None = None) -> str:
    """Registers a folder of `padir prepare` or `padir distill` as two seqio Tasks, and returns the first one's name.

    The Task with the folder's name has the text of the evaluation splits. Its companion for training ("_fitting") reads
    the records of every split. If seqio shuffles files, the order depends on its seed and on the number of the pass.

    Args:
      languages: source and target language that the folder must have, such as "de-en"; None: any.

    Raises:
      PadirError: the folder is not whole, has other languages or has placeholders, or seqio is not installed.
    """
    manifest = load_manifest(folder)
    found = "-".join(manifest.source.languages)
    if languages is not None and languages != found:
        expected = f"{found}, the languages of {folder}"
        raise PadirError("LANGUAGES", expected, languages, f'give --gin.LANGUAGES=\\"{found}\\", or another folder')
    if manifest.vocabulary.num_placeholders:  # a model of T5X would be described without them
        raise PadirError(
            f"{folder} has placeholders, which T5X cannot train", remedy="prepare it without --placeholders"
        )
    seqio, _ = import_seqio()
    source = PreparedText(folder, manifest)
    records = seqio.FunctionDataSource(_dataset_of_records(folder, manifest), splits=tuple(manifest.splits))
    register_source(
        source.name,
        lambda: source,
        Path(folder, VOCABULARY),
        num_sentinels=manifest.vocabulary.num_sentinels,
        splits=source.splits,
        records=records,
    )
    return source.name


def _dataset_of_records(folder: PathLike, manifest: PreparedManifest) -> Callable[..., Any]:
    """A function that makes the tf.data.Dataset of a split's records, as ids without EOS.

    TensorFlow can save its iterators. They hold numbers of records, and neither pairs nor Python's state.
    """
    _, tf = import_seqio()

    def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> Any:
        records = Records.of(Mixture((str(folder),)), [manifest], split)

        def read(numbers: np.ndarray) -> tuple[np.ndarray, ...]:
            return *records.read(numbers), records.length_N2[numbers].astype(np.int64)

        def pairs(numbers: Any) -> Any:
            found = tf.numpy_function(read, [numbers], (tf.int32, tf.int32, tf.int64), stateful=False)
            inputs, targets, length = map(tf.ensure_shape, found, ((None,), (None,), (None, 2)))
            sides = {"inputs": (inputs, length[:, 0]), "targets": (targets, length[:, 1])}
            rows = {name: tf.RaggedTensor.from_row_lengths(*side)[:, :-1] for name, side in sides.items()}
            return tf.data.Dataset.from_tensor_slices(rows)

        count = len(records.length_N2)
        in_order = tf.data.Dataset.range(count).batch(_AT_ONCE)
        if not shuffle_files:
            return in_order.flat_map(pairs)
        last = max(count - 1, 0)

        def shuffled(key: Any) -> Any:
            key = tf.stack([key, 0])
            return in_order.map(lambda places: tf.random.experimental.index_shuffle(places, key, last))

        # Another key for each pass. Without a seed, too, all hosts have one order.
        keys = tf.data.Dataset.random(seed or 0, rerandomize_each_iteration=True)
        return keys.take(1).flat_map(shuffled).flat_map(pairs)

    return dataset

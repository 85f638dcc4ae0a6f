"""The WMT sets of TensorFlow Datasets (TFDS), read through seqio: `TfdsText` as a source, `get_source` by name."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from padir.data import sources
from padir.data.sources import SOURCES, SPLITS, PathLike, Source
from padir.errors import PadirError

# Name -> the set's name in TFDS, source language, target language. Both directions of a pair read the same files.
TFDS_SETS: dict[str, tuple[str, str, str]] = {
    "wmt14_de_en": ("wmt14_translate/de-en", "de", "en"),
    "wmt14_en_de": ("wmt14_translate/de-en", "en", "de"),
    "wmt16_ro_en": ("wmt16_translate/ro-en", "ro", "en"),
    "wmt16_en_ro": ("wmt16_translate/ro-en", "en", "ro"),
    "wmt17_zh_en": ("wmt17_translate/zh-en", "zh", "en"),
    "wmt17_en_zh": ("wmt17_translate/zh-en", "en", "zh"),
}

_VERSION = "1.*.*"  # seqio requires a version; TFDS increases the first number when examples change


@dataclasses.dataclass(frozen=True)
class TfdsText:
    """A translation set of TensorFlow Datasets as a `Source`: read from its files, never downloaded.

    The text is as in TFDS, but a newline within a sentence becomes a space. Sentences come in the order of the files,
    which TFDS shuffled when it built the set.

    >>> from padir.interop.tfds_sets import TfdsText
    >>> TfdsText("wmt14_en_de", "wmt14_translate/de-en", "en", "de").build_command
    'tfds build wmt14_translate/de-en'

    Attributes:
      name: the source's name.
      dataset: the set's name in TFDS, with its configuration.
      source_language, target_language: keys of the two texts in an example of TFDS.
      data_dir: the folder of `tfds build`; None for TFDS's own folder (TFDS_DATA_DIR, or ~/tensorflow_datasets).
      splits: names of the splits.
    """

    name: str
    dataset: str
    source_language: str
    target_language: str
    data_dir: PathLike | None = None
    splits: tuple[str, ...] = SPLITS

    @property
    def build_command(self) -> str:
        """The command that downloads and converts the set's files."""
        return f"tfds build {self.dataset}" + ("" if self.data_dir is None else f" --data_dir {self.data_dir}")

    def data_source(self) -> Any:
        """The seqio data source, read-only, because otherwise seqio would download gigabytes unasked.

        Its `get_dataset` raises `PadirError` with the command that builds the set if the set is not there.

        Raises:
          PadirError: seqio is not installed.
        """
        seqio, _ = import_seqio()
        folder = None if self.data_dir is None else str(self.data_dir)
        missing = self._missing

        class Tfds(seqio.TfdsDataSource):
            def get_dataset(self, *args: Any, **options: Any) -> Any:
                try:
                    return super().get_dataset(*args, **options)
                except AssertionError:  # raised by TFDS for missing files
                    raise missing() from None

        return Tfds(f"{self.dataset}:{_VERSION}", folder, splits=self.splits, read_only=True)

    def _missing(self) -> PadirError:
        where = "TFDS's own folder" if self.data_dir is None else self.data_dir
        return PadirError(
            f"{self.name}: {self.dataset} is not in {where}: run `{self.build_command}`, or give the folder that has it"
            " as data_dir"
        )

    def preprocess(self, dataset: Any) -> Any:
        """Maps a tf.data.Dataset of TFDS's examples to {"inputs", "targets"}."""
        _, tf = import_seqio()

        def pair(example: dict[str, Any]) -> dict[str, Any]:
            languages = {"inputs": self.source_language, "targets": self.target_language}
            return {key: tf.strings.regex_replace(example[name], "\n", " ") for key, name in languages.items()}

        return dataset.map(pair, num_parallel_calls=tf.data.AUTOTUNE)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Sentence pairs of a split, one by one.

        Raises:
          PadirError: the split is unknown, seqio is not installed, or TFDS has not built the set or cannot read it (the
            message has the command that builds the set).
        """
        if split not in self.splits:
            raise PadirError(f"{self.name} has the splits {', '.join(self.splits)}, got {split!r}")
        _, tf = import_seqio()
        with contextlib.suppress(RuntimeError):  # TensorFlow already uses the devices
            # TensorFlow only reads data here: the accelerators' memory is left to JAX.
            tf.config.set_visible_devices([], "GPU")
        source = self.data_source()
        try:
            dataset = self.preprocess(source.get_dataset(split, shuffle=False))
        except PadirError:
            raise
        except (ValueError, KeyError) as error:
            raise self._unreadable(split, error) from None
        return self._decoded(split, dataset.as_numpy_iterator())

    def _decoded(self, split: str, examples: Iterator[dict[str, bytes]]) -> Iterator[tuple[str, str]]:
        _, tf = import_seqio()
        try:
            for example in examples:
                yield example["inputs"].decode(), example["targets"].decode()
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            raise self._unreadable(split, error) from None

    def _unreadable(self, split: str, error: Exception) -> PadirError:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return PadirError(
            f"{self.name} {split}: TFDS cannot read {self.dataset} ({reason}): build it again with"
            f" `{self.build_command} --overwrite`"
        )


def get_source(name: str, data_dir: PathLike | None = None) -> Source:
    """The source `name`: one of `padir.data.sources`, or a set of TFDS.

    Raises:
      PadirError: as `padir.data.sources.get_source`. Missing files of a TFDS set raise when the set is read.
    """
    if name in TFDS_SETS:
        return TfdsText(name, *TFDS_SETS[name], data_dir)
    if name not in SOURCES:
        known = ", ".join((*SOURCES, *TFDS_SETS))
        raise PadirError(f"unknown source {name!r}: known are {known}; or give text files")
    return sources.get_source(name, data_dir)


def import_seqio() -> tuple[Any, Any]:
    """The modules seqio and TensorFlow, which are slow to import.

    Raises:
      PadirError: the extra "data" is not installed.
    """
    try:
        import seqio
        import tensorflow as tf
    except ImportError as error:
        raise PadirError(
            f"seqio Tasks and the sets of TFDS need the data extra ({error}): pip install 'padir[data]'"
        ) from None
    return seqio, tf

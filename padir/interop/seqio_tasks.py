"""seqio Tasks of padir's sources, and the WMT sets of TensorFlow Datasets (TFDS), which are read through seqio.

A Task gives {"inputs", "targets"} as the int32 ids that `padir prepare` writes, EOS included, and the untokenised
"inputs_pretokenized" and "targets_pretokenized". Its metrics are the metrics of `padir evaluate`. Ids differ
in one case: seqio's vocabulary turns text such as `<extra_id_0>` into a sentinel, but padir's tokenizer spells it out.

A Task cuts sentences that are longer than the feature lengths, so that every test sentence is there. For training, each
Task has a companion `NAME_fitting`. It leaves out a pair if one of its sides is too long, as `padir prepare` does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from padir.data import sources
from padir.data.formats import Corpus
from padir.data.sources import SOURCES, SPLITS, PathLike, Source, check_split
from padir.errors import PadirError, first_line
from padir.metrics.scores import score_all
from padir.text.cleaning import clean
from padir.text.tokenizer import Tokenizer

FITTING = "_fitting"  # ending of the names of the Tasks without long pairs

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
        """
        seqio, _ = import_seqio()
        folder = None if self.data_dir is None else str(self.data_dir)
        where = "TFDS's own folder" if folder is None else folder
        remedy = f"run `{self.build_command}`, or give the folder that has it as data_dir, or read WMT's own files:"
        remedy += f" padir prepare --recipe {self.name} --downloads DIR"
        missing = PadirError(f"{self.name}: {self.dataset} is not in {where}", remedy=remedy)

        class Tfds(seqio.TfdsDataSource):
            def get_dataset(self, *args: Any, **options: Any) -> Any:
                try:
                    return super().get_dataset(*args, **options)
                except AssertionError:  # raised by TFDS for missing files
                    raise missing from None

        return Tfds(f"{self.dataset}:{_VERSION}", folder, splits=self.splits, read_only=True)

    def preprocess(self, dataset: Any) -> Any:
        """Maps a tf.data.Dataset of TFDS's examples to {"inputs", "targets"}."""
        _, tf = import_seqio()

        def pair(example: dict[str, Any]) -> dict[str, Any]:
            languages = {"inputs": self.source_language, "targets": self.target_language}
            return {key: tf.strings.regex_replace(example[name], "\n", " ") for key, name in languages.items()}

        return dataset.map(pair, num_parallel_calls=tf.data.AUTOTUNE)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """Sentence pairs of a split, one by one."""
        check_split(self, split)
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

    def corpora(self, split: str) -> list[Corpus]:
        """The whole split as one part."""
        return [Corpus(self.name, self.pairs(split))]

    def _decoded(self, split: str, examples: Iterator[dict[str, bytes]]) -> Iterator[tuple[str, str]]:
        _, tf = import_seqio()
        try:
            for example in examples:
                yield example["inputs"].decode(), example["targets"].decode()
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            raise self._unreadable(split, error) from None

    def _unreadable(self, split: str, error: Exception) -> PadirError:
        what = f"{self.name} {split}: TFDS cannot read {self.dataset} ({first_line(error)})"
        return PadirError(what, remedy=f"build it again with `{self.build_command} --overwrite`")


def get_source(name: str, data_dir: PathLike | None = None) -> Source:
    """The source `name`: one of `padir.data.sources`, or a set of TFDS.

    Raises:
      PadirError: as `padir.data.sources.get_source`. Missing files of a TFDS set raise when the set is read.
    """
    if name in TFDS_SETS:
        return TfdsText(name, *TFDS_SETS[name], data_dir)
    if name not in SOURCES:
        known = ", ".join((*SOURCES, *TFDS_SETS))
        raise PadirError(
            f"unknown source {name!r}: known are {known}; or give text files, or the languages of a set of SacreBLEU"
        )
    return sources.get_source(name, data_dir)


def import_seqio() -> tuple[Any, Any]:
    """The modules seqio and TensorFlow, which are slow to import."""
    try:
        import seqio
        import tensorflow as tf
    except ImportError as error:
        raise PadirError(
            f"seqio Tasks and the sets of TFDS need the data extra ({error}): pip install 'padir[data]', or read WMT's"
            " own files without it: padir prepare --recipe NAME --downloads DIR"
        ) from None
    return seqio, tf


def register(vocab_path: PathLike, data_dir: PathLike | None = None, *, num_sentinels: int = 100) -> tuple[str, ...]:
    """Registers every source as a seqio Task of the same name and one that ends in "_fitting", and returns the names.

    Files of a corpus are opened when its Task is read; they may be missing until then. Registering again replaces the
    Tasks. Tasks of TFDS sets are native to seqio, which shuffles their files and shards them over hosts.

    >>> from padir.interop import seqio_tasks  # doctest: +SKIP
    >>> seqio_tasks.register("vocab.model", data_dir="multi30k")[:3]  # doctest: +SKIP
    ('toy_de_en', 'multi30k_de_en', 'multi30k_en_de')

    Args:
      vocab_path: a vocabulary of `padir vocab`.
      data_dir: the folder with the corpus's data files; toy_de_en has none.
      num_sentinels: number of ids above the pieces, seqio's extra ids.

    Raises:
      PadirError: seqio is not installed, or the vocabulary is not one that padir can use.
    """
    for name in SOURCES:
        make = functools.partial(get_source, name, data_dir)
        register_source(name, make, vocab_path, num_sentinels=num_sentinels)
    for name, arguments in TFDS_SETS.items():
        make = functools.partial(TfdsText, name, *arguments, data_dir)
        source = make()
        _add_task(name, make, source.data_source(), [source.preprocess], vocab_path, num_sentinels)
    return (*SOURCES, *TFDS_SETS)


def register_source(
    name: str,
    make_source: Callable[[], Source],
    vocab_path: PathLike,
    *,
    num_sentinels: int = 100,
    splits: tuple[str, ...] = SPLITS,
    records: Any = None,
) -> None:
    """Registers any source, such as your own `ParallelText`, as the seqio Tasks `name` and `name` + "_fitting".

    Args:
      make_source: makes the source when a split is read.
      num_sentinels: as in `register`.
      splits: names of the source's splits.
      records: a seqio data source of ids without EOS, which the Task for training reads in place of the text.

    Raises:
      PadirError: as in `register`.
    """
    seqio, tf = import_seqio()

    def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> Any:
        del shuffle_files, seed  # a source has one order; seqio and the trainer shuffle after it

        def examples() -> Iterator[dict[str, str]]:
            for source, target in make_source().pairs(split):
                yield {"inputs": source, "targets": target}

        text = tf.TensorSpec((), tf.string)
        return tf.data.Dataset.from_generator(examples, output_signature={"inputs": text, "targets": text})

    data_source = seqio.FunctionDataSource(dataset, splits=splits)
    _add_task(name, make_source, data_source, [], vocab_path, num_sentinels, records)


def _add_task(
    name: str,
    make_source: Callable[[], Source],
    data_source: Any,
    preprocessors: list[Any],
    vocab_path: PathLike,
    num_sentinels: int,
    records: Any = None,
) -> None:
    """Adds or replaces the two Tasks of a source whose preprocessors return {"inputs", "targets"} as text."""
    seqio, tf = import_seqio()
    tokenizer = Tokenizer.load(vocab_path, num_sentinels, renumber=False)  # a clear message, before seqio's
    vocabulary = seqio.SentencePieceVocabulary(str(vocab_path), extra_ids=num_sentinels)  # T5X compares paths
    feature = seqio.Feature(vocabulary, add_eos=True, dtype=tf.int32)

    def with_source(text: str, example: dict[str, Any] | None = None, is_target: bool = False) -> Any:
        if example is None:
            return text
        source, target = (_text(example[f"{side}_pretokenized"]) for side in ("inputs", "targets"))
        # The untokenised target is the reference: decoding its ids may change it.
        return {"source": source, "target": target} if is_target else clean(text, source)

    def scores(targets: list[dict[str, str]], predictions: list[str]) -> dict[str, float]:
        source = make_source()
        texts, references = ([each[side] for each in targets] for side in ("source", "target"))
        measured = score_all(texts, predictions, references, source.source_language, source.target_language, name)
        return {score.name: score.value for score in measured.values()}

    normalise = functools.partial(_normalise, tokenizer=tokenizer)
    tokenize = functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False)
    tokenized = [*preprocessors, seqio.CacheDatasetPlaceholder(), normalise, tokenize]
    fitting = (records, [_without_long]) if records is not None else (data_source, [*tokenized, _without_long])
    for each, (origin, steps) in ((name, (data_source, tokenized)), (name + FITTING, fitting)):
        if each in seqio.TaskRegistry.names():
            seqio.TaskRegistry.remove(each)
        seqio.TaskRegistry.add(
            each,
            source=origin,
            preprocessors=[*steps, seqio.preprocessors.append_eos_after_trim],
            output_features={"inputs": feature, "targets": feature},
            postprocess_fn=with_source,
            metric_fns=[scores],
        )


def _normalise(dataset: Any, tokenizer: Tokenizer) -> Any:
    """Puts both sides into plain form (`padir.text.normalise`), and the text as it was beside them."""
    _, tf = import_seqio()

    def plain(text: bytes) -> bytes:
        return tokenizer.normalised(text.decode()).text.encode()

    def pair(example: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for key in ("inputs", "targets"):
            found[f"{key}_pretokenized"] = example[key]
            made = tf.numpy_function(plain, [example[key]], tf.string, stateful=False)
            found[key] = tf.ensure_shape(made, ())
        return found

    return dataset.map(pair, num_parallel_calls=tf.data.AUTOTUNE)


def _without_long(dataset: Any, sequence_length: dict[str, int] | None = None) -> Any:
    """Leaves out pairs with a side that, together with its EOS, is longer than its feature length."""
    _, tf = import_seqio()
    most = {key: (sequence_length or {}).get(key) for key in ("inputs", "targets")}

    def fits(example: dict[str, Any]) -> Any:
        return tf.reduce_all([tf.size(example[key]) < length for key, length in most.items() if length is not None])

    return dataset.filter(fits)


def _text(value: Any) -> str:
    value = value.numpy() if hasattr(value, "numpy") else value
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)

"""The sources as seqio Tasks, for users of seqio and T5X. The only file in `padir.data` that imports TensorFlow.

A Task gives {"inputs", "targets"} as the int32 ids that `padir prepare` writes, EOS included, and the untokenised
"inputs_pretokenized", "targets_pretokenized". Its metrics are those of `padir evaluate`. One difference is seqio's: its
vocabulary turns text such as `<extra_id_0>` into a sentinel, where padir's tokenizer spells it out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from padir.data.sources import SOURCES, SPLITS, PathLike, Source, get_source
from padir.errors import PadirError
from padir.evaluation.metrics import score_all
from padir.tokenizer import Tokenizer


def register(vocab_path: PathLike, data_dir: PathLike | None = None, *, num_sentinels: int = 100) -> tuple[str, ...]:
    """Registers every source of `SOURCES` as a seqio Task of the same name, and returns the names.

    A corpus's files are looked for when its Task is read, so that one may be missing. Registering again replaces the
    Tasks.

    >>> from padir.data import tasks  # doctest: +SKIP
    >>> tasks.register("vocab.model", data_dir="multi30k")  # doctest: +SKIP
    ('toy_de_en', 'multi30k_de_en', 'multi30k_en_de')

    Args:
      vocab_path: a vocabulary of `padir vocab`.
      data_dir: the folder with the files of the sources that have files.
      num_sentinels: ids on top of the pieces, as extra ids.

    Raises:
      PadirError: seqio is not installed, or the vocabulary is not one that padir can use.
    """
    for name in SOURCES:
        register_source(name, functools.partial(get_source, name, data_dir), vocab_path, num_sentinels=num_sentinels)
    return tuple(SOURCES)


def register_source(
    name: str,
    make_source: Callable[[], Source],
    vocab_path: PathLike,
    *,
    num_sentinels: int = 100,
    splits: tuple[str, ...] = SPLITS,
) -> None:
    """Registers any source, such as your own `ParallelText`, as the seqio Task `name`.

    Args:
      make_source: called when a split is read.
      splits: those that the source has.

    Raises:
      PadirError: as `register`.
    """
    seqio, tf = _import()
    Tokenizer.load(vocab_path, num_sentinels)  # seqio would fail later, and with less to say
    vocabulary = seqio.SentencePieceVocabulary(str(Path(vocab_path).absolute()), extra_ids=num_sentinels)
    feature = seqio.Feature(vocabulary, add_eos=True, dtype=tf.int32)

    def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> Any:
        del shuffle_files, seed  # a source has one order; seqio and the trainer shuffle after it

        def examples() -> Iterator[dict[str, str]]:
            for source, target in make_source().pairs(split):
                yield {"inputs": source, "targets": target}

        text = tf.TensorSpec((), tf.string)
        return tf.data.Dataset.from_generator(examples, output_signature={"inputs": text, "targets": text})

    def with_source(text: str, example: dict[str, Any] | None = None, is_target: bool = False) -> Any:
        if not is_target or example is None:
            return text
        # The untokenised target: a reference is not what a vocabulary makes of it.
        source, target = (example[f"{side}_pretokenized"] for side in ("inputs", "targets"))
        return {"source": _text(source), "target": _text(target)}

    def scores(targets: list[dict[str, str]], predictions: list[str]) -> dict[str, float]:
        source = make_source()
        texts, references = ([each[side] for each in targets] for side in ("source", "target"))
        measured = score_all(texts, predictions, references, source.source_language, source.target_language, name)
        return {score.name: score.value for score in measured.values()}

    if name in seqio.TaskRegistry.names():
        seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(dataset, splits=splits),
        preprocessors=[
            seqio.CacheDatasetPlaceholder(),
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={"inputs": feature, "targets": feature},
        postprocess_fn=with_source,
        metric_fns=[scores],
    )


def _text(value: Any) -> str:
    value = value.numpy() if hasattr(value, "numpy") else value
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _import() -> tuple[Any, Any]:
    try:
        import seqio
        import tensorflow as tf
    except ImportError as error:
        raise PadirError(f"seqio Tasks need the data extra ({error}): pip install 'padir[data]'") from None
    return seqio, tf

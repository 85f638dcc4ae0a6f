"""Sequence-level distillation (Kim & Rush, EMNLP 2016): a prepared folder with a teacher's translations as targets.

1. Decode every training record's source back to text; order them by length, longest first.
2. Translate them in chunks, each of which goes to disk when it is whole.
3. Write a prepared folder: the same source tokens, the translations in the folder's own vocabulary, and copies of all
   that does not belong to the training split. It gets its name when it is whole.

The translations are on disk all the time; of each record, memory holds a few numbers.

A prepared folder keeps no training text, and needs none: with padir's own vocabularies a source decodes to the line
that it came from (`padir.text.tokenizer` names the two exceptions). With one that normalises text or knows unk, the
teacher reads what is left of the line. The teacher's vocabulary may be another: it is text that changes hands.

The chunks, and the batches in them, follow from the records and the decoding alone, and a sentence's random draft from
its place in them. So stopping and going on changes nothing: the same command on the same kind of machine gives the same
bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np
import rich.console
import rich.progress

from padir.data.manifest import PreparedManifest, lengths_name
from padir.data.prepared import is_prepared, load_manifest, load_tokenizer, read_lengths
from padir.data.records import SplitWriter, read_record
from padir.data.sources import PathLike
from padir.decoding.options import Decoding
from padir.decoding.rerank import Rescore
from padir.decoding.shortlist import Shortlist
from padir.decoding.translator import Translator
from padir.distributed.sharding import Sharding
from padir.errors import PadirError
from padir.evaluation import TestSet, evaluate
from padir.pretrained import model_folder
from padir.storage.files import write_errors
from padir.storage.folders import atomic_folder, folder_lock
from padir.storage.manifest import MANIFEST, file_sums, sha256
from padir.storage.resumable import Chunks
from padir.text.ids import EOS

SPLIT = "train"
_ENCODE_BATCH = 1024
CHUNK_BATCHES = 16  # so many batches are translated between two writes, and at most lost when it is stopped


@dataclasses.dataclass(frozen=True)
class Teacher:
    """Who translates, and the sha256 of its model directory's manifest, which names every file of it."""

    translator: Translator
    sha256: str

    @staticmethod
    def load(folder: PathLike, sharding: Sharding | None = None) -> Teacher:
        """A model directory of any kind of model, or the name of one that comes with padir.

        Args:
          sharding: over all devices; None: one device.

        Raises:
          PadirError: not a model directory, half-written, or damaged.
        """
        return Teacher(Translator.load(folder, sharding=sharding), sha256(model_folder(folder) / MANIFEST))


def distill(
    teacher: Teacher,
    data_dir: PathLike,
    output_dir: PathLike,
    decoding: Decoding,
    *,
    overwrite: bool = False,
    progress: bool = True,
) -> PreparedManifest:
    """Writes the teacher's translations of a training split as a prepared folder and returns its manifest.

    Chunks are kept beside the output folder, in `.NAME.unfinished`, until it is whole; the same call goes on from them.
    A folder that already holds the same is kept.

    Pairs get no record if the teacher wrote nothing ("empty target"), more than the folder's limits allow ("target too
    long", "length ratio"), or could not read all of the source ("source too long"): dropped-train.jsonl numbers the
    records of `data_dir` from 1.

    Args:
      data_dir: from `padir prepare` (or `padir distill`).
      output_dir: the folder to write.
      decoding: how the teacher translates (what is None is the teacher's own); the manifest has all of it, since the
        batch size and the seed can change a translation, too.
      overwrite: replace a prepared folder, or unfinished chunks, of something else, and a damaged folder; a whole one
        of the same is kept in any case, since it would become the same again.
      progress: show progress on stderr.

    Raises:
      PadirError: the data are not whole or of other languages, the output folder holds something else or is being
        written by another process, the teacher cannot translate without being told the lengths, or the decoding does
        not fit it.
    """
    data_dir, output_dir = Path(data_dir), Path(output_dir).absolute()
    manifest = load_manifest(data_dir, verify=True)
    _check_teacher(teacher, manifest, data_dir)
    teacher.translator.resolved(decoding)  # refused now, it leaves no chunks that are in the way of the right one
    card = teacher.translator.card
    inputs = {
        "prepared": sha256(data_dir / MANIFEST),
        "teacher": {
            "manifest": teacher.sha256,
            "vocabulary": teacher.translator.tokenizer.sha256,
            "task": card.task,
            "weights": str(card.weights),
        },
        "decoding": to_json(decoding),
        "splits": [SPLIT],
    }
    kept = _check_output(output_dir, inputs, overwrite)
    unfinished = output_dir.with_name(f".{output_dir.name}.unfinished")
    if kept is not None:
        if Chunks(unfinished).read("inputs") == inputs:  # it was killed when all was done but this
            shutil.rmtree(unfinished)
        return kept
    with folder_lock(unfinished, "distilled into"):
        chunks = Chunks.open(unfinished, inputs, overwrite)
        validation = chunks.once("validation", lambda: _validation(teacher, data_dir, decoding))
        sources = _Sources(data_dir, manifest)
        with _Translations(chunks.folder / "translations", len(sources.longest_first_N)) as translations:
            _translate(teacher.translator, sources, decoding, chunks, translations, progress)
            with atomic_folder(output_dir) as partial:
                distilled = {**inputs, "validation": validation}
                result = _write(partial, data_dir, manifest, sources, translations, distilled)
        shutil.rmtree(chunks.folder)
    return result


class _Sources:
    """The source side of the training records."""

    def __init__(self, data_dir: Path, manifest: PreparedManifest):
        paths = [str(data_dir / shard) for shard in manifest.splits[SPLIT].shards]
        self._records: Any = grain.sources.ArrayRecordDataSource(paths)
        self.tokenizer = load_tokenizer(data_dir)
        length_N2 = read_lengths(data_dir, SPLIT, manifest.splits[SPLIT].written)
        # What takes the most memory comes first, and the remaining time is rather told too long than too short.
        self.longest_first_N = np.argsort(-length_N2[:, 0], kind="stable")

    def read(self, numbers: list[int]) -> tuple[list[list[int]], list[str]]:
        """Tokens with EOS, and text, of some records."""
        tokens = [read_record(record)[0].tolist() for record in self._records.__getitems__(numbers)]
        return tokens, [self.tokenizer.decode(ids) for ids in tokens]


class _Translations:
    """For every record the translation's "text", and whether the source was "truncated" for it; a context manager.

    They lie in a file in the order in which they are put there, and are read by the record's number.
    """

    def __init__(self, path: Path, count: int):
        self._path = path
        self._begin_N, self._bytes_N = np.zeros(count, np.int64), np.zeros(count, np.int32)
        self._end = 0

    def __enter__(self) -> _Translations:
        with write_errors(self._path):
            self._file = self._path.open("w+b", buffering=0)
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._begin_N)

    def put(self, numbers: Sequence[int], rows: list[dict[str, Any]]) -> None:
        contents = [json.dumps(row, ensure_ascii=False).encode("utf-8") for row in rows]
        for number, content in zip(numbers, contents, strict=True):
            self._begin_N[number], self._bytes_N[number] = self._end, len(content)
            self._end += len(content)
        with write_errors(self._path):
            view = memoryview(b"".join(contents))
            while view:  # a write may take a part of it
                view = view[self._file.write(view) :]

    def get(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        places = zip(self._bytes_N[numbers].tolist(), self._begin_N[numbers].tolist(), strict=True)
        return [json.loads(os.pread(self._file.fileno(), count, begin)) for count, begin in places]


def _translate(
    translator: Translator,
    sources: _Sources,
    decoding: Decoding,
    chunks: Chunks,
    translations: _Translations,
    progress: bool,
) -> None:
    """Puts the translation of every record there."""
    order_N = sources.longest_first_N
    size = decoding.batch_size * CHUNK_BATCHES

    def translate(begin: int) -> list[dict[str, Any]]:
        texts = sources.read(order_N[begin : begin + size].tolist())[1]
        results = translator.translate(texts, decoding, truncate=True, first_number=begin)
        return [{"text": each.text, "truncated": each.truncated} for each in results]

    with _progress(len(order_N), progress) as advance:
        for begin in range(0, len(order_N), size):
            name = f"{begin:010d}"
            fresh = name not in chunks
            rows = chunks.once(name, functools.partial(translate, begin))
            translations.put(order_N[begin : begin + size].tolist(), rows)
            advance(len(rows), fresh)


def _write(
    folder: Path,
    data_dir: Path,
    manifest: PreparedManifest,
    sources: _Sources,
    translations: _Translations,
    distilled: dict[str, Any],
) -> PreparedManifest:
    """Fills `folder` and returns its manifest."""
    ours = {*manifest.splits[SPLIT].shards, lengths_name(SPLIT), f"dropped-{SPLIT}.jsonl"}
    for name in manifest.files.keys() - ours:
        shutil.copyfile(data_dir / name, folder / name)
    with SplitWriter(folder, SPLIT, manifest.limits, manifest.records_per_shard) as writer:
        for begin in range(0, len(translations), _ENCODE_BATCH):
            numbers = [*range(begin, min(begin + _ENCODE_BATCH, len(translations)))]
            part = translations.get(numbers)
            tokens, texts = sources.read(numbers)
            targets = sources.tokenizer.encode_batch([row["text"] for row in part])
            for row, source, text, target in zip(part, tokens, texts, targets, strict=True):
                reason = "source too long" if row["truncated"] else None
                writer.write((text, row["text"]), source, [*target, EOS], reason)
    if not writer.info.written:
        raise PadirError(f"no translation can be used ({writer.info.dropped}): give a better teacher")
    splits = {**manifest.splits, SPLIT: writer.info}
    result = dataclasses.replace(manifest, files=file_sums(folder), splits=splits, distilled=distilled)
    result.write(folder)
    return result


def to_json(value: Any) -> Any:
    """A frozen dataclass as JSON, with the names of the classes in it; of a model that rescores, or a shortlist, what
    tells it apart.

    >>> to_json(Decoding())["lengths"]
    {'class': 'LengthSearch', 'top_k': 1, 'offsets': [0], 'draws': 1}
    """
    if isinstance(value, Rescore):
        return {"class": "Rescore", "name": value.name, "brevity": value.brevity, "sha256": _rescorer_sha256(value)}
    if isinstance(value, Shortlist):
        return {"class": "Shortlist", **value.describe()}
    if dataclasses.is_dataclass(value):
        fields = {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__, **fields}
    return [to_json(each) for each in value] if isinstance(value, tuple) else value


def _rescorer_sha256(rescore: Rescore) -> str:
    """The sha256 of its model directory's manifest, so that a retrained one is another one."""
    path = Path(rescore.name) / MANIFEST
    if not rescore.name or not path.is_file():
        raise PadirError(
            f"the name of a Rescore must be its model's directory, got {rescore.name!r}: make it with"
            " padir.decoding.rescoring.rescorer"
        )
    return sha256(path)


def _check_teacher(teacher: Teacher, manifest: PreparedManifest, data_dir: Path) -> None:
    card = teacher.translator.card
    if SPLIT not in manifest.splits:
        raise PadirError(f"{data_dir} has no training split to translate: prepare a corpus that has one")
    taught = card.source_language, card.target_language
    given = manifest.source.languages
    if taught != given:
        raise PadirError(f"the teacher translates {'-'.join(taught)}, but {data_dir} is {'-'.join(given)}")
    if card.config.length_head == "oracle" and not card.config.causal:
        raise PadirError("the teacher must say how long a translation is, but its length head is 'oracle'")


def _check_output(output_dir: Path, inputs: dict[str, Any], overwrite: bool) -> PreparedManifest | None:
    """The manifest if the folder holds the same already; None if it may be written."""
    if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
        return None
    if not is_prepared(output_dir):
        raise PadirError(f"{output_dir} holds what padir did not make: give another folder")
    try:
        manifest = load_manifest(output_dir, verify=True)
    except PadirError:
        if overwrite:
            return None
        raise
    distilled = manifest.distilled or {}
    if {name: distilled.get(name) for name in inputs} == inputs:
        return manifest
    if overwrite:
        return None
    raise PadirError(
        f"{output_dir} holds other pairs (of another teacher, decoding or corpus): give another folder, or --overwrite"
    )


def _validation(teacher: Teacher, data_dir: Path, decoding: Decoding) -> dict[str, Any] | None:
    """The teacher's BLEU on the validation split, if there is one, decoded as the training split is."""
    if "validation" not in load_manifest(data_dir).splits:
        return None
    bleu = evaluate(teacher.translator, TestSet.of_prepared(data_dir, "validation"), decoding).scores["bleu"]
    return {"bleu": bleu.value, "signature": bleu.signature}


@contextlib.contextmanager
def _progress(total: int, show: bool) -> Iterator[Callable[[int, bool], None]]:
    """A function to be told how many more sentences are done, and whether by this call or an earlier one.

    Shows a bar on a terminal, and prints a line a minute elsewhere.
    """
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(
        rich.progress.TextColumn("[bold]distill"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[rate]}"),
        rich.progress.TimeRemainingColumn(),
        console=console,
        disable=not (show and console.is_terminal),
    ) as bar:
        task = bar.add_task("distill", total=total, rate="")
        began = told = time.monotonic()
        done = found = 0

        def advance(count: int, fresh: bool) -> None:
            nonlocal began, done, found, told
            done += count
            now = time.monotonic()
            if not fresh:  # says nothing of how fast the teacher is
                began, found = now, done
            rate = (done - found) / max(now - began, 1e-9)
            bar.update(task, completed=done, rate=f"{rate:,.1f} sentences/s")
            if show and not console.is_terminal and (now - told > 60 or done == total):
                told = now
                left = f", {(total - done) / rate / 60:,.0f} min left" if rate and done < total else ""
                line = f"distill: {done:,} of {total:,} sentences, {rate:,.1f} a second{left}"
                console.print(line, highlight=False, soft_wrap=True)

        yield advance

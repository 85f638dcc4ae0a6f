"""Sequence-level distillation (Kim & Rush, EMNLP 2016): a prepared folder with a teacher's translations as targets.

1. Decode every training record's source back to text.
2. Translate the sources in chunks of 16 batches, each of which is written to disk. The chunk with the longest source
   comes first, so memory runs out at once or never.
3. Write a prepared folder: the same source tokens, the translations in the folder's own vocabulary, and copies of all
   files that do not belong to the training split. The folder gets its final name when it is complete.

A prepared folder keeps no training text and needs none: with padir's own vocabularies, source tokens decode to their
original line (`padir.text.tokenizer` names the exceptions). With a vocabulary that normalises text or has unk, the
teacher reads the decoded line. Teacher and folder exchange text, so their vocabularies may differ.

The chunks and their batches depend on the records and the decoding options alone. So an interruption does not change
the result: on the same kind of machine, the same command gives the same bytes. Each of several processes translates one
chunk at a time, and sends the translations to the first process. Only the first process writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from padir.data.prepared import (
    Mixture,
    PreparedManifest,
    check_replaceable,
    is_prepared,
    lengths_name,
    load_manifest,
    load_tokenizer,
)
from padir.data.records import LOST, Records, SplitWriter
from padir.data.sources import PathLike
from padir.decoding.fit import from_left
from padir.decoding.options import Decoding
from padir.decoding.ranker import RULES
from padir.decoding.shortlist import Shortlist
from padir.distributed.processes import agreed, from_first, is_first, shared_out
from padir.distributed.sharding import Sharding
from padir.errors import PadirError
from padir.evaluation import TestSet, evaluate
from padir.models.directory import load_model
from padir.pretrained import model_folder
from padir.reporting.patience import progress_bar
from padir.storage.folders import Chunks, atomic_folder, folder_lock, vacant
from padir.storage.manifest import MANIFEST, file_sums, sha256
from padir.storage.remote import RemoteFolder
from padir.text.ids import EOS
from padir.text.spans import marks_of
from padir.translator import Translator

SPLIT = "train"
UNFINISHED = "unfinished"  # at an address: has a folder of chunks for each set of inputs
CHUNK_BATCHES = 16  # number of batches in a chunk; an interruption loses at most one chunk
CHUNKS = f"{CHUNK_BATCHES} batches, in the order of the records"  # other chunks give other batches


@dataclasses.dataclass(frozen=True)
class Teacher:
    """The translator of a distillation.

    Attributes:
      sha256: sha256 of the manifest of the model's directory, which covers every file.
      engine: the library that runs the model, and its precision; "" for padir.
    """

    translator: Translator
    sha256: str
    engine: str = ""

    @staticmethod
    def load(folder: PathLike, sharding: Sharding | None = None) -> Teacher:
        """Loads a model of any kind, by its directory or by the name of a model that comes with padir.

        Raises:
          PadirError: the folder is not a model directory, is half-written or is damaged.
        """
        if not (model_folder(folder) / MANIFEST).is_file():  # the sentences must come from one model
            load_model(folder)
        return Teacher(Translator.load(folder, sharding=sharding), sha256(model_folder(folder) / MANIFEST))


def distill(
    teacher: Teacher,
    data_dir: PathLike,
    output_dir: PathLike,
    decoding: Decoding,
    *,
    overwrite: bool = False,
    progress: bool = True,
    kept_at: RemoteFolder | None = None,
) -> PreparedManifest:
    """Writes the teacher's translations of a training split as a prepared folder and returns its manifest.

    Chunks are kept beside the output folder, in `.NAME.unfinished`, until the output folder is complete; the same call
    resumes from the chunks. An output folder that already holds the same translations is kept. Several processes
    (`padir.distributed.processes.join`) share the chunks; only the first needs the output folder.

    A pair is dropped if its translation is empty ("empty target") or beyond the folder's limits ("target too long",
    "length ratio"), or if the teacher could not read all of the source ("source too long"). dropped-train.jsonl numbers
    the records of `data_dir` from 1.

    Args:
      data_dir: a folder of `padir prepare` or `padir distill`.
      decoding: decoding options; the teacher's defaults replace options that are None. A dual teacher writes from left
        to right unless they choose the mode. The manifest lists all options,
        because even the batch size and the seed can change a translation.
      kept_at: an address whose folder `UNFINISHED` gets every chunk, too, so that another machine resumes from it. The
        caller removes this folder when the output folder is safe.
      overwrite: replace a damaged folder, and a prepared folder or unfinished chunks from other inputs. A complete
        folder from the same inputs is always kept, because a new one would be equal.

    Raises:
      PadirError: the data are damaged or of other languages than the teacher, the output folder holds other files or is
        being written by another process, or the teacher cannot take the options.
    """
    data_dir = Path(data_dir)
    output_dir = Path(output_dir).absolute()
    decoding = from_left(decoding, teacher.translator.card.config)
    manifest, inputs = agreed("the data, the teacher and the options", lambda: _inputs(teacher, data_dir, decoding))
    unfinished = output_dir.with_name(f".{output_dir.name}.unfinished")
    if (kept := from_first(lambda: _kept(output_dir, unfinished, inputs, overwrite))) is not None:
        return PreparedManifest.of_json(kept)
    sources = RecordSources(data_dir, manifest)
    parts = sources.parts(decoding.batch_size * CHUNK_BATCHES)
    there = f"{UNFINISHED}/{hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]}"

    def keep(file: Path) -> None:
        if kept_at is not None:
            kept_at.put(file, f"{there}/{file.name}")

    chunks = Chunks(unfinished, keep)  # only the first process has these files, and the lock
    with contextlib.ExitStack() as stack:

        def begin() -> None:
            stack.enter_context(folder_lock(unfinished, "distilled into"))
            Chunks.open(unfinished, inputs, overwrite)
            if kept_at is not None:
                kept_at.fetch_missing(there, unfinished)
                for name in {path.name for path in unfinished.glob("*.json")} - {"inputs.json", *kept_at.names(there)}:
                    keep(unfinished / name)  # an earlier call failed to send it

        from_first(begin)
        bleu = functools.partial(validation_bleu, teacher, data_dir, decoding)
        distilled = {**inputs, "validation": from_first(lambda: chunks.once("validation", bleu))}
        _translate(teacher.translator, sources, parts, decoding, chunks, progress)

        def write() -> dict[str, Any]:
            with atomic_folder(output_dir) as partial:
                translations = ((numbers, chunks.read(name)) for name, numbers in parts.items())
                result = _write(partial, data_dir, manifest, sources, translations, distilled)
            shutil.rmtree(unfinished)
            return result.to_json()

        return PreparedManifest.of_json(from_first(write))


def _inputs(teacher: Teacher, data_dir: Path, decoding: Decoding) -> tuple[PreparedManifest, dict[str, Any]]:
    """Manifest of the data, and everything that determines the translations; refuses what does not fit together."""
    manifest = load_manifest(data_dir, verify=True)
    check_teacher(teacher, manifest, data_dir)
    teacher.translator.resolved(decoding)  # before any chunk of wrong options is written
    card = teacher.translator.card
    return manifest, {
        "prepared": sha256(data_dir / MANIFEST),
        "teacher": {
            "manifest": teacher.sha256,
            "vocabulary": teacher.translator.tokenizer.sha256,
            "task": card.task,
            "weights": str(card.weights),
            **({"engine": teacher.engine} if teacher.engine else {}),
        },
        "decoding": to_json(decoding),
        "chunks": CHUNKS,
        "splits": [SPLIT],
    }


def _kept(output_dir: Path, unfinished: Path, inputs: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Manifest of an output folder that already holds the same translations; None if the folder may be written."""
    if vacant(output_dir):
        return None
    if not is_prepared(output_dir):
        raise PadirError(f"{output_dir} holds files that padir did not make: give another folder")
    manifest = None
    try:
        manifest = load_manifest(output_dir, verify=True)
    except PadirError:
        if not overwrite:
            raise
    if manifest is not None and inputs.items() <= (manifest.distilled or {}).items():
        if Chunks(unfinished).read("inputs") == inputs:  # an earlier call was killed before it removed its chunks
            shutil.rmtree(unfinished)
        return manifest.to_json()
    if not overwrite:
        what = f"{output_dir} holds translations of another teacher, decoding, corpus or version of padir"
        raise PadirError(what, remedy="give another folder, or set overwrite")
    check_replaceable(output_dir)
    return None


def _translate(
    translator: Translator,
    sources: RecordSources,
    parts: dict[str, range],
    decoding: Decoding,
    chunks: Chunks,
    progress: bool,
) -> None:
    """Writes the missing chunks; each of several processes translates a chunk at a time."""

    def translate(name: str) -> list[dict[str, Any]]:
        _, texts = sources.read(parts[name])
        results = translator.translate(texts, decoding, truncate=True)
        return [{"text": result.text, "truncated": result.truncated} for result in results]

    total = sum(map(len, parts.values()))
    with progress_bar("distill", total, "sentences", show=progress and is_first()) as advance:
        missing = from_first(lambda: [name for name, part in parts.items() if chunks.read(name, len(part)) is None])
        missing.sort(key=lambda name: sources.longest(parts[name]), reverse=True)
        advance(total - sum(len(parts[name]) for name in missing), False)
        at_once = jax.process_count()
        for first in range(0, len(missing), at_once):
            some = missing[first : first + at_once]
            for name, rows in zip(some, shared_out(some, translate), strict=True):
                from_first(functools.partial(chunks.write, name, rows))
                advance(len(rows))


def _write(
    folder: Path,
    data_dir: Path,
    manifest: PreparedManifest,
    sources: RecordSources,
    translations: Iterable[tuple[range, list[dict[str, Any]]]],
    distilled: dict[str, Any],
) -> PreparedManifest:
    """Writes the prepared folder and returns its manifest."""
    replaced = {*manifest.splits[SPLIT].shards, lengths_name(SPLIT), f"dropped-{SPLIT}.jsonl"}
    for name in manifest.files.keys() - replaced:
        shutil.copyfile(data_dir / name, folder / name)
    with SplitWriter(folder, SPLIT, manifest.limits) as writer:
        for numbers, rows in translations:
            tokens, texts = sources.read(numbers)
            targets = sources.tokenizer.encode_batch([sources.tokenizer.normalised(row["text"]).text for row in rows])
            for row, source, text, target in zip(rows, tokens, texts, targets, strict=True):
                reason = "source too long" if row["truncated"] else None
                if marks_of(text) != marks_of(row["text"]):
                    reason = LOST
                writer.write((text, row["text"]), source, [*target, EOS], reason)
    if not writer.info.written:
        raise PadirError(f"no translation can be used ({writer.info.dropped}): give a better teacher")
    splits = {**manifest.splits, SPLIT: writer.info}
    result = dataclasses.replace(manifest, files=file_sums(folder), splits=splits, distilled=distilled)
    result.write(folder)
    return result


def check_teacher(teacher: Teacher, manifest: PreparedManifest, data_dir: Path) -> None:
    """Checks that a teacher can translate the training split of a prepared folder."""
    card = teacher.translator.card
    if SPLIT not in manifest.splits:
        raise PadirError(f"{data_dir} has no training split to translate: prepare a corpus that has one")
    languages = card.source_language, card.target_language
    if languages != manifest.source.languages:
        of_data = "-".join(manifest.source.languages)
        raise PadirError(f"the teacher translates {'-'.join(languages)}, but {data_dir} is {of_data}")


def validation_bleu(teacher: Teacher, data_dir: Path, decoding: Decoding) -> dict[str, Any] | None:
    """The teacher's BLEU on the validation split with the same decoding options; None without a validation split."""
    if "validation" not in load_manifest(data_dir).splits:
        return None
    bleu = evaluate(teacher.translator, TestSet.of_prepared(data_dir, "validation"), decoding).scores["bleu"]
    return {"bleu": bleu.value, "signature": bleu.signature}


def to_json(value: Any) -> Any:
    """A frozen dataclass as a JSON value with class names; a model or a shortlist is given by its checksum.

    >>> to_json(Decoding())["num_lengths"]
    1
    """
    if isinstance(value, Shortlist):
        return {"class": type(value).__name__, **value.describe()}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.compare]
        fields = {name: to_json(getattr(value, name)) for name in names}
        if isinstance(value, Decoding) and isinstance(value.rerank, str) and value.rerank not in RULES:
            fields["rerank"] = {"name": value.rerank, "sha256": sha256(model_folder(value.rerank) / MANIFEST)}
        return {"class": type(value).__name__, **fields}
    if callable(value):  # of somebody's own rule: a function, or an object that can be called
        return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return [to_json(each) for each in value] if isinstance(value, tuple) else value


class RecordSources:
    """The source side of the training records of a prepared folder.

    Attributes:
      tokenizer: the folder's vocabulary.
    """

    def __init__(self, data_dir: Path, manifest: PreparedManifest):
        self._records = Records.of(Mixture((str(data_dir),)), [manifest], SPLIT)
        self.tokenizer = load_tokenizer(data_dir)

    def parts(self, size: int) -> dict[str, range]:
        """The numbers of all records in parts of at most `size`, by the names of their chunks."""
        count = len(self._records.length_N2)
        return {f"chunk_{begin:010d}": range(begin, min(begin + size, count)) for begin in range(0, count, size)}

    def longest(self, numbers: range) -> int:
        """Number of tokens of the longest source of the records with these numbers."""
        return int(self._records.length_N2[numbers, 0].max())

    def read(self, numbers: range) -> tuple[list[list[int]], list[str]]:
        """Source tokens with EOS, and source texts, of the records with these numbers."""
        tokens_T, _ = self._records.read(numbers)
        tokens = [each.tolist() for each in np.split(tokens_T, np.cumsum(self._records.length_N2[numbers, 0])[:-1])]
        return tokens, [self.tokenizer.decode(ids) for ids in tokens]

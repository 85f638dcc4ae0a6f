"""The teacher of a distillation, the sentences that it reads, and its translations, in a temporary file."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np

from padir.data.prepared import PreparedManifest, load_manifest, load_tokenizer, read_lengths
from padir.data.records import read_records
from padir.data.sources import PathLike
from padir.decoding.options import Decoding
from padir.decoding.rerank import RULES
from padir.decoding.shortlist import Shortlist
from padir.decoding.translator import Translator
from padir.distributed.sharding import Sharding
from padir.errors import PadirError
from padir.evaluation import TestSet, evaluate
from padir.models.directory import load_model
from padir.pretrained import model_folder
from padir.storage.files import write_errors
from padir.storage.manifest import MANIFEST, sha256

SPLIT = "train"


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

        Args:
          sharding: how rows and parameters are spread over the devices of this process; None: one device.

        Raises:
          PadirError: the folder is not a model directory, is half-written or is damaged.
        """
        if not (model_folder(folder) / MANIFEST).is_file():  # the sentences must come from one model
            load_model(folder)
        return Teacher(Translator.load(folder, sharding=sharding), sha256(model_folder(folder) / MANIFEST))


def check_teacher(teacher: Teacher, manifest: PreparedManifest, data_dir: Path) -> None:
    """Checks that a teacher can translate the training split of a prepared folder.

    Raises:
      PadirError: there is no such split, the languages are others, or the teacher predicts no lengths.
    """
    card = teacher.translator.card
    if SPLIT not in manifest.splits:
        raise PadirError(f"{data_dir} has no training split to translate: prepare a corpus that has one")
    taught = card.source_language, card.target_language
    given = manifest.source.languages
    if taught != given:
        raise PadirError(f"the teacher translates {'-'.join(taught)}, but {data_dir} is {'-'.join(given)}")
    if card.config.length_head == "oracle" and not card.config.causal:
        raise PadirError("a teacher must predict lengths, but this one has the length head 'oracle': give another")


def validation_bleu(teacher: Teacher, data_dir: Path, decoding: Decoding) -> dict[str, Any] | None:
    """The teacher's BLEU on the validation split with the same decoding options; None without a validation split."""
    if "validation" not in load_manifest(data_dir).splits:
        return None
    bleu = evaluate(teacher.translator, TestSet.of_prepared(data_dir, "validation"), decoding).scores["bleu"]
    return {"bleu": bleu.value, "signature": bleu.signature}


def to_json(value: Any) -> Any:
    """A frozen dataclass as a JSON value with class names; a model or a shortlist is given by its checksum.

    >>> to_json(Decoding())["top_k"]
    1
    """
    if isinstance(value, Shortlist):
        return {"class": type(value).__name__, **value.describe()}
    if dataclasses.is_dataclass(value):
        fields = {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, Decoding):
            models = {"draft": value.draft, "rerank": None if value.rerank in RULES else value.rerank}
            fields |= {name: {"name": model, "sha256": _sha256(model)} for name, model in models.items() if model}
        return {"class": type(value).__name__, **fields}
    return [to_json(each) for each in value] if isinstance(value, tuple) else value


def _sha256(model: Any) -> str:
    """SHA-256 of the manifest of a model's directory, which changes if the model is retrained; "" for other rules."""
    return sha256(model_folder(model) / MANIFEST) if isinstance(model, str) else ""


class RecordSources:
    """The source side of the training records of a prepared folder.

    Attributes:
      tokenizer: the folder's vocabulary.
      longest_first_N: numbers of the N records, from the longest source to the shortest.
    """

    def __init__(self, data_dir: Path, manifest: PreparedManifest):
        self._folder = data_dir
        paths = [str(data_dir / shard) for shard in manifest.splits[SPLIT].shards]
        self._records: Any = grain.sources.ArrayRecordDataSource(paths)
        self.tokenizer = load_tokenizer(data_dir)
        self._length_N2 = length_N2 = read_lengths(data_dir, SPLIT, manifest.splits[SPLIT].written)
        # Longest sources come first: memory runs out at once or never, and the estimated time is rather too long.
        self.longest_first_N = np.argsort(-length_N2[:, 0], kind="stable")

    def read(self, numbers: list[int]) -> tuple[list[list[int]], list[str]]:
        """Source tokens with EOS, and source texts, of the records with these numbers."""
        vocab_size = self.tokenizer.ids.vocab_size
        pairs = read_records(self._records, numbers, self._length_N2[numbers], vocab_size, self._folder)
        tokens = [source.tolist() for source, _ in pairs]
        return tokens, [self.tokenizer.decode(ids) for ids in tokens]


class StoredTranslations:
    """A translation for each record, in a file that is removed at the end of the context.

    A translation is a dict: "text", and "truncated" if the teacher did not read all of the source. Memory holds two
    numbers for each record.

    Args:
      path: the file to create.
      count: number of records.
    """

    def __init__(self, path: Path, count: int):
        self._path = path
        self._begin_N, self._bytes_N = np.zeros(count, np.int64), np.zeros(count, np.int32)
        self._end = 0

    def __enter__(self) -> StoredTranslations:
        with write_errors(self._path):
            self._file = self._path.open("w+b", buffering=0)
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._begin_N)

    def put(self, numbers: Sequence[int], rows: list[dict[str, Any]]) -> None:
        """Stores the translations of the records with these numbers."""
        contents = [json.dumps(row, ensure_ascii=False).encode("utf-8") for row in rows]
        for number, content in zip(numbers, contents, strict=True):
            self._begin_N[number], self._bytes_N[number] = self._end, len(content)
            self._end += len(content)
        with write_errors(self._path):
            view = memoryview(b"".join(contents))
            while view:  # a write may take only a part
                view = view[self._file.write(view) :]

    def get(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The translations of the records with these numbers."""
        places = zip(self._bytes_N[numbers].tolist(), self._begin_N[numbers].tolist(), strict=True)
        return [json.loads(os.pread(self._file.fileno(), count, begin)) for count, begin in places]

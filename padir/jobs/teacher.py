"""The teacher of a distillation, and its decoding options as JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from padir.data.manifest import PreparedManifest
from padir.data.prepared import load_manifest
from padir.data.sources import PathLike
from padir.decoding.draft import Draft
from padir.decoding.options import Decoding
from padir.decoding.rerank import Rescore
from padir.decoding.shortlist import Shortlist
from padir.decoding.translator import Translator
from padir.distributed.sharding import Sharding
from padir.errors import PadirError
from padir.evaluation import TestSet, evaluate
from padir.jobs.record_files import SPLIT
from padir.models.directory import load_model
from padir.pretrained import model_folder
from padir.storage.manifest import MANIFEST, sha256


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
        """Loads a model directory of any kind of model, or a model that comes with padir by its name.

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
        raise PadirError("the teacher must say how long a translation is, but its length head is 'oracle'")


def validation_bleu(teacher: Teacher, data_dir: Path, decoding: Decoding) -> dict[str, Any] | None:
    """The teacher's BLEU on the validation split with the same decoding options; None without a validation split."""
    if "validation" not in load_manifest(data_dir).splits:
        return None
    bleu = evaluate(teacher.translator, TestSet.of_prepared(data_dir, "validation"), decoding).scores["bleu"]
    return {"bleu": bleu.value, "signature": bleu.signature}


def to_json(value: Any) -> Any:
    """A frozen dataclass as a JSON value with class names; a model or a shortlist is given by its checksum.

    >>> to_json(Decoding())["lengths"]
    {'class': 'LengthSearch', 'top_k': 1, 'offsets': [0], 'draws': 1}
    """
    if isinstance(value, Rescore):
        return {"class": "Rescore", "name": value.name, "brevity": value.brevity, "sha256": _rescorer_sha256(value)}
    if isinstance(value, Shortlist | Draft):
        return {"class": type(value).__name__, **value.describe()}
    if dataclasses.is_dataclass(value):
        fields = {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        for field in dataclasses.fields(value):
            if field.name in ("draft", "schedule", "adjacent") and fields[field.name] == field.default:
                del fields[field.name]  # older folders have no such options
        return {"class": type(value).__name__, **fields}
    return [to_json(each) for each in value] if isinstance(value, tuple) else value


def _rescorer_sha256(rescore: Rescore) -> str:
    """SHA-256 of the manifest of the rescoring model's directory, which changes if the model is retrained."""
    path = model_folder(rescore.name) / MANIFEST
    if not rescore.name or not path.is_file():
        raise PadirError(
            f"the name of a Rescore must be its model's directory, got {rescore.name!r}: make it with"
            " padir.decoding.rescoring.rescorer"
        )
    return sha256(path)

"""The models that come with padir: model directories beside this file, each with its card, README.md."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

DEFAULT = "de_en"
PRETRAINED = {
    "de_en": "PaDIR, German to English, sentences of everyday language",
    "de_en_ar": "the autoregressive model that it was distilled from",
}


def model_folder(model: str | PathLike[str]) -> Path:
    """The folder of a model: the one at that path, or else the one that comes with padir under that name.

    `padir export --output de_en` leaves a folder of a model's name that is none; it hides no model.

    >>> model_folder("de_en").parent.name
    'pretrained'
    >>> model_folder("runs/mine")
    PosixPath('runs/mine')
    """
    shipped = model in PRETRAINED and (not Path(model).exists() or (Path(model) / "export.json").is_file())
    return Path(__file__).parent / str(model) if shipped else Path(model)

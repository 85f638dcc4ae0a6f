"""Pretrained models: the model directories that come with padir, each with its card, README.md."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

__all__ = ["DEFAULT", "PRETRAINED", "model_folder"]

DEFAULT = "de_en"
PRETRAINED = {
    "de_en": "PaDIR, German to English, sentences of everyday language",
    "de_en_ar": "the autoregressive model that it was distilled from",
}


def model_folder(model: str | PathLike[str]) -> Path:
    """The folder of a model, given as a path or as the name of a model that comes with padir.

    A path wins over a name, unless the path is an export (`padir export --output de_en` makes such a folder).

    >>> model_folder("de_en").parent.name
    'pretrained'
    >>> model_folder("runs/mine")
    PosixPath('runs/mine')
    """
    shipped = model in PRETRAINED and (not Path(model).exists() or (Path(model) / "export.json").is_file())
    return Path(__file__).parent / str(model) if shipped else Path(model)

"""Pretrained models: the model directories that come with padir, each with its card, README.md."""

from __future__ import annotations

import os
import re
from os import PathLike
from pathlib import Path

from padir import checks
from padir.errors import PadirError
from padir.storage.files import is_address
from padir.storage.remote import fetched

__all__ = ["DEFAULT", "PRETRAINED", "model_folder"]

DEFAULT = "de_en"
PRETRAINED = {
    "de_en": "PaDIR, German to English, sentences of everyday language",
    "de_en_ar": "an autoregressive model for the same sentences",
    "de_en_ctc": "a model of one parallel pass for the same sentences",
    "toy_masks": "a small model on masks, for the built-in grammar alone (toy_de_en)",
}
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@checks.arguments
def model_folder(model: checks.Path, *, steps: bool = False) -> Path:
    """The folder of a model, given as a path, an address, the name of a shipped model, or a hub's "ORG/NAME".

    A path wins over a name, unless the path is an export (`padir export --output de_en` makes such a folder). A model
    of the Hugging Face Hub is read from the hub's cache on this machine (HF_HUB_CACHE, or HF_HOME/hub, or
    ~/.cache/huggingface/hub); `hf download ORG/NAME` puts it there. padir itself fetches models only from addresses
    such as gs://bucket/run (`padir.storage.remote.fetched`, which explains `steps`).

    >>> model_folder("de_en").parent.name
    'pretrained'
    >>> model_folder("runs/mine")
    PosixPath('runs/mine')

    Raises:
      PadirError: `model` is no path of a file.
    """
    if is_address(model):
        return fetched(model, steps=steps)
    try:
        there = Path(model).exists()
    except OSError as error:  # such as a name that is too long
        raise PadirError(f"cannot read the model {model} ({error.strerror})", remedy="give its path or name") from None
    if model in PRETRAINED and (not there or (Path(model) / "export.json").is_file()):
        return Path(__file__).parent / str(model)
    return _in_hub_cache(model) or Path(model)


def _in_hub_cache(model: str | PathLike[str]) -> Path | None:
    """The newest snapshot of a model "ORG/NAME" in the hub's cache; None for other names, or if a path has the name."""
    if not isinstance(model, str) or not _HUB_NAME.fullmatch(model) or Path(model).exists():
        return None
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{model.replace('/', '--')}"
    if not (cache / "refs" / "main").is_file():
        return None
    return cache / "snapshots" / (cache / "refs" / "main").read_text().strip()

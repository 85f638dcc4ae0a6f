"""Writes and reads model directories, which hold these files:

weights.safetensors   parameters, named as in T5X ("encoder/layers_0/attention/query/kernel"), float32 or bfloat16
vocab.model           the SentencePiece file
model.json            the model card (`padir.models.card.ModelCard`)
config.gin            the operative configuration of the training run
manifest.json         sha256 of each of these files, checked when the model is loaded; written last
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors
import safetensors.numpy

from padir.errors import PadirError, first_line
from padir.models.card import ModelCard
from padir.models.config import DTYPES
from padir.models.params import param_shapes
from padir.pretrained import PRETRAINED, model_folder
from padir.refinement.protocols import Corruption, Strategy
from padir.storage.files import read_json, write_errors
from padir.storage.folders import partial_folder
from padir.storage.manifest import MANIFEST, check_manifest, write_manifest
from padir.text.tokenizer import Tokenizer

MODEL_FILES = ("weights.safetensors", "vocab.model", "model.json", "config.gin")
_STORED = ("F32", "BF16")  # safetensors' names of `DTYPES`


def save_model(
    folder: Path, params: Any, card: ModelCard, tokenizer: Tokenizer, gin_config: str, *, dtype: str = "float32"
) -> None:
    """Writes a model directory. `load_model` refuses a half-written one, because the manifest is written last.

    Args:
      folder: the directory; made if it does not exist.
      params: the parameter tree.
      gin_config: text of config.gin, the operative configuration of the training run.
      dtype: type of the weights in the file, "float32" or, at half the size, "bfloat16".

    Raises:
      PadirError: the directory cannot be written; a model that was there before is unchanged.
    """
    flat = flax.traverse_util.flatten_dict(jax.device_get(params), sep="/")
    arrays = {name: np.ascontiguousarray(value, DTYPES[dtype]) for name, value in flat.items()}
    try:
        with write_errors(folder), partial_folder(folder / "model") as unfinished:
            safetensors.numpy.save_file(arrays, str(unfinished / "weights.safetensors"))
            tokenizer.save(unfinished / "vocab.model")
            (unfinished / "model.json").write_text(json.dumps(card.to_json(), indent=1) + "\n")
            (unfinished / "config.gin").write_text(gin_config)
            # safetensors makes its file readable by the owner alone.
            shutil.copymode(unfinished / "model.json", unfinished / "weights.safetensors")
            write_manifest(unfinished)
            (folder / MANIFEST).unlink(missing_ok=True)
            for name in (*MODEL_FILES, MANIFEST):
                (unfinished / name).rename(folder / name)
    except safetensors.SafetensorError as error:  # raised for a full disk, in place of an OSError
        raise PadirError(f"cannot write a model into {folder} ({first_line(error)}): make room on its disk") from error


def load_model(
    folder: str | PathLike[str], *, corruption: Corruption | None = None, strategy: Strategy | None = None
) -> tuple[Any, ModelCard, Tokenizer]:
    """Loads the parameters (float32), card and tokenizer of a model directory, and checks every file's SHA-256.

    Args:
      folder: the directory, its address, or the name of a model that comes with padir.
      corruption, strategy: instances that replace those of the card, for classes that padir does not know.

    Raises:
      PadirError: the folder is no model directory, or is half-written or damaged.

    >>> params, card, tokenizer = load_model("de_en")
    >>> card.config.width, card.source_language
    (256, 'de')
    """
    folder = model_folder(folder)
    if not folder.is_dir():
        raise PadirError(
            f"there is no model directory {folder}: train one with `padir train`, or name one that comes with padir"
            f" ({', '.join(PRETRAINED)})"
        )
    if not os.path.isfile(folder / MANIFEST):
        unfinished = (folder / "checkpoints").is_dir()
        remedy = (
            "its training run has not finished, run the same `padir train` again"
            if unfinished
            else "it is incomplete, or no model directory"
        )
        raise PadirError(f"{folder} has no {MANIFEST}: {remedy}")
    if not os.path.isfile(folder / "model.json") and "model.json" not in str(read_json(folder / MANIFEST)):
        raise PadirError(
            f"{folder} is no model directory but another of padir's folders, such as prepared text or an export"
        )
    check_manifest(folder, MODEL_FILES)
    card, tokenizer = read_card(folder, corruption=corruption, strategy=strategy)
    flat = _read_weights(folder / "weights.safetensors", card)
    return flax.traverse_util.unflatten_dict(flat, sep="/"), card, tokenizer


def read_card(
    folder: Path, *, corruption: Corruption | None = None, strategy: Strategy | None = None
) -> tuple[ModelCard, Tokenizer]:
    """Reads model.json and vocab.model of a model directory or a checkpoint.

    Args:
      corruption, strategy: instances that replace those of the card.

    Raises:
      PadirError: a file is damaged, or the vocabulary is not that of the model.
    """
    card = ModelCard.from_json(read_json(folder / "model.json"), corruption=corruption, strategy=strategy)
    tokenizer = Tokenizer.load(folder / "vocab.model", num_sentinels=card.ids.num_sentinels)
    if tokenizer.ids.vocab_size != card.ids.vocab_size:
        raise PadirError(
            f"{folder / 'vocab.model'} must give {card.ids.vocab_size} ids, got {tokenizer.ids.vocab_size}: it is not"
            " the vocabulary that the model was trained with"
        )
    return card, tokenizer


def _read_weights(path: Path, card: ModelCard) -> dict[str, np.ndarray]:
    """Reads a weights file and checks its arrays with `model_params`.

    Raises:
      PadirError: the file is no safetensors file, or holds the weights of another model.
    """
    try:
        with safetensors.safe_open(path, "numpy") as file:  # reads the header alone
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        if foreign := [name for name, kind in types.items() if kind not in _STORED]:
            raise PadirError(f"{path}: {foreign[0]} must be of {' or '.join(DTYPES)}, got {types[foreign[0]]}")
        flat = safetensors.numpy.load_file(str(path))
    except (safetensors.SafetensorError, OSError) as error:
        raise PadirError(f"{path} is not a safetensors file of floating-point numbers: {error}") from error
    return model_params(flat, path, card)


def model_params(flat: dict[str, np.ndarray], path: Path, card: ModelCard) -> dict[str, np.ndarray]:
    """Converts loaded arrays to float32 parameters, after checking their names and shapes against the model card.

    Args:
      flat: arrays by parameter name, such as "encoder/layers_0/attention/query/kernel".
      path: origin of the arrays, for error messages.

    Raises:
      PadirError: an array is missing, has another shape or type, or is not finite.
    """
    params = {}
    for name in check_shapes({name: value.shape for name, value in flat.items()}, path, card):
        if flat[name].dtype not in map(np.dtype, DTYPES.values()):
            raise PadirError(f"{path}: {name} must be of {' or '.join(DTYPES)}, got {flat[name].dtype}")
        params[name] = np.asarray(flat[name], np.float32)
        if not np.isfinite(params[name]).all():  # every line would be translated to ""
            raise PadirError(f"{path}: {name} must be finite, got NaN or infinity: its training run went wrong")
    return params


def check_shapes(shapes: Mapping[str, tuple[int, ...]], path: Path, card: ModelCard) -> list[str]:
    """Checks names and shapes of stored arrays against the model card, and returns the names of the parameters.

    Raises:
      PadirError: an array is missing or has another shape.
    """
    depths = {"encoder": card.config.encoder_layers, "decoder": card.config.decoder_layers}
    for stack, depth in depths.items():  # checked first: the shapes of a million layers would take hours
        layers = {name.split("/")[1] for name in shapes if name.startswith(f"{stack}/layers_")}
        if len(layers) != depth:
            raise PadirError(
                f"{path} must have {depth} layers in its {stack}, got {len(layers)}: it belongs to another model"
            )
    expected = param_shapes(card.config, card.ids)
    for name, shape in expected.items():  # arrays that the model does not have are ignored
        if shapes.get(name) != shape:
            raise PadirError(
                f"{path}: {name} must have the shape {shape}, got {shapes.get(name, 'no such array')}: it belongs to"
                " another model than model.json describes"
            )
    return list(expected)

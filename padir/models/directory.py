"""The model card, and model directories, which hold these files:

weights.safetensors   parameters, named as in T5X ("encoder/layers_0/attention/query/kernel"), float32 or bfloat16
vocab.model           the SentencePiece file
model.json            the model card (`padir.models.directory.ModelCard`)
config.gin            the operative configuration of the training run
bigrams.npz           a table of bigrams (`padir.decoding.bigrams`), if the model has one
manifest.json         sha256 of each of these files, checked when the model is loaded; written last
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import flax.traverse_util
import jax
import numpy as np
import safetensors
import safetensors.numpy

from padir import checks
from padir.checks import from_json
from padir.errors import PadirError, first_line
from padir.from_text import made
from padir.models.config import DTYPES, ModelConfig
from padir.models.params import param_shapes
from padir.pretrained import PRETRAINED, model_folder
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies import STRATEGIES
from padir.storage.files import read_json, write_errors
from padir.storage.folders import atomic_folder, partial_folder, vacant
from padir.storage.manifest import MANIFEST, check_manifest, write_manifest
from padir.text.ids import Ids
from padir.text.normalise import FORMS
from padir.text.tokenizer import Tokenizer

MODEL_FILES = ("weights.safetensors", "vocab.model", "model.json", "config.gin")


def save_model(
    folder: Path,
    params: Any,
    card: ModelCard,
    tokenizer: Tokenizer,
    gin_config: str,
    *,
    dtype: str = "float32",
    add: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Writes a model directory. A new directory appears whole; in a training run's folder the manifest comes last.

    Args:
      gin_config: text of config.gin, the operative configuration of the training run.
      dtype: type of the weights in the file, "float32" or, at half the size, "bfloat16".
      add: writes further files into the unfinished directory, which must be new.

    Raises:
      PadirError: the directory cannot be written; an earlier model in it stays unchanged.
    """
    flat = flax.traverse_util.flatten_dict(jax.device_get(params), sep="/")
    arrays = {name: np.ascontiguousarray(value, DTYPES[dtype]) for name, value in flat.items()}
    new = vacant(folder)
    try:
        with write_errors(folder), atomic_folder(folder) if new else partial_folder(folder / "model") as unfinished:
            safetensors.numpy.save_file(arrays, str(unfinished / "weights.safetensors"))
            tokenizer.save(unfinished / "vocab.model")
            (unfinished / "model.json").write_text(card_text(card))
            (unfinished / "config.gin").write_text(gin_config)
            # safetensors makes its file readable by the owner alone.
            shutil.copymode(unfinished / "model.json", unfinished / "weights.safetensors")
            add(unfinished)
            write_manifest(unfinished)
            if not new:
                (folder / MANIFEST).unlink(missing_ok=True)
                for name in (*MODEL_FILES, MANIFEST):
                    (unfinished / name).rename(folder / name)
    except safetensors.SafetensorError as error:  # raised for a full disk, in place of an OSError
        raise PadirError(f"cannot write a model into {folder} ({first_line(error)}): make room on its disk") from error


def card_text(card: ModelCard) -> str:
    """The text of model.json."""
    return json.dumps(card.to_json(), indent=1) + "\n"


def load_model(
    folder: str | PathLike[str], *, corruption: Corruption | None = None, strategy: Strategy | None = None
) -> tuple[Any, ModelCard, Tokenizer]:
    """Loads the parameters (float32), card and tokenizer of a model directory, and checks every file's SHA-256.

    Args:
      folder: the directory, its address, or the name of a model that comes with padir.
      corruption, strategy: instances in place of the card's, for classes that padir does not know.

    Raises:
      PadirError: the folder is no model directory, or is half-written or damaged.

    >>> params, card, tokenizer = load_model("de_en")
    >>> card.config.width, card.source_language
    (256, 'de')
    """
    folder = model_folder(folder)
    if not folder.is_dir():
        remedy = f"train one with `padir train`, or name one that comes with padir ({', '.join(PRETRAINED)})"
        raise PadirError(f"there is no model directory {folder}", remedy=remedy)
    if not os.path.isfile(folder / MANIFEST):
        cause, remedy = "it is incomplete, or no model directory", "give the folder of a finished training run"
        if (folder / "checkpoints").is_dir():
            cause, remedy = "its training run has not finished", "run the same `padir train` again"
        raise PadirError(f"{folder} has no {MANIFEST}: {cause}", remedy=remedy)
    if not os.path.isfile(folder / "model.json") and "model.json" not in str(read_json(folder / MANIFEST)):
        other = "another folder of padir, such as prepared text or an export"
        raise PadirError(f"{folder} is no model directory but {other}")
    check_manifest(folder, MODEL_FILES)
    card, tokenizer = read_card(folder, corruption=corruption, strategy=strategy)
    flat = _read_weights(folder / "weights.safetensors", card)
    return flax.traverse_util.unflatten_dict(flat, sep="/"), card, tokenizer


def read_card(
    folder: Path, *, corruption: Corruption | None = None, strategy: Strategy | None = None
) -> tuple[ModelCard, Tokenizer]:
    """Reads model.json and vocab.model of a model directory or a checkpoint; the arguments are as in `load_model`."""
    card = card_of(folder / "model.json", corruption=corruption, strategy=strategy)
    tokenizer = Tokenizer.load(folder / "vocab.model", card.ids.num_sentinels, card.ids.num_placeholders)
    for name in ("vocab_size", "first_regular"):
        if (got := getattr(tokenizer.ids, name)) != (needed := getattr(card.ids, name)):
            remedy = "it is not the vocabulary that the model was trained with"
            raise PadirError(f"{folder / 'vocab.model'} must have the {name} {needed}, got {got}", remedy=remedy)
    return card, tokenizer


def card_of(path: Path, *, corruption: Corruption | None = None, strategy: Strategy | None = None) -> ModelCard:
    """Reads a model card of at most 65,536 bytes; the arguments are as in `load_model`."""
    return ModelCard.from_json(read_json(path, 65_536), corruption=corruption, strategy=strategy)


def _read_weights(path: Path, card: ModelCard) -> dict[str, np.ndarray]:
    """Reads a weights file and checks its arrays with `model_params`."""
    try:
        flat = safetensors.numpy.load_file(str(path))
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:  # of foreign types
        raise PadirError(f"{path} is not a safetensors file of floating-point numbers: {error}") from error
    return model_params(flat, path, card)


def model_params(flat: dict[str, np.ndarray], path: Path, card: ModelCard) -> dict[str, np.ndarray]:
    """Converts loaded arrays, by parameter name, to float32, after checks against the model card.

    An array that is missing, of another shape or type, or not finite raises a PadirError that names `path`.
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
    """Checks names and shapes of stored arrays against the model card, and returns the names of the parameters."""
    depths = {"encoder": card.config.encoder_layers, "decoder": card.config.decoder_layers}
    for stack, depth in depths.items():  # checked first: the shapes of a million layers would take hours
        layers = {name.split("/")[1] for name in shapes if name.startswith(f"{stack}/layers_")}
        if len(layers) != depth:
            what = f"{path} must have {depth} layers in its {stack}, got {len(layers)}"
            raise PadirError(what, remedy="it belongs to another model")
    expected = param_shapes(card.config, card.ids)
    for name, shape in expected.items():  # arrays that the model does not have are ignored
        if shapes.get(name) != shape:
            what = f"{path}: {name} must have the shape {shape}, got {shapes.get(name, 'no such array')}"
            raise PadirError(what, remedy="it belongs to another model than model.json describes")
    return list(expected)


FORMAT = 2  # version of model.json


def name_and_fields(instance: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Converts a frozen dataclass, such as a strategy, to JSON: its fields, and a name in `known` or "module:Name".

    A field that holds another such object is described in the same way.
    """
    names = [name for name, cls in known.items() if type(instance) is cls]
    name = names[0] if names else f"{type(instance).__module__}:{type(instance).__qualname__}"
    values = {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}
    held = {
        key: name_and_fields(value, known)
        for key, value in values.items()
        if dataclasses.is_dataclass(value) and not isinstance(value, type)
    }
    return {"name": name} | dataclasses.asdict(instance) | held | {"name": name}


def _holds_object(value: Any) -> bool:
    """True for a value that JSON loses, such as an instance of a class, also within a tuple, list or dict."""
    if isinstance(value, list | tuple):
        return any(map(_holds_object, value))
    if isinstance(value, dict):
        return any(map(_holds_object, value.values()))
    return not isinstance(value, str | int | float | None)


def _for_card(kind: str, instance: Any, known: dict[str, Any]) -> dict[str, Any]:
    """`name_and_fields` of a strategy or corruption; refuses one that holds another object, which is not read again."""
    for field in dataclasses.fields(instance):
        if _holds_object(value := getattr(instance, field.name)):
            what = f"model.json cannot hold {type(instance).__name__}.{field.name} = {value}"
            raise PadirError(what, remedy=f"save the model with a {kind} whose fields are text and numbers")
    return name_and_fields(instance, known)


def _described(description: Any, noun: str, known: dict[str, Any], protocol: type) -> Any:
    """The instance that `name_and_fields` described, of a class in `known` or in a module that was imported."""
    values = {**description}
    try:
        return made(values.pop("name"), noun, known, protocol, values)
    except PadirError as error:
        raise PadirError(f"the model's card: {error}") from None


@checks.settings
class Weights:
    """The training steps that a model's weights come from, and how their weights were averaged.

    Attributes:
      kind: "none" for the weights of one step, "ema" for a moving average up to one step, "last" for the mean of the
        last checkpoints, "best" for the mean of the checkpoints with the highest validation BLEU.
      steps: the step, or the steps of the averaged checkpoints.
      decay: decay of the moving average, also if several moving averages were averaged; None without a moving average.
    """

    kind: Annotated[str, partial(checks.one_of, ("none", "ema", "last", "best"))] = "none"
    steps: tuple[int, ...] = ()
    decay: checks.ShareBelow1 | None = None

    def __str__(self) -> str:
        steps = ", ".join(f"{step:,}" for step in self.steps) or "unknown"
        if self.kind == "none":
            return f"of step {steps}"
        if self.kind == "ema":
            return f"moving average (decay {self.decay}) up to step {steps}"
        if len(self.steps) == 1:
            moving = "" if self.decay is None else f", moving average (decay {self.decay})"
            return f"the {self.kind} checkpoint, step {steps}{moving}"
        moving = "" if self.decay is None else f" moving averages (decay {self.decay}) of"
        return f"mean of{moving} the {self.kind} {len(self.steps)} checkpoints, steps {steps}"


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """The contents of model.json.

    Attributes:
      config, ids: the model's sizes and vocabulary layout.
      corruption: the corruption that the model was trained with; None for a causal model.
      strategy: the strategy that the model is decoded with by default; None for a causal model.
      source_language, target_language: codes such as "de" or "zho_Hans".
      task: name of the training data.
      step: number of optimizer steps.
      metrics: the last metrics of the training run, by name; validation metrics were measured with the card's weights.
      weights: the origin of the weights within the training run.
      decoding: the model's default decoding options, by the names that `Decoding.changed` takes, such as
        {"num_lengths": 5, "length_normalization": 1.5}.
      text_form: the form of the training text, and so of the text that the model reads (`padir.text.normalise.FORMS`).
    """

    config: ModelConfig
    ids: Ids
    corruption: Corruption | None
    strategy: Strategy | None
    source_language: str
    target_language: str
    task: str
    step: int = 0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    weights: Weights = Weights()
    decoding: dict[str, Any] = dataclasses.field(default_factory=dict)
    text_form: str = "plain"

    def __post_init__(self):
        checks.one_of(FORMS, text_form=self.text_form)
        checks.language(source_language=self.source_language, target_language=self.target_language)

    def to_json(self) -> dict[str, Any]:
        described = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name, known in (("corruption", CORRUPTIONS), ("strategy", STRATEGIES)):
            if described[name] is not None:
                described[name] = _for_card(name, described[name], known)
        for name in ("config", "ids", "weights"):
            described[name] = dataclasses.asdict(described[name])
        return {"format": FORMAT, **described}

    @staticmethod
    def from_json(data: Any, *, corruption: Corruption | None = None, strategy: Strategy | None = None) -> ModelCard:
        """Makes a card from the JSON of `to_json`; the corruption and strategy given here replace the JSON's.

        Raises:
          PadirError: model.json has another format, or a field is missing, unknown or of the wrong type.
        """
        got = data.get("format") if isinstance(data, dict) else None
        if got != FORMAT:
            raise PadirError("the format of model.json", str(FORMAT), got, "use the padir version that wrote it")
        try:
            config = from_json(ModelConfig, data["config"])
            if config.causal and config.dual:  # as a dual model's causal side, whose card is never written
                raise PadirError("model.json must have causal or dual, not both: set causal to false")
            if config.causal and (corruption or strategy):
                raise PadirError("a causal model has neither corruption nor strategy: load it without these arguments")
            if not config.causal:
                corruption = corruption or _described(data["corruption"], "corruption", CORRUPTIONS, Corruption)
                strategy = strategy or _described(data["strategy"], "strategy", STRATEGIES, Strategy)
            kinds = dict.fromkeys(("source_language", "target_language", "task", "text_form"), str)
            kinds |= {"step": int, "metrics": dict[str, float], "decoding": dict}
            described: Any = {name: from_json(kind, data[name], name) for name, kind in kinds.items()}
            checks.within(0, 2**63 - 1, step=described["step"])
            return ModelCard(
                config=config,
                ids=from_json(Ids, data["ids"]),
                corruption=corruption,
                strategy=strategy,
                weights=from_json(Weights, data["weights"]),
                **described,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise PadirError(f"model.json does not describe a model of this padir: {error}") from error

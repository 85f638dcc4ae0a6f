"""Training checkpoints (Orbax) and model directories (safetensors), each with a manifest of sha256 sums.

A checkpoint is `checkpoints/<step>/`: Orbax arrays of the train state, `loader.json`, the operative `config.gin`, an
empty file `extra` if it is not one of the regular ones, and `manifest.json`. It is written beside its place, in a
background thread, and renamed when everything and the manifest are on disk, so that a folder with a step's name is
whole. A model directory is what `Translator.load` reads:

    weights.safetensors   parameters, named as in T5X ("encoder/layers_0/attention/query/kernel"), float32 or bfloat16
    vocab.model           the SentencePiece file
    model.json            `ModelCard`: configuration, ids, languages, corruption, strategy, metrics
    config.gin            the operative configuration of the training
    manifest.json         sha256 of each of these, checked when loaded; written last
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import shutil
import sys
import typing
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors
import safetensors.numpy

from padir.errors import PadirError, first_line
from padir.models.transformer import DTYPES, ModelConfig, param_shapes
from padir.pretrained import PRETRAINED, model_folder
from padir.refinement.canvas import Corruption, Strategy
from padir.refinement.corruption import CORRUPTIONS
from padir.refinement.strategies import STRATEGIES
from padir.storage.files import inside, read_json, seal_holds, sealed, writing
from padir.storage.typecheck import fits
from padir.text.ids import Ids
from padir.text.tokenizer import Tokenizer

MANIFEST = "manifest.json"
EXTRA = "extra"
MODEL_FILES = ("weights.safetensors", "vocab.model", "model.json", "config.gin")
FORMAT = 1
MANIFEST_FORMAT = 2  # those of format 1 have no sum of themselves


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Writes the sha256 and size of every file under `folder` to its manifest."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    entries = {str(path.relative_to(folder)): {"sha256": sha256(path), "bytes": path.stat().st_size} for path in files}
    manifest = sealed({"format": MANIFEST_FORMAT, "files": entries})
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def check_manifest(folder: Path, needed: Sequence[str] = ()) -> None:
    """Compares every file with the manifest, and the manifest with its own sum.

    Args:
      needed: files that the manifest must name, so that nothing is read which was not compared.

    Raises:
      PadirError: no manifest, or a file that is missing, cannot be read, differs, or lies outside the folder.
    """
    path = inside(folder, MANIFEST)
    if not os.path.isfile(path):
        raise PadirError(f"{folder} has no {MANIFEST}: it is not whole, or not one of padir's folders")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        sums = {name: entry["sha256"] for name, entry in manifest["files"].items()}
        if manifest["format"] != FORMAT and not seal_holds(manifest):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise PadirError(f"{path} is damaged: restore the folder from a copy") from None
    except OSError as error:
        raise PadirError(f"{path} cannot be read ({error.strerror}): restore the folder from a copy") from None
    if missing := [name for name in needed if name not in sums]:
        raise PadirError(
            f"{path} does not name {missing[0]}, which so cannot be checked: restore the folder from a copy"
        )
    for name, expected in sums.items():
        path = inside(folder, name)
        if not os.path.isfile(path):
            raise PadirError(f"{path} is missing: restore the folder from a copy")
        try:
            got = sha256(path)
        except OSError as error:
            raise PadirError(f"{path} cannot be read ({error.strerror}): restore the folder from a copy") from None
        if got != expected:
            raise PadirError(f"{path} was changed or damaged (its sha256 differs): restore the folder from a copy")


def _orbax() -> Any:
    """What reads and writes arrays: in this process alone, as only the first of several has the checkpoints."""
    import orbax.checkpoint as ocp  # slow to import, and decoding does without

    if jax.process_count() == 1:
        return ocp.StandardCheckpointer()
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(here, {here}, f"process_{here}")
    return ocp.StandardCheckpointer(multiprocessing_options=alone)


def _empty(leaf: Any) -> np.ndarray:
    """What tells Orbax to read an array to the host, of this shape and dtype."""
    return np.empty(np.shape(leaf), leaf.dtype)


class Checkpoints:
    """The checkpoints of one training run: `save` returns at once, `restore_latest` skips damaged ones.

    Regular ones come at the run's intervals and are what averages are made of. One that a stop makes in between is an
    extra: it serves to go on from, and is removed by the next save, so that a run which was stopped has the regular
    checkpoints of one which was not.

    As a context manager it waits for the last save, also when an exception leaves: Orbax cannot finish a save in the
    background of a process that ends.

    Attributes:
      folder: holds one folder a step.
      keep: how many of the newest regular ones are kept.
      protected: steps that are kept, however old.
    """

    def __init__(self, folder: Path, keep: int = 2):
        self.folder, self.keep = folder, keep
        self.protected: frozenset[int] = frozenset()
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: concurrent.futures.Future | None = None

    def __enter__(self) -> Checkpoints:
        self._thread.submit(int).result()  # starts the thread: an interrupt while it starts would make it two
        return self

    def __exit__(self, exception_type, *_) -> None:
        self._thread.submit(int).result()  # one after the other: also a save that an interrupt kept from being noted
        try:
            self.wait()
        except Exception as error:
            if exception_type is None:
                raise
            print(f"padir: the last checkpoint could not be saved: {error}", file=sys.stderr)  # beside what came first

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal() and path.is_dir())

    def regular_steps(self) -> list[int]:
        """Steps that have a checkpoint which is no extra, oldest first."""
        return [step for step in self.steps() if not (self.folder / str(step) / EXTRA).exists()]

    def config(self, step: int) -> str:
        """The configuration that a checkpoint was made with; "" if it is not known."""
        path = self.folder / str(step) / "config.gin"
        return path.read_text() if path.exists() else ""

    def save(
        self, step: int, state: Any, loader_state: dict[str, Any], *, config: str = "", extra: bool = False
    ) -> None:
        """Copies the state to the host and writes it in the background; waits for the save before it, if any.

        Args:
          config: the text of the operative configuration.
          extra: it is not one of the regular ones.

        Raises:
          PadirError: the save before it failed.
        """
        self.wait()
        host_state = jax.tree.map(np.asarray, jax.device_get(state))
        self._pending = self._thread.submit(self._write, step, host_state, dict(loader_state), config, extra)

    def wait(self) -> None:
        """Returns when the last save is on disk; raises what went wrong with it."""
        if self._pending is not None:
            concurrent.futures.wait([self._pending])  # interrupted here, it is still pending for the next call
            pending, self._pending = self._pending, None
            pending.result()

    def _write(self, step: int, state: Any, loader_state: dict[str, Any], config: str, extra: bool) -> None:
        final, unfinished = self.folder / str(step), self.folder / f"{step}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            with writing(unfinished):
                unfinished.mkdir(parents=True)
                with _orbax() as checkpointer:
                    checkpointer.save(unfinished.absolute() / "state", state)
                (unfinished / "loader.json").write_text(json.dumps(loader_state) + "\n")
                (unfinished / "config.gin").write_text(config)
                if extra:
                    (unfinished / EXTRA).touch()
                write_manifest(unfinished)
                shutil.rmtree(final, ignore_errors=True)
                unfinished.rename(final)
        except Exception as error:  # a full disk is an error of another type in each of the libraries that Orbax uses
            shutil.rmtree(unfinished, ignore_errors=True)  # it may be what fills the disk
            raise PadirError(
                f"the checkpoint of step {step} could not be written: {first_line(error)}; those before it are whole:"
                f" see that there is room in {self.folder}, and run the same command again"
            ) from error
        regular = self.regular_steps()
        for old in set(self.steps()) - {step, *regular[-self.keep :]} - self.protected:
            shutil.rmtree(self.folder / str(old), ignore_errors=True)

    def restore_latest(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """The newest whole checkpoint's state and loader state, or None; says on stderr which damaged ones it skips.

        Args:
          like: a state of the same structure and shapes, or its shapes alone (`jax.eval_shape`).

        Raises:
          PadirError: there are checkpoints, but none is whole or none fits the state.
        """
        for leftover in self.folder.glob("*.unfinished"):  # a process was killed while it wrote it
            shutil.rmtree(leftover, ignore_errors=True)
        damaged: list[int] = []
        for step in reversed(self.steps()):
            folder = self.folder / str(step)
            try:
                check_manifest(folder)
                loader_state = json.loads((folder / "loader.json").read_text())
                with _orbax() as checkpointer:
                    state = checkpointer.restore(folder.absolute() / "state", jax.tree.map(_empty, like))
                if jax.tree.map(np.shape, state) != jax.tree.map(np.shape, like):  # Orbax takes any shape
                    raise ValueError("the shapes of its arrays differ")
                for newer in damaged:  # out of the way, so that it is not kept as one of the newest
                    shutil.rmtree(self.folder / f"{newer}.damaged", ignore_errors=True)
                    (self.folder / str(newer)).rename(self.folder / f"{newer}.damaged")
                return state, loader_state
            except PadirError as error:
                damaged.append(step)
                print(f"padir: skipping the checkpoint of step {step}: {error}", file=sys.stderr)
            except ValueError as error:
                raise PadirError(
                    f"the checkpoint of step {step} in {self.folder} is of another model or optimizer than this"
                    " configuration (a moving average belongs to the optimizer, and begins with the first step): train"
                    f" in a new directory ({first_line(error)})"
                ) from error
        if damaged:
            raise PadirError(f"no whole checkpoint is left in {self.folder}: remove it to start again")
        return None

    def params(self, step: int, *, moving_average: bool = False) -> Any:
        """The parameters in a checkpoint, whatever its optimizer was, or its moving average of them.

        Raises:
          PadirError: it is missing, damaged, or holds no parameters or no moving average.
        """
        folder = self.folder / str(step)
        check_manifest(folder)
        with _orbax() as checkpointer:
            state = checkpointer.restore(folder.absolute() / "state")
        if "params" not in state:
            raise PadirError(f"{folder} holds {', '.join(state)}, but no params: give a checkpoint of `padir train`")
        if not moving_average:
            return state["params"]
        opt_state = state.get("opt_state")
        if not isinstance(opt_state, dict) or "average" not in opt_state:
            raise PadirError(
                f"{folder} holds no moving average, which the training was validated with: average the --last ones"
            )
        return opt_state["average"]


def describe(instance: Any, known: dict[str, Any]) -> dict[str, Any]:
    """A corruption, strategy or search as JSON: its name and hyperparameters."""
    names = [name for name, cls in known.items() if type(instance) is cls]
    name = names[0] if names else f"{type(instance).__module__}.{type(instance).__qualname__}"
    return {"name": name, **dataclasses.asdict(instance)}


def _made(cls: Any, fields: dict[str, Any]) -> Any:
    """A frozen dataclass of its fields as JSON has them: tuples are lists there.

    Raises:
      TypeError: a field is unknown, or of another type.
    """
    for name, hint in typing.get_type_hints(cls).items():
        if name in fields and not fits(fields[name], hint):
            raise TypeError(f"{cls.__name__}.{name} must be of type {hint}, got {fields[name]!r}")
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def recreate(description: dict[str, Any], known: dict[str, Any]) -> Any:
    """The instance that `describe` wrote.

    Raises:
      PadirError: the name is not padir's own.
      TypeError: a hyperparameter is unknown, or of another type.
    """
    hyperparameters = {key: value for key, value in description.items() if key != "name"}
    if description["name"] not in known:
        raise PadirError(
            f"the model was made with {description['name']!r}, which padir does not know: choose one of"
            f" {', '.join(known)}, or give the instance to Translator.load"
        )
    return _made(known[description["name"]], hyperparameters)


@dataclasses.dataclass(frozen=True)
class Weights:
    """Which weights of a training a model directory holds.

    Attributes:
      kind: "none" (no average: those of a step), "ema" (a moving average up to a step), "last" or "best" (the mean of
        checkpoints: of the last ones, or of those with the highest validation BLEU).
      steps: that step, or those of the checkpoints.
      decay: of the moving average; with "best", it is moving averages that the mean is of.
    """

    kind: str = "none"
    steps: tuple[int, ...] = ()
    decay: float | None = None

    def __str__(self) -> str:
        steps = ", ".join(f"{step:,}" for step in self.steps) or "unknown"
        if self.kind == "none":
            return f"of step {steps}"
        if self.kind == "ema":
            return f"moving average (decay {self.decay}) up to step {steps}"
        moving = "" if self.decay is None else f" moving averages (decay {self.decay}) of"
        return f"mean of{moving} the {self.kind} {len(self.steps)} checkpoints, steps {steps}"


@dataclasses.dataclass(frozen=True)
class ModelCard:
    """What model.json says.

    Attributes:
      config, ids: the model's sizes and vocabulary layout.
      corruption, strategy: what it was trained with, and how it is decoded unless told otherwise; None for a causal
        model, which has neither.
      source_language, target_language, task: of its training data.
      step: optimizer steps taken.
      metrics: figures measured in training, by name; those of the validation split are of these weights.
      weights: which of the training's weights these are.
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

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "config": dataclasses.asdict(self.config),
            "ids": dataclasses.asdict(self.ids),
            "corruption": None if self.corruption is None else describe(self.corruption, CORRUPTIONS),
            "strategy": None if self.strategy is None else describe(self.strategy, STRATEGIES),
            "source_language": self.source_language,
            "target_language": self.target_language,
            "task": self.task,
            "step": self.step,
            "metrics": self.metrics,
            "weights": dataclasses.asdict(self.weights),
        }

    @staticmethod
    def from_json(data: Any, *, corruption: Corruption | None = None, strategy: Strategy | None = None) -> ModelCard:
        """Reads what `to_json` gave, with another corruption or strategy where one is given.

        Raises:
          PadirError: another format, or a field is missing or unknown.
        """
        got = data.get("format") if isinstance(data, dict) else None
        if got != FORMAT:
            raise PadirError(f"model.json has format {got!r}, this padir reads {FORMAT}")
        try:
            config = _made(ModelConfig, data["config"])
            if config.causal and (corruption or strategy):
                raise PadirError("a causal model has neither corruption nor strategy: load it without")
            described = {name: data[name] for name in ("source_language", "target_language", "task", "step", "metrics")}
            for name, kind in (("source_language", str), ("target_language", str), ("task", str), ("step", int)):
                if not fits(described[name], kind):
                    raise TypeError(f"{name} must be of type {kind.__name__}, got {described[name]!r}")
            return ModelCard(
                config=config,
                ids=_made(Ids, data["ids"]),
                corruption=None if config.causal else corruption or recreate(data["corruption"], CORRUPTIONS),
                strategy=None if config.causal else strategy or recreate(data["strategy"], STRATEGIES),
                weights=_made(Weights, data.get("weights", {"steps": [data["step"]]})),
                **described,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise PadirError(f"model.json does not describe a model of this padir: {error}") from error


def save_model(
    folder: Path, params: Any, card: ModelCard, tokenizer: Tokenizer, gin_config: str, *, dtype: str = "float32"
) -> None:
    """Writes a model directory; its manifest is the last file, so that a half-written one is refused.

    Args:
      dtype: of the weights in the file, "float32" or "bfloat16", which takes half the room.

    Raises:
      PadirError: it cannot be written; a model that was there before is left as it was.
    """
    unfinished = folder / "model.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    flat = flax.traverse_util.flatten_dict(jax.device_get(params), sep="/")
    arrays = {name: np.ascontiguousarray(value, DTYPES[dtype]) for name, value in flat.items()}
    try:
        with writing(folder):
            unfinished.mkdir(parents=True)
            safetensors.numpy.save_file(arrays, str(unfinished / "weights.safetensors"))
            tokenizer.save(unfinished / "vocab.model")
            (unfinished / "model.json").write_text(json.dumps(card.to_json(), indent=1) + "\n")
            (unfinished / "config.gin").write_text(gin_config)
            # safetensors lets the owner alone read its file.
            shutil.copymode(unfinished / "model.json", unfinished / "weights.safetensors")
            write_manifest(unfinished)
            (folder / MANIFEST).unlink(missing_ok=True)
            for name in (*MODEL_FILES, MANIFEST):
                (unfinished / name).rename(folder / name)
    except safetensors.SafetensorError as error:  # a full disk, in its words
        raise PadirError(f"cannot write a model into {folder} ({first_line(error)}): make room on its disk") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def load_model(
    folder: str | PathLike[str], *, corruption: Corruption | None = None, strategy: Strategy | None = None
) -> tuple[Any, ModelCard, Tokenizer]:
    """Parameters (float32), card and tokenizer of a model directory, every file checked against its manifest.

    Args:
      folder: the directory, or the name of a model that comes with padir.

    Raises:
      PadirError: not a model directory, half-written, or damaged.
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
            "its training has not finished: run the same `padir train` again"
            if unfinished
            else "it is not whole, or no model directory"
        )
        raise PadirError(f"{folder} has no {MANIFEST}: {remedy}")
    check_manifest(folder, MODEL_FILES)
    card = ModelCard.from_json(read_json(folder / "model.json"), corruption=corruption, strategy=strategy)
    flat = _read_weights(folder / "weights.safetensors", card)
    tokenizer = Tokenizer.load(folder / "vocab.model", num_sentinels=card.ids.num_sentinels)
    if tokenizer.ids.vocab_size != card.ids.vocab_size:
        raise PadirError(
            f"{folder / 'vocab.model'} must give {card.ids.vocab_size} ids, got {tokenizer.ids.vocab_size}: it is not"
            " the vocabulary that the model was trained with"
        )
    return flax.traverse_util.unflatten_dict(flat, sep="/"), card, tokenizer


def _read_weights(path: Path, card: ModelCard) -> dict[str, np.ndarray]:
    """`model_params` of a weights file.

    Raises:
      PadirError: it is no safetensors file, or of another model.
    """
    try:
        flat = safetensors.numpy.load_file(str(path))
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise PadirError(f"{path} is not a safetensors file of floating-point numbers: {error}") from error
    return model_params(flat, path, card)


def model_params(flat: dict[str, np.ndarray], path: Path, card: ModelCard) -> dict[str, np.ndarray]:
    """Arrays as float32, after comparing their names and shapes with those of the card's model.

    Args:
      path: where they come from, for messages.

    Raises:
      PadirError: they are of another model.
    """
    shapes = {name: value.shape for name, value in flat.items()}
    depths = {"encoder": card.config.encoder_layers, "decoder": card.config.decoder_layers}
    for stack, depth in depths.items():  # first, as shapes of a million layers would take hours
        layers = {name.split("/")[1] for name in shapes if name.startswith(f"{stack}/layers_")}
        if len(layers) != depth:
            raise PadirError(
                f"{path} must have {depth} layers in its {stack}, got {len(layers)}: it is of another model"
            )
    expected = param_shapes(card.config, card.ids)
    params = {}
    for name, shape in expected.items():  # what else there is belongs to no part of the model
        if shapes.get(name) != shape:
            raise PadirError(
                f"{path}: {name} must have the shape {shape}, got {shapes.get(name, 'no such array')}: it is of another"
                " model than model.json describes"
            )
        if flat[name].dtype not in map(np.dtype, DTYPES.values()):
            raise PadirError(f"{path}: {name} must be of {' or '.join(DTYPES)}, got {flat[name].dtype}")
        params[name] = np.asarray(flat[name], np.float32)
    return params

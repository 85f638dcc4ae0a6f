"""Exchange of models with T5X: T5X checkpoint to model directory (in whole or in part), and model directory to T5X.

padir's parameters have T5X's names and shapes, so nothing is converted. A T5X run with padir's adapter has a
description of the model beside its checkpoints: `padir.json` (the model card) and `vocab.model`.
"""

from __future__ import annotations

import dataclasses
import json
from os import PathLike
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from padir.errors import PadirError
from padir.interop.t5x.checkpoint import T5XCheckpoint, find, read, write
from padir.models.directory import ModelCard, Weights, card_of, load_model, save_model
from padir.models.params import param_shapes
from padir.models.transformer import Transformer
from padir.storage.files import write_json
from padir.text.tokenizer import Tokenizer
from padir.training.start_from import VOCABULARY_AXIS

CARD = "padir.json"
VOCABULARY = "vocab.model"
_MOST_PADDING = 128  # maximum number of rows that T5X adds to an embedding table
_CAUSAL = "the checkpoint's decoder writes from left to right, where these buckets stand for other distances"


@dataclasses.dataclass(frozen=True)
class Report:
    """Report on the parameters of a checkpoint that became parameters of a model.

    Attributes:
      taken: the model's parameters that come from the checkpoint, with a note on changes ("" for none).
      fresh: the model's parameters that do not come from the checkpoint, with the reason.
      unused: the checkpoint's parameters that were not taken, with the reason.
      numbers: (count of numbers in the model, count of those that were taken).
    """

    taken: dict[str, str]
    fresh: dict[str, str]
    unused: dict[str, str]
    numbers: tuple[int, int]

    def __str__(self) -> str:
        total, taken = self.numbers
        lines = [f"{len(self.taken)} parameters taken: {taken:,} of the model's {total:,} numbers"]
        lines += [f"  {name}: {note}" for name, note in self.taken.items() if note]
        for title, names in (("initialised anew", self.fresh), ("in the checkpoint and not taken", self.unused)):
            if names:
                lines += [f"{len(names)} {title}", *(f"  {name}: {why}" for name, why in names.items())]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON."""
        return {**dataclasses.asdict(self), "numbers": {"model": self.numbers[0], "taken": self.numbers[1]}}


def take(fresh: dict[str, np.ndarray], found: dict[str, Any], *, causal: bool) -> tuple[dict[str, Any], Report]:
    """Replaces a model's parameters by those of a checkpoint where names and shapes agree.

    T5X adds up to 128 rows to an embedding table for sharding; the first rows are taken. The position bias of a causal
    decoder is not taken for a bidirectional decoder or vice versa, although the shapes agree.

    Args:
      fresh: all parameters of the model, by name.
      found: the checkpoint's parameters, by name; for parameters that cannot agree, shapes are enough.
      causal: True if the model's decoder is causal.

    Raises:
      PadirError: no parameter agrees.
    """
    # T5's own decoder has none of the parts that only a decoder of drafts has.
    left_to_right = not any(name.startswith(("decoder/abs_pos_embed", "length_predictor")) for name in found)
    params = dict(fresh)
    taken = {}
    anew = {}
    unused = {name: "the model has none" for name in found}
    for name, value in fresh.items():
        if name not in found:
            anew[name] = "the checkpoint has none"
            continue
        array = found[name]
        note = ""
        axis = VOCABULARY_AXIS.get(name)
        if axis is not None and array.ndim == 2 and array.shape[1 - axis] == value.shape[1 - axis]:
            size = value.shape[axis]
            padded = array.shape[axis]
            if 0 < padded - size <= _MOST_PADDING:
                note = f"the first {size:,} of its {padded:,} {('rows', 'columns')[axis]}"
                array = array[tuple(map(slice, value.shape))]
        if array.shape != value.shape:
            anew[name] = unused[name] = f"its shape is {array.shape} in the checkpoint, {value.shape} in the model"
        elif name == "decoder/relpos_bias/rel_embedding" and left_to_right != causal:
            anew[name] = unused[name] = _CAUSAL if left_to_right else "the checkpoint's decoder sees both sides"
        else:
            params[name] = array
            taken[name] = note
            del unused[name]
    if not taken:
        raise PadirError(
            "no parameter of the checkpoint has the name and shape of a parameter of the model; it has"
            f" {', '.join(sorted(found)[:3])}, ...: give a T5X checkpoint, and set ModelConfig's sizes as in its model"
        )
    numbers = sum(np.size(value) for value in fresh.values()), sum(np.size(fresh[name]) for name in taken)
    return params, Report(taken, anew, unused, numbers)


def check_fits(params: dict[str, Any], model: Transformer, path: Path) -> None:
    """Checks that a checkpoint holds all parameters of a model and no others."""
    expected = param_shapes(model.config, model.ids)
    got = {name: value.shape for name, value in params.items()}
    if expected == got:
        return
    differ = [
        f"{name}: expected {expected.get(name, 'none')}, got {got.get(name, 'none')}"
        for name in sorted(expected.keys() | got.keys())
        if expected.get(name) != got.get(name)
    ]
    more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
    raise PadirError(
        f"{path} does not fit the configuration ({'; '.join(differ[:3])}{more}): give the right ModelConfig and"
        " Objective, or take the parameters that fit with partial=True"
    )


def write_description(model_dir: str | PathLike[str], card: ModelCard, tokenizer: Tokenizer) -> None:
    """Writes padir.json (the model card) and vocab.model beside a T5X run's checkpoints, also at an address."""
    if "://" not in str(model_dir):
        tokenizer.save(Path(model_dir) / VOCABULARY)
        write_json(Path(model_dir) / CARD, card.to_json())
        return
    folder = epath.Path(model_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / VOCABULARY).write_bytes(tokenizer.model_bytes)
    (folder / CARD).write_text(json.dumps(card.to_json(), indent=1, ensure_ascii=False) + "\n")


def read_description(path: str | PathLike[str], step: int | None = None) -> tuple[ModelCard, Tokenizer] | None:
    """Reads the model card and vocabulary that `write_description` wrote beside a checkpoint; None without a card."""
    folder = find(path, step).absolute().parent
    card = _read_card(folder)
    return (
        None
        if card is None
        else (card, Tokenizer.load(folder / VOCABULARY, card.ids.num_sentinels, card.ids.num_placeholders))
    )


def _read_card(folder: Path) -> ModelCard | None:
    """The card in padir.json; None without such a file."""
    if not (folder / CARD).is_file():
        return None
    return card_of(folder / CARD)


def import_model(
    path: str | PathLike[str],
    output: str | PathLike[str],
    card: ModelCard,
    tokenizer: Tokenizer,
    *,
    step: int | None = None,
    partial: bool = False,
    seed: int = 0,
    dtype: str = "float32",
) -> Report:
    """Makes a model directory from a T5X checkpoint.

    Args:
      path, step: the checkpoint, as in `padir.interop.t5x.checkpoint.find`.
      card: the model's card; its step becomes the checkpoint's, unless `partial`.
      partial: take the parameters that match (`take`) and initialise the others; if False, all must match.
      dtype: dtype of the weights in the file, "float32" or "bfloat16".

    Raises:
      PadirError: the checkpoint cannot be read or is of another model, its rejecter head judges other tokens than the
        card says, or the output exists already.
    """
    if (Path(output) / "manifest.json").exists():
        raise PadirError(f"{output} holds a model already: give another folder, or remove it")
    expected = param_shapes(card.config, card.ids)

    def can_agree(name: str, shape: tuple[int, ...]) -> bool:
        sizes = expected.get(name, ())
        return len(shape) == len(sizes) and all(s <= e + _MOST_PADDING for s, e in zip(shape, sizes, strict=True))

    checkpoint = read(path, step, wanted=can_agree)
    _check_rejecter(checkpoint, card)
    rows = next(iter(checkpoint.params.get("token_embedder/embedding", np.empty(0)).shape), 0)
    if not partial and 0 < rows - card.ids.num_embeddings <= _MOST_PADDING:  # padded for sharding
        card = dataclasses.replace(card, ids=dataclasses.replace(card.ids, num_embeddings=rows))
    model = Transformer(card.config, card.ids)
    if partial:
        variables = jax.jit(model.init)(jax.random.key(seed), *[jnp.ones((1, 1), jnp.int32)] * 4)
        fresh: dict[str, Any] = flax.traverse_util.flatten_dict(jax.device_get(variables["params"]), sep="/")
        params, report = take(fresh, checkpoint.params, causal=card.config.causal)
        card = dataclasses.replace(card, step=0, weights=Weights(steps=(0,)))
    else:
        check_fits(checkpoint.params, model, checkpoint.path)
        params = checkpoint.params
        count = sum(value.size for value in params.values())
        report = Report(dict.fromkeys(params, ""), {}, {}, (count, count))
        card = dataclasses.replace(card, step=checkpoint.step, weights=Weights(steps=(checkpoint.step,)))
    tree = flax.traverse_util.unflatten_dict(params, sep="/")
    origin = f"# from the T5X checkpoint of step {checkpoint.step}, {checkpoint.path.name}\n"
    save_model(Path(output), tree, card, tokenizer, origin, dtype=dtype)
    return report


def _check_rejecter(checkpoint: T5XCheckpoint, card: ModelCard) -> None:
    """Refuses a rejecter head of the published implementation if the card says that it judges the shown tokens."""
    head = any(name.startswith("rejecter/") for name in checkpoint.params)
    if head and card.config.rejecter and card.config.rejecter_judges == "token":
        if not (checkpoint.path.absolute().parent / CARD).is_file():  # no run with padir's adapter
            raise PadirError(
                "ModelConfig.rejecter_judges",
                "'prediction' for a checkpoint without padir.json, because the published rejecter head judges what the"
                " model predicts",
                "token",
                "set it, or restore padir.json beside the checkpoint",
            )


def export_checkpoint(model: str | PathLike[str], output: str | PathLike[str]) -> Path:
    """Writes a model directory's weights as a T5X checkpoint, with padir.json and vocab.model beside it.

    Args:
      model: a model directory, or the name of a model that comes with padir.
      output: the folder that gets `checkpoint_<step>/`, which is returned, and can be the model_dir of a T5X run.

    Raises:
      PadirError: the model cannot be read, the checkpoint exists already, or the folder has another model's
        checkpoints.
    """
    params, card, tokenizer = load_model(model)
    _check_alike(Path(output), card, tokenizer)
    write_description(output, card, tokenizer)  # first, as a checkpoint without it cannot be imported
    return write(output, params, card.step)


def _check_alike(folder: Path, card: ModelCard, tokenizer: Tokenizer) -> None:
    """Refuses a folder whose checkpoints padir.json and vocab.model describe as another model."""
    before = _read_card(folder) or card
    # Step, metrics and weights may differ from one checkpoint to the next.
    expected = dataclasses.replace(before, step=card.step, metrics=card.metrics, weights=card.weights)
    vocabulary = folder / VOCABULARY
    if expected != card or (vocabulary.is_file() and vocabulary.read_bytes() != tokenizer.model_bytes):
        languages = f"{before.source_language}-{before.target_language}"
        what = f"{folder} holds checkpoints of another model, as its {CARD} ({languages}) and {VOCABULARY} say"
        raise PadirError(what, remedy="give another folder")


def check_described(folder: Path, card: ModelCard, tokenizer: Tokenizer) -> None:
    """Refuses a folder whose checkpoints are of other languages or another vocabulary than the card and tokenizer.

    Sizes need no check, because T5X refuses other shapes; the other fields of an exported model's card may differ.
    """
    if (before := _read_card(folder)) is not None:
        source, target = card.source_language, card.target_language
        _check_alike(folder, dataclasses.replace(before, source_language=source, target_language=target), tokenizer)

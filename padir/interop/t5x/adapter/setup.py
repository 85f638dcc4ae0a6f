"""Parts of a T5X run that gin files name beside the model: the Task, axis rules, learning rate and padir.json."""

from __future__ import annotations

from typing import Any

import jax
import optax
from flax.core import FrozenDict, freeze, unfreeze
from t5x import adafactor, gin_utils, partitioning

from padir.interop import seqio_tasks as tasks
from padir.interop.t5x.adapter.refinement_model import RefinementModel
from padir.interop.t5x.exchange import write_description
from padir.training.optimizer import Cosine

# Logical axes that T5X's own models do not have: rows of the position table, lengths, the two classes of the rejecter.
_REPLICATED = ("abs_position", "length", "keep")


def task(name: str, vocabulary: str, data_dir: str | None = None, num_sentinels: int = 100) -> str:
    """Registers padir's sources as seqio Tasks (`padir.interop.seqio_tasks.register`) and gives a name back.

    Args:
      name: name of the Task to use, such as "toy_de_en".
      vocabulary: the SentencePiece file.
      data_dir: the folder with the files of sources that have files.
      num_sentinels: ids on top of the pieces.

    Raises:
      PadirError: the vocabulary is not one that padir can use.
    """
    tasks.register(vocabulary, data_dir, num_sentinels=num_sentinels)
    return name


def axis_rules() -> list[tuple[str, str | None]]:
    """T5X's standard rules for PjitPartitioner, and those for the axes that only padir's models have."""
    known = partitioning.standard_logical_axis_rules()
    return [*known, *((axis, None) for axis in _REPLICATED if axis not in dict(known))]


def factor_rules() -> FrozenDict:
    """T5X's standard rules for Adafactor, and those for the axes that only padir's models have.

    With them the same second moments are factored as by `padir.training.optimizer.Adafactor`.
    """
    own = {axis: adafactor.FactorDim.COLUMN for axis in _REPLICATED}
    return freeze({**own, **unfreeze(adafactor.standard_logical_factor_rules())})


def learning_rate(num_steps: int, schedule: Cosine = Cosine()) -> optax.Schedule:
    """padir's learning rate for T5X's Trainer: that of each step from 0 on, with T5X's steps in all."""
    return schedule.schedule(num_steps)


def summarize(model_dir: str, summary_writer: Any, step: int, model: RefinementModel) -> None:
    """T5X's config.gin, and beside it what padir needs to load the checkpoints: padir.json and vocab.model."""
    gin_utils.summarize_gin_config(model_dir, summary_writer, step)
    if jax.process_index() == 0:
        write_description(model_dir, model.card, model.tokenizer)
